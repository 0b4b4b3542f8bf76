"""`recover`: put a policy around any callable. Sync, async, a stream, or a block as a loop of attempts.

Invariant: a decorated function stays a function of the same kind, and the exception that
surfaces is the one the call raised, unless the failure is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.runtime.blocks import AsyncAttempts, Attempts
from holdfast.runtime.callables import is_async, reject_generator
from holdfast.runtime.decorated import decorate, outcome_of
from holdfast.runtime.fallbacks.fallback import Chain
from holdfast.runtime.operation.drivers import drive, drive_async
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.overrides import overrides_of
from holdfast.runtime.operation.plan import Plan
from holdfast.runtime.operation.recovery_warnings import warn_of_options
from holdfast.runtime.streams.stream import StreamOf

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable
    from typing import Never, ParamSpec

    from holdfast.faults import Outcome
    from holdfast.policies import Effect, Policy
    from holdfast.policies.target import TargetLike
    from holdfast.runtime.decorated import AsyncRecovered, Recovered
    from holdfast.runtime.operation.overrides import RetryOn
    from holdfast.runtime.operation.plan import Accept
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.streams.stream import AfterFirst

    P = ParamSpec("P")

    class _Untyped:
        """What only `Any` and `NoReturn` can be. A function that returns `Any` must not be taken for an async one."""

        def __init__(self, nothing: Never) -> None: ...


__all__ = ["Recovery", "recover"]

T = TypeVar("T")


@overload
def recover(target: Callable[P, _Untyped]) -> Recovered[P, Any]: ...
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
@options.suggests
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
    """Put retries, time limits, a circuit and fallbacks around calls to `target`.

    Use it as a decorator, or through the methods of the `Recovery` it returns:

        from holdfast import recover

        @recover("claude")
        async def answer(question): ...

        @answer.fallback
        async def by_openai(question): ...

        reply = recover("claude").call(ask, "hello")  # or `await` it, if `ask` is async

    target: a name such as `"claude"` (a provider), `"tool:bash"` or `"agent:builder"`, or a `Target`. All calls to one name
        share its circuit. `@recover` without a name gives a function a circuit of its own.
    policy: by default the policy that is configured for the target, else `INTERACTIVE`.
    effect: what the calls do to the world: `read`, `idempotent`, `keyed` or `unsafe`. An `unsafe` call that may have happened
        is not repeated, nor is a call of a tool (`"tool:bash"`) without an effect. A function's own `@tool` wins.
    accept: a plain function of the answer. True or None accepts it; False, a code or a `Fault` rejects it, and the call is
        retried. If it raises or returns anything else, the answer is rejected too, and the defect is reported once.
    needs: capabilities that a fallback must offer, such as `{"vision"}`.
    threads: gives sync functions the time limit that the policy names. A call that is late is left behind in its thread; it is
        repeated only if `effect` says that this is harmless.
    retry_on, never_retry: exceptions to retry, or not to: a type, several types, or a function of the exception that returns
        True. `never_retry` wins.
    runtime: by default the default runtime.

    Wrong options raise `InvalidError`. The exception of the last attempt passes through unchanged. An error of our own, a
    `HoldfastError`, is raised only if no call could be made or finished, such as `CircuitOpenError`, `DeadlineError`,
    `BudgetError` and `OutcomeUnknownError`, or if no answer was accepted.
    """
    # `@recover` without parentheses passes the function itself. A classmethod object is not callable, so it is named here.
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
    """What `recover` returns: a policy for one target. One recovery may be used many times, also at the same time.

    Use it as a decorator, with `call`, `outcome` or `stream`, or as a loop that runs a block of code once per attempt:

        claude = recover("claude")
        reply = claude.call(ask, "hello")

        async for attempt in claude:
            async with attempt:
                reply = await client.send(request)
    """

    __slots__ = ("_plan",)

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @overload
    def __call__(self, fn: Callable[P, _Untyped]) -> Recovered[P, Any]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]]) -> AsyncRecovered[P, T]: ...  # type: ignore[overload-overlap] # an async function is a function too: the first that fits counts
    @overload
    def __call__(self, fn: Callable[P, T]) -> Recovered[P, T]: ...
    def __call__(self, fn: Callable[..., Any]) -> Any:
        """Decorate a function: the result is a function of the same kind, with `fallback`, `outcome` and so on.

        Methods work too, and `agent.ask.outcome("hi")` is bound as `agent.ask("hi")` is. For class methods and static methods
        write `@recover(…)` above `@classmethod` or `@staticmethod`. Below `@classmethod`, `outcome` raises `InvalidError` on
        Python 3.13 and newer.

        Raises `InvalidError` for a generator function, which belongs into `stream`.

            @recover("claude")
            def answer(question): ...
        """
        return decorate(self._plan, fn)

    @overload
    def call(self, fn: Callable[P, _Untyped], /, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def call(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def call(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    @overload
    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` with these arguments; if it is async, await the result.

        Raises what the last attempt raised, or one of our own errors (see `recover`).

            reply = recover("claude").call(ask, "hello")
            reply = await recover("claude").call(ask_async, "hello")
        """
        plan = self._called(fn)
        if plan.bare:
            return fn(*args, **kwargs)
        return _later(plan, fn, args, kwargs) if is_async(fn) else drive(Operation(plan), fn, args, kwargs)

    @overload
    def outcome(self, fn: Callable[P, _Untyped], /, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def outcome(  # type: ignore[overload-overlap] # the first overload that fits counts
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    @overload
    def outcome(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]: ...
    def outcome(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` and return `Ok` or `Err` with every attempt; if it is async, await the result.

        It raises only cancellations and interrupts.

            outcome = recover("claude").outcome(ask, "hello")
            print([attempt.code for attempt in outcome.attempts])
        """
        return outcome_of(self._called(fn), Chain(fn))(*args, **kwargs)

    @overload
    def stream(
        self,
        fn: Callable[P, AsyncIterable[T]],
        *,
        first: float | None = None,
        idle: float | None = None,
        total: float | None = None,
        after_first: AfterFirst = "raise",
        resume: Callable[..., AsyncIterable[T]] | None = None,
    ) -> StreamOf[P, T]: ...
    @overload
    def stream(
        self,
        fn: Callable[P, Iterable[T]],
        *,
        after_first: AfterFirst = "raise",
        resume: Callable[..., Iterable[T]] | None = None,
    ) -> StreamOf[P, T]: ...
    def stream(
        self,
        fn: Callable[..., Any],
        *,
        first: float | None = None,
        idle: float | None = None,
        total: float | None = None,
        after_first: AfterFirst = "raise",
        resume: Callable[..., Any] | None = None,
    ) -> StreamOf[Any, Any]:
        """Return a stream that recovers, from a function that returns an iterator, async or not.

            live = recover("claude").stream(tokens, first=20, idle=15)
            async with live("hi") as stream:
                async for token in stream: ...

        For a generator or another plain iterator write `with` and `for`. It is read in the caller's thread.

        first, idle, total: seconds for the first item, between two items, and for the whole stream. A plain iterator has
            none, because nothing can interrupt a thread that reads; limit its HTTP client instead.
        after_first: what happens when the stream fails after its first item. `"raise"` raises `StreamCutError`, which holds
            the delivered part. `"restart"` begins again: the items delivered before are void, `stream.restarts` goes up and
            a `StreamResumed` event is emitted. `"continue"` calls `resume` for the rest.
        resume: a function of the delivered items, then the same arguments; required for `"continue"`.

        Wrong options raise `InvalidError`.
        """
        plan = self._plan.of(fn).named(fn)
        return StreamOf(plan, fn, first=first, idle=idle, total=total, after_first=after_first, resume=resume)

    def __aiter__(self) -> AsyncAttempts:
        """Loop over attempts at a block: `async for attempt in recover(…): async with attempt: …`.

        Raises `InvalidError` if the recovery has `accept`: a block has no answer. A plain `with attempt:` raises it too: a
        time limit needs `async with`.
        """
        return AsyncAttempts(Operation(self._for_block()))

    def __iter__(self) -> Attempts:
        """Loop over attempts at a block: `for attempt in recover(…): with attempt: …`.

        Raises `InvalidError` if the recovery has `accept`: a block has no answer.
        """
        return Attempts(Operation(self._for_block()))

    def _called(self, fn: Callable[..., Any]) -> Plan:
        options.function("recover(…).call", fn, "recover(…).call(f, …)")
        reject_generator(fn)
        plan = self._fresh().of(fn)
        if plan.policy.hedge is not None and "hedge" not in plan.reported:
            plan.reported.add("hedge")
            warn_of_options(plan, fn)
        return plan

    def _for_block(self) -> Plan:
        plan = self._fresh()
        if plan.accept is not None:
            raise InvalidError.saying(
                "recover.accept",
                "a function, because `accept` checks what a function returns",
                "a block, which has no answer",
            )
        return plan

    def _fresh(self) -> Plan:
        self._plan = self._plan.fresh()
        return self._plan

    def __repr__(self) -> str:
        return f"recover({self._plan.name!r}, {self._plan.policy!r})"


async def _later(plan: Plan, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make the call when it is awaited."""
    # The operation begins in here and not in `.call`: its deadline must not run while the coroutine waits in a queue.
    return await drive_async(Operation(plan.fresh()), fn, args, kwargs)
