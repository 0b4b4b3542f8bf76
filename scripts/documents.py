"""Write the matrix of the five documents: every statement, the test that proves it, and the page that explains it.

    python scripts/documents.py            # writes docs/reference/documents.md
    python scripts/documents.py --check    # fails if that page is stale, or a statement lacks a test that can fail

The statements and their ids stand in `tests/documents/ids.txt`. A test of `tests/documents/` names the ids that it proves
(`test_S0_21_N0_4_a_command_…`), and its docstring begins with the document's sentence in our words.
"""

from __future__ import annotations

import ast
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests" / "documents"
PAGE = ROOT / "docs" / "reference" / "documents.md"
PAGES = ROOT / "docs" / "explanation" / "documents"
DOCUMENTS = {
    "0": ("000", "The bridge: errors and recovery", "000-bridge.md"),
    "1": ("001", "SPEC-016: error recovery and resilience", "001-spec016.md"),
    "2": ("002", "The error model of an agent", "002-stud.md"),
    "3": ("003", "The error pattern of a task system", "003-task.md"),
    "4": ("004", "The error model of actors", "004-actors.md"),
}
"""The documents by the digit in their ids: number, title, page."""
_ID = re.compile(r"[SN][0-4]-\d+")
_IN_NAME = re.compile(r"^test_((?:[SN][0-4]_\d+_)+)")
_NOT_RUN = {"skip", "skipif", "xfail"}


class Proof(NamedTuple):
    """A test that proves statements."""

    ids: tuple[str, ...]
    name: str
    file: str
    sentence: str


def statements(text: str) -> dict[str, str]:
    """Return the statements by their ids, in the order of the table. Raises `ValueError` for a line that is no statement."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, title = line.partition(" ")
        if not _ID.fullmatch(name) or not title.strip() or name in found:
            message = f"ids.txt:{number}: expected an id that is not listed yet, and a title: {line!r}"
            raise ValueError(message)
        found[name] = title.strip()
    return found


def proofs(source: str, file: str) -> list[Proof]:
    """Return the tests of a module that name ids and can fail. A test that is not always run proves nothing."""
    found = []
    for node in ast.parse(source).body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        named = _IN_NAME.match(node.name)
        if named is None or not _asserts(node) or any(_is_not_run(mark) for mark in node.decorator_list):
            continue
        ids = tuple(re.sub(r"_(?=\d+$)", "-", part) for part in re.findall(r"[SN][0-4]_\d+", named[1]))
        sentence = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
        found.append(Proof(ids, node.name, file, sentence))
    return found


def problems(titles: dict[str, str], found: list[Proof]) -> list[str]:
    """Return what is wrong: statements without a test, gaps in the numbers, tests of unknown statements or without a sentence."""
    proved = {name for proof in found for name in proof.ids}
    wrong = [f"{name} has no test that asserts it: {title}" for name, title in titles.items() if name not in proved]
    for family, names in groupby(sorted(titles, key=_place), key=lambda name: name.partition("-")[0]):
        numbers = [int(name.partition("-")[2]) for name in names]
        missing = sorted(set(range(1, max(numbers) + 1)) - set(numbers))
        wrong += [f"{family}-{number} is missing in ids.txt" for number in missing]
    for proof in found:
        wrong += [
            f"{proof.file}: {proof.name} names {name}, which ids.txt lacks" for name in proof.ids if name not in titles
        ]
        if not proof.sentence:
            wrong.append(f"{proof.file}: {proof.name} has no docstring with the document's sentence")
    return wrong


def matrix(titles: dict[str, str], found: list[Proof]) -> str:
    """Return the page: for each document its statements, and the tests that prove them."""
    lines = [
        "# The statements of the five documents",
        "",
        "Written by `python scripts/documents.py` from `tests/documents/`; `make check` fails when a statement has no test. S: a statement of the",
        "document itself. N: a fact of the project that it comes from. The pages about [the five documents](../explanation/the-five-documents.md) show",
        "how each is used.",
    ]
    for digit, (number, title, page) in DOCUMENTS.items():
        names = sorted((name for name in titles if name[1] == digit), key=_place)
        if not names:
            continue
        file = next(proof.file for proof in found if any(name[1] == digit for name in proof.ids))
        lines += ["", f"## {number} {title}", ""]
        lines += [
            f"{len(names)} statements. Page: [{number}](../explanation/documents/{page}). Tests: `tests/documents/{file}`.",
            "",
        ]
        lines += ["| id | statement | proved by |", "|---|---|---|"]
        for name in names:
            tests = [proof for proof in found if name in proof.ids]
            told = "<br>".join(f"{_cell(proof.sentence)} (`{_short(proof.name)}`)" for proof in tests)
            lines.append(f"| {name} | {_cell(titles[name])} | {told} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or check it; return the exit code."""
    titles = statements((TESTS / "ids.txt").read_text(encoding="utf-8"))
    found = [
        proof
        for path in sorted(TESTS.glob("test_*.py"))
        for proof in proofs(path.read_text(encoding="utf-8"), path.name)
    ]
    wrong = problems(titles, found)
    digits = {name[1] for name in titles}
    wrong += [
        f"{PAGES / DOCUMENTS[digit][2]} is missing" for digit in digits if not (PAGES / DOCUMENTS[digit][2]).exists()
    ]
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    page = matrix(titles, found)
    if arguments != ["--check"]:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        print("docs/reference/documents.md is stale: run python scripts/documents.py", file=sys.stderr)
        return 1
    print(f"{len(titles)} statements of the documents, {len(found)} tests")
    return 0


def _asserts(node: ast.AST) -> bool:
    """Whether a function asserts something, by `assert` or by `pytest.raises`."""
    return any(
        isinstance(part, ast.Assert) or (isinstance(part, ast.Attribute) and part.attr == "raises")
        for part in ast.walk(node)
    )


def _is_not_run(mark: ast.expr) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr in _NOT_RUN for part in ast.walk(mark))


def _place(name: str) -> tuple[str, bool, int]:
    """Return the place of an id in the order of the page: the document's own statements first."""
    family, _, number = name.partition("-")
    return family[1], family[0] == "N", int(number)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _short(name: str) -> str:
    """Return a test's name without the ids."""
    return _IN_NAME.sub("", name)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
