"""An SDK's own stream object on the stream machine.

The caller gets a copy of the SDK's stream object as soon as the service has answered. Only the iterator that the copy reads from
is ours. It hands on each event when it comes, and watches the stream to its end. If the stream breaks before its first content,
the iterator goes on with the next attempt's stream, and leaves out the opening that the caller has already.

Invariant: the operation behind a stream is settled once. This happens at the stream's end, when the stream breaks, when its
connection is closed, or when nobody holds the stream any more.
"""

from __future__ import annotations

import inspect
import json
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

from holdfast._steps import Steps, twin
from holdfast.faults import HoldfastError
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.streams.flow import Ending
from holdfast.runtime.streams.stream import BlockingStream, Stream, StreamOf

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from holdfast.integrations.clients.exchange import Exchange
    from holdfast.runtime.streams.flow import StreamDialect

__all__ = ["check_end", "check_end_async", "observe", "observe_async", "only", "open_stream"]

_ITERATOR = "_iterator"
"""The attribute of an SDK's stream with the iterator that its own `__next__` and `__iter__` read from."""
_DECODER = "_decoder"
"""The attribute of an SDK's stream with the decoder of its server-sent events. It is read when the first event is."""
_DONE = "[DONE]"
"""The end marker of OpenAI's protocols."""


def _is_stream(response: Any) -> bool:
    # The attribute itself is not read: some versions of the SDKs make the iterator then, and it keeps the decoder of that moment.
    return hasattr(type(response), _ITERATOR) or _ITERATOR in getattr(response, "__dict__", ())


def _response_of(stream: Any) -> str:
    """Return the attribute with the HTTP response: a decoder of lines has another name for it than a stream of events."""
    return "response" if hasattr(stream, "response") else "http_response"


class _Decoder:
    """The SDK's decoder of one stream's events. It also sees the end marker, which the SDK does not hand on."""

    __slots__ = ("_own", "is_done", "latest", "pieces")

    def __init__(self, own: Any) -> None:
        self._own = own
        self.is_done = False
        self.latest: Any = None
        """The event that the SDK's event was made of that came last."""
        self.pieces: Any = None
        """The body that is read, an iterator of the HTTP library."""

    def iter_bytes(self, pieces: Iterator[bytes]) -> Iterator[Any]:
        self.pieces = pieces
        for event in self._own.iter_bytes(pieces):
            self.latest = event
            if event.data.startswith(_DONE):
                self.is_done = True
            yield event

    async def aiter_bytes(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        self.pieces = pieces
        async for event in self._own.aiter_bytes(pieces):
            self.latest = event
            if event.data.startswith(_DONE):
                self.is_done = True
            yield event


def _watch_end(stream: Any) -> _Decoder:
    """Let a stream that is not read yet note the end marker."""
    decoder = _Decoder(getattr(stream, _DECODER, None))
    # The results of a batch have a decoder of lines instead, and no end marker.
    if hasattr(stream, _DECODER):
        setattr(stream, _DECODER, decoder)
    return decoder


class _Events:
    """The events of one attempt's stream."""

    def __init__(self, stream: Any, exchange: Exchange) -> None:
        self.stream = stream
        self.response = getattr(stream, _response_of(stream))
        self._decoder = _watch_end(stream)
        # A decoder of lines has the body from the start.
        self._decoder.pieces = getattr(stream, "_raw_iterator", None)
        self._iterator = getattr(stream, _ITERATOR)
        self.exchange = exchange
        named = getattr(getattr(stream, "_options", None), "synthesize_event_and_data", False)
        self._can_reread = not named and hasattr(stream, "_cast_to") and hasattr(stream, "_client")

    def text(self) -> str | None:
        """Return the text of the latest event; None if the event cannot be made of it again."""
        latest = self._decoder.latest
        # The SDK puts the names of such events into what it makes of them.
        if latest is None or not self._can_reread or (latest.event or "").startswith("thread."):
            return None
        text: str = latest.data
        return text

    def reread(self, text: str) -> Any:
        """Make an event of its text, as the SDK does."""
        stream = self.stream
        return stream._client._process_response_data(  # noqa: SLF001 - the SDK's stream calls it for each event
            data=json.loads(text),
            cast_to=stream._cast_to,  # noqa: SLF001 - as above
            response=self.response,
        )

    @property
    def is_done(self) -> bool:
        """Whether the end marker has come."""
        return self._decoder.is_done

    def __iter__(self) -> _Events:
        return self

    # Streams have many events, so both methods do without the context manager, which takes longer than the rest of them.

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except Exception as error:
            own = self.exchange.sdk_error_for(error)
            if own is None:
                raise
            raise own from error

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._iterator)
        except Exception as error:
            own = self.exchange.sdk_error_for(error)
            if own is None:
                raise
            raise own from error

    def close(self) -> Any:
        """Close the connection; the result of an async stream must be awaited."""
        # The iterators of the SDK and of the HTTP library close the response when they end. Left to the garbage collector they
        # would do so at any time, and nobody could tell that from the caller's own `close`.
        readers = [reader for reader in (self._iterator, self._decoder.pieces) if _is_generator(reader)]
        if hasattr(self._iterator, "__anext__"):
            return self._aclose(readers)
        try:
            self.stream.close()
        finally:
            for reader in readers:
                reader.close()
        return None

    async def _aclose(self, readers: list[Any]) -> None:
        try:
            await self.stream.close()
        finally:
            for reader in readers:
                await reader.aclose()

    @property
    def is_read(self) -> bool:
        """Whether something may still close the response: an iterator that has not ended."""
        return any(
            not _is_generator(reader) or _is_suspended(reader) for reader in (self._iterator, self._decoder.pieces)
        )


