"""How many happened lately: a count over a sliding window, cut into slices that are forgotten whole.

Invariant: what happened less than `slices - 1` slices ago is counted, what happened `slices` slices ago is not; memory
does not grow with traffic.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Tally"]


class Tally:
    """A count of the recent past."""

    __slots__ = ("_current", "_past", "_past_total", "_slice", "_slices", "_until")

    def __init__(self, slice_seconds: float, slices: int) -> None:
        self._slice = slice_seconds
        self._slices = slices
        self._past: deque[int] = deque()
        """The slices before the current one, oldest first."""
        self._past_total = 0
        self._current = 0
        self._until = float("-inf")
        """When the current slice ends: long ago, until the first reading of time says what "now" is."""

    def add(self, now: float) -> None:
        """Count one more."""
        if now >= self._until:
            self._turn(now)
        self._current += 1

    def total(self, now: float) -> int:
        """Return how many are counted at `now`."""
        if now >= self._until:
            self._turn(now)
        return self._past_total + self._current

    def take_back(self, now: float, most: int) -> None:
        """Forget up to `most`, the latest first. What is not counted any more cannot be taken back."""
        if now >= self._until:
            self._turn(now)
        taken = min(most, self._current)
        self._current -= taken
        for index in range(len(self._past) - 1, -1, -1):
            here = min(most - taken, self._past[index])
            self._past[index] -= here
            self._past_total -= here
            taken += here

    def _turn(self, now: float) -> None:
        """Close the current slice, and as many empty ones as have gone by since."""
        gone = (now - self._until) / self._slice
        if gone >= self._slices - 1:
            # Everything is too old. A clock that starts anywhere also comes through here.
            self._past.clear()
            self._past_total = self._current = 0
            self._until = now + self._slice
            return
        for _ in range(int(gone) + 1):
            self._past.append(self._current)
            self._past_total += self._current
            self._current = 0
            self._until += self._slice
            if len(self._past) >= self._slices:
                self._past_total -= self._past.popleft()
