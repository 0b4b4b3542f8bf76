"""The recent calls of a circuit, counted in a sliding window of constant size, and what failure rate is usual.

The window consists of `PARTS` parts of time on a fixed grid: the present part and those before it. It reaches back
between 19/20 of its length and its whole length. It forgets one part at a time, never everything at once (gobreaker#21).

Invariant: a call older than the window is never counted.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# More parts make the window's length more exact, and each breaker larger by three counters a part.
PARTS = 20

Part: TypeAlias = tuple[float, int, int, int]
"""Seconds since the part began; then its good, bad and slow calls."""

_GOOD, _BAD, _SLOW = 0, PARTS, 2 * PARTS
# A tolerance, as a share of a part: rounding errors of times must not move a call into the next part.
_ROUNDING = 1e-3


class Window:
    """Good, bad and slow calls of the last `span` seconds. A slow call is also a good or a bad one.

    The breaker itself adds to `good`, `bad` and `slow` of the present part: a method call here would slow every good call
    down. It must first check that the present part is not over: `if now >= window.ends: window.turn(now)`.
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

    def __init__(self, span: float, usual: UsualRate | None = None) -> None:
        self.width = span / PARTS
        self.ends = -math.inf
        """When the present part is over."""
        self.good = self.bad = self.slow = 0
        # The place of the present part on the grid.
        self._tick = 0
        # The past parts by place modulo PARTS: all good counts, then bad, then slow. None until there is something to
        # keep.
        self._past: array[int] | None = None
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
        """Start the part that contains `now` and forget the parts that are too old."""
        tick = int(now // self.width)
        began = self._tick
        # A delayed caller may bring a time before the present part. Its call counts in the present part.
        if tick > began or self.ends == -math.inf:
            self._keep()
            # After a long quiet time each place needs to be forgotten only once, however many parts have passed.
            for gone in range(began + 1, min(tick, began + PARTS) + 1):
                self._forget(gone % PARTS)
            self._tick = tick
        self.ends = (self._tick + 1) * self.width

    def clear(self) -> None:
        """Forget everything. The usual failure rate does not learn from it."""
        self._past = None
        self._past_good = self._past_bad = self._past_slow = 0
        self.good = self.bad = self.slow = 0

    def parts(self, now: float) -> Iterator[Part]:
        """Yield the parts that are still inside the window at `now`, newest first."""
        age = now - self._tick * self.width
        behind = max(0, int(now // self.width) - self._tick)
        if (self.good or self.bad) and behind < PARTS:
            yield age, self.good, self.bad, self.slow
        for back in range(1, PARTS - behind if self._past else 0):
            good, bad, slow = self._at((self._tick - back) % PARTS)
            if good or bad:
                yield age + back * self.width, good, bad, slow

    def load(self, parts: Iterable[Part], now: float) -> None:
        """Add the parts of another window. Each part is placed so that its oldest call leaves this window in time."""
        self.turn(now)
        present = now - self._tick * self.width
        for age, good, bad, slow in parts:
            # Rounded up, so that a part leaves this window a little early rather than late.
            back = max(0, math.ceil((age - present) / self.width - _ROUNDING))
            if back == 0:
                self.good += good
                self.bad += bad
                self.slow += slow
            elif back < PARTS:
                self._add((self._tick - back) % PARTS, good, bad, slow)

    def _keep(self) -> None:
        """Move the counts of the present part to the past parts."""
        if self.good or self.bad:
            self._add(self._tick % PARTS, self.good, self.bad, self.slow)
            self.good = self.bad = self.slow = 0

    def _add(self, place: int, good: int, bad: int, slow: int) -> None:
        if self._past is None:
            # An array of machine integers: it needs no object for each count, and the garbage collector does not track it.
            # 32 bits each: a part of a window has no room for four billion calls.
            self._past = array("I", [0]) * (3 * PARTS)
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
"""The smallest and largest factor for thresholds."""
SLOPE = 5.0
"""A usual failure rate of 10 % leaves the thresholds as they are: LEAST + SLOPE × 0.1 = 1."""
MEMORY = 0.98
"""Each new part scales the older knowledge by this. About fifty busy parts, two and a half windows, have weight."""
ENOUGH = 20.0
"""Calls that must be known before the thresholds move."""


class UsualRate:
    """The usual failure rate of a target, for circuits with adaptive thresholds. Older calls weigh less.

    A failure says more about a target that never failed before than about a target that fails now and then. Only calls
    that left the window while the circuit was closed are learned from, so that an outage does not become usual.

    Invariant: the factor stays between `LEAST` and `MOST`, and is 1 until `ENOUGH` calls are known.
    """

    __slots__ = ("bad", "calls")

    def __init__(self) -> None:
        self.calls = 0.0
        self.bad = 0.0

    def learn(self, calls: int, bad: int) -> None:
        """Learn from a part that left the window. A part without calls changes nothing."""
        if calls:
            self.calls = self.calls * MEMORY + calls
            self.bad = self.bad * MEMORY + bad

    def factor(self) -> float:
        """Return the factor that thresholds are multiplied by."""
        if self.calls < ENOUGH:
            return 1.0
        return min(MOST, LEAST + SLOPE * self.bad / self.calls)
