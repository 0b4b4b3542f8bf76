"""A statement, and a script of statements."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

__all__ = ["Many", "Query", "Row", "Script", "Step"]

Row: TypeAlias = Sequence[Any]


class Query(NamedTuple):
    """A statement whose rows are wanted; placeholders are question marks."""

    sql: str
    args: tuple[Any, ...] = ()


class Many(NamedTuple):
    """A statement to be run once for each row of arguments."""

    sql: str
    rows: Sequence[tuple[Any, ...]]


Step: TypeAlias = "Query | Many"
T = TypeVar("T")
Script: TypeAlias = Generator[Step, "Sequence[Row]", T]
"""Yields statements, is sent their rows, and returns the result."""
