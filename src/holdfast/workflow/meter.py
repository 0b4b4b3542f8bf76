"""What a workflow may use, and what it has used: steps, depth, and the size of its values.

Invariant: every value that a workflow makes or receives is counted before it is used, so that no program can fill the memory. A list that
stands in several places of a value is counted for each place before the value leaves the workflow, because JSON holds it so often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.workflow.failure import EvaluationProblem
from holdfast.workflow.values import CELL, plain, size_of

if TYPE_CHECKING:
    from holdfast.workflow.values import Value

_BITS = 4_096
"""Bits of a whole number: 1,233 digits."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole workflow may use: `Limits(steps=100_000)`."""

    steps: int = 5_000_000
    depth: int = 10_000
    """Calls that wait for another one. Tail calls need no depth."""
    items: int = 100_000
    """Items of one list or dict."""
    characters: int = 4_000_000
    """Characters of one text."""
    cells: int = 20_000_000
    """List items, dict entries and texts that are made in all, 8 characters to a cell."""


class EvaluationMeter:
    """What a workflow has used. All its strands share it."""

    __slots__ = ("cells", "left", "limits", "turns")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.left = limits.steps
        """Steps that are left."""
        self.cells = 0
        self.turns = 0

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return self.limits.steps - self.left

    def made(self, value: Value) -> Value:
        """Count a new value and return it; raise if it is too large."""
        if isinstance(value, (list, dict)):
            self._check(len(value), self.limits.items, "items of one list")
            self.cells += len(value) + 1
        elif isinstance(value, str):
            self._check(len(value), self.limits.characters, "characters of one text")
            self.cells += len(value) // CELL
        elif isinstance(value, int) and value.bit_length() > _BITS:
            raise EvaluationProblem("TASK_OUTPUT_EXHAUSTED", "A number has more than 1,233 digits", {"limit": _BITS})
        self._check(self.cells, self.limits.cells, "values made by the workflow")
        return value

    def expect_items(self, count: int) -> None:
        """Raise if a list of so many items would be too large, before it is made."""
        self._check(count, self.limits.items, "items of one list")

    def expect_text(self, count: int) -> None:
        """Raise if a text of so many characters would be too large, before it is made."""
        self._check(count, self.limits.characters, "characters of one text")

    def received(self, value: Value) -> Value:
        """Count a value that came from outside, with everything in it."""
        to_count = [value]
        while to_count:
            item = self.made(to_count.pop())
            if isinstance(item, list):
                to_count.extend(item)
            elif isinstance(item, dict):
                to_count.extend(item.values())
        return value

    def expanded(self, value: Value) -> Value:
        """Count the copies in a value that is about to leave the workflow, and return it; raise if they are too many."""
        shared = size_of(value).shared
        self._check(shared, self.limits.characters, "cells for the copies inside one value")
        self.cells += shared
        self._check(self.cells, self.limits.cells, "values made by the workflow")
        return value

    def plain(self, value: Value) -> Any:
        """Return a value as JSON can hold it."""
        return plain(self.expanded(value))

    def _check(self, used: int, limit: int, what: str) -> None:
        if used > limit:
            message = f"The workflow needs {used:,} of {limit:,} {what}"
            raise EvaluationProblem("TASK_OUTPUT_EXHAUSTED", message, {"used": used, "limit": limit}, is_fatal=True)
