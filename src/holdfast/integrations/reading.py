"""Streams that frameworks read: in a thread, or as a plain async generator, held until their first content.

Invariant: a source that was opened is closed and its operation settled once, however the stream ends; what is delivered is
never a mixture of two answers where a tool call may be among it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

import msgspec

from holdfast.events import StreamResumed
from holdfast.faults import Fault, HoldfastError, InvalidError, StreamCutError
from holdfast.integrations.passing import Signal
from holdfast.runtime import reports
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.drivers import leave, pause
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.partials import Delivered
from holdfast.runtime.stream import StreamOf
from holdfast.runtime.surroundings import Surroundings, admit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator

    from holdfast.faults import Partial
    from holdfast.integrations.passing import Calls, PassingOperation
    from holdfast.runtime.limiter import Limiter
    from holdfast.runtime.operation import Operation
    from holdfast.runtime.stream import AfterFirst

__all__ = ["Form", "check_after_first", "read", "read_async"]

T = TypeVar("T")


def _never(item: Any) -> bool:  # noqa: ARG001 - what a form says of its items unless it knows better
    return False


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a stream's items."""

    opens: Callable[[Any], bool] = _never
    """Whether an item comes before any content, so that nobody misses it if the stream begins again."""
    fragment: Callable[[Any], bool] = _never
    """Whether an item is a part of a tool call: after one, nothing is resumed."""
    check: Callable[[], Callable[[Any], bool | None]] | None = None
    """Makes, for one stream, a function that looks at each item: whether it is the last a whole stream must have; None
    where that cannot be told. A stream that is looked at and has no item is none."""
    used: Callable[[list[Any]], Any] | None = None
    """What the items say was used, in a known form."""


# --- in a thread ---


def read(
    calls: Calls,
    form: Form,
    fn: Callable[..., Iterable[T]],
    *args: Any,
    after_first: AfterFirst = "raise",
    resume: Callable[[Partial], tuple[Any, ...]] | None = None,
) -> Generator[T, None, None]:
    """Yield what `fn` gives; `resume` makes the arguments for the rest from what was delivered."""
    if calls.plan.off:
        yield from fn(*args)
        return
    reading = _Reading(calls, form, fn, args, after_first=after_first, resume=resume)
    try:
        yield from reading
    except Signal as signal:
        raised = signal.raised
    else:
        return
    finally:
        reading.close()
    try:
        raise raised
    finally:
        del raised  # an exception in a frame that it passes through keeps itself alive


class _Reading(Generic[T]):
    """One stream that is read in a thread; what `holdfast.runtime.stream.Stream` is in a task."""

    def __init__(
        self,
        calls: Calls,
        form: Form,
        fn: Callable[..., Iterable[T]],
        args: tuple[Any, ...],
        *,
        after_first: AfterFirst,
        resume: Callable[[Partial], tuple[Any, ...]] | None,
    ) -> None:
        self._op: PassingOperation = calls.begin()
        self._form = form
        self._open = calls.carrying(lambda *given: _held(form, fn(*given)))
        self._carry = calls.passing
        self._args = args
        self._after_first = after_first
        self._resume = resume
        self._source: Generator[T, None, None] | None = None
        self._place: tuple[Limiter, int] | None = None
        self._surroundings: Surroundings | None = None
        self._delivered = Delivered()
        self._items: list[Any] = []
        self._over = False

    def __iter__(self) -> _Reading[T]:
        return self

    def __next__(self) -> T:
        while not self._over:
            try:
                if self._source is None:
                    self._begin()
                item = self._step()
            except StopIteration:
                self._over = True
                self._op.succeeded(None if self._form.used is None else self._form.used(self._items))
                self._close()
            except BaseException as error:
                if not self._recovers(error):
                    raise
            else:
                self._take(item)
                return item
        raise StopIteration

    def close(self) -> None:
        """Leave it; where it was not over, nothing is known about the source."""
        if not self._over:
            self._over = True
            self._op.abandoned(None)
        self._op.end()
        self._close()

    def _begin(self) -> None:
        op = self._op
        self._surroundings = admit(op)
        if (limiter := op.plan.limiter) is not None:
            self._place = (limiter, limiter.acquire(op.plan.runtime, op.deadline))
            op.call_starts()

    def _step(self) -> T:
        token = AMBIENT.set(self._op)
        inside = () if self._surroundings is None else self._surroundings.enter()
        try:
            if self._source is None:
                again = self._resume is not None and self._delivered.count
                args = self._resume(self._delivered.partial()) if again and self._resume else self._args
                self._source = self._open(*args)
            return next(self._source)
        except self._carry as raised:
            raise Signal(raised) from None
        finally:
            Surroundings.leave(inside)
            leave(token)

    def _take(self, item: T) -> None:
        self._delivered.add(item)
        if self._form.used is not None and self._op.budget is not None:
            self._items.append(item)
        if self._form.fragment(item):
            self._after_first = "raise"

    def _close(self) -> None:
        source, self._source = self._source, None
        place, self._place = self._place, None
        try:
            if source is not None:
                source.close()
        finally:
            if place is not None:
                limiter, ticket = place
                limiter.release(ticket)

    def _recovers(self, error: BaseException) -> bool:
        """Settle the failure; return True to try again, False to let it through, or raise what surfaces instead."""
        op = self._op
        try:
            self._close()
        except Exception as closing_failed:  # noqa: BLE001 - the failure that matters is the first
            reports.suppressed(op, closing_failed, "closing the source of a stream that had failed raised")
        cut = self._delivered.count > 0 and isinstance(error, Exception)
        if cut and self._after_first == "raise":
            assert isinstance(error, Exception)
            self._over = True
            op.cut_off(error)
            self._surface_cut(error)
        self._over = True  # whatever is raised below, it is over
        delay = op.failed(error)
        if delay is None:
            if cut:
                self._surface_cut(error)
            return False
        pause(op, delay)
        self._over = False
        if cut:
            self._resumed()
        return True

    def _surface_cut(self, error: BaseException) -> NoReturn:
        fault = fault_of(error)
        if fault.code == "SYS_PROGRAMMING_ERROR":
            raise error
        raise StreamCutError(self._delivered.on(fault)) from error

    def _resumed(self) -> None:
        op = self._op
        runtime = op.plan.runtime
        how: Literal["continue", "restart"] = "continue" if self._after_first == "continue" else "restart"
        if runtime.bus.wants(StreamResumed):
            runtime.bus.emit(
                StreamResumed(
                    at=runtime.clock.wall(),
                    run=op.run,
                    operation=op.plan.name,
                    how=how,
                    items=self._delivered.count,
                )
            )
        if how == "restart":
            self._delivered, self._items = Delivered(), []


