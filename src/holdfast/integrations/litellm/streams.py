"""LiteLLM's streams on the stream machine.

If a stream breaks off without an error, LiteLLM adds a last chunk itself, with `finish_reason="stop"`. The stream object
keeps the reason that the provider really gave, so such a chunk is recognised and the caller never gets it. The streams of a
Router do not keep this reason.

Invariant: the caller gets the stream object that LiteLLM returned. Only its methods to iterate and to close are ours.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any
from weakref import ref

from holdfast.faults import Fault, HoldfastError
from holdfast.integrations.clients.openai import OPENAI
from holdfast.integrations.clients.streams import only
from holdfast.policies.backoff import PLAIN_ATTEMPTS
from holdfast.policies.models.quote import quote_of
from holdfast.runtime.operation.adapter import Adapter
from holdfast.runtime.operation.answers import close_answer, close_answer_async
from holdfast.runtime.streams.stream import BlockingStream, Stream, StreamOf

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from holdfast.policies.models.quote import Quote
    from holdfast.runtime.operation.operation import Operation
    from holdfast.runtime.operation.plan import Plan

__all__ = ["CLIENT", "open_stream", "open_stream_async"]


class _Client(Adapter):
    """LiteLLM's clients make three requests for one call if nobody chooses another number."""

    bare_attempts = PLAIN_ATTEMPTS


CLIENT = _Client()

_KEEPS_REASON = "CustomStreamWrapper"
"""The class of LiteLLM's streams that keeps the reason a provider gave for the end."""
_TEXT = "TextCompletionStreamWrapper"
"""The class of the streams of text completions. It reads from a stream of the other class."""


def open_stream(ways: Iterable[tuple[str, Plan, Callable[[Operation], Any], Mapping[str, Any]]]) -> Any:
    """Return LiteLLM's stream when its first content arrived.

    `ways` are the names, plans, requests and options of the call and of its fallbacks.
    """
    this: ref[BlockingStream[Any]]

    def opened(request: Callable[[Operation], Any]) -> Callable[[], Any]:
        def chunks() -> Any:
            # By a weak reference: a strong one would be a cycle, and only the garbage collector would notice a dropped stream.
            live = this()
            assert live is not None
            stream = request(live.op)
            return _Chunks(stream) if hasattr(type(stream), "__next__") else (stream,)

        return chunks

    live: BlockingStream[Any] = BlockingStream(
        _source((name, plan, opened(request), options) for name, plan, request, options in ways)
    )
    this = ref(live)
    chunks = live.start()
    if not isinstance(chunks, _Chunks):
        (response,) = live
        return response
    return _take_over(chunks, live)


async def open_stream_async(
    ways: Iterable[tuple[str, Plan, Callable[[], Awaitable[Any]], Mapping[str, Any]]],
) -> Any:
    """The same as `open_stream`, in a task."""

    def opened(request: Callable[[], Awaitable[Any]]) -> Callable[[], Any]:
        async def chunks() -> Any:
            stream = await request()
            return _Chunks(stream) if hasattr(type(stream), "__anext__") else only(stream)

        return chunks

    live: Stream[Any] = Stream(_source((name, plan, opened(request), options) for name, plan, request, options in ways))
    chunks = await live.start()
    if not isinstance(chunks, _Chunks):
        (response,) = [chunk async for chunk in live]
        return response
    return _take_over(chunks, live)


class _Asked(Adapter):
    """What one stream asks, for a budget."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def quote(self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Quote | None:  # noqa: ARG002 - a stream has no arguments here
        """Return what the request may use at most."""
        return quote_of(self._options, model=op.plan.target.model)


def _source(ways: Iterable[tuple[str, Plan, Callable[[], Any], Mapping[str, Any]]]) -> StreamOf[Any, Any]:
    sources: list[tuple[str, StreamOf[Any, Any]]] = [
        (name, StreamOf(plan, opened, dialect=OPENAI.events, adapter=_Asked(options)))
        for name, plan, opened, options in ways
    ]
    (_, first), *others = sources
    for name, other in others:
        first.fallback(other, name=name)
    return first


def _take_over(chunks: _Chunks, live: Any) -> Any:
    stream = chunks.hand_out()
    own = type(stream)
    stream.__dict__["_holdfast_live"] = live
    # Python looks `__next__` up on the class, not on the object, so the object gets a class of its own.
    stream.__class__ = type(own.__name__, (_Recovered, own), {"__module__": own.__module__})
    return stream


class _Recovered:
    """The methods that replace those of a stream's own class."""

    _holdfast_live: Any

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self._holdfast_live)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._holdfast_live)

    def close(self) -> None:
        close_answer(_Closable(self, super()))
        self._holdfast_live.source_closed()

    async def aclose(self) -> None:
        await close_answer_async(_Closable(self, super()))
        self._holdfast_live.source_closed()


class _Closable:
    """The `close` and `aclose` of a stream's own class. A stream that has neither closes the stream it reads from."""

    def __init__(self, stream: Any, own: Any) -> None:
        closable = own if hasattr(own, "close") or hasattr(own, "aclose") else _source_of(stream)
        self.close = getattr(closable, "close", None)
        self.aclose = getattr(closable, "aclose", None)


class _Chunks:
    """The chunks of one attempt, without an end that LiteLLM made up."""

    def __init__(self, stream: Any) -> None:
        self._opened: Any = stream
        """Keeps the stream alive until its consumer has it."""
        self._stream = ref(stream)
        self._class = type(stream)
        self._keeps_reason = hasattr(self._keeper(), "received_finish_reason")

    def hand_out(self) -> Any:
        """Return the stream and keep it no longer: it holds our reader, so a dropped stream would be noticed late."""
        stream, self._opened = self._opened, None
        return stream

    @property
    def stream(self) -> Any:
        """LiteLLM's stream. It is alive whenever it is needed: a consumer reads and closes only a stream that it holds."""
        return self._stream()

    def __iter__(self) -> _Chunks:
        return self

    def __next__(self) -> Any:
        # Call the method of its original class: its present class reads from this object.
        return self._checked(self._class.__next__(self.stream))

    def __aiter__(self) -> _Chunks:
        return self

    async def __anext__(self) -> Any:
        return self._checked(await self._class.__anext__(self.stream))

    def close(self) -> None:
        """Close the connection."""
        close_answer(self.stream)

    async def aclose(self) -> None:
        """Close the connection."""
        await close_answer_async(self.stream)

    def _checked(self, chunk: Any) -> Any:
        ends = OPENAI.events.ends
        if self._keeps_reason and ends and ends(chunk) and self._is_made_up():
            raise HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its last chunk"))
        return chunk

    def _keeper(self) -> Any:
        """Return the stream that keeps the reason for the end. That of a text completion is inside another stream."""
        stream = self.stream
        if self._class.__name__ == _TEXT:
            stream = _source_of(stream)
            if inspect.isasyncgen(stream):
                # `atext_completion` puts a generator of its own between the two. Only its local variables show the stream.
                stream = None if stream.ag_frame is None else stream.ag_frame.f_locals.get("response")
        return stream if any(cls.__name__ == _KEEPS_REASON for cls in type(stream).__mro__) else None

    def _is_made_up(self) -> bool:
        """Return whether LiteLLM made up this end. Answers from a cache or for tests come from generators."""
        keeper = self._keeper()
        source = _source_of(keeper)
        is_remote = not (inspect.isgenerator(source) or inspect.isasyncgen(source))
        return is_remote and not keeper.received_finish_reason


def _source_of(stream: Any) -> Any:
    return getattr(stream, "completion_stream", None)
