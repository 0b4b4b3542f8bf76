"""`Port`: an address on which an ASGI application is served, by uvicorn's protocols in the running event loop.

Invariant: the port accepts connections when `open` returns. After `close` nothing listens on it, and no connection is left.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

from holdfast.bridge.connection import ABORT, AUTHENTICATED, CUT, UNREAD, WRITE_TEXT
from holdfast.bridge.http.listener import has_unread
from holdfast.bridge.log import log_warning
from holdfast.bridge.versions import check_versions
from holdfast.extras import needs_extra
from holdfast.faults import Fault, HoldfastError
from holdfast.wire.close import CloseCode

with needs_extra("holdfast.bridge", "uvicorn", "server"):
    from uvicorn.config import Config
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    from uvicorn.server import ServerState
    from websockets.protocol import State

if TYPE_CHECKING:
    import socket
    import ssl

__all__ = ["Port"]

_FRAME_HEAD = 14
"""The most bytes of a frame that are not its data."""
_MOST_UNWRITTEN = 65_536
"""The most bytes of frames that wait for the end of the event loop's turn: asyncio begins to wait for a client at the same size."""
_AT_ONCE = 16
"""How many clients are accepted in one turn of the event loop. asyncio takes the length of the queue for this, and would accept more
sockets than the process may open before it has looked at the first."""
_QUEUE = 2048
"""How many clients may wait to be accepted."""
_LEAVE_S = 2.0
"""How long connections may take to end when the port is closed."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, with a way to end it at once: a client that does not read would block every other end.

    Until the app says that the client has authenticated, a message must not become larger than `max_before_auth`, also if it never ends.
    """

    max_before_auth = 8192

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_authenticated = False
        self._unfinished = 0
        """The bytes that came since the last whole message."""
        self._unwritten: list[bytes] = []
        """The frames of this turn of the event loop. They are written together, because a system call costs more than a frame."""
        self._unwritten_bytes = 0
        # At level DEBUG it would log the beginning and the end of each frame, and the end of the first one is the token's.
        self.conn.debug = False

    def handle_connect(self, event: Any) -> None:
        """Add the way out to the scope of the connection."""
        super().handle_connect(event)
        scope: Any = getattr(self, "scope", None)
        if scope is not None:
            scope["extensions"][ABORT] = self.transport.abort
            scope["extensions"][CUT] = self.cut
            scope["extensions"][AUTHENTICATED] = self._authenticated
            scope["extensions"][WRITE_TEXT] = self.write_text
            scope["extensions"][UNREAD] = self.has_unread
        self._unfinished = 0

    def has_unread(self) -> bool:
        """Whether bytes of the client wait: in the socket, or as a message that the app has not taken yet."""
        return not self.queue.empty() or has_unread(self.transport)

    @property
    def may_go(self) -> bool:
        """Whether it has ended, and only waits for the client to say so, too."""
        return bool(self.close_sent) and not self.transport.is_closing()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if not self.read_paused and not self.transport.is_reading() and not self.transport.is_closing():
            self.transport.resume_reading()

    def _authenticated(self) -> None:
        self._is_authenticated = True

    def data_received(self, data: bytes) -> None:
        """Take bytes. The parser would keep a message up to the largest size, whoever sends it."""
        self._unfinished += len(data)
        # What comes may be the client's goodbye, and nothing may follow the answer to it.
        self._flush()
        super().data_received(data)
        # While reading is paused the app has a message, which may be the one that authenticates the client.
        if not self.writable.is_set() and self.transport.is_reading():
            # Pings are answered without the app. A client that does not read the answers is not read either.
            self.transport.pause_reading()
        is_checked = self.handshake_complete and not (self._is_authenticated or self.read_paused or self.close_sent)
        if is_checked and self._unfinished > self.max_before_auth + _FRAME_HEAD:
            self.conn.fail(CloseCode.TOO_BIG, "too_large")
            self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """Hand on a whole message. A text that is not UTF-8 ends the connection; uvicorn would log a traceback for it."""
        self._unfinished = 0
        if self.curr_msg_data_type == "text" and not self.close_sent and not _is_utf8(self.frames):
            log_warning(
                "a client at %s sent a text that is not UTF-8, and was disconnected", (self.client or ("?",))[0]
            )
            self.conn.fail(CloseCode.INVALID_UTF8, "invalid_utf8")
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        """Send what the app says, after what was written before."""
        self._flush()
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            # A request that is rejected with an answer is done. uvicorn would log it as an error of the app.
            self.handshake_complete = True

    def cut(self, code: int, reason: str, seconds: float) -> None:
        """End the connection of a client that does not read, without waiting for it.

        The close frame comes after what is on its way. The client has `seconds` to read it, then the socket ends anyway.
        """
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            self.transport.abort()
            return
        self._flush()
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        # Unread bytes at the end would make the kernel throw away what the client has not read yet.
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(seconds, self.transport.abort)
        # The app is done with it: its reads and sends end now.
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.disconnected = True
        self.writable.set()

    def write_text(self, text: bytes) -> bool:
        """Write a text frame if that needs no waiting; return whether it did. It leaves at the end of this turn of the event loop.

        uvicorn's `send` decodes and encodes each text, makes four objects for it, and writes it to the socket by itself.
        """
        if not self.handshake_complete or self.close_sent or not self.writable.is_set() or self.disconnected:
            return False
        if self.conn.state is not State.OPEN:
            return False
        if not self._unwritten:
            self.loop.call_soon(self._flush)
        self._unwritten += (_text_head(len(text)), text)
        self._unwritten_bytes += len(text)
        if self._unwritten_bytes > _MOST_UNWRITTEN:
            self._flush()
        return True

    def shutdown(self) -> None:
        """End the connection because the server stops."""
        self._flush()
        super().shutdown()

    def _flush(self) -> None:
        if self._unwritten:
            frames, self._unwritten, self._unwritten_bytes = b"".join(self._unwritten), [], 0
            # A socket that was aborted meanwhile takes nothing more, and would raise.
            if not self.transport.is_closing():
                self.transport.write(frames)


