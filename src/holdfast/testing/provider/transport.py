"""The provider behind an httpx2 or httpx transport: no socket, so that time may be virtual.

Invariant: a client sees what it would see over a socket, its own library's exceptions and limits included.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import TYPE_CHECKING, Any

from holdfast.faults import InvalidError
from holdfast.testing.provider.acts import Data, Ending, Head, Pause, Raw
from holdfast.testing.provider.requests import Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import ModuleType

    from holdfast.testing.provider.acts import Act, Plan
    from holdfast.testing.provider.core import Provider

__all__ = ["memory_transport"]

_USUAL = "httpx2"
_FOR_EVER = float("inf")


def memory_transport(provider: Provider, library: ModuleType | None = None) -> Any:
    """Return a transport of the library's own kind, for its sync and its async clients."""
    library = importlib.import_module(_USUAL) if library is None else library
    kind = type("MemoryTransport", (_Transport, library.AsyncBaseTransport, library.BaseTransport), {})
    return kind(provider, library)


class _Transport:
    """Plans a request and plays the plan up to its head; the body is played as it is read."""

    def __init__(self, provider: Provider, library: Any) -> None:
        self._provider = provider
        self._library = library
        self._body = type("MemoryBody", (_Body, library.SyncByteStream, library.AsyncByteStream), {})

    def handle_request(self, request: Any) -> Any:
        request.read()
        playing = self._play(request)
        while (seconds := playing.until_head()) is not None:
            playing.sleep(seconds)
        return self._response(playing, request)

    async def handle_async_request(self, request: Any) -> Any:
        await request.aread()
        playing = self._play(request)
        while (seconds := playing.until_head()) is not None:
            await playing.asleep(seconds)
        return self._response(playing, request)

    def _play(self, request: Any) -> _Playing:
        headers = {name.lower(): value for name, value in request.headers.items()}
        plan = self._provider.plan(Request(request.method, request.url.raw_path.decode(), headers, request.content))
        limits = request.extensions.get("timeout") or {}
        return _Playing(self._provider, self._library, request, plan, limits.get("read"))

    def _response(self, playing: _Playing, request: Any) -> Any:
        assert playing.head is not None
        head = playing.head
        framing = ("transfer-encoding", "chunked") if head.length is None else ("content-length", str(head.length))
        made = self._library.Response
        return made(head.status, headers=[*head.headers, framing], stream=self._body(playing), request=request)


class _Playing:
    """A plan being played to one client, whose library's exceptions tell how it went."""

    def __init__(self, provider: Provider, library: Any, request: Any, plan: Plan, limit: float | None) -> None:
        self._clock = provider.clock
        self._counters = provider.counters
        self._library = library
        self._request = request
        self._plan = plan
        self._limit = _FOR_EVER if limit is None else limit
        self._over = False
        self.head: Head | None = None

    def until_head(self) -> float | None:
        """Play until the head came (None) or it is time to wait: for that long."""
        act = next(self._plan)
        if isinstance(act, Head):
            self.head = act
            return None
        if isinstance(act, Pause):
            return _seconds(act)
        raise self._broken(act)

    def next_part(self) -> bytes | float | None:
        """Play the body's next act: bytes that came, seconds to wait, or None at the end."""
        act = next(self._plan)
        if isinstance(act, Data):
            return act.data
        if isinstance(act, Pause):
            return _seconds(act)
        if act is Ending.END:
            self._over = True
            return None
        raise self._broken(act)

    def sleep(self, seconds: float) -> None:
        """Wait as blocking code does; raises where the client's limit comes first."""
        bounded = min(seconds, self._limit)
        if bounded == _FOR_EVER:
            raise InvalidError.saying("timeout", "a limit for reading, since the script hangs here", "none")
        getattr(self._clock, "sleep", time.sleep)(bounded)
        self._check(seconds)

    async def asleep(self, seconds: float) -> None:
        """Wait as a task does, which may be cancelled."""
        bounded = min(seconds, self._limit)
        try:
            if bounded == _FOR_EVER:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(bounded)
        except asyncio.CancelledError:
            self.left()
            raise
        self._check(seconds)

    def left(self) -> None:
        """The client goes: count it if that is too early."""
        if not self._over:
            self._over = True
            self._counters.abandoned += 1

    def _check(self, seconds: float) -> None:
        if seconds > self._limit:
            self.left()
            raise self._library.ReadTimeout("timed out", request=self._request)

    def _broken(self, act: Act) -> Exception:
        self._over = True
        if act is Ending.RESET:
            return self._error("ReadError", "[Errno 104] Connection reset by peer")
        if isinstance(act, Raw):
            return self._error("RemoteProtocolError", f"illegal status line: {act.data!r}")
        if self.head is None:
            return self._error("RemoteProtocolError", "Server disconnected without sending a response.")
        kind = " (incomplete chunked read)" if self.head.length is None else ""
        said = f"peer closed connection without sending complete message body{kind}"
        return self._error("RemoteProtocolError", said)

    def _error(self, name: str, message: str) -> Exception:
        error: Exception = getattr(self._library, name)(message, request=self._request)
        return error


def _seconds(pause: Pause) -> float:
    return _FOR_EVER if pause.seconds is None else pause.seconds


class _Body:
    """A body that is played as it is read."""

    def __init__(self, playing: _Playing) -> None:
        self._playing = playing

    def __iter__(self) -> Iterator[bytes]:
        while (part := self._playing.next_part()) is not None:
            if isinstance(part, bytes):
                yield part
            else:
                self._playing.sleep(part)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := self._playing.next_part()) is not None:
            if isinstance(part, bytes):
                yield part
            else:
                await self._playing.asleep(part)

    def close(self) -> None:
        self._playing.left()

    async def aclose(self) -> None:
        self._playing.left()
