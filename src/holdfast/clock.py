"""Time and randomness as parameters. Pure code gets these two protocols and uses no global clock.

Invariant: pure rooms read only the clock and the random source that they get as arguments. So every decision can be
tested in virtual time and replayed.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock", "Rng"]


class Clock(Protocol):
    """Two clocks: wall time for dates, monotonic time for durations."""

    def wall(self) -> float:
        """Seconds since the epoch. The value may jump, so use it only for dates that other processes read."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. The value never goes back; use it for every duration."""
        ...


class Rng(Protocol):
    """A source of random numbers, such as `random.Random`."""

    def random(self) -> float:
        """Return the next number in [0, 1)."""
        ...
