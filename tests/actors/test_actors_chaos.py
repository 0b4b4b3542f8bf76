"""Actors in processes that are killed at random: no orphan, no lost reply, restarts within the budget."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from actors_in_processes import Remembering, Worker

from holdfast import Err, Ok, Runtime
from holdfast.actors import Ref, Supervisor
from holdfast.events import ChildExited, GaveUp


def workers() -> set[int]:
    """Return the processes of actors that this process has started."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


async def count_of(ref: Ref[Remembering]) -> int:
    """Return what an actor has counted. The last kill may have come just before the question, so there is a second one."""
    for _ in range(3):
        match await ref.using(timeout=120).outcome(Worker.add, 0):
            case Ok(value=value):
                return value
            case Err(fault=fault):
                assert fault.code == "ACTOR_CRASHED", fault
    raise AssertionError("an actor was killed three times after the last kill")


def chaos(count: int, seconds: float, *, askers: int, seed: int = 13) -> dict[str, int]:
    """Run actors in processes, ask them all the time, and kill one of them every few milliseconds."""
    chance = random.Random(seed)
    runtime = Runtime()
    exits: list[ChildExited] = []
    runtime.on(exits.append, ChildExited)
    gave_up: list[GaveUp] = []
    runtime.on(gave_up.append, GaveUp)
    counts = {"asked": 0, "ok": 0, "err": 0, "killed": 0}

    async def main() -> None:
        async with AsyncExitStack() as stack:
            # A supervisor starts one child after the other, so there are several of them.
            teams = [
                await stack.enter_async_context(
                    Supervisor(f"chaos-{n}", max_restarts=10_000, window=600, runtime=runtime)
                )
                for n in range(max(1, count // 10))
            ]

            async def start(n: int):
                return await teams[n % len(teams)].start(Remembering, id=f"w{n}", start_timeout=120)

            refs = await asyncio.gather(*(start(n) for n in range(count)))
            ends = time.monotonic() + seconds

            async def ask() -> None:
                while time.monotonic() < ends:
                    ref = chance.choice(refs)
                    counts["asked"] += 1
                    outcome = await ref.outcome(Worker.add, 1)
                    counts["ok" if outcome.ok else "err"] += 1
                    if not outcome.ok:
                        assert outcome.fault.code in ("ACTOR_CRASHED", "SYS_TIMEOUT"), outcome.fault

            async def kill() -> None:
                while time.monotonic() < ends:
                    await asyncio.sleep(max(0.02, seconds / (count * 1.5)))
                    pids = sorted(workers() - before)
                    if pids:
                        os.kill(chance.choice(pids), signal.SIGKILL)
                        counts["killed"] += 1

            await asyncio.gather(kill(), *(ask() for _ in range(askers)))
            # Every actor answers again, and none has lost more than the message that it was killed over.
            again = await asyncio.gather(*(count_of(ref) for ref in refs))
            counts["kept"] = sum(again)
            counts["restarts"] = sum(ref.restarts for ref in refs)

    before = workers()
    asyncio.run(main())
    assert workers() <= before, "orphans"
    assert not gave_up
    counts["exits"] = len([event for event in exits if "killed by signal" in event.reason])
    return counts


def check(counts: dict[str, int]) -> None:
    # Each ask ended in Ok or Err.
    assert counts["ok"] + counts["err"] == counts["asked"]
    assert counts["ok"] > 0
    assert counts["killed"] > 0
    # A process that was killed is restarted once. Several signals may hit a process before it is gone.
    assert counts["restarts"] <= counts["killed"]
    # What was answered is in a snapshot, which survives the kill. A message that ended in Err may be in it, too.
    assert counts["ok"] <= counts["kept"] <= counts["ok"] + counts["err"]


def test_a_few_process_actors_that_are_killed_at_random_answer_every_ask_and_leave_no_orphan():
    check(chaos(3, 2.0, askers=4))


@pytest.mark.soak
def test_200_process_actors_that_are_killed_at_random_for_two_minutes():
    check(chaos(200, 120.0, askers=50))