def _is_utf8(frames: list[bytes]) -> bool:
    # Nearly all texts are ASCII, which is seen at once. A character may be cut over two frames.
    if all(data.isascii() for data in frames):
        return True
    try:
        b"".join(frames).decode()
    except UnicodeDecodeError:
        return False
    return True


def _text_head(size: int) -> bytes:
    """Return what stands before a whole text of this size in a frame of a server (RFC 6455, section 5.2)."""
    if size < 126:
        return bytes((0x81, size))
    return struct.pack("!BBH", 0x81, 126, size) if size < 65_536 else struct.pack("!BBQ", 0x81, 127, size)


class Port:
    """Serves an ASGI application: `port = Port(app); await port.open("127.0.0.1", 0); print(port.url); await port.close()`."""

    def __init__(
        self,
        app: Any,
        *,
        max_frame: int = 1_000_000,
        max_frame_before_auth: int = 8192,
        tls: ssl.SSLContext | None = None,
        http: Any = "auto",
        idle_timeout: float = 60.0,
        handshake_timeout: float = 10.0,
    ) -> None:
        # Frames of one byte more than the largest message reach our own check, which answers with a reason.
        self._config = Config(
            app,
            interface="asgi3",
            http=http,
            # uvicorn makes the protocols itself, so what they share stands in a class.
            ws=type("BridgeWebSocket", (WebSocketProtocol,), {"max_before_auth": max_frame_before_auth}),
            ws_max_size=max_frame,
            ws_ping_interval=None,
            ws_per_message_deflate=False,
            timeout_keep_alive=int(idle_timeout) or 1,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
        )
        self._tls = tls
        # Without it a silent peer keeps its connection for a minute, before any other limit sees it.
        self._handshake = None if tls is None else handshake_timeout
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self.address: tuple[str, int] = ("", 0)

    @property
    def url(self) -> str:
        """The address for clients: `http://127.0.0.1:3000`."""
        host, port = self.address
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if self._tls is None else 'https'}://{shown}:{port}"

    async def open(self, host: str, port: int) -> None:
        """Listen.

        Raises `HoldfastError`: CONN_MISCONFIGURED if the address cannot be used, CONFIG_INVALID if uvicorn is of a version that cannot serve it.
        """
        if not self._config.loaded:
            self._config.load()
        self._state.default_headers = list(self._config.encoded_headers)
        loop = asyncio.get_running_loop()
        websocket: Any = self._config.ws_protocol_class
        check_versions(websocket(config=self._config, server_state=self._state, app_state={}), self._protocol())
        try:
            self._server = await loop.create_server(
                self._protocol, host, port, ssl=self._tls, backlog=_AT_ONCE, ssl_handshake_timeout=self._handshake
            )
        except OSError as error:
            message = f"The bridge cannot listen on {host}:{port}: {error.strerror or error}"
            context = {"host": host, "port": port, "reason": str(error)}
            raise HoldfastError(Fault.of("CONN_MISCONFIGURED", message, context=context)) from error
        for each in self._server.sockets:
            # asyncio does not let its own be changed. This one belongs to the same socket of the system.
            with each.dup() as same:
                same.listen(_QUEUE)
        self.address = _address(self._server.sockets)

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self._config.http_protocol_class
        made: asyncio.Protocol = kind(config=self._config, server_state=self._state, app_state={})
        return made

    def stop_accepting(self) -> None:
        """Let nobody new in. Who is connected stays."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        tasks = set(self._state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_LEAVE_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_LEAVE_S)
        for left in tuple(self._state.connections):
            transport = getattr(left, "transport", None)
            if transport is not None:
                transport.abort()
        self._server = None


def _address(sockets: Any) -> tuple[str, int]:
    first: socket.socket = sockets[0]
    host, port = first.getsockname()[:2]
    return str(host), int(port)
