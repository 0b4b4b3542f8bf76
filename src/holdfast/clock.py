"""Time and randomness as parameters: the two protocols that pure code gets instead of using a global clock.

Invariant: pure rooms read no clock and no random source that they were not given. So every decision can be tested in virtual
time and replayed.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock", "Rng"]


class Clock(Protocol):
    """Two clocks: wall time for dates, monotonic time for durations."""

    def wall(self) -> float:
        """Seconds since the epoch. May jump; only for dates that cross a process border."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. Never goes back; use it for every duration."""
        ...


class Rng(Protocol):
    """A source of random numbers, such as `random.Random`."""

    def random(self) -> float:
        """Return the next number in [0, 1)."""
        ...
