"""Reading a call of LiteLLM's, and switching off its own retries in it.

Invariant: a call is changed on a copy only.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from holdfast.integrations.recovery_warning import warn
from holdfast.policies.target import Target
from holdfast.runtime.credentials import name_of_key

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["another", "limited_to", "plain", "target_of"]

_RETRIES = ("num_retries", "max_retries", "retry_policy")
_FALLBACKS = ("fallbacks", "context_window_fallback_dict")
_OF_A_PROVIDER = frozenset({"api_key", "api_base", "base_url", "api_version", "custom_llm_provider", "extra_headers"})
_ABOVE = 3
"""Frames between whoever calls LiteLLM and a warning about the call."""


def plain(kwargs: Mapping[str, Any], *, routed: bool) -> dict[str, Any]:
    """Return a call's options without retries of LiteLLM's own; warn of what was asked for, and of what remains."""
    for option in _RETRIES:
        if kwargs.get(option):
            warn(
                f"retries are the policy's here, so {option}=… has no effect: give `recovering` a policy", above=_ABOVE
            )
    changed = {**kwargs, "num_retries": 0, "max_retries": 0}
    changed.pop("retry_policy", None)
    if routed:
        changed["disable_fallbacks"] = True
    else:
        _warn_of_the_rest(kwargs)
    return changed


def _warn_of_the_rest(kwargs: Mapping[str, Any]) -> None:
    for option in _FALLBACKS:
        if kwargs.get(option):
            warn(
                f"LiteLLM's own {option}=… make an attempt more than one request: give `recovering` fallbacks=[…]",
                above=_ABOVE + 1,
            )
    everywhere = getattr(sys.modules.get("litellm"), "num_retries", None)
    if everywhere:
        warn(
            f"litellm.num_retries={everywhere} lets LiteLLM retry below each attempt: set it to None",
            above=_ABOVE + 1,
        )


def target_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str | None, *, routed: bool) -> Target:
    """Return what a call is aimed at: provider, model and key; with a Router the group, whose deployments are its own."""
    model = args[0] if args else kwargs.get("model")
    model = model if isinstance(model, str) else ""
    if routed:
        return Target(provider=f"{name}/{model}" if name else model)
    provider, model = _provider_of(model, kwargs)
    key = kwargs.get("api_key")
    return Target(
        provider=name or provider, model=model, credential=name_of_key(key) if isinstance(key, str) and key else ""
    )


def _provider_of(model: str, kwargs: Mapping[str, Any]) -> tuple[str, str]:
    if told := kwargs.get("custom_llm_provider"):
        return str(told), model
    try:
        found = sys.modules["litellm"].get_llm_provider(model=model, api_base=kwargs.get("api_base"))
        return str(found[1]), str(found[0])
    except Exception:  # noqa: BLE001 - LiteLLM knows no provider for it, and will say so itself when it is called
        provider, _, rest = model.rpartition("/")
        return provider or "litellm", rest


def limited_to(seconds: float | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's options with no time limit above `seconds`: what blocks a thread has no other limit."""
    given = kwargs.get("timeout")
    if seconds is None or len(args) > 2 or not isinstance(given, int | float | None):
        return kwargs
    return {**kwargs, "timeout": seconds if given is None else min(given, seconds)}


def another(
    instead: str | Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, routed: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the call with what a fallback changes in it. A provider's key and address are not taken along to another."""
    changes: dict[str, Any] = {"model": instead} if isinstance(instead, str) else dict(instead)
    kept = dict(kwargs)
    if not routed and _elsewhere(changes, args, kwargs):
        kept = {option: value for option, value in kwargs.items() if option not in _OF_A_PROVIDER}
    if args and "model" in changes:
        args = (changes.pop("model"), *args[1:])
    return args, {**kept, **changes}


def _elsewhere(changes: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    model = args[0] if args else kwargs.get("model")
    before, _ = _provider_of(str(model), kwargs)
    after, _ = _provider_of(str(changes.get("model", model)), changes)
    return before != after
