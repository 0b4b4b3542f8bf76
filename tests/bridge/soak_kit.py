"""What the soak needs: a server as a process that is killed and comes back, and faults at random on the way to it."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

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
