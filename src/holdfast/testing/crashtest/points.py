"""The points of a program at which it can be killed, and which kills are worth making. No I/O.

A point is performed between its two marks, `before` and `after`. Two marks with nothing between them leave the same state behind, so
one kill stands for both: killed after a request is the same as killed before the commit that follows it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind: TypeAlias = Literal["effect", "model", "request", "tool", "commit", "open", "rename"]
Side: TypeAlias = Literal["before", "after"]

# Of the marks that leave the same state, the row of the report names the one that says most.
_RANK: dict[Kind, int] = {"effect": 0, "model": 1, "tool": 2, "request": 3, "commit": 4, "open": 5, "rename": 5}


class Mark(msgspec.Struct, frozen=True):
    """One side of a point: `before POST /charges`, the second time.

    The n-th of its kind and name is meant, not the n-th of all points: a program that works in parallel reaches its points in another
    order each time.
    """

    side: Side
    kind: Kind
    name: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.side} {'' if self.kind in _SPEAK_FOR_THEMSELVES else f'{self.kind} '}{self.name}"

    def is_same_point(self, other: Mark) -> bool:
        return (self.kind, self.name, self.nth) == (other.kind, other.name, other.nth)


_SPEAK_FOR_THEMSELVES = frozenset({"effect", "model", "request"})
"""Their names are those of requests: `POST /charges`."""


class Kill(msgspec.Struct, frozen=True):
    """A kill that is made: at a mark, of which there are so many with this name."""

    mark: Mark
    of: int = 1

    def __str__(self) -> str:
        return f"{self.mark} ({self.mark.nth} of {self.of})" if self.of > 1 else str(self.mark)


def kills_of(marks: Sequence[Mark], *, every: bool = False, most: int | None = None) -> list[Kill]:
    """Return the kills for the marks of an observed run, in its order.

    every: kill at each mark, also at those that leave the same state as another.
    most: at most so many kills: those around effects, then those around model requests and tools, then the others, spread over the run.
    """
    chosen = list(marks) if every else [min(state, key=lambda mark: _RANK[mark.kind]) for state in states_of(marks)]
    times = Counter((mark.kind, mark.name) for mark in marks if mark.side == "before")
    kills = [Kill(mark, times[mark.kind, mark.name]) for mark in chosen]
    if most is None or len(kills) <= most:
        return kills
    taken: set[Kill] = set()
    for kinds in (("effect",), ("model", "tool"), ("request", "commit", "open", "rename")):
        taken.update(spread([kill for kill in kills if kill.mark.kind in kinds], most - len(taken)))
    return [kill for kill in kills if kill in taken]


def spread(items: Sequence[Kill], most: int) -> list[Kill]:
    """Return at most so many of the items, evenly spread."""
    if most <= 0:
        return []
    return [items[number * len(items) // min(most, len(items))] for number in range(min(most, len(items)))]


def states_of(marks: Sequence[Mark]) -> list[list[Mark]]:
    """Return the marks in groups. All marks of a group leave the same state behind."""
    states: list[list[Mark]] = []
    last: Mark | None = None
    for mark in marks:
        if last is not None and _nothing_between(last, mark):
            states[-1].append(mark)
        else:
            states.append([mark])
        last = mark
    return states


def _nothing_between(first: Mark, second: Mark) -> bool:
    """Whether no point is performed between two marks that follow each other."""
    match first.side, second.side:
        case "after", "before":
            # A file that was opened for writing is written then.
            return first.kind != "open"
        # A tool only contains other points. If it contains none that is seen, what it does is performed between its marks.
        case "before", "before":
            return first.kind == "tool"
        case "after", "after":
            return second.kind == "tool"
    return False
