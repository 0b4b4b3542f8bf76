"""What a program, a tool and a toolbox add: a process beside asyncio's own, and a call beside the bare function."""

from __future__ import annotations

import asyncio
import resource
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.table import ratio, show, verdict
from holdfast import tool
from holdfast.tools import Toolbox, process_tool
from holdfast.tools import run as run_program

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TARGET = 1.25
"""Times the processor time of asyncio's own."""
_PIPE = asyncio.subprocess.PIPE


async def _asyncio(*command: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=_PIPE, stderr=_PIPE, start_new_session=True
    )
    return (await process.communicate())[0]


@tool(effect="read")
async def add(a: int, b: int) -> int:
    return a + b


def run(*, quick: bool) -> dict[str, Any]:
    return asyncio.run(_run(5 if quick else 25, 20 if quick else 60))


async def _run(rounds: int, times: int) -> dict[str, Any]:
    box = Toolbox([add, process_tool("true", ["true"], effect="read")])
    programs: dict[str, Callable[[], Awaitable[Any]]] = {
        "asyncio.create_subprocess_exec": lambda: _asyncio("true"),
        "holdfast.tools.run": lambda: run_program(["true"]),
        "Toolbox.call of a process_tool": lambda: box.call("true"),
    }
    loud: dict[str, Callable[[], Awaitable[Any]]] = {
        "asyncio, 8 MB of output": lambda: _asyncio("head", "-c", "8000000", "/dev/zero"),
        "holdfast.tools.run, 8 MB of output": lambda: run_program(["head", "-c", "8000000", "/dev/zero"]),
    }
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "the bare function": lambda: add(1, 2),
        "Toolbox.call": lambda: box.call("add", {"a": 1, "b": 2}),
        "Toolbox.answer": lambda: box.answer("add", '{"a": 1, "b": 2}'),
    }
    result = {
        "program": await _beside(programs, rounds, times),
        "output": await _beside(loud, max(3, rounds // 3), max(5, times // 6)),
        "call": await _beside(calls, rounds, times * 20),
    }
    ours = result["program"]["holdfast.tools.run"]["ratio"]
    _show("A program that does nothing", result["program"], 1e3, "ms", [verdict(ours, TARGET, "x asyncio")])
    _show("A program that prints", result["output"], 1e3, "ms")
    _show("A call of a function as a tool", result["call"], 1e6, "µs")
    return {"target": TARGET, **result}


async def _beside(work: dict[str, Callable[[], Awaitable[Any]]], rounds: int, times: int) -> dict[str, Any]:
    """Return seconds of time and of our own processor time per call, and the ratio to the first, taken round by round."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for _ in range(rounds):
        # They take turns, so that a slow minute of the machine hits all of them.
        for name, one in work.items():
            wall, cpu = perf_counter(), _processor()
            for _ in range(times):
                await one()
            took[name].append(((perf_counter() - wall) / times, (_processor() - cpu) / times))
    first = next(iter(took.values()))
    return {
        name: {
            "wall": median(wall for wall, _ in each),
            "cpu": median(cpu for _, cpu in each),
            # Of processor time: the time of a process depends on what else the machine does.
            "ratio": median(cpu / base for (_, cpu), (_, base) in zip(each, first, strict=True)),
        }
        for name, each in took.items()
    }


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _show(title: str, figures: dict[str, Any], scale: float, unit: str, notes: list[str] | None = None) -> None:
    rows = [
        [name, f"{one['wall'] * scale:.2f}", f"{one['cpu'] * scale:.2f}", ratio(one["ratio"], 1.0)]
        for name, one in figures.items()
    ]
    show(title, ["", f"time, {unit}", f"of it our processor, {unit}", "ratio"], rows, notes or [])
