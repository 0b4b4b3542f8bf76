"""A clock that moves only when it is told to.

Invariant: `monotonic()` never goes back; `wall()` moves with it and may be moved alone, as a real one is by NTP (R58).
"""

from __future__ import annotations

from holdfast import options

__all__ = ["NEW_YEAR_2025", "VirtualClock"]

NEW_YEAR_2025 = 1_735_689_600.0
"""Midnight of 1 January 2025 in UTC: a fixed present, so that dates in messages are the same in every run."""


class VirtualClock:
    """Time under the test's control: a `holdfast.clock.Clock`. Give one to a `VirtualLoop` and sleeping moves it."""

    __slots__ = ("_monotonic", "_wall_at_zero")

    def __init__(self, *, wall: float = NEW_YEAR_2025, monotonic: float = 0.0) -> None:
        options.seconds("wall", wall, zero=True)
        options.seconds("monotonic", monotonic, zero=True)
        self._monotonic = float(monotonic)
        # The wall is kept as a distance: adding up many small steps on top of 1.7e9 would lose them to rounding.
        self._wall_at_zero = wall - monotonic

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return self._wall_at_zero + self._monotonic

    def monotonic(self) -> float:
        """Return seconds since the start value."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let both readings pass by `seconds`."""
        options.seconds("advance", seconds, zero=True)
        self._monotonic += seconds

    def sleep(self, seconds: float) -> None:
        """Stand in for `time.sleep` in blocking code: the time passes, the thread does not wait."""
        self.advance(seconds)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or, with a negative number, back. What is measured does not notice."""
        options.at_least("jump", seconds, -self.wall())
        self._wall_at_zero += seconds

    def __repr__(self) -> str:
        return f"VirtualClock(wall={self.wall()!r}, monotonic={self._monotonic!r})"