def _is_generator(reader: Any) -> bool:
    return inspect.isgenerator(reader) or inspect.isasyncgen(reader)


def _is_suspended(reader: Any) -> bool:
    return (reader.gi_frame if inspect.isgenerator(reader) else reader.ag_frame) is not None


@contextmanager
def _sdk_errors(exchange: Exchange) -> Iterator[None]:
    """Raise the SDK's error for an error of its HTTP library."""
    try:
        yield
    except Exception as error:
        own = exchange.sdk_error_for(error)
        if own is None:
            raise
        raise own from error


def _nothing() -> None:
    """There is no stream yet."""


class _OfSdk:
    """What the streams of both kinds know beside the stream machine: the SDK's errors, and the stream that the caller has."""

    _source: Any

    def __init__(self, of: StreamOf[Any, Any], exchange: Callable[[], Exchange]) -> None:
        super().__init__(of)  # type: ignore[call-arg] # that of the stream beside it
        self._exchange = exchange
        self.given: Callable[[], Any] = _nothing
        """Returns the SDK's stream that the caller has; None before there is one, or when the caller has dropped it."""
        self.events: _Events | None = None
        """The events of the latest attempt."""

    def other_than(self, closed: Any) -> Any:
        """Return the HTTP response that is read now, if it is not the one that was closed; else None."""
        response = getattr(self._source, "response", None)
        return None if response is closed else response

    def source_closed(self) -> None:
        # Between two attempts, whatever still reads the last response may close it, too.
        if self._source is not None or self.events is None or not self.events.is_read:
            super().source_closed()  # type: ignore[misc] # as above


class _SdkStream(_OfSdk, BlockingStream[Any]):
    """A stream whose errors the SDK's users can catch."""

    def open(self) -> Any:
        try:
            return super().open()
        except HoldfastError as error:
            self._exchange().make_sdk_error(error)
            raise

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except HoldfastError as error:
            self._exchange().make_sdk_error(error)
            raise


class _AsyncSdkStream(_OfSdk, Stream[Any]):
    """The same as `_SdkStream`, in a task."""

    async def open(self) -> Any:
        try:
            return await super().open()
        except HoldfastError as error:
            self._exchange().make_sdk_error(error)
            raise

    async def __anext__(self) -> Any:
        try:
            return await super().__anext__()
        except HoldfastError as error:
            self._exchange().make_sdk_error(error)
            raise


async def only(response: Any) -> AsyncIterator[Any]:
    """Yield a response that is not a stream as the only item of a stream, so that it is settled like a stream."""
    yield response


def open_stream(
    stream_of: Callable[[Callable[..., Any]], StreamOf[Any, Any]],
    send: Callable[[Operation], Any],
    exchange: Callable[[], Exchange],
    *,
    is_sync: bool,
) -> Steps[Any]:
    """Return the SDK's stream when the service has answered. Its reader gets every event as it comes.

    A break before the first content is recovered while the stream is read. Under a fallback the stream is returned when its first
    content has arrived, because a failure before that must reach the fallback.

    `stream_of` makes the stream out of a function that opens it. `send` makes one request. `exchange` returns the present
    request, which makes errors of ours and of the HTTP library errors of the SDK.
    """
    this: ref[_SdkStream | _AsyncSdkStream]

    def opened() -> Steps[Any]:
        # By a weak reference: a strong one would be a cycle, and only the garbage collector would notice a dropped stream.
        live = this()
        assert live is not None
        stream = yield send(live.op)
        if not _is_stream(stream):
            # A raw response is not a stream: the caller reads it. As the only item of a stream, it is settled at once.
            return (stream,) if is_sync else only(stream)
        before, live.events = live.events, _Events(stream, exchange())
        if before is not None and (given := live.given()) is not None:
            _move(given, before, live.events)
            _notice_close(live.events.response, live, live.events.exchange)
        return live.events

    live = (_SdkStream if is_sync else _AsyncSdkStream)(stream_of(twin(opened, is_sync=is_sync)), exchange)
    this = ref(live)
    events = yield (live.start() if _has_fallback_around() else live.open())
    if not isinstance(events, _Events):
        following: Any = next if is_sync else anext
        response = yield following(live)
        # The stream is settled at its end.
        yield following(live, None)
        return response
    stream = _reading_from(live, events)
    live.given = ref(stream)
    _notice_close(events.response, live, events.exchange)
    return stream


