"""What the workflow language costs: steps a second, growth with the size of a program, and a durable call.

There is no peer: nobody else has the language. The figures are processor time, which does not depend on the other load of the machine.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.table import show
from holdfast import Session, Workflow
from holdfast.workflow import Machine, read

LOOP = "(let ((go (lambda (n acc) (if (= n 0) acc (recur (- n 1) (+ acc n)))))) (go {n} 0))"
SIZES = (100, 1_000, 10_000)
NOTES = [
    "a step: one expression begun or one value handed on; the loop has 8 steps an iteration",
    "a line: (bind x7 (+ x6 1)); the time of a line must not grow with their number",
    "nested: the same as (bind x7 (+ x6 1) …) inside of each other, up to the limit of the reader",
    "a call: a task that returns at once, as a step of a session in SQLite with full sync, and its binding",
]


def run(*, quick: bool) -> dict[str, Any]:
    rounds = 3 if quick else 9
    steps = _steps(20_000 if quick else 100_000, rounds)
    lines = {size: _cost(_lines(size), rounds, size) for size in SIZES}
    nested = {size: _cost(_nested(size), rounds, size) for size in (100, 900)}
    call = asyncio.run(_calls(50 if quick else 500))
    rows = [["steps a second", f"{steps:,.0f}"]]
    for what, found in (("a line", lines), ("nested, a level", nested)):
        for size, (reading, evaluating) in found.items():
            rows.append([f"{what} of {size:,}: read, evaluate", f"{reading * 1e6:.1f}, {evaluating * 1e6:.1f} us"])
    rows.append(["a durable call with its binding (wall clock)", f"{call * 1e3:.2f} ms"])
    show("Workflows", ["", "time"], rows, NOTES)
    return {"steps_per_s": steps, "line_s": lines, "nested_s": nested, "call_s": call}


def _steps(iterations: int, rounds: int) -> float:
    program = read(LOOP.format(n=iterations))
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        machine = _finished(program)
        found.append(machine.meter.steps / (time.process_time() - begin))
    return median(found)


def _finished(program: tuple[Any, ...]) -> Machine:
    machine = Machine(program)
    while machine.run() is not None:
        pass
    assert machine.failure is None
    return machine


def _lines(count: int) -> str:
    return "(bind x0 0)\n" + "\n".join(f"(bind x{n} (+ x{n - 1} 1))" for n in range(1, count))


def _nested(depth: int) -> str:
    opened = "".join(f"(bind x{n} (+ x{n - 1} 1) " for n in range(1, depth))
    return f"(bind x0 0 {opened}x{depth - 1}{')' * depth}"


def _cost(text: str, rounds: int, size: int) -> tuple[float, float]:
    """Return the seconds to read and to evaluate one of so many parts."""
    reading, evaluating = [], []
    for _ in range(rounds):
        begin = time.process_time()
        program = read(text)
        middle = time.process_time()
        _finished(program)
        reading.append(middle - begin)
        evaluating.append(time.process_time() - middle)
    return median(reading) / size, median(evaluating) / size


async def _calls(count: int) -> float:
    async def answer(n: int) -> int:
        return n

    text = "\n".join(f"(bind x{n} (answer {n}))" for n in range(count))
    with tempfile.TemporaryDirectory() as folder:
        async with Session.open("bench", store=f"sqlite:{Path(folder) / 'bench.db'}") as session:
            begin = time.perf_counter()
            await Workflow(text, tasks=[answer]).run(session)
            return (time.perf_counter() - begin) / count
