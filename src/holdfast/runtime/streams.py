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

from holdfast.events import StreamResumed
from holdfast.faults import Fault, HoldfastError, InvalidError, StreamCutError
from holdfast.policies import options
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.driving import leave, pause_async
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.limits import Wheels
from holdfast.runtime.operation import Operation
from holdfast.runtime.partials import Delivered
from holdfast.runtime.results import discard_async
from holdfast.runtime.surroundings import Surroundings, admit

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
    from types import TracebackType
    from typing import Self

    from holdfast.faults import DeadlineError, Partial
    from holdfast.runtime.binding import Binding
    from holdfast.runtime.limits import Limit

__all__ = ["AfterFirst", "Stream", "StreamOf"]

P = ParamSpec("P")
T = TypeVar("T")

AfterFirst: TypeAlias = Literal["raise", "continue", "restart"]
"""What a failure after the first item does: raise with what arrived; go on where it broke off; begin again."""


class StreamOf(Generic[P, T]):
    """A source of streams with its limits; call it like the function it was made from."""

    def __init__(
        self,
        binding: Binding,
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
        if resume is not None and after_first != "continue":
            raise InvalidError.saying(
                "stream.resume", 'after_first="continue" beside it', f"after_first={after_first!r}"
            )
        self.binding = binding
        self.fn = fn
        self._first, self._idle = first, idle
        self._bind()
        self.total = total
        self.after_first = after_first
        self.resume = resume

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
        if self.binding.fresh().runtime is not self._runtime:
            self._bind()
        return Stream(self, args, kwargs)

    def _bind(self) -> None:
        """Take the clock of the runtime that is in use."""
        binding = self.binding
        runtime = self._runtime = binding.runtime
        self.first = Wheels(limit, runtime.clock) if (limit := self._first or binding.timeout) else None
        self.idle = Wheels(limit, runtime.clock) if (limit := self._idle or binding.timeout) else None
        self.own = Wheels(0.0, runtime.clock)


class Stream(Generic[T]):
    """One stream. Enter it with `async with`, then iterate over it once."""

    def __init__(self, of: StreamOf[Any, T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._of = of
        self._args = args
        self._kwargs = kwargs
        self._op = Operation(of.binding.fresh())
        self._source: AsyncIterator[T] | None = None
        self._ticket: int | None = None
        self._surroundings: Surroundings | None = None
        self._entered = self._over = False
        self._delivered = Delivered()
        self._fresh = True
        """The present source has not given an item yet."""
        self._began = 0.0
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
        self._began = self._op.binding.monotonic()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaving early, or by an exception of the consumer's own, says nothing about the source (R78, R79)."""
        if not self._over:
            self._over = True
            self._op.abandoned(error)
        await self._close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not self._entered:
            raise InvalidError.saying("stream", "`async with` around it", "a stream that was not entered")
        while not self._over:
            try:
                if self._source is None:
                    await self._open()
                item = await self._limited_next()
            except StopAsyncIteration:
                self._over = True
                self._op.succeeded(self._source)
                await self._close()
            except BaseException as error:  # noqa: BLE001 - raised again there unless it is tried again
                await self._recover(error)
            else:
                self._fresh = False
                self._delivered.add(item)
                return item
        raise StopAsyncIteration

    # --- the source ---

    async def _open(self) -> None:
        op, of = self._op, self._of
        self._surroundings = admit(op)
        gate = op.binding.gate
        if gate is not None:
            self._ticket = await gate.enter_async(op)
            await asyncio.sleep(gate.start_in(op))
            op.attempt_started = op.binding.monotonic()
        token = AMBIENT.set(op)
        inside = None if self._surroundings is None else self._surroundings.enter()
        try:
            going_on = of.after_first == "continue" and self._delivered.count and of.resume is not None
            source: Any = (
                of.resume(self.partial, *self._args, **self._kwargs)
                if going_on and of.resume is not None
                else of.fn(*self._args, **self._kwargs)
            )
            if inspect.isawaitable(source):
                source = await source
            self._source = aiter(source)
        finally:
            if inside is not None:
                Surroundings.leave(inside)
            leave(token)
        self._fresh = True

    async def _limited_next(self) -> T:
        """Await the next item no longer than its limit; the limit ends before the item is handed on."""
        assert self._source is not None
        limit = self._begin_limit()
        token = AMBIENT.set(self._op)
        inside = None if self._surroundings is None else self._surroundings.enter()
        try:
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

    def _begin_limit(self) -> Limit | None:
        wheels = self._of.first if self._fresh else self._of.idle
        ends = self._total_ends()
        now = self._op.binding.monotonic()
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
        now, ends = op.binding.monotonic(), self._total_ends()
        if ends is not None and now >= ends:
            return op.deadline_passed(ends - self._began)
        if self._fresh:
            return op.timed_out()
        seconds = self._of.idle.seconds if self._of.idle is not None else 0.0
        message = f"{op.binding.name or 'The stream'} sent nothing for {seconds:g} s"
        return HoldfastError(Fault.of("PROVIDER_STREAM_STALLED", message, context={"idle_s": seconds}))

    async def _close(self) -> None:
        source, self._source = self._source, None
        ticket, self._ticket = self._ticket, None
        try:
            if source is not None:
                await discard_async(source)
        finally:
            if ticket is not None and self._op.binding.gate is not None:
                self._op.binding.gate.leave(ticket)

    # --- failures ---

    async def _recover(self, error: BaseException) -> None:
        """Settle the failure; return to try again, or raise what surfaces."""
        try:
            await self._close()
        except Exception as closing:  # noqa: BLE001 - the failure that matters is the first
            error.add_note(f"holdfast: closing the stream's source failed too: {type(closing).__name__}")
        cut = self._delivered.count > 0
        if cut and isinstance(error, Exception) and self._of.after_first == "raise":
            self._cut(error)
        delay = self._op.failed(error)
        if delay is None:
            self._over = True
            if cut and isinstance(error, Exception):
                self._surface_cut(error)
            raise error
        await pause_async(self._op, delay)
        if cut:
            self._resume()

    def _cut(self, error: Exception) -> None:
        self._over = True
        self._op.cut_off(error)
        self._surface_cut(error)

    def _surface_cut(self, error: Exception) -> NoReturn:
        """Raise the cut with what arrived; a mistake in the source's own code stays what it is."""
        fault = fault_of(error)
        if fault.code == "SYS_PROGRAMMING_ERROR":
            raise error
        raise StreamCutError(self._delivered.on(fault)) from error

    def _resume(self) -> None:
        of, op = self._of, self._op
        runtime = op.binding.runtime
        self.restarts += 1
        if runtime.bus.wants(StreamResumed):
            runtime.bus.emit(
                StreamResumed(
                    at=runtime.clock.wall(),
                    run=op.run,
                    operation=op.binding.name,
                    how=of.after_first if of.after_first != "raise" else "restart",
                    items=self._delivered.count,
                )
            )
        if of.after_first == "restart":
            self._delivered = Delivered()
