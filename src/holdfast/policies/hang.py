"""Hangs: learn how long answers usually take, and stop waiting long before the client's own limit when one takes far longer.

The limit follows the slowest recent answer, not a percentile: answers of models have long tails, and a slow answer that is
stopped costs more than a hang that is noticed a little later. Stops in a row double the limit, because the service may have
become slower.

Invariant: nothing is stopped before `SOME` answers are known, nor before `LEAST_S` seconds.
"""

from __future__ import annotations

__all__ = ["HangWatch"]

ENOUGH = 50
SOME = 10
"""Answers that must be known before a call is stopped soon, and before it is stopped at all."""
BLOCK = 250
"""The slowest answer of the last one to two blocks of so many answers counts."""
FACTOR = 4.0
"""A call hangs when it takes this many times as long as the slowest of them."""
LEAST_S = 10.0
"""No call hangs before this many seconds."""
UNSURE_S = 60.0
UNSURE_FACTOR = 20.0
"""`LEAST_S` and `FACTOR` while fewer than `ENOUGH` answers are known."""
MOST_DOUBLINGS = 6
"""Stops in a row double the limit at most so often."""
MOMENT_S = 1.0
"""Calls that are stopped within this time hang for the same reason."""


class HangWatch:
    """How long the answers of one target take. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = ("_before", "_count", "_known", "_slowest", "_stopped_at", "_stops")

    def __init__(self) -> None:
        self._known = 0
        self._count = 0
        """Answers in the present block."""
        self._slowest = self._before = 0.0
        """The slowest answer of the present block, and of the one before."""
        self._stops = 0
        """Moments in a row in which calls were stopped, without an answer between them."""
        self._stopped_at = float("-inf")

    def limit(self) -> float | None:
        """Return the seconds after which a call hangs; None: nobody knows how long answers take."""
        if self._known < SOME:
            return None
        least, factor = (LEAST_S, FACTOR) if self._known >= ENOUGH else (UNSURE_S, UNSURE_FACTOR)
        return max(least, factor * max(self._slowest, self._before)) * 2.0**self._stops

    def took(self, seconds: float) -> None:
        """An answer took so long."""
        if self._count == BLOCK:
            self._before, self._slowest, self._count = self._slowest, 0.0, 0
        self._count += 1
        self._known += 1
        self._slowest = max(self._slowest, seconds)
        self._stops = 0

    def stopped(self, now: float) -> None:
        """A call was stopped because it hung."""
        if now - self._stopped_at >= MOMENT_S:
            self._stops = min(self._stops + 1, MOST_DOUBLINGS)
        self._stopped_at = now
