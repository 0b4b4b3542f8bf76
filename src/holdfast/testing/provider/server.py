"""`FaultProvider` and `serve_in_thread`: the provider in your event loop, in a thread, or in memory.

The socket server is our own, because resets, half bodies and bytes that are not HTTP cannot be sent through ASGI.

Invariant: each connection performs one plan at a time, without a task. A pause is only a timer, so ten thousand hanging requests
cost little.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, cast

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.testing.loop import LoopThread
from holdfast.testing.provider.core import Provider
from holdfast.testing.provider.http import (
    LAST_CHUNK,
    TLS_ALERT,
    BadRequestError,
    Data,
    Pause,
    Plan,
    Raw,
    ReplyEnd,
    ReplyHead,
    RequestReader,
    chunk,
    head_bytes,
    is_tls,
)
from holdfast.testing.provider.transport import memory_transport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from holdfast.clock import Clock
    from holdfast.testing.provider.limits import Limit
    from holdfast.testing.provider.script import Script

# Listen on loopback only, because the provider accepts any key.
HOST = "127.0.0.1"


class FaultProvider(Provider):
    """A provider that fails as a script says, in the protocols of Anthropic, OpenAI, xAI, Azure, Gemini, Vertex AI and Bedrock.

    For example:
        async with FaultProvider("429;retry-after=7, ok") as provider:
            client = AsyncAnthropic(base_url=provider.url, api_key="test", max_retries=0)

    It listens on loopback until the block ends. `transport()` needs neither block nor socket. Raises `InvalidError` for a script
    that it cannot read, and `OSError` if `port` is taken. See `Provider` for `clock`, `limit` and `limits`.
    """

    @options.suggests
    def __init__(
        self,
        script: str | Script = "",
        *,
        seed: int | None = None,
        clock: Clock | None = None,
        limit: int = 4_000,
        limits: Sequence[Limit | str] = (),
        port: int = 0,
    ) -> None:
        super().__init__(script, seed=seed, clock=clock, limit=limit, limits=limits)
        self._server = Server(self)
        self._wanted = port
        self._port: int | None = None

    async def __aenter__(self) -> Self:
        self._port = await self._server.start(HOST, self._wanted)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._port = None
        await self._server.stop()

    @property
    def port(self) -> int:
        """The port it listens on. Raises `InvalidError` outside the block."""
        if self._port is None:
            raise InvalidError.saying(
                "provider", "a provider that listens: use async with, or serve_in_thread", "a provider that does not"
            )
        return self._port

    @property
    def url(self) -> str:
        """The base URL for clients other than those of OpenAI and xAI."""
        return f"http://{HOST}:{self.port}"

    @property
    def openai_url(self) -> str:
        """The base URL for the clients of OpenAI and xAI."""
        return f"{self.url}/v1"

    @property
    def tls_url(self) -> str:
        """An address at which every TLS handshake fails."""
        return f"https://{HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that make the SDKs call this provider."""
        return {
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "test",
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": "test",
            "GOOGLE_GEMINI_BASE_URL": self.url,
            "GEMINI_API_KEY": "test",
        }

    def transport(self, library: ModuleType | None = None) -> Any:
        """Return a transport to this provider without a socket, for clients of `httpx2`, or of `httpx` if that is given.

        For example:
            client = httpx.AsyncClient(transport=provider.transport(httpx))
        """
        return memory_transport(self, library)


@contextmanager
def serve_in_thread(
    script: str | Script = "",
    *,
    seed: int | None = None,
    clock: Clock | None = None,
    limit: int = 4_000,
    limits: Sequence[Limit | str] = (),
    port: int = 0,
) -> Iterator[FaultProvider]:
    """Run a `FaultProvider` in a thread until the block ends. Use it for blocking code, and for tests with their own event loop.

    For example:
        with serve_in_thread("503*2, ok") as provider:
            client = anthropic.Anthropic(base_url=provider.url, api_key="test", max_retries=0)

    Raises the same errors as `FaultProvider`.
    """
    provider = FaultProvider(script, seed=seed, clock=clock, limit=limit, limits=limits, port=port)
    thread = LoopThread("holdfast-fault-provider")
    try:
        # If this fails, there is a thread to close but no provider to stop.
        thread.run(provider.__aenter__())
        try:
            yield provider
        finally:
            thread.run(provider.__aexit__())
    finally:
        thread.close()


