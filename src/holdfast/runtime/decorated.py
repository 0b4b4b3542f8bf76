"""Decorated functions: real functions of the same kind, with their fallbacks and `.outcome` on them.

Invariant: a decorated function keeps its name and signature, can be pickled as before, and `iscoroutinefunction` gives
the same answer. The generics here exist for the type checker only.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from holdfast import options
from holdfast.faults import Err, InvalidError, Ok
from holdfast.policies.repair import Repair
from holdfast.runtime.callables import is_async, name_of, reject_generator
from holdfast.runtime.fallbacks.fallback import Chain, drive_chain, drive_chain_async
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.operation.drivers import drive, drive_async
from holdfast.runtime.operation.due_repair import Repairer
from holdfast.runtime.operation.errors import reject_again
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.plan import PLAN_ATTRIBUTE
from holdfast.runtime.operation.recovery_warnings import warn_of_options
from holdfast.runtime.operation.reports import timeline
from holdfast.runtime.runtime import CHANGES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Concatenate, overload

    from holdfast.faults import Code, Fault, Outcome
    from holdfast.policies.repair import Action
    from holdfast.runtime.fallbacks.fallback import CacheStore, Consent, When
    from holdfast.runtime.operation.plan import Plan

__all__ = ["AsyncRecovered", "Recovered", "decorate", "outcome_of"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


if TYPE_CHECKING:

    class _AddsRepair(Generic[P]):
        @overload
        def __call__(  # type: ignore[overload-overlap] # the first overload that fits counts
            self, fn: Callable[Concatenate[Fault, P], R], /
        ) -> Callable[Concatenate[Fault, P], R]: ...
        @overload
        def __call__(
            self: _AddsRepair[Concatenate[S, Q]], fn: Callable[Concatenate[S, Fault, Q], R], /
        ) -> Callable[Concatenate[S, Fault, Q], R]: ...
        def __call__(self, fn: Any) -> Any: ...

    class _Steps(Generic[P, T]):
        def cached(
            self,
            ttl: float,
            *,
            key: Callable[P, str] | None = None,
            store: CacheStore | None = None,
        ) -> None:
            """Keep the primary's good answers, and answer the same call with the last one when every fallback has failed.

            ttl: seconds. An older answer is not used.
            key: a function of the call's arguments that names the call. Without it the arguments must be plain JSON values. A
                method needs it, because `self` is an argument too.
            store: keeps the answers: `get(key, now)` and `put(key, value, now, ttl)`. By default the memory of this process.

            Wrong options raise `InvalidError`.

                answer.cached(ttl=600)
            """

        @overload
        def notify(self, fn: Callable[[Fault], object], /) -> Callable[[Fault], object]: ...
        @overload
        def notify(
            self: _Steps[Concatenate[S, Q], T], fn: Callable[[S, Fault], object], /
        ) -> Callable[[S, Fault], object]: ...
        def notify(self, fn: Any) -> Any:
            """Call `fn` when every step has failed. Then the primary's error is raised.

            `fn` gets a fault with the code SYS_FALLBACKS_EXHAUSTED; `fault.context["primary"]` is the primary's code. Beside a method it may take `self`, then the fault. If it raises, that is reported as a `SuppressedError` event.

                @answer.notify
                def page_someone(fault): ...
            """

        def repair(self, *words: Action | Code, times: int = 1) -> _AddsRepair[P]:
            """Add a function that changes the request after a failure, before it is sent again.

            words: kinds of repairs (`compact`, `shrink`, `reask`, `refresh`, `switch`, `decompose`, `ask`) or codes.
            times: how often it may run in one call.

            The function gets the fault and the call's arguments; for a method `self`, the fault and the arguments. It returns
            `Changed(…)` with other arguments, True if it refreshed a credential, or None if it cannot help. Unknown words raise
            `InvalidError`.

                @answer.repair("compact")
                def shorten(fault, question):
                    return Changed(question[:1000])
            """
            ...

        def steps(self) -> tuple[str, ...]:
            """Return the names of the fallbacks, in order."""
            ...

    class AsyncRecovered(_Steps[P, T]):
        """An async function that recovers: what `@recover(…)` makes of one. Call and await it as before."""

        __name__: str
        __qualname__: str
        __wrapped__: Callable[P, Coroutine[Any, Any, T]]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...

        @overload
        def __get__(  # type: ignore[misc] # mypy does not see that `self` is such a callable where it binds a class
            self: Callable[Concatenate[type[S], Q], Coroutine[Any, Any, T]], instance: S | None, owner: type[S], /
        ) -> AsyncRecovered[Q, T]: ...
        @overload
        def __get__(self, instance: None, owner: type[Any], /) -> AsyncRecovered[P, T]: ...
        @overload
        def __get__(
            self: Callable[Concatenate[S, Q], Coroutine[Any, Any, T]], instance: S, owner: type[Any] | None = None, /
        ) -> AsyncRecovered[Q, T]: ...
        @overload
        def __get__(self, instance: object, owner: type[Any] | None = None, /) -> AsyncRecovered[P, T]: ...
        def __get__(self, instance: object, owner: type[Any] | None = None, /) -> Any:
            """Bind it to an object as a method, or to the class as a class method."""

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
            """Add a function to call when this one has failed for good. Fallbacks are called in the order they are added.

            when: codes or categories (`"rate_limit"`), or a plain function of the latest and the first fault. Other failures
                skip this fallback.
            name: its name in events and in `Ok.via`. By default the name of the function.
            offers: its capabilities, which must cover `needs` of `recover`.
            consent: with `"ask"` the runtime's `consent` function must agree each time.

            A fallback with a `@recover` of its own is skipped while its circuit is open. If all fail, the first error is
            raised. Wrong options raise `InvalidError`, and so does a fallback that cannot take the same arguments. A
            fallback of a method gets `self` first.

                @answer.fallback(when="rate_limit")
                async def by_openai(question): ...
            """

        @overload
        def degraded(  # type: ignore[overload-overlap] # the first overload that fits counts
            self, fn: Callable[Concatenate[Fault, P], Awaitable[T]], /
        ) -> Callable[Concatenate[Fault, P], Awaitable[T]]: ...
        @overload
        def degraded(  # type: ignore[overload-overlap] # the first overload that fits counts
            self: AsyncRecovered[Concatenate[S, Q], T], fn: Callable[Concatenate[S, Fault, Q], Awaitable[T]], /
        ) -> Callable[Concatenate[S, Fault, Q], Awaitable[T]]: ...
        @overload
        def degraded(  # type: ignore[overload-overlap] # the first overload that fits counts
            self, fn: Callable[Concatenate[Fault, P], T], /
        ) -> Callable[Concatenate[Fault, P], T]: ...
        @overload
        def degraded(
            self: AsyncRecovered[Concatenate[S, Q], T], fn: Callable[Concatenate[S, Fault, Q], T], /
        ) -> Callable[Concatenate[S, Fault, Q], T]: ...
        def degraded(self, fn: Any) -> Any:
            """Set the function that answers when everything else has failed. It gets the primary's fault, then the arguments.

            For a method it gets `self`, then the fault, then the arguments. Raises `InvalidError` for a function whose
            parameters do not fit.

                @answer.degraded
                def sorry(fault, question):
                    return fault.for_user()
            """

    class Recovered(_Steps[P, T]):
        """A function that recovers: what `@recover(…)` makes of a plain one. Call it as before."""

        __name__: str
        __qualname__: str
        __wrapped__: Callable[P, T]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...

        @overload
        def __get__(  # type: ignore[misc] # mypy does not see that `self` is such a callable where it binds a class
            self: Callable[Concatenate[type[S], Q], T], instance: S | None, owner: type[S], /
        ) -> Recovered[Q, T]: ...
        @overload
        def __get__(self, instance: None, owner: type[Any], /) -> Recovered[P, T]: ...
        @overload
        def __get__(
            self: Callable[Concatenate[S, Q], T], instance: S, owner: type[Any] | None = None, /
        ) -> Recovered[Q, T]: ...
        @overload
        def __get__(self, instance: object, owner: type[Any] | None = None, /) -> Recovered[P, T]: ...
        def __get__(self, instance: object, owner: type[Any] | None = None, /) -> Any:
            """Bind it to an object as a method, or to the class as a class method."""

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
            """Add a function to call when this one has failed for good. Fallbacks are called in the order they are added.

            when: codes or categories (`"rate_limit"`), or a plain function of the latest and the first fault. Other failures
                skip this fallback.
            name: its name in events and in `Ok.via`. By default the name of the function.
            offers: its capabilities, which must cover `needs` of `recover`.
            consent: with `"ask"` the runtime's `consent` function must agree each time.

            A fallback with a `@recover` of its own is skipped while its circuit is open. If all fail, the first error is
            raised. Wrong options raise `InvalidError`, and so does a fallback that cannot take the same arguments, or that is async. A
            fallback of a method gets `self` first.

                @answer.fallback(when="rate_limit")
                def by_openai(question): ...
            """

        @overload
        def degraded(  # type: ignore[overload-overlap] # the first overload that fits counts
            self, fn: Callable[Concatenate[Fault, P], T], /
        ) -> Callable[Concatenate[Fault, P], T]: ...
        @overload
        def degraded(
            self: Recovered[Concatenate[S, Q], T], fn: Callable[Concatenate[S, Fault, Q], T], /
        ) -> Callable[Concatenate[S, Fault, Q], T]: ...
        def degraded(self, fn: Any) -> Any:
            """Set the function that answers when everything else has failed. It gets the primary's fault, then the arguments.

            For a method it gets `self`, then the fault, then the arguments. Raises `InvalidError` for a function whose
            parameters do not fit, or that is async.

                @answer.degraded
                def sorry(fault, question):
                    return fault.for_user()
            """

else:
    AsyncRecovered = Recovered = None


def decorate(plan: Plan, fn: Any) -> Any:
    """Return `fn` with recovery around it, as a function of the same kind."""
    if type(fn) is _Method:
        return _Method(_function(plan, fn._fn, of_method=True), of_class=fn._of_class)  # noqa: SLF001 - of this module
    if isinstance(fn, staticmethod):
        # Recovery is put around the plain function, and a new static method around the result.
        inner = _function(plan, fn.__func__, of_method=False)
        static = staticmethod(inner)
        static.__dict__.update(inner.__dict__)
        return static
    if isinstance(fn, classmethod):
        return _Method(_function(plan, fn.__func__, of_method=True), of_class=True)
    in_class = _is_in_class(fn)
    wrapper = _function(plan, fn, of_method=in_class)
    # Python binds a method, but not the `outcome` that hangs on it. So a function of a class binds itself.
    return _Method(wrapper) if in_class else wrapper


def _function(plan: Plan, fn: Any, *, of_method: bool) -> Any:
    options.function("recover(…)", fn, "recover(…).call(f, …)")
    reject_generator(fn)
    plan = plan.copy_for(fn)
    warn_of_options(plan, fn)
    chain = Chain(fn, of_method=of_method)
    wrapper = _async(plan, chain, fn) if is_async(fn) else _sync(plan, chain, fn)
    functools.update_wrapper(wrapper, fn)
    # `update_wrapper` leaves these out. The wrapper passes every argument on, so they change no call.
    wrapper.__defaults__ = getattr(fn, "__defaults__", None)
    wrapper.__kwdefaults__ = getattr(fn, "__kwdefaults__", None)
    wrapper.fallback = chain.fallback
    wrapper.cached = chain.cached
    wrapper.degraded = chain.degraded
    wrapper.notify = chain.notify
    wrapper.repair = _repair(plan, fn, of_method=of_method)
    wrapper.steps = chain.names
    wrapper.outcome = outcome_of(plan, chain)
    setattr(wrapper, PLAN_ATTRIBUTE, plan)
    return wrapper


def _is_in_class(fn: Any) -> bool:
    """Whether the function was defined in the body of a class. Its name shows that: `Agent.ask`."""
    around = str(getattr(fn, "__qualname__", "")).rpartition(".")[0]
    return isinstance(fn, FunctionType) and bool(around) and not around.endswith("<locals>")


class _Proxy:
    """Stands for a decorated function and passes for a function, also in `isinstance`."""

    __slots__ = ("__dict__", "_fn")

    def __init__(self, fn: Any) -> None:
        self._fn = fn
        # Both have one dict: what a class body sets on the method is on the function too.
        self.__dict__ = fn.__dict__

    @property
    def __class__(self) -> Any:
        # Models of pydantic reject attributes that are neither fields nor functions.
        return FunctionType

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise TypeError("a function's class cannot be changed")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fn(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fn, name)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._fn is self._fn

    def __hash__(self) -> int:
        return hash(self._fn)

    def __reduce_ex__(self, protocol: Any) -> str:
        return str(self._fn.__qualname__)

    def __repr__(self) -> str:
        return repr(self._fn)


class _Method(_Proxy):
    """A decorated method in the dict of its class."""

    __slots__ = ("_of_class",)

    def __init__(self, fn: Any, *, of_class: bool = False) -> None:
        super().__init__(fn)
        self._of_class = of_class
        # Our own classes have these two as well, and they would be found first.
        self.__module__, self.__doc__ = fn.__module__, fn.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if self._of_class:
            instance = type(instance) if owner is None else owner
        elif instance is None:
            return self._fn
        return MethodType(_Bound(self._fn, instance), instance)

    @property
    def outcome(self) -> Any:
        # From Python 3.13 on, `@classmethod` on the outside does not call our `__get__`. It finds this attribute, which cannot
        # know the class. A static method on the outside finds it too, and needs no class.
        code = getattr(inspect.unwrap(self._fn), "__code__", None)
        takes_class = code is not None and code.co_varnames[:1] == ("cls",)
        return functools.partial(_unbound_outcome, self._fn) if takes_class else self._fn.outcome


def _unbound_outcome(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Make the call of a class method for a class that is given first. Raise `InvalidError` if none is."""
    around = str(fn.__qualname__).rpartition(".")[0]
    kind = args[0] if args and isinstance(args[0], type) else object
    if all(base.__qualname__ != around for base in kind.__mro__):
        raise InvalidError.saying(
            f"recover of {name_of(fn)}", "@recover(…) above @classmethod", "@classmethod above it"
        )
    return fn.outcome(*args, **kwargs)


