"""Chance without surprise: random sources for tests, each a `holdfast.clock.Rng`."""

from __future__ import annotations

from random import Random

from holdfast import options
from holdfast.faults import InvalidError

__all__ = ["Midpoint", "Scripted", "seeded"]


class Midpoint:
    """Always 0.5: the middle of every range, so that jitter which goes both ways cancels out."""

    __slots__ = ()

    def random(self) -> float:
        """Return 0.5."""
        return 0.5

    def __repr__(self) -> str:
        return "Midpoint()"


class Scripted:
    """The numbers it was given, in order. A draw beyond the last fails the test: the code drew more than it should."""

    __slots__ = ("_drawn", "_numbers")

    def __init__(self, *numbers: float) -> None:
        for place, number in enumerate(numbers):
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
        """How many numbers were not drawn yet."""
        return len(self._numbers) - self._drawn

    def __repr__(self) -> str:
        return f"Scripted({', '.join(map(repr, self._numbers))})"


def seeded(seed: int) -> Random:
    """Return a source that gives the same numbers in every run."""
    options.count("seed", seed, least=0)
    return Random(seed)  # noqa: S311 - chance for tests, not for secrets
