"""Streams that recover: invisibly before the first item, and after it as `after_first` says.

    live = recover("claude").stream(tokens, first=20, idle=15)
    async with live("hi") as stream:
        async for token in stream:
            …

A stream is an async context manager and not a generator. If a consumer leaves a generator early, it may be closed late
and in another task, and a time limit must not be held across a `yield`. Items pass through one by one.

`Stream` reads in a task. `BlockingStream`, which `with` gives instead of `async with`, reads in a thread. Both only report to
a `Flow`, which decides. Integrations that must hand out an SDK's own stream object call `open`, which recovers until the source
is open, or `start`, which recovers until the first content, and let the object read from here.

Invariant: a source that was opened is closed, its place in the limiter is given back and its permit settled once, however the
stream ends. It holds the place until then; its reader never waits for it.
"""

from __future__ import annotations

import inspect
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, get_args

from holdfast import options
from holdfast._lazy import lazy_module
from holdfast.faults import InvalidError
from holdfast.policies.fallback import checked_when
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.budgets.reserve import reserve, reserve_async
from holdfast.runtime.callables import name_of, reads_in
from holdfast.runtime.limits import Wheels
from holdfast.runtime.operation import errors, reports
from holdfast.runtime.operation.answers import close_answer, close_answer_async
from holdfast.runtime.operation.drivers import acquire, acquire_async, leave, pause, pause_async
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.streams.dialects import ANY_STREAM
from holdfast.runtime.streams.flow import ALIVE, AfterFirst, AttemptContext, Flow, OtherSource, StreamDialect
from holdfast.runtime.targets.limiter import StreamPlace

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Never, Self

    from holdfast.faults import Partial
    from holdfast.policies.fallback import When
    from holdfast.runtime.limits import TimeLimit
    from holdfast.runtime.operation.adapter import Adapter
    from holdfast.runtime.operation.plan import Plan
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = ["ALIVE", "AfterFirst", "BlockingStream", "Stream", "StreamDialect", "StreamOf"]

P = ParamSpec("P")
T = TypeVar("T")

_NOT_CLOSED = "closing the source of a failed stream raised"


def _check_resume(resume: Any, after_first: AfterFirst) -> None:
    if resume is not None and not callable(resume):
        raise InvalidError.at("stream.resume", "a function that gives an iterator", resume)
    if resume is not None and after_first != "continue":
        raise InvalidError.saying("stream.resume", 'after_first="continue" beside it', f"after_first={after_first!r}")
    if resume is None and after_first == "continue":
        # The function itself begins at the first item again, so the consumer would get the delivered items twice.
        raise InvalidError.saying(
            "stream.resume", 'a function that gives the rest, because of after_first="continue"', "None"
        )


