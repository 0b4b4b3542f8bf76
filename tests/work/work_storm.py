"""A storm: real worker processes that are killed at random while they run programs with effects outside of the store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal as signals
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import storm_programs

from holdfast.faults import HoldfastError
from holdfast.sessions import answer, pending, resolve_step
from holdfast.sessions.journal import memory_of
from holdfast.stores import open_store
from holdfast.work import WorkHandle, signal, submit

if TYPE_CHECKING:
    from holdfast.stores import Store

HERE = Path(__file__).parent
LEASE_S = 3.0


class Storm:
    """Workers, and who kills them."""

    def __init__(self, url: str, folder: Path, seed: int, *, workers: int, items: int, kills: int, stops: bool) -> None:
        self.url = url
        self.effects = folder / "effects"
        self.log = folder / "workers.log"
        self.chance = random.Random(seed)
        self.count, self.items, self.kills, self.stops = workers, items, kills, stops
        self.workers: list[subprocess.Popen[bytes]] = []
        self.died: dict[int, float] = {}
        """When processes were killed, by id."""
        self.stopped: set[int] = set()

    def start(self) -> None:
        environment = {**os.environ, "STORM_EFFECTS": str(self.effects), "PYTHONPATH": str(HERE)}
        command = [sys.executable, "-m", "holdfast", "worker", "storm_programs:programs", "--store", self.url]
        command += ["--lease", str(LEASE_S), "--grace", "5", "--concurrency", "8"]
        with self.log.open("ab") as log:
            self.workers.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=HERE))

    async def blow(self, limit: float) -> dict[str, Any]:
        """Submit, kill, and help as people would, until everything has ended; return the values by item."""
        for _ in range(self.count):
            self.start()
        try:
            async with asyncio.timeout(limit), open_store(self.url) as store:
                handles: dict[str, WorkHandle[Any]] = {}
                killing = asyncio.ensure_future(self._kill())
                helping = asyncio.ensure_future(self._help(store))
                try:
                    await self._submit(store, handles)
                    values = await asyncio.gather(*(handle for handle in handles.values()))
                finally:
                    for task in (killing, helping):
                        task.cancel()
                    await asyncio.gather(killing, helping, return_exceptions=True)
            return dict(zip(handles, values, strict=True))
        finally:
            for worker in self.workers:
                if worker.poll() is None:
                    worker.send_signal(signals.SIGCONT)
                    worker.kill()
                worker.wait()

    async def _submit(self, store: Store, handles: dict[str, WorkHandle[Any]]) -> None:
        # All the time, so that there is work whenever a worker is killed.
        pause = self.kills * 1.1 / self.items
        for number in range(self.items):
            program = storm_programs.programs[number % len(storm_programs.programs)]
            item = f"{program.name}-{number}"
            handles[item] = await submit(program, item, key=item, store=store)
            # Somebody is not sure, and submits it once more.
            if self.chance.random() < 0.3:
                await submit(program, item, key=item, store=store)
            if item.startswith("signalled"):
                await signal(handles[item].id, "go", item, store=store, id="once")
            await asyncio.sleep(pause)

    async def _kill(self) -> None:
        for _ in range(self.kills):
            await asyncio.sleep(self.chance.uniform(0.3, 2.0))
            worker = self.chance.choice([each for each in self.workers if each.poll() is None])
            how = self.chance.random()
            if self.stops and how < 0.2:
                self.stopped.add(worker.pid)
                worker.send_signal(signals.SIGSTOP)
                await asyncio.sleep(self.chance.uniform(0.5, 2.5 * LEASE_S))
                worker.send_signal(signals.SIGCONT)
                continue
            if how < 0.4:
                worker.send_signal(signals.SIGTERM)
            else:
                worker.kill()
                await asyncio.to_thread(worker.wait)
                self.died[worker.pid] = time.monotonic()
            self.start()

    async def _help(self, store: Store) -> None:
        """Answer and find out, as people do."""
        while True:
            await asyncio.sleep(0.2)
            for item in await store.work(statuses=["waiting"]):  # type: ignore[attr-defined]
                # A worker may be faster, or the item may have ended.
                with contextlib.suppress(HoldfastError):
                    for question in await pending(store, item.session):
                        await answer(store, item.session, question.id, approved=True)
                    if item.code == "TOOL_OUTCOME_UNKNOWN":
                        name = item.session.partition(":")[2]
                        for key in (await memory_of(store, item.session)).unknown():
                            assert key.startswith("send@"), f"`verify` did not find out about {key}"
                            done = await asyncio.to_thread(storm_programs.happened, name, "sent")
                            await resolve_step(store, item.session, key, happened=done, result="sent" if done else None)

    # What must hold

    def notes(self) -> list[tuple[str, str, int, float, str]]:
        lines = [line.split() for line in self.effects.read_text().splitlines()]
        return [(kind, item, int(process), float(at), what) for kind, item, process, at, what in lines]

    def check(self, values: dict[str, Any]) -> None:
        """Every program has ended once, and did each effect once."""
        effects: dict[str, list[str]] = defaultdict(list)
        for kind, item, process, _, what in self.notes():
            # A process that was stopped in the middle of a call makes it when it goes on, whatever was found out meanwhile. Only the
            # service itself could reject that.
            if kind == "effect" and not (process in self.stopped and what in effects[item]):
                effects[item].append(what)
        for item in values:
            found = effects[item] if not self.stopped else set(effects[item])
            assert sorted(found) == storm_programs.EXPECTED[item.partition("-")[0]], (item, effects[item])

    def check_one_at_a_time(self) -> None:
        """While a program is entered in a process that lives, no other process notes anything about it."""
        inside: dict[str, tuple[int, float]] = {}
        for kind, item, process, at, _ in sorted(self.notes(), key=lambda words: words[3]):
            other = inside.get(item)
            if other is not None and other[0] != process and other[0] not in self.stopped:
                assert self.died.get(other[0], float("inf")) <= at, f"{item} ran in {other[0]} and {process} at once"
            if kind == "enter":
                inside[item] = process, at
            elif kind == "leave":
                inside.pop(item, None)

    def takeovers(self) -> list[float]:
        """Return the seconds from the death of a worker until another process went on with what it had entered.

        A process that was still starting then could not be faster: the time counts from its first work.
        """
        found: list[float] = []
        notes = sorted(self.notes(), key=lambda words: words[3])
        first: dict[int, float] = {}
        for _, _, process, at, _ in notes:
            first.setdefault(process, at)
        for process, died in self.died.items():
            inside = {item for kind, item, by, _, _ in notes if kind == "enter" and by == process}
            for kind, item, by, _, _ in notes:
                if kind == "leave" and by == process:
                    inside.discard(item)
            for item in inside:
                later = [(at, by) for _, name, by, at, _ in notes if name == item and by != process and at > died]
                if later:
                    at, by = min(later)
                    found.append(max(0.0, at - max(died, first[by])))
        return sorted(found)
