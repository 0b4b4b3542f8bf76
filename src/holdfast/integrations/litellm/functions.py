"""One of LiteLLM's functions with recovery around it: its target, its fallbacks, and LiteLLM's own retries off.

Invariant: only a copy of a call's arguments is changed. One attempt is one request.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import InvalidError
from holdfast.integrations.litellm.streams import CLIENT, open_stream, open_stream_async
from holdfast.integrations.recovery_warnings import RECOVERS, warn, warn_of_sync_hedge
from holdfast.policies import Policy
from holdfast.policies.target import Target, provider_name
from holdfast.runtime.callables import is_async
from holdfast.runtime.fallbacks.fallback import Chain, drive_chain, drive_chain_async
from holdfast.runtime.operation.drivers import call_plainly, call_plainly_async, drive, drive_async
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.plan import Plan, PlanCache
from holdfast.runtime.secrets import name_of_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["FUNCTIONS", "Function", "LiteLLMOptions"]

FUNCTIONS = {
    "completion": 0,
    "acompletion": 0,
    "embedding": 0,
    "aembedding": 0,
    "responses": 1,
    "aresponses": 1,
    "text_completion": 1,
    "atext_completion": 1,
}
"""The functions that recover, and which of their arguments is the model, if it is given by position."""

_RETRIES = ("num_retries", "max_retries", "retry_policy")
_FALLBACKS = ("fallbacks", "context_window_fallback_dict")
_OF_A_PROVIDER = frozenset({"api_key", "api_base", "base_url", "api_version", "custom_llm_provider", "extra_headers"})
_NAMING = ("api_key", "api_base", "base_url", "custom_llm_provider")
"""The options that name the target of a call, besides its model."""


class LiteLLMOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `recovering`."""

    policy: Policy | None
    name: str | None
    fallbacks: tuple[Any, ...]
    runtime: Any

    def __post_init__(self) -> None:
        for changes in self.fallbacks:
            if not isinstance(changes, str | Mapping):
                raise InvalidError.at("recovering.fallbacks", "names of models, or what to change in a call", changes)


