"""A statement, and a script: a generator that yields statements and gets their rows."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

Row: TypeAlias = Sequence[Any]


class Query(NamedTuple):
    """A statement whose rows the script needs. Placeholders are question marks."""

    sql: str
    args: tuple[Any, ...] = ()


class Many(NamedTuple):
    """A statement that runs once for each row of arguments."""

    sql: str
    rows: Sequence[tuple[Any, ...]]


Step: TypeAlias = "Query | Many"
T = TypeVar("T")
Script: TypeAlias = Generator[Step, "Sequence[Row]", T]
"""It yields statements, is sent their rows, and returns the result."""
