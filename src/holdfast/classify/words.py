"""The words that rules look for, read from one text file for each family: `words/limits.txt`.

A file has one phrase, code or class name on each line. `[group]` begins a group. `[table CODE]` begins a row of a table, and the
order of the rows counts. The lines of a group are sorted. Lines that begin with `#` are comments.

Invariant: a file is read once, when the rules of its family are imported. That is at the first failure.
"""

from __future__ import annotations

import errno
import re
from pkgutil import get_data
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults import Code

_COMMENT = re.compile(r"^#.*\n", re.MULTILINE)
_HEAD = re.compile(r"^\[([\w.-]+) ?(\w*)\]\n", re.MULTILINE)
_T = TypeVar("_T")


class Words:
    """The words of one family.

    For example:
        _LISTED = Words("limits")
        _BILLING = phrases(_LISTED["billing"])
    """

    def __init__(self, family: str) -> None:
        """Read the file of the family. Raises OSError if the family has none."""
        text = (get_data("holdfast.classify", f"words/{family}.txt") or b"").decode()
        parts = _HEAD.split(_COMMENT.sub("", text))[1:]
        self.rows = tuple(zip(parts[::3], parts[1::3], parts[2::3], strict=True))
        """The group or table, the code (empty for a group), and the text, in the order of the file."""
        self._groups = {name: text for name, _, text in self.rows}

    def __getitem__(self, group: str) -> str:
        """Return the lines of a group. Raises KeyError if the file has no such group."""
        return self._groups[group]

    def table(self, table: str, declare: Callable[[str], _T]) -> tuple[tuple[Code, _T], ...]:
        """Return the rows of a table in order: the code, and what `declare` makes of the lines."""
        return tuple((cast("Code", code), declare(text)) for name, code, text in self.rows if name == table)

    def lookup(self, table: str) -> dict[str, Code]:
        """Return the code for each line of a table."""
        return {line: code for code, lines in self.table(table, str.split) for line in lines}

    def numbers(self, table: str) -> dict[int, Code]:
        """Return the code for each number of a table. A number of the operating system may be written as its name: `EPIPE`."""
        return {
            getattr(errno, line) if line.isalnum() and line[0] == "E" else int(line): code
            for line, code in self.lookup(table).items()
        }