class Function:
    """One function of LiteLLM, with recovery around it."""

    def __init__(self, fn: Callable[..., Any], options: LiteLLMOptions, *, routed: bool) -> None:
        self._fn = fn
        self._options = options
        self._routed = routed
        # All functions of a Router take the model first.
        self._position = 0 if routed else FUNCTIONS[fn.__name__]
        self._plans = PlanCache(self._make_plan)
        self._chain = Chain(fn)
        # A policy that is not valid must raise here, where the user wrote it, and not at the first call.
        Plan(None, options.policy, runtime=options.runtime)

    def recovered(self) -> Any:
        """Return the function that recovers."""
        if not is_async(self._fn) and not self._routed:
            warn_of_sync_hedge(self._options.policy, f"litellm.{self._fn.__name__}")
        recovered = self._async() if is_async(self._fn) else self._sync()
        setattr(recovered, RECOVERS, True)
        return recovered

    def _async(self) -> Any:
        async def attempt(*args: Any, **kwargs: Any) -> Any:
            return await self._fn(*args, **kwargs)

        for changes in self._options.fallbacks:

            async def step(*args: Any, changes: Any = changes, **kwargs: Any) -> Any:
                args, kwargs = self._changed(changes, args, kwargs)
                return await drive_async(Operation(self._plan(args, kwargs), CLIENT), attempt, args, kwargs)

            self._chain.fallback(step, name=_name_of(changes))

        @functools.wraps(self._fn)
        async def recovered(*args: Any, **kwargs: Any) -> Any:
            plan = self._plan(args, kwargs)
            if plan.off:
                return await call_plainly_async(plan, self._fn, args, kwargs)
            kwargs = without_retries(kwargs, routed=self._routed)
            # The operation of a stream ends with the stream, not with the call, so it has its own driver and fallbacks.
            if kwargs.get("stream"):
                ways = self._ways(args, kwargs)
                return await open_stream_async(
                    (name, plan, functools.partial(self._fn, *args, **kwargs), kwargs)
                    for name, plan, args, kwargs in ways
                )
            op = Operation(plan, CLIENT)
            call = drive_async(op, attempt, args, kwargs)
            return await (drive_chain_async(op, self._chain, call, args, kwargs) if self._chain.configured else call)

        return recovered

    def _sync(self) -> Any:
        for changes in self._options.fallbacks:

            def step(*args: Any, changes: Any = changes, **kwargs: Any) -> Any:
                args, kwargs = self._changed(changes, args, kwargs)
                op = Operation(self._plan(args, kwargs), CLIENT)
                return drive(op, self._request(op), args, kwargs)

            self._chain.fallback(step, name=_name_of(changes))

        @functools.wraps(self._fn)
        def recovered(*args: Any, **kwargs: Any) -> Any:
            plan = self._plan(args, kwargs)
            if plan.off:
                return call_plainly(plan, self._fn, args, kwargs)
            kwargs = without_retries(kwargs, routed=self._routed)
            if kwargs.get("stream"):
                return open_stream(
                    (name, plan, functools.partial(self._send, args, kwargs), kwargs)
                    for name, plan, args, kwargs in self._ways(args, kwargs)
                )
            op = Operation(plan, CLIENT)
            if self._chain.configured:
                return drive_chain(op, self._chain, self._request(op), args, kwargs)
            return drive(op, self._request(op), args, kwargs)

        return recovered

    def _request(self, op: Operation) -> Callable[..., Any]:
        """Return the function with the operation's limit as its timeout. Nothing else limits a blocking request."""
        return lambda *args, **kwargs: self._fn(*args, **_with_limit(op.limit(), args, kwargs))

    def _send(self, args: tuple[Any, ...], kwargs: dict[str, Any], op: Operation) -> Any:
        return self._request(op)(*args, **kwargs)

    def _ways(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[tuple[str, Plan, tuple[Any, ...], dict[str, Any]]]:
        """Yield the call itself, then its fallbacks: name, plan and arguments."""
        yield "primary", self._plan(args, kwargs), args, kwargs
        for changes in self._options.fallbacks:
            other_args, other_kwargs = self._changed(changes, args, kwargs)
            yield _name_of(changes), self._plan(other_args, other_kwargs), other_args, other_kwargs

    def _model(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return args[self._position] if len(args) > self._position else kwargs.get("model")

    def _plan(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Plan:
        return self._plans.get(self._model(args, kwargs), *(kwargs.get(option) for option in _NAMING))

    def _make_plan(self, model: Any, *naming: Any) -> Plan:
        options = self._options
        kwargs = dict(zip(_NAMING, naming, strict=True))
        target = target_of(model, kwargs, options.name, routed=self._routed)
        return Plan(target, options.policy, through_client=True, asks_model=True, runtime=options.runtime)

    def _changed(
        self, changes: str | Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a fallback. The key and address of one provider are never sent to another provider."""
        changed: dict[str, Any] = {"model": changes} if isinstance(changes, str) else dict(changes)
        kept = dict(kwargs)
        if not self._routed and _is_elsewhere(changed, self._model(args, kwargs), kwargs):
            kept = {option: value for option, value in kwargs.items() if option not in _OF_A_PROVIDER}
        position = self._position
        if len(args) > position and "model" in changed:
            args = (*args[:position], changed.pop("model"), *args[position + 1 :])
        return args, {**kept, **changed}


def _name_of(changes: str | Mapping[str, Any]) -> str:
    return changes if isinstance(changes, str) else str(changes.get("model", "another way"))


def without_retries(kwargs: Mapping[str, Any], *, routed: bool) -> dict[str, Any]:
    """Return a call's options with LiteLLM's own retries off. Warn of options without effect, and of retries that stay on."""
    for option in _RETRIES:
        if kwargs.get(option):
            warn(
                f"the policy decides about retries, so {option}=… has no effect: give `recovering` a policy",
            )
    # Both options are needed: `num_retries` is for LiteLLM's own loop, `max_retries` for the SDK below it.
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
            )
    everywhere = getattr(sys.modules.get("litellm"), "num_retries", None)
    if everywhere:
        warn(
            f"litellm.num_retries={everywhere} makes LiteLLM retry inside each of our attempts: set it to None",
        )


def target_of(model: Any, kwargs: Mapping[str, Any], name: str | None, *, routed: bool) -> Target:
    """Return the provider, model and key of a call. For a Router the provider is its group."""
    model = model if isinstance(model, str) else ""
    if routed:
        return Target(provider=f"{name}/{model}" if name else model)
    provider, model = _provider_of(model, kwargs)
    provider = provider_name(provider, str(kwargs.get("api_base") or kwargs.get("base_url") or ""))
    key = kwargs.get("api_key")
    return Target(
        provider=name or provider, model=model, credential=name_of_key(key) if isinstance(key, str) and key else ""
    )


def _provider_of(model: str, kwargs: Mapping[str, Any]) -> tuple[str, str]:
    if named := kwargs.get("custom_llm_provider"):
        return str(named), model
    try:
        found = sys.modules["litellm"].get_llm_provider(model=model, api_base=kwargs.get("api_base"))
        return str(found[1]), str(found[0])
    except Exception:  # noqa: BLE001 - LiteLLM does not know the provider; the call itself raises that error
        provider, _, rest = model.rpartition("/")
        return provider or "litellm", rest


def _with_limit(seconds: float | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's options with no timeout above `seconds`."""
    timeout = kwargs.get("timeout")
    # With more than two positional arguments, one of them may be the timeout.
    if seconds is None or len(args) > 2 or not isinstance(timeout, int | float | None):
        return kwargs
    return {**kwargs, "timeout": seconds if timeout is None else min(timeout, seconds)}


def _is_elsewhere(changes: Mapping[str, Any], model: Any, kwargs: Mapping[str, Any]) -> bool:
    before, _ = _provider_of(str(model), kwargs)
    after, _ = _provider_of(str(changes.get("model", model)), changes)
    return before != after
