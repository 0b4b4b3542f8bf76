"""The limits of a connection that an ASGI app cannot see: slow headers, many half-open connections, clients that do not read.

uvicorn waits for the headers of a request without end. The protocol here is uvicorn's own with deadlines added:

    uvicorn.Config(app, http=http_protocol(settings), timeout_keep_alive=settings.idle_timeout)

Invariant: every connection has a deadline running, or a request that the app works on. A connection whose peer does not read is aborted.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.bridge.access.admission import Strangers
from holdfast.bridge.access.lockout import address_group
from holdfast.bridge.http.descriptors import most_sockets
from holdfast.extras import needs_extra
from holdfast.faults import Fault
from holdfast.views import wire

with needs_extra("holdfast.bridge", "uvicorn", "server"):
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from holdfast.bridge.settings import BridgeSettings
    from holdfast.faults import Code

__all__ = ["has_unread", "http_protocol"]

_LOOK_AGAIN_S = 0.1
"""How long a server that is behind waits until it looks again whether it has read what came."""


def http_protocol(settings: BridgeSettings, make_room: Callable[[], bool] = lambda: False) -> type[HttpToolsProtocol]:
    """Return uvicorn's HTTP protocol with the limits of the settings: times, sizes, and half-open connections of an address.

    uvicorn.Config(app, http=http_protocol(BridgeSettings(header_timeout=5)))

    make_room: closes a WebSocket that nobody needs, if there is one, when the process has no sockets left.
    """
    most = most_sockets()
    half_open = Strangers[_HttpProtocol](
        settings, lambda each: not each.has_unread(), most=None if most is None else most // 2
    )
    # uvicorn makes the protocols itself, so what they share stands in a class.
    shared = {"settings": settings, "half_open": half_open, "most_sockets": most, "make_room": staticmethod(make_room)}
    return type("BridgeHttp", (_HttpProtocol,), shared)


class _HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a deadline and a size for headers."""

    settings: BridgeSettings
    half_open: Strangers[_HttpProtocol]
    most_sockets: int | None
    make_room: Callable[[], bool]
    _stalled: asyncio.TimerHandle | None = None
    _deadline: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _address = ""
    _is_upgraded = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._address = address_group(self.client[0]) if self.client else ""
        _send_at_once(transport)
        self._await_headers()
        if self.most_sockets is not None and len(self.connections) > self.most_sockets:
            self._make_socket_free()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_headers()
        self._reads_again()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        super().data_received(data)
        if self._is_upgraded or self.transport.is_closing() or self.parser is None:
            self._have_headers()
        elif self._deadline is None and self._is_between_requests:
            # Something came that is not a request yet. uvicorn has stopped its own clock for it.
            self._await_headers()
        elif self._deadline is not None and self._header_bytes > self.settings.max_header_bytes:
            self._reject(431, f"The headers have more than {self.settings.max_header_bytes} bytes")
        elif self._deadline is not None:
            self._make_room(self.half_open.holds(self, self._address, self._header_bytes))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.settings.max_headers:
            # The parser turns it into its own error, and the answer is a 400.
            raise ValueError("too many headers")

    def on_headers_complete(self) -> None:
        self._have_headers()
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        # From here on the connection is a WebSocket, which may be silent for longer than headers may take.
        self._is_upgraded = True
        self._have_headers()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        self._reject(400, msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        # Closing would wait for the peer to read, which it does not.
        self._stalled = self.loop.call_later(self.settings.send_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reads_again()

    def _reads_again(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def has_unread(self) -> bool:
        """Whether bytes of the peer wait for this process to read them."""
        return has_unread(self.transport)

    def drop(self) -> None:
        """Close the connection because it took too long to send its headers; not if they are here, and wait to be read."""
        if self._deadline is not None and self.has_unread():
            self._deadline = self.loop.call_later(_LOOK_AGAIN_S, self.drop)
            return
        self._reject(408, f"The headers did not come within {self.settings.header_timeout:g} s")

    def _await_headers(self) -> None:
        if self._deadline is None:
            self._header_bytes = 0
            self._deadline = self.loop.call_later(self.settings.header_timeout, self.drop)
            self._make_room(self.half_open.add(self, self._address))

    def _have_headers(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self.half_open.remove(self, self._address)

    def _make_socket_free(self) -> None:
        """Close a socket that nobody needs; this one if there is none. A process without sockets could not read its store either."""
        resting = next((each for each in self.connections if getattr(each, "may_go", False)), None)
        if resting is not None:
            cast("_HttpProtocol", resting).transport.abort()
        elif (other := self.half_open.yield_one(self)) is not None:
            other.drop()
        elif not self.make_room():
            self._reject(503, "All connections are in use")

    @property
    def may_go(self) -> bool:
        """Whether it only waits for another request."""
        is_open = self._deadline is None and not self.transport.is_closing()
        return is_open and self._is_between_requests and not self.has_unread()

    @staticmethod
    def _make_room(other: _HttpProtocol | None) -> None:
        if other is not None:
            other.drop()

    @property
    def _is_between_requests(self) -> bool:
        # uvicorn's types do not say that there is no cycle before the first request.
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def _reject(self, status: int, message: str) -> None:
        self._have_headers()
        if self.transport.is_closing():
            return
        if self._is_between_requests:
            self.transport.write(_response(status, message))
        self.transport.close()


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Whether bytes of the peer, or its end, wait in the socket of a transport: then this process is behind, not the peer."""
    found = transport.get_extra_info("socket")
    if found is None or found.fileno() < 0:
        return False
    if not hasattr(select, "poll"):  # Windows, which takes any number of sockets here
        return bool(select.select([found.fileno()], [], [], 0)[0])
    poll = select.poll()
    poll.register(found.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _send_at_once(transport: asyncio.BaseTransport) -> None:
    """Turn off Nagle's algorithm. asyncio does not for a socket that it got, and each answer would then take 40 ms."""
    found = transport.get_extra_info("socket")
    if found is not None and found.family in {socket.AF_INET, socket.AF_INET6}:
        # Some systems raise for a client that has gone already.
        with suppress(OSError):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


_CODES: dict[int, Code] = {408: "CONN_TIMEOUT", 503: "CONN_LIMIT"}
"""A client that was slow may come again, and so may one that found no place. Whatever else is wrong is wrong the next time, too."""
_PHRASES = {
    503: b"Service Unavailable",
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
}


def _response(status: int, message: str) -> bytes:
    code = _CODES.get(status, "PROTO_INVALID_MESSAGE")
    body = msgspec.json.encode(
        wire.http_body(Fault.of(code, message)) | {"error": _PHRASES[status].decode().replace(" ", "")}
    )
    head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, _PHRASES[status], len(body)) + body
