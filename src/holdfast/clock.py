"""Time and chance as parameters: the two protocols every pure room is handed instead of reaching for a global.

Invariant: nothing above the I/O line reads a clock or a random source that it was not given.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock", "Rng"]


class Clock(Protocol):
    """Two readings of time: one for people and peers, one for measuring."""

    def wall(self) -> float:
        """Seconds since the epoch. May jump; only for dates that cross a process border."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never go back. For every duration we measure."""
        ...


class Rng(Protocol):
    """A source of chance; `random.Random` is one."""

    def random(self) -> float:
        """Return the next number in [0, 1)."""
        ...
