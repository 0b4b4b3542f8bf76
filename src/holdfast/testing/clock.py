"""Clocks and random sources that a test controls. They implement the two protocols of `holdfast.clock`.

Invariant: `monotonic()` never goes back. `wall()` moves with it, and may be moved alone, as NTP moves a real clock (R58).
"""

from __future__ import annotations

from random import Random

from holdfast import options
from holdfast.faults import InvalidError

NEW_YEAR_2025 = 1_735_689_600.0
"""Midnight of 1 January 2025 in UTC. The start is fixed, so that dates in messages are the same in every run."""


class VirtualClock:
    """A clock that moves only when the test moves it, or when a `VirtualLoop` on it would sleep.

    For example:
        clock = VirtualClock()
        clock.advance(30)
        assert clock.monotonic() == 30.0

    Raises `InvalidError` for start values below zero.
    """

    __slots__ = ("_monotonic", "_wall_at_zero")

    def __init__(self, *, wall: float = NEW_YEAR_2025, monotonic: float = 0.0) -> None:
        options.seconds("wall", wall, zero=True)
        options.seconds("monotonic", monotonic, zero=True)
        self._monotonic = float(monotonic)
        # Keep the wall time as a difference: adding many small steps to 1.7e9 would lose them to rounding.
        self._wall_at_zero = wall - monotonic

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return self._wall_at_zero + self._monotonic

    def monotonic(self) -> float:
        """Return seconds since the start value."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both readings forward by `seconds`. Raises `InvalidError` for a negative number."""
        options.seconds("advance", seconds, zero=True)
        self._monotonic += seconds

    def sleep(self, seconds: float) -> None:
        """Replace `time.sleep` in blocking code: the virtual time passes, but the thread does not wait."""
        self.advance(seconds)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or, with a negative number, back. `monotonic()` does not change."""
        # A wall time before the epoch cannot be written as a date.
        options.at_least("jump", seconds, -self.wall())
        self._wall_at_zero += seconds

    def __repr__(self) -> str:
        return f"VirtualClock(wall={self.wall()!r}, monotonic={self._monotonic!r})"


class Midpoint:
    """A random source that always returns 0.5, the middle of every range, so that jitter has no effect.

    For example:
        runtime = Runtime(rng=Midpoint())
    """

    __slots__ = ()

    def random(self) -> float:
        """Return 0.5."""
        return 0.5

    def __repr__(self) -> str:
        return "Midpoint()"


class Scripted:
    """A random source that returns the given numbers in order.

    For example:
        runtime = Runtime(rng=Scripted(0.0, 0.5, 0.99))

    Raises `InvalidError` for numbers outside 0 ≤ n < 1. Drawing more numbers than given raises `AssertionError`, because the
    code under test drew more often than the test expects.
    """

    __slots__ = ("_drawn", "_numbers")

    def __init__(self, *numbers: float) -> None:
        for place, number in enumerate(numbers):
            # Check the numbers now: a wrong number would only show much later, as a strange delay.
            options.share(f"numbers[{place}]", number, zero=True)
            if number == 1:
                raise InvalidError.at(f"numbers[{place}]", "a number below 1, as random() never returns 1", number)
        self._numbers = numbers
        self._drawn = 0

    def random(self) -> float:
        """Return the next number."""
        if self._drawn == len(self._numbers):
            raise AssertionError(f"expected at most {self._drawn} random numbers to be drawn, got one draw more")
        self._drawn += 1
        return self._numbers[self._drawn - 1]

    @property
    def left(self) -> int:
        """How many numbers are not drawn yet."""
        return len(self._numbers) - self._drawn

    def __repr__(self) -> str:
        return f"Scripted({', '.join(map(repr, self._numbers))})"


def seeded(seed: int) -> Random:
    """Return a random source that gives the same numbers in every run: `Runtime(rng=seeded(7))`.

    Raises `InvalidError` unless the seed is a whole number from 0.
    """
    # Random() accepts any seed, even None, which would give other numbers in every run.
    options.count("seed", seed, least=0)
    return Random(seed)  # noqa: S311 - chance for tests, not for secrets
