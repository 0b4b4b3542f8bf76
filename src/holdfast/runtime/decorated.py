"""Decorated functions: real functions of the same kind, with their fallbacks and `.outcome` on them.

Invariant: name, signature, pickling and `iscoroutinefunction` hold; the generics here exist for the type checker only.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from holdfast.faults import Err, Ok
from holdfast.policies.repair import Repair
from holdfast.runtime.binding import BINDING_ATTRIBUTE
from holdfast.runtime.driving import drive, drive_async
from holdfast.runtime.fallbacks import Chain, check_step, fall_back, fall_back_async
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.kinds import is_async, name_of, refuse_generator
from holdfast.runtime.operation import Operation
from holdfast.runtime.runtime import CHANGES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Concatenate, overload

    from holdfast.faults import Code, Fault, Outcome
    from holdfast.policies.repair import Action
    from holdfast.runtime.binding import Binding
    from holdfast.runtime.fallbacks import CacheStore, Consent, When

__all__ = ["AsyncRecovered", "Recovered", "decorate"]

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
            """When all else fails, answer with the last good answer to the same call, if it is younger than `ttl`."""

        def notify(self, fn: Callable[[Fault], object]) -> Callable[[Fault], object]:
            """Tell somebody when every step failed; the original error is raised afterwards."""
            ...

        def repair(
            self, *words: Action | Code, times: int = 1
        ) -> Callable[[Callable[Concatenate[Fault, P], object]], Callable[Concatenate[Fault, P], object]]:
            """Add a repair for failures a changed request answers; it gets the fault and the arguments.

            It returns `Changed(…)` with the arguments to call with instead, True where a refreshed credential was all,
            or None where it cannot help.
            """
            ...

        @property
        def steps(self) -> tuple[str, ...]:
            """The names of the fallbacks, in order."""
            ...

    class AsyncRecovered(_Steps[P, T]):
        """An async function that recovers."""

        __name__: str
        __qualname__: str
        __wrapped__: Callable[P, Coroutine[Any, Any, T]]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...

        def outcome(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Outcome[T]]:
            """Call it and return how it ended as a value, with every attempt."""
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
            """Add what to try when the call has failed for good."""

        @overload
        def degraded(
            self, fn: Callable[Concatenate[Fault, P], Awaitable[T]], /
        ) -> Callable[Concatenate[Fault, P], Awaitable[T]]: ...
        @overload
        def degraded(self, fn: Callable[Concatenate[Fault, P], T], /) -> Callable[Concatenate[Fault, P], T]: ...
        def degraded(self, fn: Any) -> Any:
            """Set the lesser answer for when everything has failed."""

    class Recovered(_Steps[P, T]):
        """A function that recovers."""

        __name__: str
        __qualname__: str
        __wrapped__: Callable[P, T]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...

        def outcome(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
            """Call it and return how it ended as a value, with every attempt."""
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
            """Add what to try when the call has failed for good."""

        def degraded(self, fn: Callable[Concatenate[Fault, P], T], /) -> Callable[Concatenate[Fault, P], T]:
            """Set the lesser answer for when everything has failed."""
            ...

else:
    AsyncRecovered = Recovered = None


def decorate(binding: Binding, fn: Callable[..., Any]) -> Any:
    """Return `fn` with recovery around it, as a function of the same kind."""
    refuse_generator(fn)
    binding = binding.copy_for(fn)
    chain = Chain(binding, fn)
    wrapper = _async(binding, chain, fn) if is_async(fn) else _sync(binding, chain, fn)
    functools.update_wrapper(wrapper, fn)
    wrapper.fallback = chain.fallback
    wrapper.cached = chain.cached
    wrapper.degraded = chain.degraded
    wrapper.notify = chain.notify
    wrapper.repair = _repair(binding, fn)
    wrapper.outcome = _outcome_async(binding, chain, fn) if is_async(fn) else _outcome(binding, chain, fn)
    setattr(wrapper, BINDING_ATTRIBUTE, binding)
    return wrapper


def _repair(binding: Binding, fn: Callable[..., Any]) -> Any:
    def repair(*words: str, times: int = 1) -> Callable[[F], F]:
        def add(mender: F) -> F:
            check_step("repair", mender, fn)
            binding.repairs.append((Repair.of(words, name_of(mender).rpartition(".")[2], times), mender))
            return mender

        return add

    return repair


def _async(binding: Binding, chain: Chain, fn: Callable[..., Any]) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        if binding.seen != CHANGES.count:
            binding.bind()
        if binding.off:
            return await fn(*args, **kwargs)
        if binding.has_fallbacks:
            return await _chained_async(Operation(binding), chain, fn, args, kwargs)
        return await drive_async(Operation(binding), fn, args, kwargs)

    return wrapper


def _sync(binding: Binding, chain: Chain, fn: Callable[..., Any]) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if binding.seen != CHANGES.count:
            binding.bind()
        if binding.off:
            return fn(*args, **kwargs)
        if binding.has_fallbacks:
            return _chained(Operation(binding), chain, fn, args, kwargs)
        return drive(Operation(binding), fn, args, kwargs)

    return wrapper


async def _chained_async(op: Operation, chain: Chain, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        value = await drive_async(op, fn, args, kwargs)
    except Exception as error:  # noqa: BLE001 - each step decides what it answers; what none answers is raised again
        return await fall_back_async(op, chain, error, args, kwargs)
    chain.keep(value, args, kwargs)
    return value


def _chained(op: Operation, chain: Chain, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        value = drive(op, fn, args, kwargs)
    except Exception as error:  # noqa: BLE001 - ditto
        return fall_back(op, chain, error, args, kwargs)
    chain.keep(value, args, kwargs)
    return value


def _outcome_async(binding: Binding, chain: Chain, fn: Any) -> Any:
    async def outcome(*args: Any, **kwargs: Any) -> Outcome[Any]:
        op = Operation(binding.fresh())
        try:
            value = await _chained_async(op, chain, fn, args, kwargs)
        except Exception as error:  # noqa: BLE001 - that is what an outcome is
            return Err(fault_of(error), error)
        return Ok(value, via=op.via, attempts=op.timeline())

    return outcome


def _outcome(binding: Binding, chain: Chain, fn: Any) -> Any:
    def outcome(*args: Any, **kwargs: Any) -> Outcome[Any]:
        op = Operation(binding.fresh())
        try:
            value = _chained(op, chain, fn, args, kwargs)
        except Exception as error:  # noqa: BLE001 - ditto
            return Err(fault_of(error), error)
        return Ok(value, via=op.via, attempts=op.timeline())

    return outcome
