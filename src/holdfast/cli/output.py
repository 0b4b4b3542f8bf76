"""How the command speaks: tables and Markdown on a terminal, the same without colour in a pipe, one JSON document.

Invariant: a table and its JSON hold the same data; nothing is cut in a pipe; nothing but results goes to stdout.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from holdfast.cli.streams import give_up, one_line
from holdfast.runtime import redactor_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["fail", "narrate", "show_facts", "show_json", "show_line", "show_page", "show_table"]


def _on_terminal() -> bool:
    """Whether a person reads this. FORCE_COLOR asks for colour, not for a terminal's layout."""
    return sys.stdout.isatty()


def show_json(document: dict[str, Any]) -> None:
    """Print one JSON document; `schema` names its shape and version."""
    raw = msgspec.json.format(msgspec.json.encode(redactor_for().value(document)), indent=2)
    sys.stdout.write(raw.decode() + "\n")


def show_line(document: dict[str, Any]) -> None:
    """Print one line of JSON Lines, at once: somebody may be reading along."""
    sys.stdout.write(msgspec.json.encode(redactor_for().value(document)).decode() + "\n")
    sys.stdout.flush()


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; in a pipe, aligned plain columns."""
    redactor = redactor_for()
    shown = [[one_line(redactor.text(cell)) for cell in row] for row in rows]
    if not _on_terminal():
        _plain_table([list(columns), *shown])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "code")
    for row in shown:
        table.add_row(*row)
    Console(highlight=False).print(table)


def show_facts(headline: str, facts: Iterable[tuple[str, str]]) -> None:
    """Print one thing: its compact line, then a name and a value per line."""
    redactor = redactor_for()
    pairs = [(name, one_line(redactor.text(value))) for name, value in facts if value]
    width = max((len(name) for name, _ in pairs), default=0)
    sys.stdout.write(one_line(redactor.text(headline)) + "\n")
    for name, value in pairs:
        sys.stdout.write(f"  {name:<{width}}  {value}\n")


def show_page(markdown: str) -> None:
    """Print Markdown: rendered on a terminal, as it is in a pipe."""
    if _on_terminal():
        Console(highlight=False).print(Markdown(markdown))
    else:
        sys.stdout.write(markdown.rstrip() + "\n")


def narrate(line: str) -> None:
    """Tell the person something that is not the result."""
    try:
        sys.stderr.write(one_line(redactor_for().text(line)) + "\n")
    except OSError:  # narration nobody can read changes no result
        give_up(sys.stderr)


def fail(line: str, *hints: str) -> None:
    """Say what went wrong, compact, and what helps."""
    narrate(f"holdfast: {line}")
    for hint in hints:
        narrate(f"  help: {hint}")


def _plain_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
