"""Work that survives its process: a release that is killed twice and finished by the third process. No keys, no network.

Each process is this file again. The first is killed in the middle of a batch, the second in the middle of the one step that must not
be done twice. Finished steps are not repeated. For a step that may have happened, the third process asks.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from holdfast import Ok, OutcomeUnknownError, Session, tool
from holdfast.stores import SqliteStore

NOTES = [f"note {n}" for n in range(12)]


async def make_plan(goal: str) -> str:
    print("  planning", goal)
    return f"{goal}, carefully"


@tool(effect="idempotent")
async def summarise(note: str) -> str:
    print("  reading ", note)
    if note == "note 7" and os.environ.get("KILLED_IN") == "the batch":
        os.kill(os.getpid(), signal.SIGKILL)
    return note.upper()


@tool(effect="unsafe")
async def deploy(plan: str, notes: int) -> str:
    print("  deploying", plan)
    if os.environ.get("KILLED_IN") == "the deployment":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"deployed with {notes} notes"


async def release(path: Path) -> None:
    async with SqliteStore(path) as store, Session.open("release-42", store=store) as session:
        if session.in_flight:
            print(f"  turn {session.in_flight} was cut off and goes on")
        plan = await session.step(make_plan, "release 42")
        notes = [o.value async for o in session.map(summarise, NOTES, concurrency=1) if isinstance(o, Ok)]
        try:
            print("  result  ", await session.step(deploy, plan, len(notes)))
        except OutcomeUnknownError as unknown:
            print("  question", unknown.fault.message)
            # A person has checked: the deployment did not happen.
            await session.resolve(unknown.key, happened=False)
            raise


def process(path: Path, killed_in: str = "") -> int:
    """Run this file in a process of its own."""
    environment = {**os.environ, "KILLED_IN": killed_in}
    return subprocess.run([sys.executable, __file__, str(path)], env=environment, check=False).returncode


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "work.db"
        for title, killed_in in (
            ("The first process, killed in the batch", "the batch"),
            ("The second, killed while it deploys", "the deployment"),
            ("The third: what may have happened is not repeated by itself", ""),
            ("The fourth, after somebody has looked", ""),
        ):
            print(title, flush=True)
            process(path, killed_in)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if len(sys.argv) > 1:
        try:
            asyncio.run(release(Path(sys.argv[1])))
        except OutcomeUnknownError:
            sys.exit(1)
    else:
        main()
