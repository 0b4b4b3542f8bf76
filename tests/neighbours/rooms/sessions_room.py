"""Sessions on one SQLite store: fifty do steps and turns; one session, or another process on the file, does what it should not."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.neighbours.kit import FairClock, Played, beside, member, neighbours, same

from holdfast import Ok, Session, tool
from holdfast.stores import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.neighbours.storm_world import World

HEAD_START_S = 0.3
_STANDS_S = 2.5
"""So long another process stands still in a write: less than the 5 s for which the docs let a write wait."""


def warm() -> None:
    """Everything is imported."""


async def double(n: int) -> int:
    return 2 * n


@tool(effect="unsafe")
async def pay(who: int, n: int) -> str:
    return f"paid {who} {n}"


@tool(effect="unsafe")
async def fails() -> str:
    raise ConnectionResetError(104, "reset")


def play(world: World, *, alone: bool) -> Played:
    with tempfile.TemporaryDirectory() as folder:
        return Played(done=asyncio.run(_Room(world, Path(folder) / "work.db").perform(alone=alone)))


def _fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


class _Room:
    def __init__(self, world: World, path: Path) -> None:
        self.world, self.path = world, path
        self.pids: set[int] = set()

    async def perform(self, *, alone: bool) -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        jobs = {name: getattr(self, name) for name in ("step", "turn", "map", "read", "reopen")}
        acts = {each.kind: getattr(self, "act_" + each.kind.replace("-", "_")) for each in self.world.acts}
        clock = FairClock(os.getpid())
        async with AsyncExitStack() as stack:
            self.store = await stack.enter_async_context(SqliteStore(self.path))
            sessions = [
                await stack.enter_async_context(Session.open(f"n{who}", store=self.store))
                for who in range(self.world.neighbours)
            ]
            self.mine = sessions
            try:
                other = None if alone else member(self.world, acts, 0.02)
                done = await beside(neighbours(self.world, jobs, clock, 0.15), other, HEAD_START_S)
            finally:
                for pid in self.pids:
                    self._end(pid)
        return done

    def _end(self, pid: int) -> None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    # What neighbours do.

    async def step(self, who: int, turn: int) -> None:
        for n in range(5):
            same(await self.mine[who].step(pay, who, 10 * turn + n), f"paid {who} {10 * turn + n}")

    async def turn(self, who: int, turn: int) -> None:
        async with self.mine[who].turn(f"turn {turn}", key=f"t-{turn}") as _:
            same(await self.mine[who].step(double, who), 2 * who)

    async def map(self, who: int, turn: int) -> None:
        items = [100 * turn + n for n in range(10)]
        done = [each.value if isinstance(each, Ok) else None async for each in self.mine[who].map(double, items)]
        same(done, [2 * n for n in items])

    async def read(self, who: int, turn: int) -> None:
        await self.mine[who].message(f"word {turn}", id=f"m-{turn}")
        entries = await self.store.read(f"n{who}")
        same([entry.offset for entry in entries], list(range(1, len(entries) + 1)))

    async def reopen(self, who: int, turn: int) -> None:
        """A session of its own, opened twice: what it did is not done again."""
        done = []

        async def count(n: int) -> int:
            done.append(n)
            return n

        for _ in range(2):
            async with Session.open(f"n{who}-{turn}", store=self.store) as session:
                same(await session.step(count, turn), turn)
        same(done, [turn])

    # What the member does.

    async def act_huge(self, strength: int) -> None:
        async with Session.open("foe-huge", store=self.store) as session:
            async with session.turn("more", again=True):
                await session.keyed(f"k-{time.monotonic()}").step(_text, 5_000_000 * strength)
            session.context["all"] = "x" * 3_000_000

    async def act_many(self, strength: int) -> None:
        async def one(n: int) -> None:
            async with Session.open(f"foe-{n}-{time.monotonic()}", store=self.store) as session:
                await session.step(double, n)

        await asyncio.gather(*(one(n) for n in range(50 * strength)), return_exceptions=True)

    async def act_commits(self, strength: int) -> None:
        async with Session.open("foe-commits", store=self.store) as session, asyncio.timeout(2):
            await asyncio.gather(*(self._commits(session, n) for n in range(20 * strength)))

    async def _commits(self, session: Session, n: int) -> None:
        while True:
            await session.message("x" * 2000)

    async def act_long_log(self, strength: int) -> None:
        async with Session.open("foe-log", store=self.store) as session:
            await asyncio.gather(*(session.message("y" * 100) for _ in range(500 * strength)))
            await asyncio.gather(*(self.store.read("foe-log") for _ in range(5 * strength)))

    async def act_transaction(self, strength: int) -> None:
        """Another program holds a write lock of SQLite."""

        def hold() -> None:
            with sqlite3.connect(self.path, isolation_level=None) as other:
                other.execute("BEGIN IMMEDIATE")
                time.sleep(_STANDS_S)
                other.execute("ROLLBACK")

        await self._process(hold, _STANDS_S + 0.5)
        await asyncio.sleep(3)

    async def act_stopped_reader(self, strength: int) -> None:
        """Another program stands still in a long read: the WAL cannot be emptied."""

        def hold() -> None:
            with sqlite3.connect(self.path, isolation_level=None) as other:
                other.execute("BEGIN")
                other.execute("SELECT count(*) FROM sqlite_master").fetchall()
                time.sleep(60)

        await self._process(hold, 5)

    async def act_stopped(self, strength: int) -> None:
        """Another process of ours on the same store is stopped for a while, wherever it is."""
        pid = self._fork(lambda: asyncio.run(_writes(self.path)))
        await asyncio.sleep(0.5)
        for _ in range(2):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(_STANDS_S)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(1.5)
        self._end(pid)

    async def act_killed(self, strength: int) -> None:
        """Processes of ours on the same store are killed, wherever they are."""
        for _ in range(2 * strength):
            await self._process(lambda: asyncio.run(_writes(self.path)), self.world.rng("kill").random() / 2 + 0.1)

    def _fork(self, work: Callable[[], None]) -> int:
        pid = _fork(work)
        self.pids.add(pid)
        return pid

    async def _process(self, work: Callable[[], None], seconds: float) -> None:
        pid = self._fork(work)
        await asyncio.sleep(seconds)
        self._end(pid)

    async def act_leases(self, strength: int) -> None:
        """Everybody's sessions are asked for, again and again."""
        asked = (self._take(f"n{who}") for who in range(self.world.neighbours))
        await asyncio.gather(*asked, return_exceptions=True)

    async def act_same(self, strength: int) -> None:
        await asyncio.gather(*(self._take("foe-same", wait=1) for _ in range(20 * strength)), return_exceptions=True)

    async def _take(self, name: str, wait: float = 0) -> None:
        async with Session.open(name, store=self.store, wait=wait) as session:
            await session.step(double, 1)

    async def act_raises(self, strength: int) -> None:
        async def one(n: int) -> None:
            async with Session.open(f"foe-raises-{n}", store=self.store) as session, session.turn("x", again=True):
                await session.step(fails)

        await asyncio.gather(*(one(n) for n in range(10 * strength)), return_exceptions=True)

    async def act_cancels(self, strength: int) -> None:
        tasks = [asyncio.create_task(self._take(f"foe-c-{n}")) for n in range(30 * strength)]
        for task in tasks:
            await asyncio.sleep(self.world.rng("cancel").random() / 200)
            task.cancel()
        await asyncio.wait(tasks)

    async def act_unstorable(self, strength: int) -> None:
        async with Session.open("foe-odd", store=self.store) as session:
            for value in (
                "half \ud83d",
                float("nan"),
                object(),
                "x" * 2_000_000_000 if strength > 3 else {1: object()},
            ):
                with suppress(Exception):
                    await session.keyed(str(time.monotonic())).step(_give, [value])
                with suppress(Exception):
                    await session.message("half \ud83d")

    async def act_questions(self, strength: int) -> None:
        async with Session.open(f"foe-q-{time.monotonic()}", store=self.store) as session:
            for n in range(20 * strength):
                with suppress(Exception):
                    await session.approve("x" * 10_000 + str(n))

    async def act_closes(self, strength: int) -> None:
        for n in range(10 * strength):
            async with Session.open(f"foe-x-{n}-{time.monotonic()}", store=self.store) as session:
                await session.close()


async def _text(size: int) -> str:
    return "x" * size


async def _give(values: list[Any]) -> Any:
    return values[0]


async def _writes(path: Path) -> None:
    """Another process of ours, which writes without end."""
    async with SqliteStore(path) as store, Session.open(f"other-{os.getpid()}", store=store) as session:
        while True:
            await session.message("x" * 1000)
