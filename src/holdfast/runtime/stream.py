"""Streams that recover: before the first item invisibly, after it only as the caller chose.

    live = recover("claude").stream(tokens, first=20, idle=15)
    async with live("hi") as stream:
        async for token in stream:
            …

A stream is an async context manager because neither a generator that was broken off nor a time limit held across a `yield`
can be right. Items pass through one by one; what was delivered is remembered for `partial`, never held back.

Invariant: a source that was opened is closed, its place is given up and its permit settled once, however the stream ends.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, ParamSpec, TypeAlias, TypeVar, get_args

from holdfast import options
from holdfast.events import StreamResumed
from holdfast.faults import Fault, HoldfastError, InvalidError, StreamCutError
from holdfast.policies.decide import can_fall_back
from holdfast.policies.fallback import check_when, meets
from holdfast.policies.models.tool_calls import OpenCall
from holdfast.runtime import errors, reports
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.answers import close_answer_async
from holdfast.runtime.callables import name_of
from holdfast.runtime.drivers import leave, pause_async
from holdfast.runtime.fault_of import fault_of, forget_account
from holdfast.runtime.limits import Wheels
from holdfast.runtime.operation import Operation
from holdfast.runtime.partials import Delivered
from holdfast.runtime.surroundings import Surroundings, admit

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
    from types import TracebackType
    from typing import Self

    from holdfast.faults import DeadlineError, Partial
    from holdfast.policies.fallback import When
    from holdfast.runtime.limiter import Limiter
    from holdfast.runtime.limits import Limit
    from holdfast.runtime.plan import Plan

__all__ = ["ALIVE", "AfterFirst", "Stream", "StreamOf"]

P = ParamSpec("P")
T = TypeVar("T")

AfterFirst: TypeAlias = Literal["raise", "continue", "restart"]
"""What a failure after the first item does: raise with what arrived; go on where it broke off; begin again."""


ALIVE: Any = object()
"""What a source gives when something arrived that is no item yet: the idle limit begins anew, and nobody sees it."""


class StreamOf(Generic[P, T]):
    """A source of streams with its limits; call it like the function it was made from."""

    def __init__(
        self,
        plan: Plan,
        fn: Callable[P, AsyncIterable[T]],
        *,
        first: float | None,
        idle: float | None,
        total: float | None,
        after_first: AfterFirst,
        resume: Callable[..., AsyncIterable[T]] | None,
    ) -> None:
        for name, seconds in (("first", first), ("idle", idle), ("total", total)):
            options.seconds(f"stream.{name}", seconds, optional=True)
        options.one_of("stream.after_first", after_first, get_args(AfterFirst))
        if not callable(fn):
            raise InvalidError.at("stream", "a function that gives an async iterator", fn)
        if resume is not None and not callable(resume):
            raise InvalidError.at("stream.resume", "a function that gives an async iterator", resume)
        if resume is not None and after_first != "continue":
            raise InvalidError.saying(
                "stream.resume", 'after_first="continue" beside it', f"after_first={after_first!r}"
            )
        self.plan = plan
        self.fn = fn
        self._first, self._idle = first, idle
        self._bind()
        self.total = total
        self.after_first = after_first
        self.resume = resume
        self.ways: tuple[Way[T], ...] = ()

    def fallback(
        self, other: Callable[P, AsyncIterable[T]] | StreamOf[P, T], *, when: When | None = None, name: str = ""
    ) -> StreamOf[P, T]:
        """Add what to stream from instead when this one has failed for good before its first item.

        `other` is a function like the first, tried once under the same limits, or a stream with a policy of its own.
        """
        if not isinstance(other, StreamOf):
            plan = self.plan.once()
            other = StreamOf(
                plan,
                other,
                first=self._first,
                idle=self._idle,
                total=self.total,
                after_first="raise",
                resume=None,
            )
        name = name or name_of(other.fn).rpartition(".")[2]
        check_when(f"stream.fallback {name}: when", when)
        self.ways = (*self.ways, Way(name, other, when))
        return self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
        return Stream(self, args, kwargs)

    def begin(self) -> Operation:
        """Return the operation of a stream that is entered now."""
        plan = self.plan = self.plan.fresh()
        if plan.runtime is not self._runtime:
            self._bind()
        return Operation(plan)

    def _bind(self) -> None:
        """Take the clock of the runtime that is in use."""
        plan = self.plan
        runtime = self._runtime = plan.runtime
        self.first = Wheels(limit, runtime.clock) if (limit := self._first or plan.timeout) else None
        self.idle = Wheels(limit, runtime.clock) if (limit := self._idle or plan.timeout) else None
        self.own = Wheels(0.0, runtime.clock)


class Way(Generic[T]):
    """Another source of the same items."""

    __slots__ = ("name", "of", "when")

    def __init__(self, name: str, of: StreamOf[Any, T], when: When | None) -> None:
        self.name = name
        self.of = of
        self.when = when


class Stream(Generic[T]):
    """One stream. Enter it with `async with`, then iterate over it once."""

    _op: Operation

    def __init__(self, of: StreamOf[Any, T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._of = of
        self._args = args
        self._kwargs = kwargs
        self._source: AsyncIterator[T] | None = None
        self._place: tuple[Limiter, int] | None = None
        self._surroundings: Surroundings | None = None
        self._entered = self._over = False
        self._delivered = Delivered()
        self._call = OpenCall() if of.after_first == "continue" else None
        self._fresh = True
        """The present source has not given an item yet."""
        self._began = 0.0
        self._ways = of.ways
        self._primary: Exception | None = None
        """What the first source failed with, while others are tried."""
        self.restarts = 0
        """How often the stream began again after items had been delivered."""

    @property
    def partial(self) -> Partial:
        """What was delivered so far."""
        return self._delivered.partial()

    async def __aenter__(self) -> Self:
        if self._entered:
            raise InvalidError.saying("stream", "one `async with` per stream", "a stream that was entered before")
        self._entered = True
        self._op = self._of.begin()
        if self._ways:
            self._op.expect_fallbacks()
        self._began = self._op.plan.monotonic()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaving early, or by an exception of the consumer's own, says nothing about the source (R78, R79)."""
        if not self._over:
            self._over = True
            self._op.abandoned(error)
        self._op.end()
        await self._close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not self._entered:
            raise InvalidError.saying("stream", "`async with` around it", "a stream that was not entered")
        while not self._over:
            try:
                if self._source is None:
                    await self._begin()
                item = await self._next()
            except StopAsyncIteration:
                self._over = True
                self._op.succeeded(self._source)
                await self._close()
            except BaseException as error:
                if not await self._recovers(error):
                    raise
            else:
                self._fresh = False
                if item is not ALIVE:
                    self._delivered.add(item)
                    if self._call is not None:
                        self._call.follow(item)
                    return item
        raise StopAsyncIteration

    # --- the source ---

    async def _begin(self) -> None:
        """Begin an attempt; the source itself is opened under the first item's limit."""
        op = self._op
        self._surroundings = admit(op)
        if (limiter := op.plan.limiter) is not None:
            self._place = (limiter, await limiter.acquire_async(op.plan.runtime, op.deadline))
            op.call_starts()
        self._fresh = True

    async def _next(self) -> T:
        """Await the next item no longer than its limit; the limit ends before the item is handed on."""
        limit = self._begin_limit()
        token = AMBIENT.set(self._op)
        inside = None if self._surroundings is None else self._surroundings.enter()
        try:
            if self._source is None:
                self._source = await self._open()
            item = await anext(self._source)
        except asyncio.CancelledError as error:
            if limit is not None and limit.end():
                raise self._late() from error
            raise
        except BaseException:
            if limit is not None:
                limit.end()
            raise
        finally:
            if inside is not None:
                Surroundings.leave(inside)
            leave(token)
        if limit is not None:
            limit.end()
        return item

    async def _open(self) -> AsyncIterator[T]:
        of = self._of
        source: Any = (
            of.fn(*self._args, **self._kwargs)
            if of.resume is None or not self._delivered.count
            else of.resume(self.partial, *self._args, **self._kwargs)
        )
        return aiter(await source if inspect.isawaitable(source) else source)

    def _begin_limit(self) -> Limit | None:
        wheels = self._of.first if self._fresh else self._of.idle
        ends = self._total_ends()
        if self._op.plan.off:
            return None
        now = self._op.plan.monotonic()
        left = None if ends is None else max(0.0, ends - now)
        if wheels is not None and (left is None or wheels.seconds <= left):
            return wheels.begin(now)
        return None if left is None else self._of.own.begin_own(left)

    def _total_ends(self) -> float | None:
        """When it is over whatever arrives: its own total, and before the first item the operation's deadline."""
        ends = None if self._of.total is None else self._began + self._of.total
        outer = self._op.deadline if not self._delivered.count else self._op.outer_deadline
        return outer if ends is None or (outer is not None and outer < ends) else ends

    def _late(self) -> DeadlineError | HoldfastError:
        """Each limit has its own kind of error (R77)."""
        op = self._op
        now, ends = op.plan.monotonic(), self._total_ends()
        if ends is not None and now >= ends:
            return errors.deadline_passed(op, ends - self._began)
        if self._fresh:
            return errors.timed_out(op)
        seconds = self._of.idle.seconds if self._of.idle is not None else 0.0
        message = f"{op.plan.name or 'The stream'} sent nothing for {seconds:g} s"
        return HoldfastError(Fault.of("PROVIDER_STREAM_STALLED", message, context={"idle_s": seconds}))

    async def _close(self) -> None:
        source, self._source = self._source, None
        place, self._place = self._place, None
        try:
            if source is not None:
                await close_answer_async(source)
        finally:
            if place is not None:
                limiter, ticket = place
                limiter.release(ticket)

    # --- failures ---

    async def _recovers(self, error: BaseException) -> bool:
        """Settle the failure; return True to try again, False to let it through, or raise what surfaces instead."""
        op = self._op
        # An outer cancellation may come while we close: then leaving the stream settles it.
        try:
            await self._close()
        except Exception as closing:  # noqa: BLE001 - the failure that matters is the first
            reports.suppressed(op, closing, "closing the source of a stream that had failed raised")
        cut = self._delivered.count > 0 and isinstance(error, Exception) and not op.plan.off
        if cut and (self._of.after_first == "raise" or self._inside_a_call()):
            self._cut(error)
        if cut:
            error = _what_broke_it(error)
        delay = op.failed(error)
        if delay is None:
            if not cut and isinstance(error, Exception) and self._falls_back(error):
                return True
            self._over = True
            if cut:
                self._surface_cut(error)
            return False
        try:
            await pause_async(op, delay)
        except BaseException:
            self._over = True
            raise
        if cut:
            self._resume()
        return True

    def _inside_a_call(self) -> bool:
        """Whether going on would put a tool call together from two answers."""
        return self._call is not None and self._call.inside

    def _falls_back(self, error: Exception) -> bool:
        """Go on with the next source whose condition is met; before the first item nobody sees the change (R75)."""
        if not self._op.has_fallbacks:
            return False
        latest = fault_of(error)
        primary = latest if self._primary is None else fault_of(self._primary)
        while self._ways and can_fall_back(latest):
            way, self._ways = self._ways[0], self._ways[1:]
            if meets(way.when, latest, primary) and not way.of.plan.fresh().rejects():
                self._primary = self._primary or error
                reports.fell_back(self._op, "primary", way.name, latest)
                before, self._of, self._op = self._op, way.of, way.of.begin()
                self._op.take_over(before, way.name, last=not self._ways)
                return True
        self._over = True
        reports.failed(self._op, primary)
        surfacing, self._primary = self._primary, None
        if surfacing is None or surfacing is error:
            return False
        surfacing.add_note(f"holdfast: fallback {self._op.via}: {latest.code} {latest.message}")
        try:
            raise surfacing
        finally:
            del surfacing  # an exception in a frame that it passes through keeps itself alive

    def _cut(self, error: BaseException) -> NoReturn:
        assert isinstance(error, Exception)
        self._over = True
        self._op.cut_off(error)
        self._surface_cut(error)

    def _surface_cut(self, error: BaseException) -> NoReturn:
        """Raise the cut with what arrived; a mistake in the source's own code stays what it is."""
        fault = fault_of(error)
        if fault.code == "SYS_PROGRAMMING_ERROR":
            raise error
        raise StreamCutError(self._delivered.on(fault)) from error

    def _resume(self) -> None:
        of, op = self._of, self._op
        runtime = op.plan.runtime
        self.restarts += 1
        if runtime.bus.wants(StreamResumed):
            runtime.bus.emit(
                StreamResumed(
                    at=runtime.clock.wall(),
                    run=op.run,
                    operation=op.plan.name,
                    how=of.after_first if of.after_first != "raise" else "restart",
                    items=self._delivered.count,
                )
            )
        if of.after_first == "restart":
            self._delivered = Delivered()


def _what_broke_it(error: BaseException) -> BaseException:
    """A stream inside this one broke off and had no leave to go on by itself; this one was told what to do then."""
    while isinstance(error, StreamCutError) and error.__cause__ is not None:
        error = error.__cause__
        forget_account(error)
    return error
