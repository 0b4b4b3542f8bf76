"""One of LiteLLM's functions with recovery around it, and what is asked instead when it has failed for good."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import InvalidError
from holdfast.integrations.litellm.asked import another, limited_to, plain, target_of
from holdfast.integrations.litellm.streams import LiteStream, open_stream, open_stream_async
from holdfast.integrations.recovery_warning import RECOVERS
from holdfast.policies import Policy
from holdfast.runtime.callables import is_async
from holdfast.runtime.drivers import drive, drive_async
from holdfast.runtime.fallback import Chain, drive_chain, drive_chain_async
from holdfast.runtime.operation import Operation
from holdfast.runtime.plan import Plan
from holdfast.runtime.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Calls", "Options"]

_MOST_PLANS = 1024
"""Models times keys; who calls more of them at once pays for making plans anew."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `recovering` was given."""

    policy: Policy | None
    name: str | None
    fallbacks: tuple[Any, ...]
    runtime: Any

    def __post_init__(self) -> None:
        for instead in self.fallbacks:
            if not isinstance(instead, str | Mapping):
                raise InvalidError.at("recovering.fallbacks", "names of models, or what to change in a call", instead)


class Calls:
    """The calls of one function of LiteLLM's."""

    def __init__(self, fn: Callable[..., Any], options: Options, *, routed: bool) -> None:
        self._fn = fn
        self._options = options
        self._routed = routed
        self._plans: dict[Any, Plan] = {}
        self._chain = Chain(fn)
        # A policy that cannot be had is told here, not at the first call.
        Plan(None, options.policy, runtime=options.runtime)

    def function(self) -> Any:
        """Return the function that recovers."""
        return self._async() if is_async(self._fn) else self._sync()

    def _async(self) -> Any:
        for instead in self._options.fallbacks:

            async def step(*args: Any, instead: Any = instead, **kwargs: Any) -> Any:
                args, kwargs = another(instead, args, kwargs, routed=self._routed)
                plan = self._plan(args, kwargs)
                return await drive_async(*self._begun_async(plan, kwargs), args, kwargs)

            self._chain.fallback(step, name=_name_of(instead))

        @functools.wraps(self._fn)
        async def recovered(*args: Any, **kwargs: Any) -> Any:
            plan = self._plan(args, kwargs)
            if plan.off:
                return await self._fn(*args, **kwargs)
            kwargs = plain(kwargs, routed=self._routed)
            op, attempt = self._begun_async(plan, kwargs)
            call = drive_async(op, attempt, args, kwargs)
            return await (drive_chain_async(op, self._chain, call, args, kwargs) if self._chain.configured else call)

        setattr(recovered, RECOVERS, True)
        return recovered

    def _sync(self) -> Any:
        for instead in self._options.fallbacks:

            def step(*args: Any, instead: Any = instead, **kwargs: Any) -> Any:
                args, kwargs = another(instead, args, kwargs, routed=self._routed)
                plan = self._plan(args, kwargs)
                return drive(*self._begun(plan, kwargs), args, kwargs)

            self._chain.fallback(step, name=_name_of(instead))

        @functools.wraps(self._fn)
        def recovered(*args: Any, **kwargs: Any) -> Any:
            plan = self._plan(args, kwargs)
            if plan.off:
                return self._fn(*args, **kwargs)
            kwargs = plain(kwargs, routed=self._routed)
            op, attempt = self._begun(plan, kwargs)
            if self._chain.configured:
                return drive_chain(op, self._chain, attempt, args, kwargs)
            return drive(op, attempt, args, kwargs)

        setattr(recovered, RECOVERS, True)
        return recovered

    def _begun(self, plan: Plan, kwargs: Mapping[str, Any]) -> tuple[Operation, Callable[..., Any]]:
        if not kwargs.get("stream"):
            op = Operation(plan)
            return op, lambda *args, **kwargs: self._fn(*args, **limited_to(op.limit(), args, kwargs))
        flow = LiteStream(plan)

        def attempt(*args: Any, **kwargs: Any) -> Any:
            tokens = flow.surround()
            try:
                return open_stream(flow, self._fn(*args, **limited_to(flow.limit(), args, kwargs)))
            finally:
                Surroundings.leave(tokens)

        return flow, attempt

    def _begun_async(self, plan: Plan, kwargs: Mapping[str, Any]) -> tuple[Operation, Callable[..., Any]]:
        if not kwargs.get("stream"):
            return Operation(plan), self._fn
        flow = LiteStream(plan)

        async def attempt(*args: Any, **kwargs: Any) -> Any:
            tokens = flow.surround()
            try:
                return await open_stream_async(flow, await self._fn(*args, **kwargs))
            finally:
                Surroundings.leave(tokens)

        return flow, attempt

    def _plan(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Plan:
        options = self._options
        asked = (args[0] if args else kwargs.get("model"), kwargs.get("api_key"), kwargs.get("api_base"))
        plan = self._plans.get(asked)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            target = target_of(args, kwargs, options.name, routed=self._routed)
            plan = self._plans[asked] = Plan(target, options.policy, runtime=options.runtime)
        if (fresh := plan.fresh()) is not plan:
            self._plans[asked] = fresh
        return fresh


def _name_of(instead: str | Mapping[str, Any]) -> str:
    return instead if isinstance(instead, str) else str(instead.get("model", "another way"))
