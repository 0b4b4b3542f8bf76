"""What `import X` adds to the start of an interpreter."""

from __future__ import annotations

import os
import subprocess
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.peers import ENV, PYTHON, ROOT
from benchmarks.table import ratio, show, verdict

TARGET_MS = 60.0

FAST = ("holdfast", "holdfast.classify", "msgspec", "asyncio", "tenacity", "redress")
SLOW = ("openai", "litellm")


def run(*, quick: bool) -> dict[str, Any]:
    rounds, slow_rounds = (5, 2) if quick else (25, 6)
    broken = {name: why for name in (*FAST, *SLOW) if (why := _once(f"import {name}")[1])}
    added: dict[str, list[tuple[float, float]]] = {name: [] for name in (*FAST, *SLOW) if name not in broken}
    bare: list[float] = []
    for turn in range(rounds):
        for name, differences in added.items():
            if name in SLOW and turn >= slow_rounds:
                continue
            # The bare interpreter is measured beside each import, so that a slow minute of the machine affects both.
            (wall, cpu), (more_wall, more_cpu) = _start("pass"), _start(f"import {name}")
            differences.append((more_wall - wall, more_cpu - cpu))
            bare.append(wall)
    figures = {name: _figures(differences) for name, differences in added.items()}
    lazy = _once("import sys, holdfast; print('holdfast.classify' not in sys.modules)")[0].strip() == "True"
    _print(figures, median(bare) * 1e3, broken, lazy=lazy)
    return {
        "target_ms": TARGET_MS,
        "bare_ms": median(bare) * 1e3,
        "holdfast_is_lazy": lazy,
        "imports": figures,
        "broken": broken,
    }


def _start(code: str) -> tuple[float, float]:
    """Return the wall and processor seconds of an interpreter that runs `code`."""
    start = perf_counter()
    process = subprocess.Popen(
        [PYTHON, "-c", code], cwd=ROOT / "tests", env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    return wall, usage.ru_utime + usage.ru_stime


def _once(code: str) -> tuple[str, str]:
    """Run `code` once, which also leaves the compiled files behind; return its output and why it failed, if it did."""
    done = subprocess.run(
        [PYTHON, "-c", code], cwd=ROOT / "tests", env=ENV, capture_output=True, text=True, check=False
    )
    return done.stdout, "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1]


def _figures(differences: list[tuple[float, float]]) -> dict[str, float]:
    walls = [wall * 1e3 for wall, _ in differences]
    cpu = median(cpu * 1e3 for _, cpu in differences)
    return {"median_ms": median(walls), "min_ms": min(walls), "max_ms": max(walls), "cpu_ms": cpu, "rounds": len(walls)}


def _print(figures: dict[str, Any], bare: float, broken: dict[str, str], *, lazy: bool) -> None:
    ours = figures["holdfast.classify"]["median_ms"]
    rows = []
    for name, got in figures.items():
        result = verdict(got["median_ms"], TARGET_MS, "ms") if name.startswith("holdfast") else ""
        columns = [f"{got[key]:.1f}" for key in ("median_ms", "min_ms", "max_ms", "cpu_ms")]
        rows.append([f"import {name}", *columns, ratio(got["median_ms"], ours), str(got["rounds"]), result])
    notes = [
        f"wall time of a whole process minus that of `python -c pass` started just before it (median {bare:.1f} ms)",
        "cpu: the same difference in processor time, which other work on the machine disturbs less",
        "ratio: over `import holdfast.classify`, the part that does the work measured here",
        *(
            [
                "`import holdfast` is lazy: it loads no classifier. What a program pays by its first failure is the next row"
            ]
            if lazy
            else []
        ),
        *(f"{name} could not be measured: {why}" for name, why in broken.items()),
    ]
    show(
        "Import over the bare interpreter",
        ["", "median ms", "min", "max", "cpu ms", "ratio", "rounds", ""],
        rows,
        notes,
    )
