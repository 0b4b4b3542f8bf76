"""LiteLLM's streams: held until their first content, watched from there to the end.

LiteLLM ends a stream that broke off without an error with a last chunk of its own making, `finish_reason="stop"`. It is told
from a real one by what the stream keeps about itself, and is never handed on. A Router's streams keep no such note.

Invariant: the stream that comes back is the object LiteLLM gave; only how it is iterated over and closed is ours.
"""

from __future__ import annotations

import inspect
from typing import Any

from holdfast.faults import Fault, HoldfastError
from holdfast.integrations.clients.flowing import Flowing
from holdfast.integrations.clients.openai import OPENAI
from holdfast.integrations.clients.streams import AsyncEvents, Events
from holdfast.runtime.answers import close_answer, close_answer_async

__all__ = ["LiteStream", "open_stream", "open_stream_async"]

_NOTING = "CustomStreamWrapper"
"""The class of LiteLLM's streams that keeps the reason a provider gave for the end."""


class LiteStream(Flowing):
    """A call of LiteLLM's whose answer is a stream of chunks as OpenAI's."""

    dialect = OPENAI


def open_stream(op: LiteStream, stream: Any) -> Any:
    """Read a fresh stream up to its first content and return it; what comes next is watched."""
    if not hasattr(type(stream), "__next__"):
        return stream
    watched = Events(op, stream, _Chunks(stream))
    try:
        while watched.opening:
            watched.hold(next(watched.source))
    except StopIteration:
        watched.nothing_more()
    except BaseException:
        close_answer(stream)
        raise
    return _taken_over(op, stream, watched)


async def open_stream_async(op: LiteStream, stream: Any) -> Any:
    """The same for an async stream."""
    if not hasattr(type(stream), "__anext__"):
        return stream
    watched = AsyncEvents(op, stream, _Chunks(stream))
    try:
        while watched.opening:
            watched.hold(await anext(watched.source))
    except StopAsyncIteration:
        watched.nothing_more()
    except BaseException:
        await close_answer_async(stream)
        raise
    return _taken_over(op, stream, watched)


def _taken_over(op: LiteStream, stream: Any, watched: Any) -> Any:
    given = type(stream)
    stream.__dict__["_holdfast_events"] = watched
    stream.__class__ = type(given.__name__, (_Watched, given), {"__module__": given.__module__})
    op.flowing = True
    return stream


class _Watched:
    """What is put in front of a stream's own class: its methods are looked up there, not on the object."""

    _holdfast_events: Any

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self._holdfast_events)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._holdfast_events)

    def close(self) -> None:
        super().close()  # type: ignore[misc] # the class behind this one has it
        self._left()

    async def aclose(self) -> None:
        await super().aclose()  # type: ignore[misc] # ditto
        self._left()

    def _left(self) -> None:
        # LiteLLM closes a stream by itself where it ends or fails; that is told by the chunk that is being read.
        if not self._holdfast_events.source.reading:
            self._holdfast_events.left()


class _Chunks:
    """The chunks of a stream as LiteLLM gives them, without an end that it made up."""

    def __init__(self, stream: Any) -> None:
        self._class = type(stream)
        self._stream = stream
        self._notes = self._class.__name__ == _NOTING and hasattr(stream, "received_finish_reason")
        self.reading = False

    def __iter__(self) -> _Chunks:
        return self

    def __next__(self) -> Any:
        stream = self._stream
        self.reading = True
        try:
            return self._checked(stream, self._class.__next__(stream))
        finally:
            self.reading = False

    def __aiter__(self) -> _Chunks:
        return self

    async def __anext__(self) -> Any:
        stream = self._stream
        self.reading = True
        try:
            return self._checked(stream, await self._class.__anext__(stream))
        finally:
            self.reading = False

    def _checked(self, stream: Any, chunk: Any) -> Any:
        if self._notes and OPENAI.ends(chunk) and not stream.received_finish_reason and _comes_from_afar(stream):
            raise HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its last chunk"))
        return chunk


def _comes_from_afar(stream: Any) -> bool:
    """Whether a provider gives the chunks: answers from a cache or made up for tests come from generators, with no reason."""
    source = getattr(stream, "completion_stream", None)
    return not (inspect.isgenerator(source) or inspect.isasyncgen(source))
