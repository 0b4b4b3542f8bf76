"""A team of agents that survives random kills. No keys, no network.

Three actors run in processes of their own, under `rest_for_one`: if the memory dies, those that were started after it are restarted
with it. Somebody kills one of the processes again and again. Each question ends in an answer or in a typed error, and is then asked
again. The memory's snapshot survives, so no section is lost and none is written twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import TYPE_CHECKING

from holdfast import Actor, Err, Ok, Supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.actors import Ref

KILLS = 4
SECTIONS = ["causes", "timeline", "impact", "fixes", "open questions"]


class Agent(Actor, host="process"):
    async def pid(self) -> int:
        return os.getpid()


class Memory(Agent):
    """Keeps what the team has written."""

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
    """Writes one section at a time, slowly enough to be killed in the middle."""

    def __init__(self, style: str) -> None:
        self.style = style

    async def write(self, section: str) -> str:
        await asyncio.sleep(0.2)
        return f"{self.style} words about {section}"


async def kill_at_random(actors: Sequence[Ref[Agent]], chance: random.Random) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(0.2, 0.6))
        victim = chance.choice(actors)
        found = await victim.using(timeout=1).outcome(Agent.pid)
        if isinstance(found, Ok):
            print(f"  somebody kills {victim.name} (process {found.value})")
            os.kill(found.value, signal.SIGKILL)


async def until_kept(section: str, writer: Ref[Writer], memory: Ref[Memory]) -> None:
    while True:
        match await writer.outcome(Writer.write, section):
            case Ok(value=text):
                if (await memory.outcome(Memory.keep, section, text)).ok:
                    print(f"  {section}: kept")
                    return
            case Err(fault=fault):
                # The message is lost, and the actor comes back. This one may be repeated, because it has no effect outside.
                print(f"  {section}: {fault.code}, asking again")


async def main() -> None:
    async with Supervisor("team", strategy="rest_for_one", max_restarts=100, window=60) as team:
        memory = await team.start(Memory)
        plain = await team.start(Writer, "plain", id="plain")
        terse = await team.start(Writer, "terse", id="terse")
        killer = asyncio.create_task(kill_at_random([memory, plain, terse], random.Random(4)))
        writers = [plain, terse]
        await asyncio.gather(*(until_kept(section, writers[n % 2], memory) for n, section in enumerate(SECTIONS)))
        killer.cancel()
        report = await memory.ask(Memory.all)
        restarts = sum(ref.restarts for ref in (memory, plain, terse))
    assert sorted(report) == sorted(SECTIONS)
    print(f"the report has all {len(report)} sections, after {restarts} restarts")


if __name__ == "__main__":
    asyncio.run(main())