class StreamOf(Generic[P, T]):
    """A source of streams with its limits. Call it like the function it was made from; each call returns a `Stream`.

    `recover(…).stream(fn, …)` returns one.
    """

    def __init__(
        self,
        plan: Plan,
        fn: Callable[P, Any],
        *,
        first: float | None = None,
        idle: float | None = None,
        total: float | None = None,
        after_first: AfterFirst = "raise",
        resume: Callable[..., Any] | None = None,
        dialect: StreamDialect = ANY_STREAM,
        adapter: Adapter | None = None,
    ) -> None:
        for name, seconds in (("first", first), ("idle", idle), ("total", total)):
            options.seconds(f"stream.{name}", seconds, optional=True)
        options.one_of("stream.after_first", after_first, get_args(AfterFirst))
        options.function("stream", fn, "stream(f)(…)", "a function that gives an iterator, async or not")
        _check_resume(resume, after_first)
        self._reads_in = reads_in(fn)
        self._is_limited = (first, idle, total) != (None, None, None)
        if self._reads_in == "thread":
            self.check_reader("thread")
        self.fn: Callable[..., Any] = fn
        self.total = total
        self.after_first: AfterFirst = after_first
        self.resume: Callable[..., Any] | None = resume
        self.dialect = dialect
        self.ways: tuple[OtherSource, ...] = ()
        self._adapter = adapter
        self._first, self._idle = first, idle
        self.each = first is None
        """The limit is for each event. With `first` it is for the first content, whatever comes before that."""
        self._beside: tuple[StreamOf[P, T], ...] = ()
        """Fallbacks without a policy of their own: they have the limits of this stream."""
        self._is_fallback = False
        self._bind(plan)

    def fallback(
        self,
        other: Callable[P, AsyncIterable[T]] | Callable[P, Iterable[T]] | StreamOf[P, T],
        *,
        when: When | None = None,
        name: str = "",
    ) -> StreamOf[P, T]:
        """Add another source, used when this one has failed for good before its first item; return this object.

            live = recover("claude").stream(tokens).fallback(other_tokens, when="rate_limit")

        `other` is a function like the first, called once under the same limits, or a stream with a policy of its own. `when`
        limits it to failures with these codes or categories. Raises `InvalidError` for anything else, and for a fallback that
        has fallbacks of its own: add all of them to the first stream.
        """
        if self._is_fallback or (isinstance(other, StreamOf) and other.ways):
            got = "a fallback of a fallback, which would never be used"
            raise InvalidError.saying("stream.fallback", "a stream without fallbacks of its own", got)
        if not isinstance(other, StreamOf):
            other = StreamOf(
                self.plan.once(),
                other,
                first=self._first,
                idle=self._idle,
                total=self.total,
                dialect=self.dialect,
                adapter=self._adapter,
            )
            self._beside = (*self._beside, other)
        if None not in (self._reads_in, other._reads_in) and self._reads_in != other._reads_in:
            raise InvalidError.saying(
                "stream.fallback",
                "a function of the same kind",
                "an async and a sync function, but one loop reads both",
            )
        name = name or name_of(other.fn).rpartition(".")[2]
        when = checked_when(f"stream.fallback {name}: when", when)
        self.ways = (*self.ways, OtherSource(name, other, when))
        other._is_fallback = True
        return self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
        return Stream(self, args, kwargs)

    def check_reader(self, reader: Literal["task", "thread"]) -> None:
        """Raise `InvalidError` if the items cannot be read in a task, or in a thread."""
        if self._reads_in not in (None, reader):
            kind, right = ("an async function", "async with") if reader == "thread" else ("a generator", "with")
            raise InvalidError.saying("stream", f"`{right}` around a stream of {kind}", "the other one")
        if reader == "thread" and self._is_limited:
            got = "first, idle or total, but nothing can interrupt a thread that reads: limit the HTTP client instead"
            raise InvalidError.saying("stream", "no time limits for a plain iterator", got)

    def begin(self) -> Operation:
        """Return the operation of a stream that is entered now."""
        plan = self.plan.fresh()
        if plan is not self.plan:
            self._bind(plan)
            for other in self._beside:
                other._bind(plan.once())  # noqa: SLF001 - its own class
        op = Operation(plan, self._adapter)
        shadow = plan.shadow
        if op.observation is not None and shadow is not None and (self._is_limited or shadow.wheels is not None):
            op.observation.cannot_judge("time limits of streams")
        return op

    def _bind(self, plan: Plan) -> None:
        """Use a plan, and make the limits with its timeout and its clock."""
        self.plan, clock = plan, plan.runtime.clock
        self.first = self._wheels(self._first)
        self.idle = self._wheels(self._idle)
        self.own = Wheels(0.0, clock)

    def _wheels(self, given: float | None) -> Wheels | None:
        seconds = given or self.plan.timeout
        return None if seconds is None else Wheels(seconds, self.plan.runtime.clock)


# --- the drivers ---


def _not_readable(source: Any, expected: str) -> InvalidError:
    return InvalidError.saying("what the function of a stream returns", expected, f"{type(source).__name__}")


