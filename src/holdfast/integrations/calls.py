"""Calls and streams of a framework that recover. LangChain, pydantic-ai and the Agents SDK share this module.

Frameworks raise exceptions to steer themselves: interrupts, handoffs, messages for the model. Such an exception is not a
failure. It surfaces as the same object; no retry, no circuit, no fallback and no event reports it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from holdfast.faults import InvalidError
from holdfast.policies.backoff import PLAIN_ATTEMPTS
from holdfast.policies.decide import GiveUp, Reason
from holdfast.policies.models.quote import quote_of
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.failures.evidence import evidence_in
from holdfast.runtime.fallbacks.fallback import Chain, drive_chain, drive_chain_async
from holdfast.runtime.operation.adapter import Adapter
from holdfast.runtime.operation.drivers import drive, drive_async
from holdfast.runtime.operation.facts import fault_of_attempt
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.plan import PLAN_ATTRIBUTE, Plan
from holdfast.runtime.streams.stream import BlockingStream, Stream, StreamOf

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence

    from holdfast.faults import Fault, Partial
    from holdfast.policies import Effect, Policy
    from holdfast.policies.decide import Retry
    from holdfast.policies.models.quote import Quote
    from holdfast.policies.target import TargetLike
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.streams.stream import AfterFirst, StreamDialect


T = TypeVar("T")

Asks: TypeAlias = "Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[Any, Mapping[str, Any]]]"
"""Takes the arguments of a call; returns the request in them, and settings such as `max_tokens`."""


Repeats: TypeAlias = Literal["always", "on-evidence", "never"]
"""When calls are repeated that declare no effect: as the policy says; only if a failure shows that nothing happened; never."""


def _request_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:  # noqa: ARG001 - the usual arguments
    """Read the usual arguments of calls: the request, then its settings."""
    request, settings = (*args, None, None)[:2]
    return request, settings if isinstance(settings, Mapping) else {}


class _Framework(Adapter):
    """Lets a framework's own exceptions pass, and finds the usage in its answers."""

    def __init__(
        self,
        passing: tuple[type[Exception], ...],
        usage: Callable[[Any], Any] | None,
        bare_attempts: int,
        asks: Asks = _request_of,
        repeats: Repeats = "always",
        *,
        reads: Callable[[Exception], Fault | None] | None = None,
    ) -> None:
        self.repeats = repeats
        self._reads = reads
        self.passing = passing
        self.bare_attempts = bare_attempts
        self._usage = usage
        self._asks = asks

    def propose(self, op: Operation, error: Exception) -> Retry | GiveUp | None:
        """Give up on a call that declares no effect and may have had one."""
        if self.repeats == "always" or op.plan.effect is not None:
            return None
        fault = fault_of_attempt(op, error)
        if not fault.retryable or (self.repeats == "on-evidence" and evidence_in(error, fault)):
            return None
        return GiveUp(Reason.UNDECLARED)

    def fault_of(self, error: Exception) -> Fault | None:
        """Return the fault of an exception that only the framework's integration can read."""
        return None if self._reads is None else self._reads(error)

    def reported(self, value: object) -> object:
        """Return the usage that an answer reports, in a form that budgets read."""
        return value if self._usage is None else self._usage(value)

    def quote(self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Quote | None:
        """Return what the request in the arguments may use at most."""
        request, settings = self._asks(args, kwargs)
        return None if request is None else quote_of({**settings, "request": request}, model=op.plan.target.model)


class Calls:
    """How calls to one target recover.

    `passing` are the exceptions that are not failures. `usage` returns the usage that an answer reports. `asks` finds the
    request in the arguments of a call; usually it is the first one, and its settings are the second. `through_client`:
    the calls go through the client of a model. `repeats`: when calls are repeated that declare no effect. `reads` returns the
    fault of an exception of the framework, or None.
    """

    def __init__(
        self,
        target: TargetLike | None,
        policy: Policy | None = None,
        *,
        passing: tuple[type[Exception], ...] = (),
        effect: Effect | None = None,
        fn: Any = None,
        usage: Callable[[Any], Any] | None = None,
        asks: Asks = _request_of,
        through_client: bool = False,
        repeats: Repeats = "always",
        reads: Callable[[Exception], Fault | None] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        # If `fn` declares its own effect (`@tool`), that declaration wins over `effect`.
        self._plan = Plan(
            target, policy, effect=effect, through_client=through_client, asks_model=through_client, runtime=runtime
        ).of(fn)
        # The clients of models, which frameworks use, make three requests for one call if nobody chooses another number.
        self._adapter = _Framework(passing, usage, PLAIN_ATTEMPTS if through_client else 1, asks, repeats, reads=reads)

    def before_fallback(self) -> Calls:
        """Return the same calls for when something outside of Holdfast answers after they have failed."""
        other = copy.copy(self)
        other._plan = self.plan.before_fallback()  # noqa: SLF001 - its own class
        return other

    def repeated(self, repeats: Repeats) -> Calls:
        """Return the same calls, repeated in another way."""
        other = copy.copy(self)
        other._adapter = copy.copy(self._adapter)  # noqa: SLF001 - its own class
        other._adapter.repeats = repeats  # noqa: SLF001
        return other

    @property
    def plan(self) -> Plan:
        """The plan to use now."""
        self._plan = self._plan.fresh()
        return self._plan

    def within(self) -> bool:
        """Return whether the caller runs inside an attempt of these calls. Its call is then a part of that attempt."""
        around = AMBIENT.get()
        # Every operation of these calls has this adapter, and no other operation has it.
        return isinstance(around, Operation) and around.adapter is self._adapter and not around.over

    # --- calls ---

    def chain(self, fn: Callable[..., Any], others: Sequence[tuple[str, Calls, Callable[..., Any]]]) -> Chain | None:
        """Return the chain of `fn`, or None without fallbacks. A fallback is a tuple: name, how it recovers, function."""
        if not others:
            return None
        chain = Chain(fn)
        for name, calls, other in others:
            # The chain skips a step whose circuit is open, and finds it by this attribute.
            setattr(other, PLAN_ATTRIBUTE, calls.plan)
            chain.fallback(other, name=name)
        return chain

    def call(self, fn: Callable[..., Any], /, *args: Any, chain: Chain | None = None) -> Any:
        """Call `fn`, with retries and then the chain's fallbacks."""
        plan = self.plan
        if plan.bare:
            # Recovery is off, so there is no operation, no event and no limit.
            return fn(*args)
        op = Operation(plan, self._adapter)
        return drive(op, fn, args, {}) if chain is None else drive_chain(op, chain, fn, args, {})

    async def acall(self, fn: Callable[..., Awaitable[Any]], /, *args: Any, chain: Chain | None = None) -> Any:
        """The same as `call`, in a task."""
        plan = self.plan
        if plan.bare:
            return await fn(*args)
        op = Operation(plan, self._adapter)
        call = drive_async(op, fn, args, {})
        return await (call if chain is None else drive_chain_async(op, chain, call, args, {}))

    # --- streams ---

    def stream(
        self,
        dialect: StreamDialect,
        fn: Callable[..., Any],
        *,
        after_first: AfterFirst = "raise",
        resume: Callable[[Partial], tuple[Any, ...]] | None = None,
    ) -> StreamOf[Any, Any]:
        """Return the source of one stream. `resume` takes the delivered items and returns the arguments for the rest."""

        def rest(partial: Partial, *_: Any) -> Any:
            assert resume is not None
            return fn(*resume(partial))

        return StreamOf(
            self.plan,
            fn,
            after_first=after_first,
            resume=None if resume is None else rest,
            dialect=dialect,
            adapter=self._adapter,
        )

    def read(
        self,
        dialect: StreamDialect,
        fn: Callable[..., Iterable[T]],
        *args: Any,
        after_first: AfterFirst = "raise",
        resume: Callable[[Partial], tuple[Any, ...]] | None = None,
    ) -> Generator[T, None, None]:
        """Yield the items of `fn(*args)` in a thread."""
        if self.plan.bare:
            yield from fn(*args)
            return
        of = self.stream(dialect, fn, after_first=after_first, resume=resume)
        # If the consumer closes or drops this generator, the `with` still settles the stream.
        with BlockingStream[T](of, args) as stream:
            yield from stream

    async def aread(
        self,
        dialect: StreamDialect,
        fn: Callable[..., AsyncIterator[T]],
        *args: Any,
        after_first: AfterFirst = "raise",
        resume: Callable[[Partial], tuple[Any, ...]] | None = None,
    ) -> AsyncGenerator[T, None]:
        """Yield the items of `fn(*args)` in a task. The policy's limit of an attempt also limits the wait for each item."""
        if self.plan.bare:
            async for item in fn(*args):
                yield item
            return
        of = self.stream(dialect, fn, after_first=after_first, resume=resume)
        async with Stream[T](of, args) as stream:
            async for item in stream:
                yield item


def check_after_first(path: str, after_first: Any, allowed: tuple[str, ...], resume: Any) -> None:
    """Raise `InvalidError` for an unknown mode, and if only one of `resume` and `after_first="continue"` is given."""
    if after_first not in allowed:
        raise InvalidError.at(f"{path}.after_first", " or ".join(repr(word) for word in allowed), after_first)
    if (resume is not None) != (after_first == "continue"):
        raise InvalidError.saying(
            f"{path}.resume",
            'a function if after_first="continue", else None',
            f"after_first={after_first!r} and {'a function' if resume is not None else 'none'}",
        )
