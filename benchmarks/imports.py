"""What `import X` adds to the start of an interpreter."""

from __future__ import annotations

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
    broken = {name: why for name in (*FAST, *SLOW) if (why := _problem(name))}
    added: dict[str, list[float]] = {name: [] for name in (*FAST, *SLOW) if name not in broken}
    bare: list[float] = []
    for turn in range(rounds):
        for name, differences in added.items():
            if name in SLOW and turn >= slow_rounds:
                continue
            # The bare interpreter is started anew beside each import: a slow minute of the machine hits both.
            before = _start("pass")
            differences.append(_start(f"import {name}") - before)
            bare.append(before)
    figures = {
        name: {"median_ms": median(d) * 1e3, "min_ms": min(d) * 1e3, "max_ms": max(d) * 1e3, "rounds": len(d)}
        for name, d in added.items()
    }
    loads = subprocess.run(
        [str(PYTHON), "-c", "import sys, holdfast; print(sum(m.startswith('holdfast.') for m in sys.modules))"],
        cwd=ROOT / "benchmarks", env=ENV, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    _print(figures, median(bare) * 1e3, int(loads), broken)
    return {
        "target_ms": TARGET_MS,
        "bare_ms": median(bare) * 1e3,
        "imports": figures,
        "holdfast_modules_loaded": int(loads),
        "broken": broken,
    }


def _start(code: str) -> float:
    start = perf_counter()
    # Not in the checkout's root: the current directory comes first on the path.
    subprocess.run(
        [str(PYTHON), "-c", code],
        cwd=ROOT / "tests",
        env=ENV,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return perf_counter() - start


def _problem(name: str) -> str:
    """Import once, which also leaves the compiled files behind; return why that fails, if it does."""
    done = subprocess.run(
        [str(PYTHON), "-c", f"import {name}"], cwd=ROOT / "tests", env=ENV, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1]


def _print(figures: dict[str, Any], bare: float, loads: int, broken: dict[str, str]) -> None:
    ours = figures["holdfast.classify"]["median_ms"]
    rows = [
        [
            f"import {name}",
            f"{got['median_ms']:.1f}",
            f"{got['min_ms']:.1f}",
            f"{got['max_ms']:.1f}",
            ratio(got["median_ms"], ours),
            str(got["rounds"]),
            verdict(got["median_ms"], TARGET_MS, "ms") if name.startswith("holdfast") else "",
        ]
        for name, got in figures.items()
    ]
    notes = [
        f"wall time of a whole process, minus that of `python -c pass` started just before it (median {bare:.1f} ms)",
        "ratio: over `import holdfast.classify`, the part that does the work measured here",
        f"`import holdfast` alone loads {loads} modules of the package"
        + (
            ": it is an empty front door so far, so its figure says nothing yet; read the next row"
            if loads == 0
            else ""
        ),
        *(f"{name} could not be measured: {why}" for name, why in broken.items()),
    ]
    show("Import over the bare interpreter", ["", "median ms", "min", "max", "ratio", "rounds", ""], rows, notes)