def _held(form: Form, source: Iterable[T]) -> Generator[T, None, None]:
    """Give the items, none before the first content; an end without the last item is a cut."""
    opening: list[T] | None = []
    ended = _Ending(form)
    items: Iterator[T] = iter(source)
    with closing(_Closable(items)):
        for item in items:
            ended.note(item)
            if opening is None:
                yield item
                continue
            opening.append(item)
            if not form.opens(item):
                yield from opening
                opening = None
        ended.check()
        yield from opening or ()


# --- in a task ---


async def read_async(
    calls: Calls,
    form: Form,
    fn: Callable[..., AsyncIterator[T]],
    *args: Any,
    after_first: AfterFirst = "raise",
    resume: Callable[[Partial], tuple[Any, ...]] | None = None,
) -> AsyncGenerator[T, None]:
    """The same for an async iterator; silence has the policy's limit."""
    if calls.plan.off:
        async for item in fn(*args):
            yield item
        return
    of: _PassingStream[T] = _PassingStream(calls, form, fn, after_first, resume)
    try:
        async with of(*args) as stream:
            async for item in stream:
                of.take(item)
                yield item
    except Signal as signal:
        raised = signal.raised
    else:
        return
    try:
        raise raised
    finally:
        del raised  # ditto


class _PassingStream(StreamOf[Any, T]):
    """The source of one stream, whose operation lets signals pass."""

    def __init__(
        self,
        calls: Calls,
        form: Form,
        fn: Callable[..., AsyncIterator[T]],
        after_first: AfterFirst,
        resume: Callable[[Partial], tuple[Any, ...]] | None,
    ) -> None:
        self._calls = calls
        self._form = form
        self._items: list[Any] = []
        self._op: PassingOperation | None = None

        def opened(*args: Any) -> AsyncGenerator[T, None]:
            return _held_async(calls, form, fn, args)

        def rest(partial: Partial, *_: Any) -> AsyncGenerator[T, None]:
            assert resume is not None
            return opened(*resume(partial))

        resumed = rest if resume is not None else None
        super().__init__(calls.plan, opened, first=None, idle=None, total=None, after_first=after_first, resume=resumed)

    def begin(self) -> Operation:
        op = self._op = self._calls.begin()
        self.plan = op.plan
        if op.plan.runtime is not self._runtime:
            self._bind()
        if self._form.used is not None:
            used = self._form.used
            op.told = lambda _source: used(self._items)
        return op

    def take(self, item: T) -> None:
        if self._form.used is not None and self._op is not None and self._op.budget is not None:
            self._items.append(item)
        if self._form.fragment(item):
            self.after_first = "raise"
            self.resume = None


async def _held_async(
    calls: Calls, form: Form, fn: Callable[..., AsyncIterator[T]], args: tuple[Any, ...]
) -> AsyncGenerator[T, None]:
    opening: list[T] | None = []
    ended = _Ending(form)
    try:
        items = fn(*args)
        async with aclosing(_Closable(items)):
            async for item in items:
                ended.note(item)
                if opening is None:
                    yield item
                    continue
                opening.append(item)
                if not form.opens(item):
                    for held in opening:
                        yield held
                    opening = None
            ended.check()
            for held in opening or ():
                yield held
    except calls.passing as raised:
        raise Signal(raised) from None


# --- both ---


class _Ending:
    """Whether a stream came to its end."""

    def __init__(self, form: Form) -> None:
        self._last = None if form.check is None else form.check()
        self._any = False
        self._ended: bool | None = None

    def note(self, item: Any) -> None:
        self._any = True
        if self._last is not None and (told := self._last(item)) is not None:
            self._ended = bool(self._ended) or told

    def check(self) -> None:
        if self._ended is False or (self._last is not None and not self._any):
            raise HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its last part"))


class _Closable:
    """An iterator that may have nothing to close."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def close(self) -> None:
        close = getattr(self._items, "close", None)
        if callable(close):
            close()

    async def aclose(self) -> None:
        close = getattr(self._items, "aclose", None)
        if callable(close):
            await close()


def check_after_first(path: str, after_first: Any, allowed: tuple[str, ...], resume: Any) -> None:
    """Refuse what could not be performed."""
    if after_first not in allowed:
        raise InvalidError.at(f"{path}.after_first", " or ".join(repr(word) for word in allowed), after_first)
    if (resume is not None) != (after_first == "continue"):
        raise InvalidError.saying(
            f"{path}.resume",
            'a function, with after_first="continue" and only there',
            f"after_first={after_first!r} and {'a function' if resume is not None else 'none'}",
        )