class _Driver:
    """What both drivers have: the flow, the source that is read now, and its place in the limiter."""

    def __init__(
        self, of: StreamOf[Any, Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self._flow = Flow(of)
        self._args = args
        self._kwargs: Mapping[str, Any] = kwargs or {}
        self._source: Any = None
        self._place: StreamPlace | None = None
        self._context: AttemptContext | None = None
        self._entered = False
        self._starting = False
        """Whether it reads for `start`, which hands out the source even if it has ended, so it is not closed."""
        self._busy = False
        """The source is being read or closed."""
        self._left = False
        """The consumer has closed the source that it was handed out."""
        self._waits = threading.Lock()
        """Held while a consumer waits for an item."""

    @property
    def partial(self) -> Partial:
        """The items that were delivered so far."""
        return self._flow.delivered.partial()

    @property
    def restarts(self) -> int:
        """How often the stream began again after items had been delivered."""
        return self._flow.restarts

    @property
    def op(self) -> Operation:
        """The operation of the present attempt."""
        return self._flow.op

    def abandon(self, error: BaseException | None = None) -> None:
        """The consumer left before the end."""
        if self._entered:
            self._flow.abandon(error)
            self._release_place()

    def source_closed(self) -> None:
        """A source was closed. If the consumer did this, and not the stream itself, the consumer has left."""
        # While the stream reads, its operation is in force in its own task or thread, and in no other.
        is_own = AMBIENT.get() is self._flow.op if self._source is not None else self._busy
        if self._flow.handed_out and not is_own:
            self._left = True
            self.abandon()

    def __del__(self) -> None:
        # If a consumer drops a stream without closing it, only this method notices. A permit that is never settled
        # would keep a half-open circuit from closing.
        if self._flow.handed_out:
            self.abandon()

    def _enter(self) -> None:
        if self._entered:
            raise InvalidError.saying("stream", "one `async with` per stream", "a stream that was entered before")
        self._entered = True
        self._flow.begin()

    @contextmanager
    def _started(self) -> Iterator[None]:
        self._enter()
        self._starting = True
        try:
            yield
        except BaseException as error:
            # A failure is settled already. A cancellation that came while a source was being closed is not settled yet.
            self._flow.abandon(error)
            self._flow.op.end()
            raise

    def _hand_out(self) -> Any:
        self._starting, self._flow.handed_out = False, True
        self._flow.settle_complete()
        self._release_if_complete()
        self._flow.op.end()
        return self._source

    def _claim(self) -> None:
        """Let one consumer wait for an item. Two would read one source at once, and each would get a part of the items."""
        if not self._waits.acquire(blocking=False):
            raise InvalidError.saying(
                "stream", "one consumer at a time", "a second one while the first waits for an item"
            )

    def _check_time(self) -> None:
        """Raise if the stream must have ended by now: the consumer came back too late."""
        if self._flow.is_overdue():
            self._flow.drop_ready()
            raise self._flow.late()

    def _admit(self) -> None:
        op = self._flow.op
        # Only a reader of events can change the context, so without one the copy is not needed.
        self._context = None
        if op.plan.watched:
            self._context = AttemptContext(op)
        else:
            op.admit()

    def _new_source(self) -> Any:
        of = self._flow.of
        if of.resume is None or not self._flow.has_content:
            return of.fn(*self._args, **self._kwargs)
        return of.resume(self.partial, *self._args, **self._kwargs)

    def _release_place(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.release()

    def _release_if_complete(self) -> None:
        """Give the place of a stream back whose last item has come: many consumers stop there without closing it."""
        if self._flow.handed_out and (self._flow.over or self._flow.is_complete):
            self._release_place()


class Stream(_Driver, Generic[T]):
    """One stream that is read in a task. Enter it with `async with`, then iterate over it once. `with` reads in a thread.

    Iterating raises what the source raised if nothing was delivered before, `StreamCutError` with the delivered items after
    that, and `CircuitOpenError`, `DeadlineError` or `BudgetError` where no attempt may be made.
    """

    _blocking: BlockingStream[T] | None = None

    async def __aenter__(self) -> Self:
        of: Any = self._flow.of
        of.check_reader("task")
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaving early, or by an exception of the consumer's own, says nothing about the source (R78, R79)."""
        self._flow.abandon(error)
        self._flow.op.end()
        await self._close()

    def __enter__(self) -> BlockingStream[T]:
        """Read in this thread instead, from a function that returns a plain iterator."""
        of: Any = self._flow.of
        of.check_reader("thread")
        self._blocking = BlockingStream(of, self._args, self._kwargs)
        return self._blocking.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._blocking is not None
        self._blocking.__exit__(kind, error, trace)

    async def open(self) -> Any:
        """Open the source, with retries that nobody sees; return the one that answered. None of its items is read.

        As after `start`, the stream belongs to an object of an SDK. Items before the first content are handed on as they come.
        """
        self._flow.shows_opening = True
        with self._started():
            while self._source is None:
                try:
                    self._check_time()
                    await self._begin()
                    await self._read(opens_only=True)
                except BaseException as error:
                    if not await self._recover(error):
                        raise
        return self._hand_out()

    async def start(self) -> Any:
        """Read until the first content, with retries that nobody sees; return the source of the attempt that has it.

        From here on the stream belongs to an object of an SDK that iterates over this one. It is left when `abandon` or
        `source_closed` is called, or when nobody holds it any more.
        """
        with self._started():
            async for item in self:
                self._flow.take_back(item)
                break
        return self._hand_out()

    if not TYPE_CHECKING:  # type checkers must still say that it is no iterable

        def __iter__(self) -> Never:
            source = self._flow.of.fn
            raise InvalidError.saying(
                f"stream of {name_of(source)}",
                "`with` around it, then `for`; for an async source `async with`, then `async for`",
                "`for` over a stream that was not entered",
            )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not self._entered:
            raise InvalidError.saying("stream", "`async with` around it", "a stream that was not entered")
        flow = self._flow
        if self._place is not None:
            self._place.read()
        if not flow.ready or flow.is_overdue():
            self._claim()
            try:
                while not flow.ready or flow.is_overdue():
                    if flow.over:
                        raise StopAsyncIteration
                    try:
                        self._check_time()
                        if self._source is None:
                            await self._begin()
                        await self._read()
                    except BaseException as error:
                        if not await self._recover(error):
                            raise
            finally:
                self._waits.release()
        item: T = flow.next_item()
        return item

    async def _begin(self) -> None:
        """Begin an attempt; the source itself is opened under the first item's limit."""
        op = self._flow.op
        if op.charges is not None and op.plan.limiter is None:
            await reserve_async(op, self._args, self._kwargs)
        self._admit()
        if (limiter := op.plan.limiter) is not None:
            self._place = StreamPlace(limiter, await acquire_async(op, limiter, self._args, self._kwargs))
        self._flow.source_opened()

    async def _read(self, *, opens_only: bool = False) -> None:
        """Await an item that may be handed on, no longer than its limit."""
        flow, ended = self._flow, False
        limit = self._begin_limit()
        # The scope is set for this step only. Between two items the consumer runs, and its calls are not part of the
        # attempt.
        token = AMBIENT.set(flow.op)
        inside = () if self._context is None else self._context.enter()
        self._busy = True
        try:
            if self._source is None:
                self._source = await _under(limit, self._open())
            # Where the limit is for each event, one that is held back is a sign of life: the limit begins anew.
            while not opens_only and not await self._receive(limit) and not flow.of.each:
                pass
        except StopAsyncIteration as end:
            # The end is settled after this block, because a stream that was cut must reach `_recover` like any other
            # failure.
            ended = True
            self._check_end(limit, end)
        except BaseException as error:
            expired, limit = limit, None
            if expired is not None and self._is_late(expired, error):
                raise flow.late() from error
            raise
        finally:
            self._busy = False
            if inside:
                AttemptContext.leave(inside)
            leave(token)
            # The limit ends before the item is handed on: the consumer's own time is not the source's.
            if limit is not None:
                limit.end()
        if ended:
            flow.source_ended(self._source)
            if not self._starting:
                await self._close()

    async def _receive(self, limit: TimeLimit | None) -> bool:
        """Await one item; return False if it is held back."""
        item = _in_time(limit, await _under(limit, anext(self._source)))
        is_next = self._flow.received(item, self._source)
        if self._place is not None:
            self._release_if_complete()
        return is_next

    async def _open(self) -> AsyncIterator[T]:
        source = self._new_source()
        source = await source if inspect.isawaitable(source) else source
        if not hasattr(source, "__aiter__"):
            raise _not_readable(source, "an async iterator; for a plain one write `with` instead of `async with`")
        return aiter(source)

    async def _recover(self, error: BaseException) -> bool:
        """Return True to go on with another source, False to let the error through, or raise what surfaces instead."""
        if self._flow.over:
            # The stream was abandoned while it was read, so this error comes from its consumer.
            return False
        # An outer cancellation may come while the source closes. Then leaving the stream settles it.
        try:
            await self._close()
        except Exception as closing:  # noqa: BLE001 - a foreign close may raise anything, and the first failure matters
            reports.suppressed(self._flow.op, closing, _NOT_CLOSED)
        delay = self._flow.failed(error, (self._args, self._kwargs))
        if delay is None:
            return False
        try:
            await pause_async(self._flow.op, delay)
        except Exception as stop:
            if not self._flow.falls_back(stop):
                raise
        if self._left:
            self._flow.abandon_wait()
            return False
        self._flow.retry()
        return True

    async def _close(self) -> None:
        source, self._source = self._source, None
        self._busy = True
        try:
            if source is not None:
                await close_answer_async(source)
        finally:
            self._busy = False
            self._release_place()

    # --- its limits ---

    def _begin_limit(self) -> TimeLimit | None:
        of, op = self._flow.of, self._flow.op
        if op.plan.off:
            return None
        now, ends = op.plan.monotonic(), self._flow.ends()
        left = None if ends is None else max(0.0, ends - now)
        wheels = of.first if self._flow.fresh else of.idle
        if wheels is not None and (left is None or wheels.seconds <= left):
            return wheels.begin(now, op)
        return None if left is None else of.own.begin_own(left, op)

    def _check_end(self, limit: TimeLimit | None, end: StopAsyncIteration) -> None:
        """Raise for a source that swallowed its cancellation and ended: the rest of its items is missing."""
        if limit is not None and limit.end():
            raise self._flow.late() from end

    def _is_late(self, limit: TimeLimit, error: BaseException) -> bool:
        """Stop the clock; return whether the source raised `error` because our own limit cancelled it."""
        op = self._flow.op
        if limit.ends_with(error):
            return True
        if isinstance(error, asyncio.CancelledError) and self._flow.fresh and op.around is not None and limit.due:
            # An outer recovery with the same limit fired first. The callee was late too, so its circuit counts the
            # call.
            op.timed_out(errors.lateness(op, op.plan.monotonic()))
        return False


def _under(limit: TimeLimit | None, call: Any) -> Any:
    """Return a call that is awaited next, under a limit. The limit closes it if it ignores its cancellation."""
    if limit is not None:
        limit.call = call
    return call


def _in_time(limit: TimeLimit | None, item: Any) -> Any:
    """Return an item. If its source swallowed its cancellation, it comes too late: raise the cancellation instead."""
    if limit is not None and limit.overdue is not None:
        raise asyncio.CancelledError
    return item


class BlockingStream(_Driver, Generic[T]):
    """One stream that is read in a thread. It has no time limits of its own: nothing can interrupt a thread that reads.

    `with stream:` and iterate, or `start` it and hand out an SDK's own object, as with `Stream`.
    """

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The generator around it is closed by GeneratorExit when its consumer leaves; that is not the consumer's error.
        self._flow.abandon(None if isinstance(error, GeneratorExit) else error)
        self._flow.op.end()
        self._close()

    def open(self) -> Any:
        """Open the source, with retries that nobody sees; return the one that answered. None of its items is read.

        As after `start`, the stream belongs to an object of an SDK. Items before the first content are handed on as they come.
        """
        self._flow.shows_opening = True
        with self._started():
            while self._source is None:
                try:
                    self._check_time()
                    self._begin()
                    self._read(opens_only=True)
                except BaseException as error:
                    if not self._recover(error):
                        raise
        return self._hand_out()

    def start(self) -> Any:
        """Read until the first content, with retries that nobody sees; return the source of the attempt that has it."""
        with self._started():
            for item in self:
                self._flow.take_back(item)
                break
        return self._hand_out()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        flow = self._flow
        if self._place is not None:
            self._place.read()
        if not flow.ready or flow.is_overdue():
            self._claim()
            try:
                while not flow.ready or flow.is_overdue():
                    if flow.over:
                        raise StopIteration
                    try:
                        self._check_time()
                        if self._source is None:
                            self._begin()
                        self._read()
                    except BaseException as error:
                        if not self._recover(error):
                            raise
            finally:
                self._waits.release()
        item: T = flow.next_item()
        return item

    def _begin(self) -> None:
        op = self._flow.op
        if op.charges is not None and op.plan.limiter is None:
            reserve(op, self._args, self._kwargs)
        self._admit()
        if (limiter := op.plan.limiter) is not None:
            self._place = StreamPlace(limiter, acquire(op, limiter, self._args, self._kwargs))
        self._flow.source_opened()

    def _read(self, *, opens_only: bool = False) -> None:
        """Read an item that may be handed on."""
        flow, ended = self._flow, False
        token = AMBIENT.set(flow.op)
        inside = () if self._context is None else self._context.enter()
        self._busy = True
        try:
            if self._source is None:
                self._source = self._open()
            while not opens_only and not flow.received(next(self._source), self._source):
                pass
        except StopIteration:
            ended = True
        except Exception as error:
            # Nothing can interrupt a thread that reads, but its HTTP client has the rest of the time as its own limit.
            if flow.is_overdue():
                raise flow.late() from error
            raise
        finally:
            self._busy = False
            if inside:
                AttemptContext.leave(inside)
            leave(token)
        if ended:
            flow.source_ended(self._source)
            if not self._starting:
                self._close()
        elif self._place is not None:
            self._release_if_complete()

    def _open(self) -> Iterator[T]:
        source = self._new_source()
        if not hasattr(source, "__iter__"):
            if inspect.iscoroutine(source):
                # Nobody will await it, and Python warns about a coroutine that is neither awaited nor closed.
                source.close()
            raise _not_readable(source, "an iterator; for an async one write `async with` instead of `with`")
        opened: Iterator[T] = iter(source)
        return opened

    def _recover(self, error: BaseException) -> bool:
        """Return True to go on with another source, False to let the error through, or raise what surfaces instead."""
        if self._flow.over:
            return False
        try:
            self._close()
        except Exception as closing:  # noqa: BLE001 - a foreign close may raise anything, and the first failure matters
            reports.suppressed(self._flow.op, closing, _NOT_CLOSED)
        delay = self._flow.failed(error, (self._args, self._kwargs))
        if delay is None:
            return False
        try:
            pause(self._flow.op, delay)
        except Exception as stop:
            if not self._flow.falls_back(stop):
                raise
        if self._left:
            self._flow.abandon_wait()
            return False
        self._flow.retry()
        return True

    def _close(self) -> None:
        source, self._source = self._source, None
        self._busy = True
        try:
            if source is not None:
                close_answer(source)
        finally:
            self._busy = False
            self._release_place()
