"""The provider as an httpx2 or httpx transport, without a socket, so that time may be virtual.

Invariant: a client sees the same as over a socket, including its own library's exceptions and limits.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import TYPE_CHECKING, Any

from holdfast.faults import InvalidError
from holdfast.testing.provider.http import Data, Pause, Raw, ReplyEnd, ReplyHead, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import ModuleType

    from holdfast.testing.provider.core import Provider
    from holdfast.testing.provider.http import Act, Plan

_USUAL = "httpx2"
_FOR_EVER = float("inf")


def memory_transport(provider: Provider, library: ModuleType | None = None) -> Any:
    """Return a transport of the given library, for its sync and its async clients. The default is httpx2."""
    library = importlib.import_module(_USUAL) if library is None else library
    # Make the class here, because clients check for the base classes of their own library.
    kind = type("MemoryTransport", (_Transport, library.AsyncBaseTransport, library.BaseTransport), {})
    return kind(provider, library)


class _Transport:
    """Plans a request and performs the plan up to its head; the body follows as the client reads it."""

    def __init__(self, provider: Provider, library: Any) -> None:
        self._provider = provider
        self._library = library
        # Responses also check for the stream classes of their own library.
        self._body = type("MemoryBody", (_Body, library.SyncByteStream, library.AsyncByteStream), {})

    def handle_request(self, request: Any) -> Any:
        request.read()
        exchange = self._begin(request)
        while (seconds := exchange.until_head()) is not None:
            exchange.sleep(seconds)
        return self._response(exchange, request)

    async def handle_async_request(self, request: Any) -> Any:
        await request.aread()
        exchange = self._begin(request)
        while (seconds := exchange.until_head()) is not None:
            await exchange.asleep(seconds)
        return self._response(exchange, request)

    def _begin(self, request: Any) -> _Exchange:
        headers = {name.lower(): value for name, value in request.headers.items()}
        plan = self._provider.plan(Request(request.method, request.url.raw_path.decode(), headers, request.content))
        # Only the read timeout matters here, because there is no connection and writing takes no time.
        limits = request.extensions.get("timeout") or {}
        return _Exchange(self._provider, self._library, request, plan, limits.get("read"))

    def _response(self, exchange: _Exchange, request: Any) -> Any:
        assert exchange.head is not None
        head = exchange.head
        # A plan has no framing headers. On a socket the server writes them.
        framing = ("transfer-encoding", "chunked") if head.length is None else ("content-length", str(head.length))
        made = self._library.Response
        return made(
            head.status,
            headers=[*head.headers, framing],
            stream=self._body(exchange),
            extensions={"network_stream": exchange.connection},
            request=request,
        )


class _Exchange:
    """One request and its plan. Faults become exceptions of the client's own library."""

    def __init__(self, provider: Provider, library: Any, request: Any, plan: Plan, limit: float | None) -> None:
        self._clock = provider.clock
        self._counters = provider.counters
        self._library = library
        self._request = request
        self._plan = plan
        self._limit = limit
        self._over = False
        self.connection = _Connection(self)
        self.head: ReplyHead | None = None

    def until_head(self) -> float | None:
        """Perform the next act before the body. Return the seconds to wait, or None once `head` is set."""
        act = next(self._plan)
        if isinstance(act, ReplyHead):
            self.head = act
            return None
        if isinstance(act, Pause):
            return _seconds(act)
        raise self._broken(act)

    def next_part(self) -> bytes | float | None:
        """Perform the body's next act. Return bytes, seconds to wait, or None at the end."""
        act = next(self._plan)
        if isinstance(act, Data):
            return act.data
        if isinstance(act, Pause):
            return _seconds(act)
        if act is ReplyEnd.END:
            self._finish()
            return None
        raise self._broken(act)

    def sleep(self, seconds: float) -> None:
        """Wait in blocking code. If the client's read timeout comes first, raise it."""
        self._pause = seconds
        self.connection.read(1, timeout=self._limit)

    def wait(self, timeout: float | None) -> None:
        """Wait for the next bytes, no longer than the client's limit of this read."""
        seconds, limit = self._pause, _FOR_EVER if timeout is None else timeout
        bounded = min(seconds, limit)
        # A thread cannot be cancelled, so the test would hang.
        if bounded == _FOR_EVER:
            self._finish()
            raise InvalidError.saying("timeout", "a read timeout, because the script hangs here", "none")
        # A virtual clock has its own `sleep`. With a real clock the thread really waits.
        getattr(self._clock, "sleep", time.sleep)(bounded)
        self._check(seconds, limit)

    async def asleep(self, seconds: float) -> None:
        """Wait in a task, which may be cancelled."""
        limit = _FOR_EVER if self._limit is None else self._limit
        bounded = min(seconds, limit)
        try:
            if bounded == _FOR_EVER:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(bounded)
        except asyncio.CancelledError:
            self.abandon()
            raise
        self._check(seconds, limit)

    def abandon(self) -> None:
        """Count, once, that the client left before the end of the answer."""
        if not self._over:
            self._finish()
            self._counters.abandoned += 1

    def _finish(self) -> None:
        self._over = True
        # A closed plan frees its place in a limit.
        self._plan.close()

    def _check(self, seconds: float, limit: float) -> None:
        if seconds > limit:
            self.abandon()
            raise self._library.ReadTimeout("timed out", request=self._request)

    def _broken(self, act: Act) -> Exception:
        self._finish()
        if act is ReplyEnd.RESET:
            return self._error("ReadError", "[Errno 104] Connection reset by peer")
        if isinstance(act, Raw):
            return self._error("RemoteProtocolError", f"illegal status line: {act.data!r}")
        if self.head is None:
            return self._error("RemoteProtocolError", "Server disconnected without sending a response.")
        kind = " (incomplete chunked read)" if self.head.length is None else ""
        # Use the words of a real client, because the classifier reads them.
        message = f"peer closed connection without sending complete message body{kind}"
        return self._error("RemoteProtocolError", message)

    def _error(self, name: str, message: str) -> Exception:
        error: Exception = getattr(self._library, name)(message, request=self._request)
        return error


class _Connection:
    """Stands for the connection, which an HTTP library shows as `network_stream`: each wait of a blocking client is a `read`."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the plan has the bytes
        self._exchange.wait(timeout)
        return b""


def _seconds(pause: Pause) -> float:
    return _FOR_EVER if pause.seconds is None else pause.seconds


class _Body:
    """A body that is sent as the client reads it."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        while (part := self._exchange.next_part()) is not None:
            if isinstance(part, bytes):
                yield part
            else:
                self._exchange.sleep(part)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := self._exchange.next_part()) is not None:
            if isinstance(part, bytes):
                yield part
            else:
                await self._exchange.asleep(part)

    def close(self) -> None:
        self._exchange.abandon()

    async def aclose(self) -> None:
        self._exchange.abandon()
