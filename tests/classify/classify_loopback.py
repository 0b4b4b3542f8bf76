"""Servers on loopback that fail as scripted, for tests in which real libraries raise their real exceptions.

Every server ends with its `with` block, and every wait in here is bounded.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"
PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One scripted HTTP response, sent again for every further request."""

    status: int = 200
    body: str | bytes = ""
    headers: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Serve the answer; yields the base URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            raw = answer.body.encode() if isinstance(answer.body, str) else answer.body
            self.send_response(answer.status)
            for name, value in {
                "content-type": "application/json",
                "content-length": str(len(raw)),
                "connection": "close",
                **answer.headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(raw)

        do_GET = do_POST = do_HEAD = answer  # noqa: N815 - http.server's names

        def log_message(self, *args: object) -> None:
            """Nothing: the tests' output is for the tests."""

    server = ThreadingHTTPServer((HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


@contextlib.contextmanager
def behaving(
    behave: Callable[[socket.socket], None], *, wrap: Callable[[socket.socket], socket.socket] | None = None
) -> Iterator[int]:
    """Let `behave` have every connection, which is closed after it; yields the port."""
    listener = socket.create_server((HOST, 0))
    open_connections: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.settimeout(PATIENCE_S)
                open_connections.append(connection)
                with contextlib.suppress(OSError), (wrap or _as_it_is)(connection) as wrapped:
                    behave(wrapped)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        for one in (listener, *open_connections):
            # Wakes whoever waits in accept or recv.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        thread.join(PATIENCE_S)


def _as_it_is(connection: socket.socket) -> socket.socket:
    return connection


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server((HOST, 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose queue is full: connecting to it takes for ever."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((HOST, 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield listener.getsockname()[1]


# What a connection may do to its client.


def hang(connection: socket.socket) -> None:
    """Take the request, answer nothing, until the client or the test gives up."""
    while connection.recv(65_536):
        pass


def hang_up(connection: socket.socket) -> None:
    """Take the request and close without a word."""
    connection.recv(65_536)


def reset(connection: socket.socket) -> None:
    """Take the request and answer with RST."""
    connection.recv(65_536)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def cut_body(connection: socket.socket) -> None:
    """Promise more than is sent."""
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nonly this")
    _finish(connection)


def cut_chunks(connection: socket.socket) -> None:
    """Break off between two chunks."""
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    _finish(connection)


def gibberish(connection: socket.socket) -> None:
    """Speak no HTTP, and no TLS either."""
    connection.recv(65_536)
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


def _finish(connection: socket.socket) -> None:
    """End with FIN: closing while part of the request is unread would send RST, which is another failure."""
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(65_536):
        pass
