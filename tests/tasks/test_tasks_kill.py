"""Workflows and stages in processes that are killed with SIGKILL at random moments: the result is the uninterrupted one, and no stored call runs again."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
from stages_worker import WHOLE as WHOLE_STAGES
from workflow_worker import WHOLE

from holdfast.sessions.journal import entries_of
from holdfast.stores import open_store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")


async def _stored(path: Path) -> set[str]:
    """Return the calls whose results are in the log."""
    found: set[str] = set()
    async with open_store(f"sqlite:{path}") as store:
        async for entry in entries_of(store, "s", 0):
            body = msgspec.json.decode(bytes(entry.body))
            result = body.get("result")
            if isinstance(result, dict) and "holdfast.workflow" in result:
                found.add(str(result["holdfast.workflow"].get("value")))
            elif isinstance(result, dict) and "holdfast.stage" in result and body["step"].endswith(".Act"):
                # key:RUN/PATH/ATTEMPT/STAGE.Act; a run of a machine in a branch has a longer path.
                *_, path, attempt, stage = body["step"].removesuffix(".Act").split("/")
                found.add(f"{path}.{attempt}.{stage}")
    return found


class Worker:
    """A process that runs a program in processes of its own. It has imported everything when it is made."""

    def __init__(self, program: str) -> None:
        script = Path(__file__).with_name(program)
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def run(self, folder: Path, seconds: float) -> str:
        """Run the program, and kill it after so many seconds; 0: never."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{seconds} {folder}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def whole_time(self, folder: Path) -> float:
        """Return the seconds that an uninterrupted run takes on this machine, as busy as it is now."""
        folder.mkdir()
        begun = time.monotonic()
        assert self.run(folder, 0).startswith("done ")
        return time.monotonic() - begun

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


def notes_in(folder: Path) -> Counter[str]:
    """Return how often each call has begun."""
    path = folder / "notes"
    return Counter(path.read_text().split()) if path.exists() else Counter()


PROGRAMS = {"workflow_worker.py": WHOLE, "stages_worker.py": WHOLE_STAGES}


def until_done(
    worker: Worker, folder: Path, rng: random.Random, seconds: float, whole: Any, most: int = 12
) -> Counter[str]:
    """Run, kill and run again until the program ends; return how often it was killed, and how often in the middle of its work."""
    folder.mkdir()
    done: dict[str, int] = {}
    kills: Counter[str] = Counter()
    while True:
        ended = worker.run(folder, rng.uniform(0.001, seconds) if kills["all"] < most else 0)
        notes = notes_in(folder)
        for call, count in done.items():
            assert notes[call] == count, f"{call} ran again although its result is stored"
        if ended != "killed":
            break
        kills["all"] += 1
        if (folder / "work.db").exists() and notes:
            kills["at work"] += 1
            done = {call: notes[call] for call in asyncio.run(_stored(folder / "work.db"))}
    assert ended.startswith("done "), ended
    assert json.loads(ended.removeprefix("done ")) == whole
    return kills


@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_at_random_a_run_ends_with_the_uninterrupted_result(program, tmp_path):
    rng, kills, number = random.Random(2), Counter[str](), 0
    with Worker(program) as worker:
        seconds = worker.whole_time(tmp_path / "whole")
        while not kills["all"]:
            # A run that ends before it is killed is followed by one that is killed earlier.
            number, seconds = number + 1, seconds * 0.7
            kills += until_done(worker, tmp_path / str(number), rng, seconds, PROGRAMS[program], most=4)


@pytest.mark.soak
@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_500_times_runs_end_with_the_uninterrupted_result(program, tmp_path):
    rng, kills, number = random.Random(500), Counter[str](), 0
    with Worker(program) as worker:
        while kills["all"] < 500:
            number += 1
            seconds = worker.whole_time(tmp_path / f"{number}-whole")
            kills += until_done(worker, tmp_path / str(number), rng, seconds, PROGRAMS[program])
    assert kills["at work"] > 100
