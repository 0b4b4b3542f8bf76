"""A count over a sliding window of time. The window is cut into slices, and each slice is forgotten as a whole.

Invariant: an event less than `slices - 1` slices old is counted, an event `slices` slices old is not. Memory does not grow
with traffic.
"""

from __future__ import annotations

from collections import deque


class Tally:
    """How many events happened in the last `slices` slices of `slice_seconds` each."""

    __slots__ = ("_current", "_past", "_past_total", "_slice", "_slices", "_until")

    def __init__(self, slice_seconds: float, slices: int) -> None:
        self._slice = slice_seconds
        self._slices = slices
        # The slices before the current one, oldest first.
        self._past: deque[int] = deque()
        self._past_total = 0
        self._current = 0
        # When the current slice ends. It lies in the past until the first call shows what time it is.
        self._until = float("-inf")

    def add(self, now: float) -> None:
        """Count one event."""
        if now >= self._until:
            self._turn(now)
        self._current += 1

    def total(self, now: float) -> int:
        """Return the number of events in the window that ends at `now`."""
        if now >= self._until:
            self._turn(now)
        return self._past_total + self._current

    def take_back(self, now: float, most: int) -> None:
        """Forget up to `most` events, the latest first. Events that have left the window cannot be taken back."""
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
        """Close the current slice and the empty slices that have passed since."""
        gone = (now - self._until) / self._slice
        if gone >= self._slices - 1:
            # Every event is too old. The very first call also ends up here, wherever the clock starts.
            self._past.clear()
            self._past_total = self._current = 0
            self._until = now + self._slice
            return
        for _ in range(int(gone) + 1):
            self._past.append(self._current)
            self._past_total += self._current
            self._current = 0
            self._until += self._slice
            # The current slice is one of `slices`, so one fewer is kept.
            if len(self._past) >= self._slices:
                self._past_total -= self._past.popleft()
