"""The provider on a socket. A server of our own, since resets, half bodies and what is not HTTP are beyond ASGI.

Invariant: one plan at a time per connection, and no task: a pause is a timer, so ten thousand hanging requests cost little.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, cast

from holdfast.testing.provider.acts import Data, Ending, Head, Pause, Plan, Raw
from holdfast.testing.provider.http import (
    LAST_CHUNK,
    TLS_ALERT,
    BadRequestError,
    Reader,
    chunk,
    head_bytes,
    is_tls,
)

if TYPE_CHECKING:
    from holdfast.testing.provider.core import Provider

__all__ = ["Server"]

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_GO_AHEAD = b"HTTP/1.1 100 Continue\r\n\r\n"
_QUEUE = 4_096


class Server:
    """A listening socket with a provider behind it."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._listening: asyncio.Server | None = None
        self.connections: set[_Connection] = set()

    async def start(self, host: str, port: int) -> int:
        """Begin to listen; return the port."""
        loop = asyncio.get_running_loop()
        made = await loop.create_server(lambda: _Connection(self._provider, self), host, port, backlog=_QUEUE)
        self._listening = made
        taken: int = made.sockets[0].getsockname()[1]
        return taken

    async def stop(self) -> None:
        """Listen no more and drop every connection, also those that hang."""
        if self._listening is None:
            return
        self._listening.close()
        for connection in list(self.connections):
            connection.drop()
        await self._listening.wait_closed()
        self._listening = None


class _Connection(asyncio.Protocol):
    """One client: reads requests and performs their plans."""

    _transport: asyncio.Transport

    def __init__(self, provider: Provider, server: Server) -> None:
        self._provider = provider
        self._server = server
        self._reader = Reader()
        self._new = True
        self._counters = provider.counters  # those of the request under way: they may be begun anew meanwhile
        self._plan: Plan | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._chunked = False
        self._closing = False
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # not checked: uvloop's is of another class
        self._provider.counters.connections += 1
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the base class's name
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._plan is not None:
            self._counters.abandoned += 1
            self._plan = None

    def data_received(self, data: bytes) -> None:
        if self._new and is_tls(data):
            self._provider.counters.tls += 1
            self._transport.write(TLS_ALERT)
            self._transport.close()
            return
        self._new = False
        self._reader.feed(data)
        self._next_request()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._perform()

    def drop(self) -> None:
        """Close without a word, whatever is under way."""
        self._transport.abort()

    def _next_request(self) -> None:
        while self._plan is None and not self._transport.is_closing():
            try:
                request = self._reader.next()
            except BadRequestError as error:
                self._transport.write(head_bytes(Head(error.status, (("connection", "close"),), 0)))
                self._transport.close()
                return
            if request is None:
                if self._reader.wants_go_ahead():
                    self._transport.write(_GO_AHEAD)
                return
            self._closing = request.headers.get("connection", "").lower() == "close"
            self._counters = self._provider.counters
            self._plan = self._provider.plan(request)
            self._perform()

    def _perform(self) -> None:
        """Go on with the plan until it is over, waits, or the client does not keep up."""
        self._timer = None
        # What is ready goes out in one write: a head and its body are one packet, as from any server.
        ready: list[bytes] = []
        while self._plan is not None and not self._full:
            act = next(self._plan)
            if isinstance(act, Data):
                ready.append(chunk(act.data) if self._chunked else act.data)
            elif isinstance(act, Head):
                self._chunked = act.length is None
                ready.append(head_bytes(act, extra="connection: close\r\n" if self._closing else ""))
            elif isinstance(act, Raw):
                ready.append(act.data)
            elif isinstance(act, Pause):
                if act.seconds is not None:
                    self._timer = asyncio.get_running_loop().call_later(act.seconds, self._go_on)
                break
            else:
                self._send(ready)
                self._end(act)
                return
        self._send(ready)

    def _go_on(self) -> None:
        self._perform()
        self._next_request()

    def _send(self, ready: list[bytes]) -> None:
        if ready:
            self._transport.write(b"".join(ready))
            ready.clear()

    def _end(self, ending: Ending) -> None:
        self._plan = None
        if ending is Ending.RESET:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()
            return
        if ending is Ending.END and self._chunked:
            self._transport.write(LAST_CHUNK)
        self._chunked = False
        if ending is Ending.CLOSE or self._closing:
            self._transport.close()
