"""A release in a session: its process is killed twice, and the third process finishes it. Each process is this file again.

The first process is killed in the middle of a batch. The second is killed just after it has deployed, before it could store that. The
third does not deploy again: it looks into the ledger. The ledger is the outside world; what is written there has happened.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from count import Count

from holdfast import Ok, OutcomeUnknownError, Session, tool
from holdfast.sessions import history_of
from holdfast.stores import SqliteStore

NOTES = [f"note {n}" for n in range(12)]
STORE, LEDGER = Path("work.db"), Path("ledger")


def happens(effect: str) -> None:
    print("  ", effect, flush=True)
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{effect}\n")


def has_happened(effect: str) -> bool:
    return any(line.startswith(effect) for line in LEDGER.read_text(encoding="utf-8").splitlines())


def may_be_killed(point: str) -> None:
    if os.environ.get("KILLED_AT") == point:
        print("   kill -9", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def make_plan(goal: str) -> str:
    happens(f"plans {goal}")
    return f"{goal}, carefully"


@tool(effect="idempotent")
async def summarise(note: str) -> str:
    may_be_killed(note)
    happens(f"reads {note}")
    return note.upper()


@tool(effect="unsafe")
async def deploy(plan: str, notes: int) -> str:
    happens(f"deploys {plan}, with {notes} notes")
    may_be_killed("deployment")
    return "deployed"


async def release() -> None:
    async with SqliteStore(STORE) as store, Session.open("release-42", store=store) as session:
        plan = await session.step(make_plan, "release 42")
        notes = [o.value async for o in session.map(summarise, NOTES, concurrency=1) if isinstance(o, Ok)]
        try:
            await session.step(deploy, plan, len(notes))
        except OutcomeUnknownError as unknown:
            happened = has_happened("deploys")
            print(f"   {unknown.fault.code}: was it deployed? The ledger says {'yes' if happened else 'no'}")
            await session.resolve(unknown.key, happened=happened, result="deployed")
            print("  ", await session.step(deploy, plan, len(notes)))


async def results(store: Path) -> int:
    async with SqliteStore(store) as opened:
        return sum(step.state == "done" for step in (await history_of(opened, "release-42")).steps())


def play() -> list[Count]:
    with tempfile.TemporaryDirectory() as folder:
        for title, point in (("first", "note 7"), ("second", "deployment"), ("third", "")):
            print(f"The {title} process", flush=True)
            environment = {**os.environ, "KILLED_AT": point}
            subprocess.run([sys.executable, __file__], cwd=folder, env=environment, check=False)
        stored = asyncio.run(results(Path(folder) / STORE))
        effects = (Path(folder) / LEDGER).read_text(encoding="utf-8").splitlines()
    return [Count("killed session: results that are stored", stored, len(effects), "effects in the ledger")]


if __name__ == "__main__":
    asyncio.run(release())
