"""A team of three agents, each in a process of its own. Somebody kills them while they write a report.

The memory keeps what the writers have finished. After each message its supervisor has a copy of its state, which it gets back when it is
started again. So no section is lost, and none is written twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import TYPE_CHECKING

from count import Count

from holdfast import Actor, Err, Ok, Supervisor
from holdfast.events import ChildExited, Event
from holdfast.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.actors import Ref

KILLS = 3
SECTIONS = ["causes", "timeline", "impact", "fixes", "open questions"]


class Agent(Actor, host="process"):
    async def pid(self) -> int:
        return os.getpid()


class Memory(Agent):
    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    async def keep(self, section: str, text: str) -> int:
        self.notes[section] = text
        return len(self.notes)

    async def all(self) -> dict[str, str]:
        return self.notes

    def snapshot(self) -> dict[str, str]:
        return self.notes

    def restore(self, state: dict[str, str]) -> None:
        self.notes = state


class Writer(Agent):
    async def write(self, section: str) -> str:
        await asyncio.sleep(0.2)  # slow enough to be killed in the middle
        return f"words about {section}"


async def pid_of(actor: Ref[Agent], *, other_than: int = 0) -> int:
    """Return the process of an actor, as soon as there is one."""
    while True:
        match await actor.using(timeout=5).outcome(Agent.pid):
            case Ok(value=pid) if pid != other_than:
                return pid


async def kill_some(actors: Sequence[Ref[Agent]], chance: random.Random) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(0.1, 0.3))
        victim = chance.choice(actors)
        pid = await pid_of(victim)
        print(f"   kill -9 {victim.name}")
        os.kill(pid, signal.SIGKILL)
        await pid_of(victim, other_than=pid)


async def until_kept(section: str, writer: Ref[Writer], memory: Ref[Memory]) -> None:
    while True:
        match await writer.outcome(Writer.write, section):
            case Ok(value=text):
                if (await memory.outcome(Memory.keep, section, text)).ok:
                    print(f"   {section}: kept")
                    return
            case Err(fault=fault):
                # The message was lost with the process. It may be sent again, because it has no effect outside.
                print(f"   {section}: {fault.code}, asked again")


async def perform() -> tuple[int, dict[str, str]]:
    """Return how many crashes the supervisor saw, and the report."""
    crashes: list[Event] = []
    with default_runtime().on(crashes.append, ChildExited):
        async with Supervisor("team", strategy="rest_for_one", max_restarts=10, window=60) as team:
            memory = await team.start(Memory)
            writers = [await team.start(Writer, id=name) for name in ("Writer 1", "Writer 2")]
            killer = asyncio.create_task(kill_some([memory, *writers], random.Random(4)))
            await asyncio.gather(*(until_kept(section, writers[n % 2], memory) for n, section in enumerate(SECTIONS)))
            await killer
            return len(crashes), await memory.ask(Memory.all)


def play() -> list[Count]:
    crashes, report = asyncio.run(perform())
    return [
        Count("team: crashes that were seen", crashes, KILLS, "processes that were killed"),
        Count("team: sections in the report", len(report), len(SECTIONS), "sections that were wanted"),
    ]
