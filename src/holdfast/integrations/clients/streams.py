"""Streams of the SDKs: held until their first content, so that a failure before it stays unseen; then watched to the end.

The stream handed out is the SDK's own object. Only where its events come from is ours: events pass one by one, and a tool
call is never put together from two answers.

Invariant: the operation behind a stream is settled once: at its end, when it breaks, when it is closed, or when
nobody holds it any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import ref

from holdfast.faults import Fault, HoldfastError, StreamCutError
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.limits import Wheels
from holdfast.runtime.partials import Delivered
from holdfast.runtime.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.integrations.clients.dialect import Used
    from holdfast.integrations.clients.flowing import Flowing
    from holdfast.integrations.clients.operation import StreamOperation

__all__ = ["open_stream", "open_stream_async"]

_SOURCE = "_iterator"
"""Where a stream of either SDK has the iterator that its own `__next__` and `__iter__` read from."""


def open_stream(op: StreamOperation, stream: Any) -> Any:
    """Read a fresh stream up to its first content and return it; what comes next is watched."""
    if not hasattr(stream, _SOURCE):
        return stream
    watched = Events(op, stream, getattr(stream, _SOURCE))
    try:
        while watched.opening:
            watched.hold(next(watched.source))
    except StopIteration:
        watched.nothing_more()
    except BaseException:
        stream.close()
        raise
    setattr(stream, _SOURCE, watched)
    op.flowing = True
    _tell_when_closed(stream, watched)
    return stream


async def open_stream_async(op: StreamOperation, stream: Any) -> Any:
    """The same for an async stream."""
    if not hasattr(stream, _SOURCE):
        return stream
    watched = AsyncEvents(op, stream, getattr(stream, _SOURCE))
    try:
        while watched.opening:
            watched.hold(await anext(watched.source))
    except StopAsyncIteration:
        watched.nothing_more()
    except BaseException:
        await stream.close()
        raise
    setattr(stream, _SOURCE, watched)
    op.flowing = True
    _tell_when_closed_async(stream, watched)
    return stream


def _tell_when_closed(stream: Any, watched: Events) -> None:
    """Let the watcher know when the connection is closed: streams and the helpers around them all close the response.

    What is set on the response must not keep it alive, nor the watcher: nobody holding a stream any more is a sign as well.
    """
    response, watcher = ref(stream.response), ref(watched)

    def close() -> None:
        if (closing := response()) is not None:
            type(closing).close(closing)
        if (watching := watcher()) is not None:
            watching.closed()

    stream.response.close = close


def _tell_when_closed_async(stream: Any, watched: AsyncEvents) -> None:
    """The same for an async stream."""
    response, watcher = ref(stream.response), ref(watched)

    async def aclose() -> None:
        if (closing := response()) is not None:
            await type(closing).aclose(closing)
        if (watching := watcher()) is not None:
            watching.closed()

    stream.response.aclose = aclose


class _Watched:
    """What both kinds of streams do with their events."""

    source: Any
    _over = False
    _reading = False
    """The next event is being read: who closes the connection now is the SDK itself, at the end or where it breaks."""

    def __init__(self, op: Flowing, stream: Any, source: Any) -> None:
        self._op = op
        self.source = source
        self._dialect = op.dialect
        response = getattr(stream, "response", None)
        self._request = None if response is None else response.request
        self._held: deque[Any] = deque()
        self._delivered = Delivered()
        self.opening = True
        self._ended: bool | None = None
        """Whether its last event came; None: its kind has none."""
        self._used: Used | None = None
        self._told: Exception | None = None
        """A failure that was told in an event, which the caller has seen."""

    def hold(self, event: Any) -> None:
        """Keep an event back until the first content is there."""
        failure = self._dialect.failure(event, self._request)
        if failure is not None:
            raise failure
        self._held.append(event)
        self.opening = self._dialect.opens(event)
        self._note(event)

    def nothing_more(self) -> None:
        """The stream ended before its first content: whole and empty, or cut. One without any event is no stream."""
        self.opening = False
        if self._ended is False or not self._held:
            raise HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its first content"))

    def _note(self, event: Any) -> None:
        ends = self._dialect.ends(event)
        if ends is not None:
            self._ended = self._ended or ends
        used = self._dialect.used(event)
        if used is not None:
            self._used = used if self._used is None else self._used.then(used)

    def _give(self, event: Any) -> Any:
        self._note(event)
        self._told = self._told or self._dialect.failure(event, self._request)
        return self._deliver(event)

    def _deliver(self, event: Any) -> Any:
        self._delivered.add(event)
        return event

    def _finish(self) -> None:
        """The source has no more: that is the end only if its last event came."""
        if self._ended is False:
            self._break(HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its last event")))
        if self._over:
            return
        self._over = True
        if self._told is None:
            self._op.ended_well(self._used)
        else:
            self._op.cut_off(self._told)

    def _break(self, error: Exception) -> NoReturn:
        """Settle the failure and raise the cut, with what was delivered on it."""
        self._over = True
        if fault_of(error).code == "PROVIDER_TIMEOUT":
            error = self._silent(error)
        self._op.cut_off(error)
        fault = fault_of(error)
        if fault.code == "SYS_PROGRAMMING_ERROR":
            raise error
        raise StreamCutError(self._delivered.on(fault)) from error

    def _silent(self, cause: BaseException, seconds: float | None = None) -> HoldfastError:
        """Whoever's limit it was, ours or the HTTP client's: in the middle of a stream nothing came for too long."""
        long = "too long" if seconds is None else f"{seconds:g} s"
        message = f"{self._op.plan.name} sent nothing for {long}"
        error = HoldfastError(
            Fault.of("PROVIDER_STREAM_STALLED", message, context={"idle_s": seconds} if seconds else {})
        )
        error.__cause__ = cause
        return error

    def _stop(self, error: BaseException) -> None:
        """Somebody asked to stop."""
        if not self._over:
            self._over = True
            self._op.stopped(error)

    def left(self) -> None:
        """The consumer turned away."""
        if not self._over and self._op.flowing:
            self._over = True
            self._op.abandoned(None)

    def closed(self) -> None:
        """The connection was closed."""
        if not self._reading:
            self.left()

    def __del__(self) -> None:
        # Who lets go of a stream without closing it tells nobody.
        self.left()


class Events(_Watched):
    """The events of a stream that is read in a thread."""

    source: Iterator[Any]

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Any:
        if self._held:
            return self._deliver(self._held.popleft())
        if self._over:
            raise StopIteration
        inside = self._op.surround()
        self._reading = True
        try:
            event = next(self.source)
        except StopIteration:
            self._finish()
            raise
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises is what broke the stream
            self._break(error)
        except BaseException as stop:
            self._stop(stop)
            raise
        finally:
            self._reading = False
            Surroundings.leave(inside)
        return self._give(event)


class AsyncEvents(_Watched):
    """The events of a stream that is read in a task; silence has the limit of an attempt."""

    source: AsyncIterator[Any]

    def __init__(self, op: Flowing, stream: Any, source: Any) -> None:
        super().__init__(op, stream, source)
        seconds = op.plan.timeout
        self._idle = None if seconds is None else Wheels(seconds, op.plan.runtime.clock)

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> Any:
        if self._held:
            return self._deliver(self._held.popleft())
        if self._over:
            raise StopAsyncIteration
        try:
            event = await self._next()
        except StopAsyncIteration:
            self._finish()
            raise
        except Exception as error:  # noqa: BLE001 - ditto
            self._break(error)
        except BaseException as stop:
            self._stop(stop)
            raise
        return self._give(event)

    async def _next(self) -> Any:
        limit = None if self._idle is None else self._idle.begin(self._op.plan.monotonic())
        inside = self._op.surround()
        self._reading = True
        try:
            return await anext(self.source)
        except asyncio.CancelledError as error:
            if limit is not None and limit.end():
                limit = None
                raise self._silent(error, self._op.plan.timeout) from error
            raise
        finally:
            self._reading = False
            Surroundings.leave(inside)
            if limit is not None:
                limit.end()
