"""`recover`: put a policy around any callable. Sync, async, a stream, or a block as a loop of attempts.

Invariant: what comes out is what went in. A decorated function stays a function of the same kind, and the exception that
surfaces is the one the call raised, unless the failure is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from holdfast.faults import InvalidError
from holdfast.runtime.blocks import AsyncAttempts, Attempts
from holdfast.runtime.callables import is_async, refuse_generator
from holdfast.runtime.decorated import decorate, outcome_of
from holdfast.runtime.drivers import drive, drive_async
from holdfast.runtime.fallback import Chain
from holdfast.runtime.operation import Operation
from holdfast.runtime.overrides import overrides_of
from holdfast.runtime.plan import Plan
from holdfast.runtime.stream import StreamOf

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
    from typing import ParamSpec

    from holdfast.faults import Outcome
    from holdfast.policies import Effect, Policy
    from holdfast.policies.target import TargetLike
    from holdfast.runtime.decorated import AsyncRecovered, Recovered
    from holdfast.runtime.overrides import RetryOn
    from holdfast.runtime.plan import Accept
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.stream import AfterFirst

    P = ParamSpec("P")

__all__ = ["Recovery", "recover"]

T = TypeVar("T")


@overload
def recover(target: Callable[P, Coroutine[Any, Any, T]]) -> AsyncRecovered[P, T]: ...  # type: ignore[overload-overlap] # an async function is a function too: the first that fits counts
@overload
def recover(
    target: TargetLike | None = None,
    policy: Policy | None = None,
    *,
    effect: Effect | None = None,
    accept: Accept | None = None,
    needs: frozenset[str] = frozenset(),
    threads: bool = False,
    retry_on: RetryOn | None = None,
    never_retry: RetryOn | None = None,
    runtime: Runtime | None = None,
) -> Recovery: ...
@overload
def recover(target: Callable[P, T]) -> Recovered[P, T]: ...
def recover(
    target: Any = None,
    policy: Policy | None = None,
    *,
    effect: Effect | None = None,
    accept: Accept | None = None,
    needs: frozenset[str] = frozenset(),
    threads: bool = False,
    retry_on: RetryOn | None = None,
    never_retry: RetryOn | None = None,
    runtime: Runtime | None = None,
) -> Any:
    """Return a recovery for `target`: a name such as `"claude"`, `"tool:bash"`, `"agent:builder"`, or a `Target`.

    Calls to one name share its circuit. `policy` is `INTERACTIVE` unless configured or given. `effect` says what the
    calls do to the world (a function's own `@tool` wins). `accept` looks at an answer and may ask for another. `needs`
    names what a fallback must offer. `threads` gives sync functions the policy's time limit, by leaving a thread behind.
    `retry_on` and `never_retry` say of your own exceptions what the classifier cannot know: a type, several, or a function
    of the exception; `never_retry` wins.
    `@recover` alone, on a function, is a recovery of its own.
    """
    bare = callable(target) or isinstance(target, classmethod)
    named = None if bare else target
    overrides = overrides_of(retry_on, never_retry)
    plan = Plan(
        named,
        policy,
        effect=effect,
        accept=accept,
        needs=needs,
        threads=threads,
        overrides=overrides,
        runtime=runtime,
    )
    return Recovery(plan)(target) if bare else Recovery(plan)


class Recovery:
    """A policy aimed at a target. Use it as a decorator, or through its methods; it may be used many times at once."""

    __slots__ = ("_plan",)

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]]) -> AsyncRecovered[P, T]: ...  # type: ignore[overload-overlap] # an async function is a function too: the first that fits counts
    @overload
    def __call__(self, fn: Callable[P, T]) -> Recovered[P, T]: ...
    def __call__(self, fn: Callable[..., Any]) -> Any:
        """Decorate a function."""
        return decorate(self._plan, fn)

    @overload
    def call(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def call(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    @overload
    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` now; await the result where `fn` is async."""
        plan = self._called(fn)
        if plan.off:
            return fn(*args, **kwargs)
        return _later(plan, fn, args, kwargs) if is_async(fn) else drive(Operation(plan), fn, args, kwargs)

    @overload
    def outcome(  # type: ignore[overload-overlap] # the first overload that fits counts
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    @overload
    def outcome(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]: ...
    def outcome(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` now and return how it ended as a value, with every attempt."""
        return outcome_of(self._called(fn), Chain(fn))(*args, **kwargs)

    def stream(
        self,
        fn: Callable[P, AsyncIterable[T]],
        *,
        first: float | None = None,
        idle: float | None = None,
        total: float | None = None,
        after_first: AfterFirst = "raise",
        resume: Callable[..., AsyncIterable[T]] | None = None,
    ) -> StreamOf[P, T]:
        """Return `fn`, which gives an async iterator, as a stream that recovers: `async with live(…) as stream`.

        `first`, `idle` and `total` limit the wait for the first item, between items, and for all of it. With
        `after_first="continue"`, `resume` is called with what was delivered and the same arguments; without it `fn` is
        called again and what it gives is taken for the rest.
        """
        plan = self._plan.of(fn).named(fn)
        return StreamOf(plan, fn, first=first, idle=idle, total=total, after_first=after_first, resume=resume)

    def __aiter__(self) -> AsyncAttempts:
        """Loop over attempts at a block: `async for attempt in recover(…): async with attempt: …`."""
        return AsyncAttempts(Operation(self._for_block()))

    def __iter__(self) -> Attempts:
        """Loop over attempts at a block: `for attempt in recover(…): with attempt: …`."""
        return Attempts(Operation(self._for_block()))

    def _called(self, fn: Callable[..., Any]) -> Plan:
        refuse_generator(fn)
        return self._fresh().of(fn)

    def _for_block(self) -> Plan:
        plan = self._fresh()
        if plan.accept is not None:
            raise InvalidError.saying(
                "recover.accept", "a function to look at the answer of", "a block, which gives none"
            )
        return plan

    def _fresh(self) -> Plan:
        self._plan = self._plan.fresh()
        return self._plan

    def __repr__(self) -> str:
        return f"recover({self._plan.name!r}, {self._plan.policy!r})"


async def _later(plan: Plan, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Begin when it is awaited: a coroutine that waits its turn somewhere has not begun, and its time does not run."""
    return await drive_async(Operation(plan.fresh()), fn, args, kwargs)
