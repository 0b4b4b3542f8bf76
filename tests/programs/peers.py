"""The same programs on Holdfast, DBOS and LangGraph, killed at the same moments of the world: what each of them does twice.

Only what all of them have is drawn: steps, one after the other and at the same time, loops, steps in steps, and exceptions after effects.
The kills come between what a program does outside, or after a time; so each engine writes as it writes, and none is killed inside of a
write more than another. A peer is given what Holdfast's programs are given: the same source, and a start until it has ended.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec
from tests.programs.play import effects_of
from tests.programs.program import Kill, Start, draw
from tests.programs.starts import run, settle
from tests.programs.world import SAID, written

from holdfast.testing.crashtest.inside import forks

if TYPE_CHECKING:
    from tests.programs.program import Program

__all__ = ["PEERS", "Counted", "compare", "count"]

PEERS = {"holdfast": "Holdfast", "langgraph": "LangGraph", "dbos": "DBOS"}
"""The contenders, by the modules that show whether they are installed."""
_SHARED = ("step", "draft", "chain", "again", "loop", "gather", "group", "nested", "nested_deep", "retry_loop")
_ODD = ("odd:no id", "odd:reset", "odd:refused", "odd:slow", "odd:late")
_MOST_STARTS = 6
"""Starts without a kill after those that are drawn."""
ROOT = Path(__file__).parents[2]


class Counted(msgspec.Struct):
    """What one contender did with all programs."""

    peer: str
    version: str = ""
    programs: int = 0
    kills: int = 0
    effects: int = 0
    doubled: int = 0
    """Effects beyond those that a program asked for."""
    with_doubles: int = 0
    """Programs with such an effect."""
    changed: int = 0
    """Results that were shown, and were other ones in a later run."""
    ended: int = 0
    """Programs that ended well."""
    errors: dict[str, int] = {}
    """What the others raise, again and again, each with the number of programs."""
    problem: str = ""
    """Why it could not be measured."""


def compare(programs: int, seed: int, kills: int) -> list[Counted]:
    """Let each contender play the programs, each in a process of its own in an environment that has it."""
    found = []
    for peer in PEERS:
        python, problem = _python(peer)
        if problem:
            found.append(Counted(peer, problem=problem))
            continue
        command = [python, "-m", "tests.programs", "--peer", peer, "--programs", str(programs)]
        command += ["--seed", str(seed), "--kills", str(kills)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        is_answer = done.returncode == 0 and lines
        problem = "" if is_answer else (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        found.append(msgspec.json.decode(lines[-1], type=Counted) if is_answer else Counted(peer, problem=problem))
    return found


def _python(peer: str) -> tuple[str, str]:
    """Return the interpreter of an environment that has a peer, or why there is none."""
    if importlib.util.find_spec(peer) is not None:
        return sys.executable, ""
    from benchmarks import peers  # noqa: PLC0415 - it may build the environment of the benchmarks

    try:
        missing = peers.ready()
    except (OSError, subprocess.SubprocessError, SystemExit) as error:
        return "", f"the environment of the benchmarks could not be built: {error}"
    asked = subprocess.run([peers.PYTHON, "-c", f"import {peer}"], capture_output=True, text=True, check=False)
    if asked.returncode == 0:
        return str(peers.PYTHON), ""
    return "", missing.get(peer) or (asked.stderr.strip().splitlines() or ["it cannot be imported"])[-1]


def count(peer: str, programs: int, seed: int, kills: int) -> Counted:
    """Play the programs with one contender, in this process."""
    counted = Counted(peer, version="" if peer == "holdfast" else version(peer))
    forks.preload(() if peer == "holdfast" else (f"tests.programs.as_{peer}",))
    if not forks.is_single():
        raise RuntimeError(f"{peer} starts threads when it is imported: it cannot be forked")
    for number in range(seed, seed + programs):
        program = draw(number, (*_SHARED, *_ODD), kills=0)
        rng = Random(number)
        size = 2 + 2 * sum(program.calls().values())
        marks = [Kill("world", rng.randrange(1, 2 * size)) for _ in range(kills)]
        starts = [
            Start(each if rng.random() < 0.7 else Kill("delay", rng.randrange(20, 80 + 15 * size))) for each in marks
        ]
        _play(replace(program, starts=tuple(starts)), peer, counted)
    return counted


def _play(program: Program, peer: str, counted: Counted) -> None:
    folder = Path(tempfile.mkdtemp(prefix="program-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        source = _source(program, peer)
        ends = []
        for start in (*program.starts, *[Start()] * _MOST_STARTS):
            end = run(source, folder, start)
            counted.kills += end.how == "killed"
            ends.append(end)
            if end.asks:
                settle(folder, "sqlite:work.db", "work")
            is_over = start.kill is None and len(ends) > 1 and end == ends[-2]
            if is_over:
                break
        counted.programs += 1
        last = ends[-1]
        counted.ended += last.how == "ended"
        if last.how != "ended":
            kind = last.code or last.error or last.how
            counted.errors[kind] = counted.errors.get(kind, 0) + 1
        _add(program, folder, counted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _add(program: Program, folder: Path, counted: Counted) -> None:
    may, times = program.calls(), effects_of(folder)
    doubled = sum(max(0, happened - may[call]) for call, happened in times.items())
    counted.effects += sum(times.values())
    counted.doubled += doubled
    counted.with_doubles += bool(doubled)
    shown: dict[str, set[str]] = {}
    for each in written(SAID, str(folder)):
        shown.setdefault(each["label"], set()).add(json.dumps(each["value"]))
    counted.changed += sum(len(values) > 1 for values in shown.values())


def _source(program: Program, peer: str) -> str:
    source = program.source()
    if peer == "holdfast":
        return source
    source = source.replace("\nbank = ", f"\nfrom tests.programs.as_{peer} import Session, run, tool\n\nbank = ", 1)
    return source.replace("asyncio.run(main())", "run(main)")
