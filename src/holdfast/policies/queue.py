"""Who goes next: calls that wait for a target, by priority and then by arrival.

A priority is an advance in seconds: a call goes before calls of a lower priority that came up to that long before it. So
urgent calls go first, and no call waits for ever.

Invariant: of two calls with the same priority, the one that came first goes first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import count
from typing import Generic, Literal, TypeAlias, TypeVar, get_args

__all__ = ["PRIORITIES", "Priority", "Turn", "WaitQueue", "turn_of"]

Priority: TypeAlias = Literal["high", "normal", "low"]
"""How soon a call goes that waits for its target, compared with the others."""

PRIORITIES: tuple[Priority, ...] = get_args(Priority)

_ADVANCE_S: dict[Priority, float] = {"high": 60.0, "normal": 0.0, "low": -60.0}

Turn: TypeAlias = tuple[float, int]
"""The place of a call in the order: the smallest goes first."""

W = TypeVar("W")

_NUMBERS = count()


def turn_of(arrived: float, priority: Priority) -> Turn:
    """Return the turn of a call that arrived at this time. The call keeps it over all its waits."""
    return arrived - _ADVANCE_S[priority], next(_NUMBERS)


class WaitQueue(Generic[W]):
    """The calls that wait for one target. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = ("_turns", "_waits")

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._waits: dict[Turn, W] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def ahead(self, turn: Turn) -> int:
        """Return how many waiting calls go before this turn."""
        return bisect_left(self._turns, turn)

    def join(self, turn: Turn, wait: W) -> None:
        """The call waits."""
        insort(self._turns, turn)
        self._waits[turn] = wait

    def leave(self, turn: Turn) -> bool:
        """The call does not wait any more. False: it was taken already."""
        if self._waits.pop(turn, None) is None:
            return False
        del self._turns[bisect_left(self._turns, turn)]
        return True

    def take(self, most: int) -> list[tuple[Turn, W]]:
        """Take out the calls that go next, at most so many."""
        taken = self._turns[:most]
        del self._turns[:most]
        return [(turn, self._waits.pop(turn)) for turn in taken]
