"""A supervised team: a member that crashes comes back, and the caller sees it as a value."""

from __future__ import annotations

import asyncio

from holdfast import Actor, Budget, Err, Ok, Supervisor


class Memory(Actor):
    def __init__(self) -> None:
        self.notes: list[str] = []

    async def keep(self, note: str) -> int:
        self.notes.append(note)
        return len(self.notes)


class Reviewer(Actor):  # its public async methods are what it can be asked
    async def review(self, diff: str) -> str:
        if diff == "broken":
            raise RuntimeError("lost the thread")
        return f"{len(diff)} characters are fine"


async def main() -> None:
    async with Supervisor("team", strategy="rest_for_one", max_restarts=3, window=60) as team:
        memory = await team.start(Memory)
        reviewer = await team.start(Reviewer, restart="transient", on={"AUTH_FAILED": "escalate"})
        with Budget(seconds=10):
            for diff in ("+ one line", "broken", "+ two lines"):
                match await reviewer.outcome(Reviewer.review, diff):
                    case Ok(value=notes):
                        print(notes, "· note", await memory.ask(Memory.keep, notes))
                    case Err(fault=fault):
                        print(fault.code, "· restarts:", reviewer.restarts)


asyncio.run(main())
