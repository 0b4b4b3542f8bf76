"""What an import adds to the start of an interpreter."""

from __future__ import annotations

import os
import subprocess
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.peers import ENV, PYTHON, ROOT
from benchmarks.table import ratio, show, verdict

TARGET_MS = 60.0

OURS = "from holdfast import recover"
FAST = (
    "import holdfast",
    OURS,
    "from holdfast import Session",
    "import holdfast.classify.classifier",
    "import tenacity",
    "import stamina",
    "import redress",
    "import msgspec",
    "import asyncio",
)
SLOW = ("import openai", "import litellm")


def run(*, quick: bool) -> dict[str, Any]:
    rounds, slow_rounds = (5, 2) if quick else (25, 6)
    # Installed packages have their bytecode; a clone has it only if Python may write it, and compiling is not importing.
    subprocess.run([PYTHON, "-m", "compileall", "-q", str(ROOT / "src")], check=True)
    broken = {line: why for line in (*FAST, *SLOW) if (why := _once(line)[1])}
    added: dict[str, list[tuple[float, float]]] = {line: [] for line in (*FAST, *SLOW) if line not in broken}
    bare: list[float] = []
    for turn in range(rounds):
        for line, differences in added.items():
            if line in SLOW and turn >= slow_rounds:
                continue
            # The bare interpreter is started anew beside each import: a slow minute of the machine hits both.
            (wall, cpu), (more_wall, more_cpu) = _start("pass"), _start(line)
            differences.append((more_wall - wall, more_cpu - cpu))
            bare.append(wall)
    figures = {line: _figures(differences) | {"modules": _modules(line)} for line, differences in added.items()}
    _print(figures, median(bare) * 1e3, broken)
    return {
        "target_ms": TARGET_MS,
        "bare_ms": median(bare) * 1e3,
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


def _modules(line: str) -> int:
    """Return how many modules the interpreter loads for `line`."""
    program = f"import sys; before = len(sys.modules)\n{line}\nprint(len(sys.modules) - before)"
    return int(_once(program)[0].split()[-1])


def _figures(differences: list[tuple[float, float]]) -> dict[str, float]:
    walls = [wall * 1e3 for wall, _ in differences]
    cpu = median(cpu * 1e3 for _, cpu in differences)
    return {"median_ms": median(walls), "min_ms": min(walls), "max_ms": max(walls), "cpu_ms": cpu, "rounds": len(walls)}


def _print(figures: dict[str, Any], bare: float, broken: dict[str, str]) -> None:
    ours = figures[OURS]["median_ms"]
    rows = []
    for line, got in figures.items():
        target = verdict(got["median_ms"], TARGET_MS, "ms") if line in {"import holdfast", OURS} else ""
        columns = [f"{got[key]:.1f}" for key in ("median_ms", "min_ms", "max_ms", "cpu_ms")]
        counts = [str(got["modules"]), ratio(got["median_ms"], ours), str(got["rounds"])]
        rows.append([line, *columns, *counts, target])
    notes = [
        f"wall time of a whole process minus that of `python -c pass` started just before it (median {bare:.1f} ms)",
        "cpu: the same difference in processor time, which other work on the machine disturbs less",
        f"modules: how many the interpreter loads for the line; ratio: over `{OURS}`",
        "`recover` loads the classifier when it is first used: that costs about `import holdfast.classify.classifier`",
        *(f"{name} could not be measured: {why}" for name, why in broken.items()),
    ]
    show(
        "Import over the bare interpreter",
        ["", "median ms", "min", "max", "cpu ms", "modules", "ratio", "rounds", ""],
        rows,
        notes,
    )
