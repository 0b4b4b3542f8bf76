"""LiteLLM's `completion` and `acompletion`, and its `Router`, recovered: `recovering(litellm.completion)`.

    calls    one of LiteLLM's functions with recovery around it, and what is asked instead
    asked    reading a call: its model, its provider, its key; switching off LiteLLM's own retries
    streams  LiteLLM's streams: held until their first content, watched from there to the end

Invariant: LiteLLM is never imported here; whoever hands over one of its functions has done so. One attempt is one request.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.faults import InvalidError
from holdfast.integrations.litellm.calls import Calls, Options
from holdfast.integrations.recovery_warning import RECOVERS, RecoveryWarning, warn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["RecoveryWarning", "recovering"]

T = TypeVar("T")

_FUNCTIONS = ("completion", "acompletion")
_FALLBACKS = ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks")


def recovering(
    target: T,
    *,
    policy: Policy | None = None,
    name: str | None = None,
    fallbacks: Sequence[str | Mapping[str, Any]] = (),
    runtime: Runtime | None = None,
) -> T:
    """Return `litellm.completion` or `litellm.acompletion` with recovery around it, or a Router whose two calls have it.

    `fallbacks` are asked, in order, when a call has failed for good: models by name (with a Router: its groups), or what else
    to change in the call, such as `{"model": "…", "api_key": "…"}`. `name` is what circuits and events call the provider (by
    default what LiteLLM calls it; with a Router, the group).
    """
    if name is not None and not name:
        raise InvalidError.at("recovering.name", "a name such as 'openai', or None", name)
    if getattr(target, RECOVERS, False):
        raise InvalidError.saying("recovering.target", "one that does not recover yet", "one that does")
    options = Options(policy=policy, name=name, fallbacks=tuple(fallbacks), runtime=runtime)
    given: Any = target
    recovered: T
    if _is_router(given):
        recovered = _router(given, options)
    elif _is_function(given):
        recovered = Calls(given, options, routed=False).function()
    else:
        raise InvalidError.at("recovering.target", "litellm.completion, litellm.acompletion or a Router", target)
    return recovered


def _is_router(target: Any) -> bool:
    return any(cls.__module__ == "litellm.router" and cls.__name__ == "Router" for cls in type(target).__mro__)


def _is_function(target: Any) -> bool:
    of_litellm = str(getattr(target, "__module__", "")).partition(".")[0] == "litellm"
    return callable(target) and of_litellm and getattr(target, "__name__", "") in _FUNCTIONS and not _is_method(target)


def _is_method(target: Any) -> bool:
    return hasattr(target, "__self__")


def _router(router: Any, options: Options) -> Any:
    for configured in _FALLBACKS:
        if getattr(router, configured, None):
            warn(f"the Router's {configured} are off here: give `recovering` fallbacks=[…]", above=1)
    clone = copy.copy(router)
    for function in _FUNCTIONS:
        setattr(clone, function, Calls(getattr(router, function), options, routed=True).function())
    setattr(clone, RECOVERS, True)
    return clone
