"""A stage for supervisors: children that record what happens to them and do what the test orders."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from holdfast.actors import Child, IgnoreStart, ready


class CrashError(Exception):
    """What a child raises when it is ordered to crash."""


class Stage:
    """Records starts, ends and stops of children, and sends them orders."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.orders: dict[str, asyncio.Future[str]] = {}
        self.failing: dict[str, int] = {}
        """How many of the next starts of a child fail."""
        self.unneeded: set[str] = set()

    def child(self, name: str, **options: object) -> Child:
        return Child(self.worker, name, **{"id": name, "ready": True, **options})

    async def worker(self, name: str, *_: object) -> None:
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            self.log.append(f"fail {name}")
            raise CrashError(f"{name} does not start")
        if name in self.unneeded:
            raise IgnoreStart
        self.log.append(f"start {name}")
        order = self.orders[name] = asyncio.get_running_loop().create_future()
        ready()
        try:
            what = await order
        except asyncio.CancelledError:
            self.log.append(f"stop {name}")
            raise
        self.log.append(f"{what} {name}")
        if what == "crash":
            raise CrashError(name)

    async def order(self, what: str, *names: str) -> None:
        """Order children, and return when all has been done about it that takes no time."""
        for name in names:
            self.orders[name].set_result(what)
        await settled()

    async def crash(self, *names: str) -> None:
        await self.order("crash", *names)

    async def end(self, *names: str) -> None:
        await self.order("end", *names)

    def take(self) -> str:
        """Return what happened since the last call."""
        log, self.log = self.log, []
        return ", ".join(log)


async def settled() -> None:
    """Let everything happen that takes no time."""
    for _ in range(100):
        await asyncio.sleep(0)


async def stubborn(release: asyncio.Event) -> None:
    """Ignore every cancellation until released."""
    while not release.is_set():
        with suppress(asyncio.CancelledError):
            await release.wait()
