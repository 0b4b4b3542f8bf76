"""What tasks cost: an index of files and a match in it, the check of a budget, and a task around a function.

There is no peer. The index is measured by the wall clock, because it reads files; the rest is processor time.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.table import show
from holdfast import Budget, Runtime, Task, TaskSystem
from holdfast.tasks import ContextIndex

if TYPE_CHECKING:
    from collections.abc import Callable

FILES, FEW_FILES = 10_000, 1_000
WORDS = [
    f"{a}{b}{c}"
    for a in ("ta", "ro", "mi", "se", "lu")
    for b in ("ken", "ver", "dor", "lin")
    for c in ("", "s", "ing", "ed")
]
NOTES = [
    "index: files of 200 words each; again: nothing has changed; a match: five words, the best ten files",
    "a check: whether anything is left of four limits; nested: inside of four other budgets",
    "a task: a function that returns at once, with and without readers of its events",
]


def run(*, quick: bool) -> dict[str, Any]:
    count = FEW_FILES if quick else FILES
    index = asyncio.run(_index(count))
    calls = 2_000 if quick else 20_000
    checks = {depth: _check(depth, calls) for depth in (1, 5)}
    task = {watched: asyncio.run(_task(200 if quick else 2_000, watched=watched)) for watched in (False, True)}
    rows = [
        [f"index of {count:,} files: build", f"{index['build_s']:.2f} s"],
        [f"index of {count:,} files: again", f"{index['again_s']:.2f} s"],
        [f"a match in {count:,} files", f"{index['match_s'] * 1e3:.1f} ms"],
        ["check of a budget", f"{checks[1] * 1e6:.2f} us"],
        ["check of a budget, nested", f"{checks[5] * 1e6:.2f} us"],
        ["a task", f"{task[False] * 1e6:.0f} us"],
        ["a task, its events read", f"{task[True] * 1e6:.0f} us"],
    ]
    show("Tasks", ["", "time"], rows, NOTES)
    return {"files": count, **index, "check_s": checks[1], "nested_check_s": checks[5], "task_s": task[False]}


async def _index(count: int) -> dict[str, float]:
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            place = Path(folder) / f"part{number % 100}"
            place.mkdir(exist_ok=True)
            (place / f"file{number}.txt").write_text(" ".join(rng.choices(WORDS, k=200)), encoding="utf-8")
        index = ContextIndex(folder)
        build = await _timed(index.refresh)
        again = await _timed(index.refresh)
        matches = [await _timed(lambda: index.match(" ".join(rng.choices(WORDS, k=5)))) for _ in range(9)]
        index.close()
    return {"build_s": build, "again_s": again, "match_s": median(matches)}


async def _timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    await work()
    return time.perf_counter() - begin


def _check(depth: int, calls: int) -> float:
    """Return the seconds of one check inside of so many budgets."""
    if depth > 1:
        with Budget(turns=calls, usd=9, tokens=10**9, seconds=10**6):
            return _check(depth - 1, calls)
    with Budget(turns=calls, usd=9, tokens=10**9, seconds=10**6) as budget:
        begin = time.process_time()
        for _ in range(calls):
            budget.exhausted()
        return (time.process_time() - begin) / calls


async def _task(calls: int, *, watched: bool) -> float:
    async def perform(_: Any) -> str:
        return "done"

    runtime = Runtime()
    if watched:
        runtime.on(lambda _: None)
    system = TaskSystem(perform, runtime=runtime)
    begin = time.process_time()
    for _ in range(calls):
        await system.run(Task("go", turns=2))
    return (time.process_time() - begin) / calls
