"""The recent calls, counted in parts: a sliding window in constant memory.

The window is `PARTS` parts of time on a fixed grid, the present one and those before it, so it reaches back between
19/20 of its length and the whole of it. It slides: there is no moment at which all is forgotten at once (gobreaker#21).

Invariant: a call older than the window is never counted.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["LEAST", "MOST", "PARTS", "Part", "Usual", "Window"]

PARTS = 20

Part: TypeAlias = tuple[float, int, int, int]
"""Seconds since the part began; good, bad and slow calls in it."""

_GOOD, _BAD, _SLOW = 0, PARTS, 2 * PARTS
_ROUNDING = 1e-3
"""Of a part: what adding and subtracting times may cost must not move a part by one."""


class Window:
    """Good, bad and slow calls of the last `span` seconds.

    `good`, `bad` and `slow` are the present part's and are counted up from outside, which is what keeps a good call cheap.
    Before you touch them, call `turn` if the present part is over: `if now >= window.ends: window.turn(now)`. A slow call is
    also a good or a bad one.
    """

    __slots__ = (
        "_past",
        "_past_bad",
        "_past_good",
        "_past_slow",
        "_tick",
        "_usual",
        "bad",
        "ends",
        "good",
        "slow",
        "width",
    )

    def __init__(self, span: float, usual: Usual | None = None) -> None:
        self.width = span / PARTS
        self.ends = -math.inf
        """When the present part is over."""
        self.good = self.bad = self.slow = 0
        self._tick = 0
        """The present part's place on the grid."""
        self._past: array[int] | None = None
        """The parts before, by place modulo PARTS: good ones, then bad, then slow. Made when there is something to keep."""
        self._past_good = self._past_bad = self._past_slow = 0
        self._usual = usual

    @property
    def calls(self) -> int:
        return self._past_good + self._past_bad + self.good + self.bad

    @property
    def failures(self) -> int:
        return self._past_bad + self.bad

    @property
    def slow_calls(self) -> int:
        return self._past_slow + self.slow

    def turn(self, now: float) -> None:
        """Begin the part that `now` is in and forget those that are too old."""
        tick = int(now // self.width)
        began = self._tick
        if tick > began or self.ends == -math.inf:
            self._keep()
            for gone in range(began + 1, min(tick, began + PARTS) + 1):
                self._forget(gone % PARTS)
            self._tick = tick
        self.ends = (self._tick + 1) * self.width

    def clear(self) -> None:
        """Forget everything, and learn nothing from it."""
        self._past = None
        self._past_good = self._past_bad = self._past_slow = 0
        self.good = self.bad = self.slow = 0

    def parts(self, now: float) -> Iterator[Part]:
        """Yield what the window holds and `now` is not too late for, newest first."""
        age = now - self._tick * self.width
        behind = max(0, int(now // self.width) - self._tick)
        if (self.good or self.bad) and behind < PARTS:
            yield age, self.good, self.bad, self.slow
        for back in range(1, PARTS - behind if self._past else 0):
            good, bad, slow = self._at((self._tick - back) % PARTS)
            if good or bad:
                yield age + back * self.width, good, bad, slow

    def load(self, parts: Iterable[Part], now: float) -> None:
        """Take in the parts of another window. A part goes where its oldest call may not outlive this window."""
        self.turn(now)
        present = now - self._tick * self.width
        for age, good, bad, slow in parts:
            back = max(0, math.ceil((age - present) / self.width - _ROUNDING))
            if back == 0:
                self.good += good
                self.bad += bad
                self.slow += slow
            elif back < PARTS:
                self._add((self._tick - back) % PARTS, good, bad, slow)

    def _keep(self) -> None:
        """Put the present part to the past ones."""
        if self.good or self.bad:
            self._add(self._tick % PARTS, self.good, self.bad, self.slow)
            self.good = self.bad = self.slow = 0

    def _add(self, place: int, good: int, bad: int, slow: int) -> None:
        if self._past is None:
            self._past = array("Q", bytes(8 * 3 * PARTS))
        self._past[_GOOD + place] += good
        self._past[_BAD + place] += bad
        self._past[_SLOW + place] += slow
        self._past_good += good
        self._past_bad += bad
        self._past_slow += slow

    def _forget(self, place: int) -> None:
        if self._past is None:
            return
        good, bad, slow = self._at(place)
        self._past_good -= good
        self._past_bad -= bad
        self._past_slow -= slow
        self._past[_GOOD + place] = self._past[_BAD + place] = self._past[_SLOW + place] = 0
        if self._usual is not None:
            self._usual.learn(good + bad, bad)

    def _at(self, place: int) -> tuple[int, int, int]:
        assert self._past is not None
        return self._past[_GOOD + place], self._past[_BAD + place], self._past[_SLOW + place]


LEAST, MOST = 0.5, 2.0
"""How far the thresholds may move."""
SLOPE = 5.0
"""A usual share of 10 % leaves the thresholds as they are: LEAST + SLOPE × 0.1 = 1."""
MEMORY = 0.98
"""What a part of the window leaves of what was known before: about fifty busy parts, two and a half windows, count."""
ENOUGH = 20.0
"""Calls before anything is called usual."""


class Usual:
    """Calls and failures of the past, the older the less they weigh."""

    __slots__ = ("bad", "calls")

    def __init__(self, calls: float = 0.0, bad: float = 0.0) -> None:
        self.calls = calls
        self.bad = bad

    def learn(self, calls: int, bad: int) -> None:
        """Take in a part of the window that has become history. Parts without calls teach nothing."""
        if calls:
            self.calls = self.calls * MEMORY + calls
            self.bad = self.bad * MEMORY + bad

    def factor(self) -> float:
        """Return what to multiply the thresholds with."""
        if self.calls < ENOUGH:
            return 1.0
        return min(MOST, LEAST + SLOPE * self.bad / self.calls)