class _Bound(_Proxy):
    """The function of a bound method. The method looks for its attributes here, so `outcome` can know the object."""

    __slots__ = ("_instance",)

    def __init__(self, fn: Any, instance: Any) -> None:
        # Every call of a method comes here, so it repeats the base class instead of calling it.
        self._fn = fn
        self.__dict__ = fn.__dict__
        self._instance = instance

    @property
    def outcome(self) -> Any:
        return functools.partial(self._fn.outcome, self._instance)


def outcome_of(plan: Plan, chain: Chain) -> Any:
    """Return a function that makes the call of the chain and returns `Ok` or `Err`."""
    fn = chain.fn
    return _outcome_async(plan, chain, fn) if is_async(fn) else _outcome(plan, chain, fn)


def _repair(plan: Plan, fn: Callable[..., Any], *, of_method: bool) -> Any:
    def repair(*words: str, times: int = 1) -> Callable[[F], F]:
        """Add a function that changes the request after a failure, before it is sent again.

        `words` are kinds of repairs (`compact`, `shrink`, `reask`, `refresh`, `switch`, `decompose`, `ask`) or codes. The
        function gets the fault and the call's arguments; for a method `self`, the fault and the arguments. It returns
        `Changed(…)` with other arguments, True if it refreshed a credential, or None if it cannot help; then the error is
        raised. It runs at most `times` times in one call. Unknown words raise `InvalidError`, and so does a function whose
        parameters do not fit.

            @answer.repair("compact")
            def shorten(fault, question):
                return Changed(question[:1000])

            @ask.repair("compact")  # in the body of a class
            def ask_shorter(self, fault, question):
                return Changed(question[:1000])
        """

        def add(repairer: F) -> F:
            called = Repairer(repairer, fn, of_method=of_method)
            plan.repairs.append((Repair.of(words, name_of(repairer).rpartition(".")[2], times), called))
            return repairer

        return add

    return repair


def _async(plan: Plan, chain: Chain, fn: Callable[..., Any]) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        # The check of `Plan.fresh` is repeated here. If nothing has changed, the call saves a method call.
        nonlocal plan
        if plan.seen != CHANGES.count:
            if plan.is_shut and plan.looked_up == CHANGES.count and not chain.configured:
                reject_again(plan)
            plan = plan.fresh()
        if plan.bare:
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
            if plan.is_shut and plan.looked_up == CHANGES.count and not chain.configured:
                reject_again(plan)
            plan = plan.fresh()
        if plan.bare:
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
        return await _concluded(op, drive_chain_async(op, chain, call, args, kwargs) if chain.configured else call)

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
            value = drive_chain(op, chain, fn, args, kwargs) if chain.configured else drive(op, fn, args, kwargs)
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
    return Ok(value, via=op.via, attempts=timeline(op, value))
