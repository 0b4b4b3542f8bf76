"""Printing for all verbs: tables and Markdown on a terminal, the same without colour in a pipe, or one JSON document.

Invariant: a table and its JSON hold the same data; nothing is cut in a pipe; only results go to stdout.
"""

from __future__ import annotations

import io
import os
import re
import sys
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import msgspec

from holdfast.runtime import redactor_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

_CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "\N{REPLACEMENT CHARACTER}") | {0x09: "\t"}


def _on_terminal() -> bool:
    """Whether a person reads the output. FORCE_COLOR turns on colour, but not the layout of a terminal."""
    return sys.stdout.isatty()


def _console(**options: Any) -> Console:
    # The import stands here, because `--help`, completion and everything in a pipe need no console.
    from rich.console import Console

    return Console(**options)


def show_json(document: dict[str, Any]) -> None:
    """Print one JSON document; `schema` names its shape and version."""
    # The value is masked, not its text, because a mask inside the text could break the JSON.
    raw = msgspec.json.format(msgspec.json.encode(redactor_for().value(document)), indent=2)
    sys.stdout.write(raw.decode() + "\n")


def show_line(document: dict[str, Any]) -> None:
    """Print one line of JSON Lines."""
    sys.stdout.write(msgspec.json.encode(redactor_for().value(document)).decode() + "\n")
    # A reader may follow the stream line by line.
    sys.stdout.flush()


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns.

    On a terminal, cells wrap between words. If the columns do not fit, each row takes several lines.
    """
    redactor = redactor_for()
    shown = [[one_line(redactor.text(cell)) for cell in row] for row in rows]
    # In a pipe every row is one line, however long: `grep` and `awk` read it.
    if not _on_terminal():
        _write_columns([list(columns), *shown], None)
        return
    console = _console(highlight=False)
    widths = _column_widths([list(columns), *shown], console.width)
    if widths is None:
        _write_stacked(columns, shown, console.width)
        return
    # Only the header is styled, so only the header goes through Rich.
    header = io.StringIO()
    _write_columns([list(columns)], widths, header)
    from rich.text import Text

    console.print(Text(header.getvalue().rstrip("\n"), style="bold"), soft_wrap=True)
    _write_columns(shown, widths)


def show_facts(headline: str, facts: Iterable[tuple[str, str]]) -> None:
    """Print one thing: its compact line, then a name and a value per line. Empty values are left out."""
    redactor = redactor_for()
    pairs = [(name, one_line(redactor.text(value))) for name, value in facts if value]
    width = max((len(name) for name, _ in pairs), default=0)
    show_text(headline)
    for name, value in pairs:
        _write_wrapped(f"  {name:<{width}}  ", value, stdout_width())


def show_text(text: str) -> None:
    """Print a line of the result; on a terminal it wraps between words."""
    _write_wrapped("", one_line(redactor_for().text(text)), stdout_width())


def show_drawing(lines: Iterable[str]) -> None:
    """Print lines whose columns must stay where they are: none is wrapped."""
    redactor = redactor_for()
    sys.stdout.writelines(f"{one_line(redactor.text(line))}\n" for line in lines)


def show_page(markdown: str) -> None:
    """Print Markdown: rendered on a terminal, as source in a pipe."""
    if _on_terminal():
        # The import stands here, because its parser would take a third of the start-up time of every other command.
        from rich.markdown import Markdown

        _console(highlight=False).print(Markdown(markdown))
    else:
        sys.stdout.write(markdown.rstrip() + "\n")


def narrate(line: str) -> None:
    """Print a line that is not part of the result, on stderr."""
    text = one_line(redactor_for().text(line))
    if sys.stderr.isatty():
        text = wrapped(text, _console(stderr=True).width)
    try:
        sys.stderr.write(text + "\n")
    except OSError:  # a closed stderr must not change the result
        discard(sys.stderr)


def fail(line: str, *hints: str) -> None:
    """Print the error in one line, then a line with help."""
    narrate(f"holdfast: {line}")
    for hint in hints:
        narrate(f"  help: {hint}")


def confirmed(question: str) -> bool:
    """Return whether a person at a terminal says yes. Without a terminal nobody can: print what is missing, and return False."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        fail(question, "nobody is here to confirm it: say --yes to do it")
        return False
    sys.stderr.write(f"{one_line(redactor_for().text(question))} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 chain`, `2 chains`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def one_line(text: str) -> str:
    """Return foreign text that is safe on a terminal: control characters could move the cursor or hide text."""
    return text.translate(_CONTROLS)


def discard(stream: TextIO) -> None:
    """Discard the rest of a broken stream. Otherwise Python complains at exit that it could not flush the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tail(stream: BinaryIO, size: int) -> bytes:
    """Return the last `size` bytes of a stream of any length. At most twice as many bytes are in memory."""
    kept = b""
    while chunk := stream.read(size):
        kept = (kept + chunk)[-size:]
    return kept


def wrapped(text: str, width: int) -> str:
    """Return a line wrapped between words. The following lines are indented a little more than the first."""
    indent = text[: len(text) - len(text.lstrip())]
    return _fill(text.lstrip(), width, indent, f"{indent}  ")


_NO_BREAK = "\N{NO-BREAK SPACE}"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|MB|KB|%)\b)| (?=×\d)")


def _fill(text: str, width: int, first: str, rest: str) -> str:
    # Long words stay whole, so that a person can copy a path or a command. A number stays with its unit, and `×2` with what
    # it counts.
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub(_NO_BREAK, text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_NO_BREAK, " ") or first


def stdout_width() -> int | None:
    """Return the columns of the terminal; None in a pipe, where nothing is wrapped."""
    return _console().width if _on_terminal() else None


def _write_wrapped(name: str, value: str, width: int | None) -> None:
    line = name + value if width is None else _fill(value, width, name, " " * len(name))
    sys.stdout.write(line.rstrip() + "\n")


def _column_widths(rows: list[list[str]], width: int) -> list[int] | None:
    """Return the width of each column, so that no word is broken; None if the columns do not fit."""
    columns = list(zip(*rows, strict=True))
    natural = [max(map(len, cells)) for cells in columns]
    least = [max(len(word) for cell in cells for word in cell.split() or [""]) for cells in columns]
    free = width - 2 * (len(columns) - 1) - sum(least)
    if free < 0:
        return None
    # Every column has room for its longest word. The remaining width goes to the columns that need more.
    widths = least
    # Narrow columns come first: a number or a short word gets all the width it needs. Long texts share the remaining
    # width.
    wanting = sorted((want - have, index) for index, (want, have) in enumerate(zip(natural, least, strict=True)))
    for place, (wants, index) in enumerate(wanting):
        share = min(wants, free // (len(wanting) - place))
        widths[index] += share
        free -= share
    return widths


def _write_columns(rows: list[list[str]], widths: list[int] | None, out: TextIO | None = None) -> None:
    out = sys.stdout if out is None else out
    if widths is None:
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [_fill(cell, width, "", "").splitlines() for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            out.write("  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip() + "\n")


def _write_stacked(columns: Sequence[str], rows: list[list[str]], width: int) -> None:
    for first, *rest in rows:
        facts = [f"{name}: {value}" for name, value in zip(columns[1:], rest, strict=True) if value]
        sys.stdout.write(f"{first}\n{_fill(' · '.join(facts), width, '  ', '  ')}\n")
