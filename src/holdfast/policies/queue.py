"""Who goes next: calls that wait for a target share it fairly, by priority and by caller.

Each caller has a line of its own for each priority. Lines take turns, and a line of a higher priority has more of them: 30 for
`high` and 10 for `normal`, while a `low` one has 1. So a backlog of batch work never stands before an urgent call, a busy caller
does not stand before a quiet one, and no call waits for ever.

Invariant: of two calls of one line, the one that came first goes first (self-clocked fair queueing, Golestani 1994).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import count
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar, get_args

Priority: TypeAlias = Literal["high", "normal", "low"]
"""How soon a call goes that waits for its target, compared with the others."""

PRIORITIES: tuple[Priority, ...] = get_args(Priority)

SHARES: dict[Priority, int] = {"high": 1, "normal": 3, "low": 30}
"""How far one call moves its line on, in virtual time. Whole numbers: what is due at the same time must compare as equal."""

MOST_LINES = 1024
"""Lines in which nobody waits are forgotten beyond so many."""

W = TypeVar("W")

_NUMBERS = count()


class QueueTurn(NamedTuple):
    """The place of a call in the order. The call keeps it over all its waits."""

    priority: Priority
    caller: int
    number: int
    """Its place in the line of this priority and caller."""


class _Line:
    """The calls of one caller with one priority."""

    __slots__ = ("due", "served", "share", "waiting")

    def __init__(self, priority: Priority) -> None:
        self.share = SHARES[priority]
        self.served = 0
        """The virtual time up to which it was served."""
        self.due: int | None = None
        """The virtual time at which its next call is served; None: nobody of it waits."""
        self.waiting: list[int] = []


class WaitQueue(Generic[W]):
    """The calls that wait for one target. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = ("_lines", "_reached", "_waits")

    def __init__(self) -> None:
        self._waits: dict[QueueTurn, W] = {}
        self._lines: dict[tuple[Priority, int], _Line] = {}
        self._reached = 0
        """The virtual time of the latest call that started: a line in which nobody waited joins in here."""

    def __len__(self) -> int:
        return len(self._waits)

    def waiting(self) -> dict[Priority, int]:
        """Return how many calls of each priority wait."""
        counts: dict[Priority, int] = {}
        for (priority, _), line in self._lines.items():
            if line.waiting:
                counts[priority] = counts.get(priority, 0) + len(line.waiting)
        return counts

    @staticmethod
    def turn(priority: Priority, caller: int = 0) -> QueueTurn:
        """Return the turn of a call that comes now."""
        return QueueTurn(priority, caller, next(_NUMBERS))

    def ahead(self, turn: QueueTurn) -> int:
        """Return how many waiting calls go before this turn."""
        mine = self._line(turn)
        before = bisect_left(mine.waiting, turn.number)
        mine_at = self._next(mine) + before * mine.share
        others = (line for line in self._lines.values() if line is not mine and line.waiting)
        return before + sum(_calls_before(line, self._next(line), mine_at, turn.number) for line in others)

    def served(self, turn: QueueTurn) -> None:
        """The call of this turn starts."""
        line = self._line(turn)
        line.served = self._next(line)
        self._reached = max(self._reached, line.served)
        line.due = line.served + line.share if line.waiting else None

    def join(self, turn: QueueTurn, wait: W) -> None:
        """The call waits."""
        # First, so that `leave` can undo this at any moment.
        self._waits[turn] = wait
        line = self._line(turn)
        line.due = self._next(line)
        insort(line.waiting, turn.number)

    def leave(self, turn: QueueTurn) -> bool:
        """The call does not wait any more. False: it was taken already."""
        if turn not in self._waits:
            return False
        line = self._line(turn)
        if turn.number in line.waiting:
            line.waiting.remove(turn.number)
        if not line.waiting:
            line.due = None
        del self._waits[turn]
        return True

    def take(self, most: int) -> list[tuple[QueueTurn, W]]:
        """Take out the calls that go next, at most so many."""
        if most <= 0:
            return []
        # Turns of one line compare by their number alone, and a line's next turns are `share` apart.
        in_order = sorted(
            (self._next(line) + place * line.share, number, QueueTurn(*key, number))
            for key, line in self._lines.items()
            for place, number in enumerate(line.waiting[:most])
        )
        taken = [turn for _, _, turn in in_order[:most]]
        found = [(turn, self._waits.get(turn)) for turn in taken]
        for turn in taken:
            # It is due until it has started: it comes back at once, and may be told to wait a little longer.
            self._line(turn).waiting.remove(turn.number)
            self._waits.pop(turn, None)
        return [(turn, wait) for turn, wait in found if wait is not None]

    def _line(self, turn: QueueTurn) -> _Line:
        key = turn.priority, turn.caller
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= MOST_LINES:
                self._lines = {key: line for key, line in self._lines.items() if line.waiting}
            line = self._lines[key] = _Line(turn.priority)
        return line

    def _next(self, line: _Line) -> int:
        """Return the virtual time at which the next call of a line is served."""
        return max(self._reached, line.served) + line.share if line.due is None else line.due


def _calls_before(line: _Line, first: int, at: int, number: int) -> int:
    """Return how many waiting calls of a line go before the call of this number that is due at `at`, if its first is due at `first`."""
    if at < first:
        return 0
    before, rest = divmod(at - first, line.share)
    if rest or (before < len(line.waiting) and line.waiting[before] < number):
        # One is due at the same time and came sooner, or is due between.
        before += 1
    return min(len(line.waiting), before)