def _has_fallback_around() -> bool:
    scope = in_force(AMBIENT.get())
    while scope is not None:
        if isinstance(scope, Operation) and scope.has_fallbacks:
            return True
        scope = in_force(scope.around)
    return False


def _reading_from(live: Any, events: _Events) -> Any:
    """Return a stream of the SDK's own class that reads from ours: the SDK's helpers check its class and its attributes."""
    # A copy, because our iterator holds the original, and OpenAI's iterator does so too. If the original held our iterator,
    # only the garbage collector would notice that a consumer dropped it.
    stream = copy(events.stream)
    setattr(stream, _ITERATOR, live)
    return stream


def _move(given: Any, before: _Events, events: _Events) -> None:
    """Let the caller's stream have the response of the attempt that is read from now on."""
    if before.is_read:
        # Whatever reads the old response closes it at any time. That must not end the stream.
        old = vars(before.response)
        old.pop("close", None)
        old.pop("aclose", None)
    setattr(given, _response_of(given), events.response)


def _notice_close(http: Any, live: _SdkStream | _AsyncSdkStream, exchange: Exchange) -> None:
    """Notice when the connection is closed. Streams, and the helpers around them, all close the response.

    A helper closes the response that it was made with. If another one is read by then, that one is closed too.
    The response must not keep itself or our iterator alive: the stream is also settled when nobody holds it any more.
    """
    response, reader, is_sync = ref(http), ref(live), isinstance(live, _SdkStream)
    name = "close" if is_sync else "aclose"

    def close() -> Steps[None]:
        try:
            if (closing := response()) is not None:
                with _sdk_errors(exchange):
                    yield getattr(type(closing), name)(closing)
        finally:
            if (reading := reader()) is not None:
                if (other := reading.other_than(closing)) is None:
                    reading.source_closed()
                else:
                    yield getattr(other, name)()

    setattr(http, name, twin(close, is_sync=is_sync))


# --- streams that are not recovered ---


def check_end(stream: Any, dialect: StreamDialect) -> bool:
    """Make a stream raise if it ends before its last event; return False if the response is not a stream."""

    def checked(events: Iterator[Any], decoder: _Decoder) -> Iterator[Any]:
        ending = Ending(dialect)
        for event in events:
            ending.note(event)
            yield event
        ending.check(marked=decoder.is_done)

    return _replace_iterator(stream, checked)


def check_end_async(stream: Any, dialect: StreamDialect) -> bool:
    """The same as `check_end`, for an async stream."""

    async def checked(events: AsyncIterator[Any], decoder: _Decoder) -> AsyncIterator[Any]:
        ending = Ending(dialect)
        async for event in events:
            ending.note(event)
            yield event
        ending.check(marked=decoder.is_done)

    return _replace_iterator(stream, checked)


# --- streams that are only observed ---


class _Observed:
    """The events of a plain stream: it hands each on as it came, and notes how the stream ends."""

    def __init__(self, events: Any, decoder: _Decoder, op: Operation, dialect: StreamDialect) -> None:
        self._events = events
        self._decoder = decoder
        self._op = op
        self._ending = Ending(dialect)
        self._delivers = False

    def _deliver(self, event: Any) -> Any:
        self._delivers = True
        if (observation := self._op.observation) is not None:
            observation.beside(lambda: self._ending.note(event))
        return event

    def _failed(self, error: BaseException) -> None:
        if (observation := self._op.observation) is not None:
            observation.is_cut = self._delivers
        self._op.failed(error)

    def _ended(self) -> None:
        try:
            self._ending.check(marked=self._decoder.is_done)
        except Exception as cut:  # noqa: BLE001 - the SDK takes a stream that was cut for a complete one
            if (observation := self._op.observation) is not None:
                observation.is_cut = self._delivers
                observation.failed(cut, "answered")
        self._op.succeeded()

    def __del__(self) -> None:
        # Nobody reads it any more. If it has ended before, this changes nothing.
        self._op.abandoned(None)


class _ObservedEvents(_Observed):
    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            event = next(self._events)
        except StopIteration:
            self._ended()
            raise
        except BaseException as error:
            self._failed(error)
            raise
        return self._deliver(event)


class _ObservedAsyncEvents(_Observed):
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            self._ended()
            raise
        except BaseException as error:
            self._failed(error)
            raise
        return self._deliver(event)


def observe(stream: Any, op: Operation, dialect: StreamDialect) -> bool:
    """Note how a plain stream of this operation ends; return False if the response is not a stream."""
    return _replace_iterator(stream, lambda events, decoder: _ObservedEvents(events, decoder, op, dialect))


def observe_async(stream: Any, op: Operation, dialect: StreamDialect) -> bool:
    """The same as `observe`, for an async stream."""
    return _replace_iterator(stream, lambda events, decoder: _ObservedAsyncEvents(events, decoder, op, dialect))


def _replace_iterator(stream: Any, checked: Callable[[Any, _Decoder], Any]) -> bool:
    if not _is_stream(stream):
        return False
    decoder = _watch_end(stream)
    setattr(stream, _ITERATOR, checked(getattr(stream, _ITERATOR), decoder))
    return True
