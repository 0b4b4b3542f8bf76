"""Decorated functions: real functions of the same kind, with their fallbacks and `.outcome` on them.

Invariant: a decorated function keeps its name and signature, can be pickled as before, and `iscoroutinefunction` gives
the same answer. The generics here exist for the type checker only.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from holdfast.faults import Err, InvalidError, Ok
from holdfast.policies.repair import Repair
from holdfast.runtime.callables import is_async, name_of, reject_generator
from holdfast.runtime.drivers import drive, drive_async
from holdfast.runtime.fallback import Chain, check_step, drive_chain, drive_chain_async
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.operation import Operation
from holdfast.runtime.plan import PLAN_ATTRIBUTE
from holdfast.runtime.runtime import CHANGES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Concatenate, overload

    from holdfast.faults import Code, Fault, Outcome
    from holdfast.policies.repair import Action
    from holdfast.runtime.fallback import CacheStore, Consent, When
    from holdfast.runtime.plan import Plan

__all__ = ["AsyncRecovered", "Recovered", "decorate", "outcome_of"]

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


if TYPE_CHECKING:

    class _Steps(Generic[P, T]):
        def cached(
            self,
            *,
            ttl: float,
            key: Callable[P, str] | None = None,
            store: CacheStore | None = None,
        ) -> None:
            """Answer with the last good answer to the same call when every fallback has failed. See `Chain.cached`."""

        def notify(self, fn: Callable[[Fault], object]) -> Callable[[Fault], object]:
            """Call `fn` with the fault when every step has failed; the original error is raised afterwards."""
            ...

        def repair(
            self, *words: Action | Code, times: int = 1
        ) -> Callable[[Callable[Concatenate[Fault, P], object]], Callable[Concatenate[Fault, P], object]]:
            """Add a function that changes the request before it is sent again; it gets the fault and the arguments."""
            ...

        def steps(self) -> tuple[str, ...]:
            """Return the names of the fallbacks, in order."""
            ...

    class AsyncRecovered(_Steps[P, T]):
        """An async function that recovers."""

        __name__: str
        __qualname__: str
        __wrapped__: Callable[P, Coroutine[Any, Any, T]]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...

        def outcome(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Outcome[T]]:
            """Call it and return `Ok` or `Err` with every attempt. It raises only cancellations and interrupts."""
            ...

        @overload
        def fallback(self, fn: Callable[P, Awaitable[T]], /) -> Callable[P, Awaitable[T]]: ...
        @overload
        def fallback(self, fn: Callable[P, T], /) -> Callable[P, T]: ...
        @overload
        def fallback(
            self,
            *,
            when: When | None = None,
            name: str = "",
            offers: frozenset[str] | None = None,
            consent: Consent = "configured",
        ) -> Callable[[Callable[P, Awaitable[T] | T]], Callable[P, Awaitable[T] | T]]: ...
        def fallback(self, *args: Any, **options: Any) -> Any:
            """Add a function to call when this one has failed for good. See `Chain.fallback`."""

        @overload
        def degraded(
            self, fn: Callable[Concatenate[Fault, P], Awaitable[T]], /
        ) -> Callable[Concatenate[Fault, P], Awaitable[T]]: ...
        @overload
        def degraded(self, fn: Callable[Concatenate[Fault, P], T], /) -> Callable[Concatenate[Fault, P], T]: ...
        def degraded(self, fn: Any) -> Any:
            """Set the function that answers when everything else has failed. See `Chain.degraded`."""

    class Recovered(_Steps[P, T]):
        """A function that recovers."""

        __name__: str
        __qualname__: str
        __wrapped__: Callable[P, T]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...

        def outcome(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
            """Call it and return `Ok` or `Err` with every attempt. It raises only cancellations and interrupts."""
            ...

        @overload
        def fallback(self, fn: Callable[P, T], /) -> Callable[P, T]: ...
        @overload
        def fallback(
            self,
            *,
            when: When | None = None,
            name: str = "",
            offers: frozenset[str] | None = None,
            consent: Consent = "configured",
        ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
        def fallback(self, *args: Any, **options: Any) -> Any:
            """Add a function to call when this one has failed for good. See `Chain.fallback`."""

        def degraded(self, fn: Callable[Concatenate[Fault, P], T], /) -> Callable[Concatenate[Fault, P], T]:
            """Set the function that answers when everything else has failed. See `Chain.degraded`."""
            ...

else:
    AsyncRecovered = Recovered = None


def decorate(plan: Plan, fn: Callable[..., Any]) -> Any:
    """Return `fn` with recovery around it, as a function of the same kind."""
    if isinstance(fn, (staticmethod, classmethod)):
        # Recovery is put around the plain function, and a new static or class method around the result.
        kind, inner = type(fn), decorate(plan, fn.__func__)
        method = kind(inner)
        method.__dict__.update(inner.__dict__)
        return method
    if not callable(fn):
        raise InvalidError.at("recover(…)", "a function", fn)
    reject_generator(fn)
    plan = plan.copy_for(fn)
    chain = Chain(fn)
    wrapper = _async(plan, chain, fn) if is_async(fn) else _sync(plan, chain, fn)
    functools.update_wrapper(wrapper, fn)
    wrapper.fallback = chain.fallback
    wrapper.cached = chain.cached
    wrapper.degraded = chain.degraded
    wrapper.notify = chain.notify
    wrapper.repair = _repair(plan, fn)
    wrapper.steps = chain.names
    wrapper.outcome = outcome_of(plan, chain)
    setattr(wrapper, PLAN_ATTRIBUTE, plan)
    return wrapper


def outcome_of(plan: Plan, chain: Chain) -> Any:
    """Return a function that makes the call of the chain and returns `Ok` or `Err`."""
    fn = chain.fn
    return _outcome_async(plan, chain, fn) if is_async(fn) else _outcome(plan, chain, fn)


def _repair(plan: Plan, fn: Callable[..., Any]) -> Any:
    def repair(*words: str, times: int = 1) -> Callable[[F], F]:
        """Add a function that changes the request after a failure, before it is sent again.

        `words` are kinds of repairs (`compact`, `shrink`, `reask`, `refresh`, `switch`, `decompose`, `ask`) or codes. The
        function gets the fault and the call's arguments. It returns `Changed(…)` with other arguments, True if it refreshed
        a credential, or None if it cannot help; then the error is raised. It runs at most `times` times in one call.
        Unknown words raise `InvalidError`.

            @answer.repair("compact")
            def shorten(fault, question):
                return Changed(question[:1000])
        """

        def add(repairer: F) -> F:
            check_step("repair", repairer, fn)
            plan.repairs.append((Repair.of(words, name_of(repairer).rpartition(".")[2], times), repairer))
            return repairer

        return add

    return repair


def _async(plan: Plan, chain: Chain, fn: Callable[..., Any]) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        # The check of `Plan.fresh` is repeated here. If nothing has changed, the call saves a method call.
        nonlocal plan
        if plan.seen != CHANGES.count:
            plan = plan.fresh()
        if plan.off:
            return await fn(*args, **kwargs)
        op = Operation(plan)
        if chain.configured:
            return await drive_chain_async(op, chain, drive_async(op, fn, args, kwargs), args, kwargs)
        return await drive_async(op, fn, args, kwargs)

    return wrapper


def _sync(plan: Plan, chain: Chain, fn: Callable[..., Any]) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal plan
        if plan.seen != CHANGES.count:
            plan = plan.fresh()
        if plan.off:
            return fn(*args, **kwargs)
        if chain.configured:
            return drive_chain(Operation(plan), chain, fn, args, kwargs)
        return drive(Operation(plan), fn, args, kwargs)

    return wrapper


def _outcome_async(plan: Plan, chain: Chain, fn: Any) -> Any:
    async def outcome(*args: Any, **kwargs: Any) -> Outcome[Any]:
        """Make the call and return `Ok` or `Err` with every attempt. It raises only cancellations and interrupts."""
        nonlocal plan
        plan = plan.fresh()
        op = Operation(plan)
        call = drive_async(op, fn, args, kwargs)
        return await _concluded(op, drive_chain_async(op, chain, call, args, kwargs) if _chains(op, chain) else call)

    return outcome


def _outcome(plan: Plan, chain: Chain, fn: Any) -> Any:
    def outcome(*args: Any, **kwargs: Any) -> Any:
        """Make the call and return `Ok` or `Err` with every attempt. It raises only interrupts.

        An interrupt is an exception such as `KeyboardInterrupt`, which is no failure of the call.

            outcome = answer.outcome("hi")
            if isinstance(outcome, Err):
                print(outcome.fault.code, outcome.fault.attempts)
        """
        nonlocal plan
        plan = plan.fresh()
        op = Operation(plan)
        try:
            value = drive_chain(op, chain, fn, args, kwargs) if _chains(op, chain) else drive(op, fn, args, kwargs)
        except Exception as error:  # noqa: BLE001 - an outcome holds any error
            return Err(fault_of(error), error)
        # A plain function may return an awaitable. Then `outcome` returns an awaitable too.
        return _concluded(op, value) if hasattr(value, "__await__") else _ok(op, value)

    return outcome


async def _concluded(op: Operation, call: Awaitable[Any]) -> Outcome[Any]:
    try:
        value = await call
    except Exception as error:  # noqa: BLE001 - an outcome holds any error
        return Err(fault_of(error), error)
    return _ok(op, value)


def _ok(op: Operation, value: Any) -> Outcome[Any]:
    return Ok(value, via=op.via, attempts=op.timeline(value))


def _chains(op: Operation, chain: Chain) -> bool:
    return chain.configured and not op.plan.off
