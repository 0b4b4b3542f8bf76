"""What the soak needs: a server as a process that is killed and comes back, and faults at random on the way to it."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from holdfast.testing.proxy import BlackHole, FaultProxy, HalfOpen, Limit, Reset, Slicing

HERE = Path(__file__).parent


class ServerProcess:
    """A server that can be killed at any moment, and started again at the same port with what it has stored."""

    def __init__(self, kind: str, path: Path) -> None:
        self._command = (kind, str(path))
        self.port = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        kind, path = self._command
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(HERE / "soak_server.py"), kind, str(self.port), path, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.port = int(await asyncio.wait_for(self._process.stdout.readline(), 60))

    async def silence(self) -> None:
        """Let it publish nothing any more."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGUSR1)
        assert await asyncio.wait_for(self._process.stdout.readline(), 60) == b"quiet\n"

    async def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
            self._process._transport.close()  # type: ignore[attr-defined]
            self._process = None


@asynccontextmanager
async def disturbed(kind: str, path: Path, seed: int) -> AsyncIterator[tuple[ServerProcess, FaultProxy, Faults]]:
    """A server behind a proxy, and the faults to come."""
    server = ServerProcess(kind, path)
    await server.start()
    try:
        async with FaultProxy(("127.0.0.1", server.port), seed=seed) as proxy:
            yield server, proxy, Faults(server, proxy, seed)
    finally:
        await server.kill()


class Vanishing:
    """A relay for WebSockets that loses whole frames both ways, and goes on: the connection lives, and nobody is told."""

    def __init__(self, port: int, seed: int, share: float = 0.04) -> None:
        self._server = f"ws://127.0.0.1:{port}/ws"
        self._rng = random.Random(seed)
        self._share = share
        self._left = 0
        self._done = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Vanishing]:
        async with serve(self._relay, "127.0.0.1", 0, ping_interval=None) as server:
            self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/ws"
            yield self

    async def lose(self, count: int) -> None:
        """Lose so many frames; then let everything pass."""
        self._left = count
        await self._done.wait()

    async def _relay(self, client: ServerConnection) -> None:
        async with connect(self._server, ping_interval=None, origin=None) as server:
            ways = [asyncio.create_task(self._pass(*way)) for way in ((client, server), (server, client))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)

    async def _pass(self, source: Connection, target: Connection) -> None:
        with suppress(ConnectionClosed):
            async for frame in source:
                if self._left and self._rng.random() < self._share:
                    self._left -= 1
                    if not self._left:
                        self._done.set()
                else:
                    await target.send(frame)


class LostBytes:
    """A relay for TCP that loses some bytes in the middle of a stream, either way, and goes on: whoever reads on reads what nobody wrote."""

    def __init__(self, port: int, seed: int, share: float = 0.01) -> None:
        self._port = port
        self._rng = random.Random(seed)
        self._share = share
        self._left = 0
        self._done = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[LostBytes]:
        async with await asyncio.start_server(self._relay, "127.0.0.1", 0) as server:
            self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/ws"
            yield self

    async def lose(self, count: int) -> None:
        """Lose bytes so many times; then let everything pass."""
        self._left = count
        await self._done.wait()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        ways = [asyncio.create_task(self._pass(*way)) for way in ((reader, to_server), (from_server, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        to_server.transport.abort()
        writer.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        is_handshake = True
        with suppress(OSError):
            while chunk := await source.read(65_536):
                if not is_handshake and self._left and self._rng.random() < self._share:
                    self._left -= 1
                    if not self._left:
                        self._done.set()
                    begin = self._rng.randrange(len(chunk))
                    chunk = chunk[:begin] + chunk[begin + self._rng.randint(1, 40) :]
                is_handshake = False
                target.write(chunk)
                await target.drain()


class Faults:
    """Faults at random, each a few times as long as the connection needs to notice, or shorter."""

    WEIGHTS = {"reset": 20, "reset_after": 15, "black_hole": 15, "half_open": 15, "slice": 15, "limit": 10, "kill": 2}

    def __init__(self, server: ServerProcess, proxy: FaultProxy, seed: int) -> None:
        self._server, self._proxy = server, proxy
        self._rng = random.Random(seed)
        self.counts: Counter[str] = Counter()

    async def some(self, count: int, *, kills: int = 0) -> None:
        """Make so many faults; of the first ones so many are kills of the server."""
        kinds = self._rng.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()), k=count - kills)
        kinds[len(kinds) // 2 : len(kinds) // 2] = ["kill"] * kills
        for kind in kinds:
            await asyncio.sleep(self._rng.uniform(0.0, 0.08))
            await self._make(kind)
            self.counts[kind] += 1

    async def _make(self, kind: str) -> None:
        rng, proxy = self._rng, self._proxy
        after, way = rng.randrange(4000), rng.choice(("up", "down", "both"))
        match kind:
            case "kill":
                await self._server.kill()
                await self._server.start()
            case "reset":
                proxy.cut()
            case "reset_after":
                await self._under(Reset(after=after, direction=way), 0.1)
            case "limit":
                await self._under(Limit(after=after, direction=way), 0.1)
            case "black_hole":
                await self._under(BlackHole(direction=way), 0.7)
                # TCP delivers what it lost or ends: a connection never goes on without its middle.
                proxy.cut()
            case "half_open":
                await self._under(HalfOpen(after=after, direction=way), 0.4)
                proxy.cut()
            case "slice":
                await self._under(Slicing(size=rng.randint(1, 50)), 0.2)

    async def _under(self, toxic: Reset | Limit | BlackHole | HalfOpen | Slicing, most: float) -> None:
        with self._proxy.under(toxic):
            await asyncio.sleep(self._rng.uniform(0.0, most))
