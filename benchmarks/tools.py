"""What a program, a tool and a toolbox add: a process beside asyncio's own, and a call beside the bare function."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from benchmarks.rounds import beside
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
        "program": await beside(programs, rounds, times),
        "output": await beside(loud, max(3, rounds // 3), max(5, times // 6)),
        "call": await beside(calls, rounds, times * 20),
    }
    ours = result["program"]["holdfast.tools.run"]["ratio"]
    _show("A program that does nothing", result["program"], 1e3, "ms", [verdict(ours, TARGET, "x asyncio")])
    _show("A program that prints", result["output"], 1e3, "ms")
    _show("A call of a function as a tool", result["call"], 1e6, "µs")
    return {"target": TARGET, **result}


def _show(title: str, figures: dict[str, Any], scale: float, unit: str, notes: list[str] | None = None) -> None:
    rows = [
        [name, f"{one['wall'] * scale:.2f}", f"{one['cpu'] * scale:.2f}", ratio(one["ratio"], 1.0)]
        for name, one in figures.items()
    ]
    show(title, ["", f"time, {unit}", f"of it our processor, {unit}", "ratio"], rows, notes or [])
