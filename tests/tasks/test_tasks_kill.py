"""Workflows and stages in processes that are killed with SIGKILL at random moments: the result is the uninterrupted one, and no stored call runs again."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

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
    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        script = Path(__file__).with_name(program)
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, ticks: int) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{ticks}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def notes(self) -> Counter[str]:
        path = self.folder / "notes"
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


PROGRAMS = {"workflow_worker.py": WHOLE, "stages_worker.py": WHOLE_STAGES}


def until_done(folder: Path, rng: random.Random, program: str, most: int = 12) -> int:
    """Run, kill and run again until the program ends; return how often it was killed."""
    worker = Worker(folder, program)
    done: dict[str, int] = {}
    kills = 0
    try:
        while True:
            ended = worker.run(rng.randint(10, 400) if kills < most else 0)
            notes = worker.notes()
            for call, count in done.items():
                assert notes[call] == count, f"{call} ran again although its result is stored"
            if ended != "killed":
                break
            kills += 1
            if (folder / "work.db").exists() and notes:
                done = {call: notes[call] for call in asyncio.run(_stored(folder / "work.db"))}
    finally:
        worker.close()
    assert ended.startswith("done "), ended
    assert json.loads(ended.removeprefix("done ")) == PROGRAMS[program]
    return kills


@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_at_random_a_run_ends_with_the_uninterrupted_result(program, tmp_path):
    assert until_done(tmp_path, random.Random(1), program, most=4) > 0


@pytest.mark.soak
@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_500_times_runs_end_with_the_uninterrupted_result(program, tmp_path):
    rng, kills, number = random.Random(500), 0, 0
    while kills < 500:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        kills += until_done(folder, rng, program)
