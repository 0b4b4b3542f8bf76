"""What the command prints: tables and Markdown on a terminal, the same without colour in a pipe, or one JSON document.

Invariant: a table and its JSON hold the same data; nothing is cut in a pipe; only results go to stdout.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import msgspec
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from holdfast.runtime import redactor_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "counted",
    "discard",
    "fail",
    "narrate",
    "one_line",
    "show_facts",
    "show_json",
    "show_line",
    "show_page",
    "show_table",
    "tail",
]

_CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "\N{REPLACEMENT CHARACTER}") | {0x09: "\t"}


def _on_terminal() -> bool:
    """Whether a person reads this. FORCE_COLOR turns on colour, not a terminal's layout."""
    return sys.stdout.isatty()


def show_json(document: dict[str, Any]) -> None:
    """Print one JSON document; `schema` names its shape and version."""
    raw = msgspec.json.format(msgspec.json.encode(redactor_for().value(document)), indent=2)
    sys.stdout.write(raw.decode() + "\n")


def show_line(document: dict[str, Any]) -> None:
    """Print one line of JSON Lines."""
    sys.stdout.write(msgspec.json.encode(redactor_for().value(document)).decode() + "\n")
    # A reader may follow the stream line by line.
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
    """Print one thing: its compact line, then a name and a value per line. Empty values are left out."""
    redactor = redactor_for()
    pairs = [(name, one_line(redactor.text(value))) for name, value in facts if value]
    width = max((len(name) for name, _ in pairs), default=0)
    sys.stdout.write(one_line(redactor.text(headline)) + "\n")
    for name, value in pairs:
        sys.stdout.write(f"  {name:<{width}}  {value}\n")


def show_page(markdown: str) -> None:
    """Print Markdown: rendered on a terminal, as source in a pipe."""
    if _on_terminal():
        Console(highlight=False).print(Markdown(markdown))
    else:
        sys.stdout.write(markdown.rstrip() + "\n")


def narrate(line: str) -> None:
    """Print a line that is not part of the result, on stderr."""
    try:
        sys.stderr.write(one_line(redactor_for().text(line)) + "\n")
    except OSError:  # a closed stderr must not change the result
        discard(sys.stderr)


def fail(line: str, *hints: str) -> None:
    """Print what went wrong in one line, then what helps."""
    narrate(f"holdfast: {line}")
    for hint in hints:
        narrate(f"  help: {hint}")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 chain`, `2 chains`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def one_line(text: str) -> str:
    """Return foreign text that is safe on a terminal: control characters could move the cursor or hide text."""
    return text.translate(_CONTROLS)


def discard(stream: TextIO) -> None:
    """Send the rest of a broken stream to nowhere, or Python complains at exit about what it could not flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tail(stream: BinaryIO, size: int) -> bytes:
    """Return the last `size` bytes of a stream of any length; at most twice that is in memory."""
    kept = b""
    while chunk := stream.read(size):
        kept = (kept + chunk)[-size:]
    return kept


def _plain_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
