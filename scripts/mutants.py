#!/usr/bin/env python3
"""Change the pure rooms in one place at a time, and see whether their tests notice.

    python scripts/mutants.py --sample 300                      300 changes, drawn over all pure rooms
    python scripts/mutants.py --sample 40 --rooms policies,wire --seed 7

Each change is made in a copy of `src`, and the tests of its room run against the copy, in a process of their own. A change that they
do not notice has survived: a test is missing, or nobody can see the change. Those of the second kind stand in
`scripts/mutants_accepted.txt`, each with its reason, and do not count.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
ACCEPTED = Path(__file__).with_name("mutants_accepted.txt")
ROOMS = ("classify", "events", "faults", "once", "policies", "supervision", "transcript", "views", "wire", "workflow")
ALSO = {"events": ("tests/sinks", "tests/cli/test_cli_observe.py")}
"""Tests of other rooms that show what a room's code does: the lines of events are those of the log."""
SLOWER = 5
"""How many times as long as without a change the tests may take. A change that makes them hang was noticed."""
LEAST_S = 60.0
_LEFT_OUT = ("--deselect", "tests/supervision/test_supervision_erlang.py")

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
"""What each operator becomes."""


class Mutant(NamedTuple):
    """One change: a piece of a module's text, and what stands there instead."""

    room: str
    module: str
    """The path below `src`."""
    line: int
    start: int
    """The place of the piece in the text, in characters."""
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}  {self.before}  →  {self.after}"

    @property
    def known_as(self) -> str:
        """What stays the same when lines above it come or go."""
        return f"{self.module}  {self.before}  →  {self.after}"


def mutants_of(room: str) -> Iterator[Mutant]:
    """Yield every change that can be made in a room."""
    for path in sorted((ROOT / "src/holdfast" / room).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for node in _inside_functions(ast.parse(text)):
            before = ast.get_source_segment(text, node)
            for changed in _changes(node):
                after = ast.unparse(changed)
                if before is not None and "\n" not in before and after != ast.unparse(node):
                    # Columns are counted in bytes.
                    line = text[starts[node.lineno - 1] : starts[node.lineno]]
                    column = len(line.encode()[: node.col_offset].decode())
                    place = starts[node.lineno - 1] + column
                    yield Mutant(room, str(path.relative_to(ROOT / "src")), node.lineno, place, before, f"({after})")


def _inside_functions(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the expressions that run when a function is called. Types, docstrings and defaults are none of them."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name != "__repr__":
            for statement in function.body:
                yield from _expressions(statement)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr | ast.Raise | ast.Assert):
        # Functions inside are found by themselves. What messages say is not what these tests are about.
        return
    if isinstance(node, ast.AnnAssign):
        yield from [] if node.value is None else _expressions(node.value)
        return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _expressions(child)


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _OPERATORS:
            yield ast.Compare(node.left, [_OPERATORS[type(operator)]()], node.comparators)  # type: ignore[list-item]
        case ast.BinOp() if type(node.op) in _OPERATORS and not _is_text(node):
            yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)  # type: ignore[arg-type]
        case ast.BoolOp():
            yield ast.BoolOp(_OPERATORS[type(node.op)](), node.values)  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case _:
            return


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(isinstance(side, ast.JoinedStr | ast.List | ast.Tuple | ast.Constant) and not _is_number(side) for side in sides)  # fmt: skip


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


class Copy:
    """A copy of `src` in which one change is made at a time."""

    def __init__(self, folder: Path) -> None:
        self.src = folder / "src"
        shutil.copytree(ROOT / "src", self.src, ignore=shutil.ignore_patterns("__pycache__"))

    def notices(self, mutant: Mutant, limit: float) -> bool:
        """Return whether the tests of its room fail with a change, or do not end in time."""
        path = self.src / mutant.module
        text = path.read_text(encoding="utf-8")
        changed = text[: mutant.start] + mutant.after + text[mutant.start + len(mutant.before) :]
        try:
            compile(changed, str(path), "exec")
            path.write_text(changed, encoding="utf-8")
            return self.test(mutant.room, limit) != 0
        except SyntaxError:
            return True
        finally:
            path.write_text(text, encoding="utf-8")

    def test(self, room: str, limit: float | None) -> int | None:
        """Run the tests of a room; None: they did not end in time."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *_LEFT_OUT]
        # No byte code is written: two changes within one second could have the same time stamp and length.
        environment = {**os.environ, "PYTHONPATH": str(self.src), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [*command, f"tests/{room}", *ALSO.get(room, ())],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            # Its tests may have started processes of their own.
            os.killpg(process.pid, 9)
            process.wait()
            return None


def accepted() -> dict[str, str]:
    """Return the reasons of the changes that nobody can see."""
    lines = ACCEPTED.read_text(encoding="utf-8").splitlines() if ACCEPTED.exists() else []
    pairs = (line.rpartition("  # ") for line in lines if line.strip() and not line.startswith("#"))
    return {change.strip(): reason.strip() for change, _, reason in pairs}


def main() -> int:
    parser = argparse.ArgumentParser(description="Change the pure rooms, and see whether their tests notice.")
    parser.add_argument("--sample", type=int, default=30, help="how many changes are made")
    parser.add_argument("--rooms", default=",".join(ROOMS), help="the rooms, with commas between")
    parser.add_argument("--seed", type=int, default=1, help="the same seed draws the same changes")
    parser.add_argument("--least", type=float, default=0.0, help="fail if less than this share was noticed: 0.85")
    given = parser.parse_args()
    rooms = given.rooms.split(",")
    known = accepted()
    every = [mutant for room in rooms for mutant in mutants_of(room) if mutant.known_as not in known]
    drawn = sorted(random.Random(given.seed).sample(every, min(given.sample, len(every))))  # noqa: S311 - a sample
    print(f"{len(drawn)} of {len(every)} changes in {', '.join(rooms)}; {len(known)} are accepted with a reason")
    survivors: list[Mutant] = []
    limits: dict[str, float] = {}
    counts = dict.fromkeys(rooms, 0)
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for mutant in drawn:
            if mutant.room not in limits:
                began = time.monotonic()
                if copy.test(mutant.room, None) != 0:
                    print(f"the tests of {mutant.room} fail without a change")
                    return 1
                limits[mutant.room] = max(LEAST_S, SLOWER * (time.monotonic() - began))
            is_noticed = copy.notices(mutant, limits[mutant.room])
            counts[mutant.room] += 1
            print(f"{'noticed ' if is_noticed else 'SURVIVED'}  {mutant}", flush=True)
            if not is_noticed:
                survivors.append(mutant)
    for room, count in counts.items():
        left = sum(mutant.room == room for mutant in survivors)
        print(f"{room:<12}{count - left:>5} of {count}")
    noticed = 1 - len(survivors) / max(1, len(drawn))
    print(f"{'in all':<12}{len(drawn) - len(survivors):>5} of {len(drawn)}, {noticed:.0%}")
    return 1 if noticed < given.least else 0


if __name__ == "__main__":
    sys.exit(main())