_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BACKLOG = 4_096


class Server:
    """A listening socket in front of a provider."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._listening: asyncio.Server | None = None
        self.connections: set[_Connection] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self._provider, self), host, port, backlog=_BACKLOG)
        self._listening = server
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening and drop every connection, including connections that hang."""
        if self._listening is None:
            return
        self._listening.close()
        # Drop them before `wait_closed`: from 3.12 on it also waits for connections, and some hang on purpose.
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
        self._reader = RequestReader()
        self._new = True
        # Keep the counters of the current request, because `reset` may replace the provider's counters meanwhile.
        self._counters = provider.counters
        self._plan: Plan | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._chunked = False
        self._closing = False
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # not checked by isinstance: uvloop has its own class
        self._provider.counters.connections += 1
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the base class names it
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._plan is not None:
            self._counters.abandoned += 1
            self._close_plan()

    def data_received(self, data: bytes) -> None:
        # Only the first bytes can be a handshake; later ones are the body of a request.
        if self._new and is_tls(data):
            self._provider.counters.tls += 1
            self._transport.write(TLS_ALERT)
            self._transport.close()
            return
        self._new = False
        self._reader.feed(data)
        self._next_request()

    def pause_writing(self) -> None:
        # If the client reads slowly, an oversize answer must not fill the memory.
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._perform()

    def drop(self) -> None:
        """Close at once, even during an answer."""
        self._transport.abort()

    def _next_request(self) -> None:
        # A client may send several requests without waiting for answers. We answer them one after another.
        while self._plan is None and not self._transport.is_closing():
            try:
                request = self._reader.next()
            except BadRequestError as error:
                self._transport.write(head_bytes(ReplyHead(error.status, (("connection", "close"),), 0)))
                self._transport.close()
                return
            if request is None:
                if self._reader.expects_continue():
                    self._transport.write(_CONTINUE)
                return
            self._closing = request.headers.get("connection", "").lower() == "close"
            self._counters = self._provider.counters
            self._plan = self._provider.plan(request)
            self._perform()

    def _perform(self) -> None:
        """Perform the plan until it ends or pauses, or until the client reads too slowly."""
        self._timer = None
        # Send everything that is ready in one write, so that a head and its body are one packet, as from any server.
        ready: list[bytes] = []
        while self._plan is not None and not self._full:
            act = next(self._plan)
            if isinstance(act, Data):
                ready.append(chunk(act.data) if self._chunked else act.data)
            elif isinstance(act, ReplyHead):
                self._chunked = act.length is None
                ready.append(head_bytes(act, extra="connection: close\r\n" if self._closing else ""))
            elif isinstance(act, Raw):
                ready.append(act.data)
            elif isinstance(act, Pause):
                # Without a timer the plan never continues. It ends when the client leaves.
                if act.seconds is not None:
                    self._timer = asyncio.get_running_loop().call_later(act.seconds, self._resume)
                break
            else:
                self._send(ready)
                self._end(act)
                return
        self._send(ready)

    def _resume(self) -> None:
        self._perform()
        self._next_request()

    def _send(self, ready: list[bytes]) -> None:
        if ready:
            self._transport.write(b"".join(ready))
            ready.clear()

    def _close_plan(self) -> None:
        if self._plan is not None:
            self._plan.close()
            self._plan = None

    def _end(self, ending: ReplyEnd) -> None:
        self._close_plan()
        if ending is ReplyEnd.RESET:
            # SO_LINGER with zero seconds makes the kernel send a reset instead of a normal close.
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()
            return
        # With CLOSE the last chunk is not sent, so the client sees that the body is not complete.
        if ending is ReplyEnd.END and self._chunked:
            self._transport.write(LAST_CHUNK)
        self._chunked = False
        if ending is ReplyEnd.CLOSE or self._closing:
            self._transport.close()
