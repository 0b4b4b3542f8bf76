"""Hedging: start a second call while the first is still running, and use the answer that comes first.

Invariant: an attempt gets at most `most` hedges, none before its time, and none that the retry quota does not grant. A
spent quota stops no call that is already running.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from holdfast import options

__all__ = ["ENOUGH", "Hedge", "HedgeMachine", "next_hedge"]

ENOUGH = 20
"""Answers that must be known before their percentile is used."""
# How many durations are kept. If older ones were kept too, they would hide that a service has become slower or faster.
_REMEMBERED = 100


class Hedge(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """When to start a second call although the first is still running. The answer that comes first wins.

    Only async calls are hedged, and only if their effect may be repeated. Each hedge is charged like an attempt and counts
    against the retry quota. Wrong options raise `InvalidError`.

        from holdfast import Hedge, Policy

        Policy(hedge=Hedge(after=2.0))                          # a second call after 2 s
        Policy(hedge=Hedge(after=0.5, percentile=0.95))         # once slower than 95 % of recent answers
    """

    after: float
    """Seconds before a hedge starts; with `percentile`, the shortest such time. 0: at once."""
    most: int = 1
    """The largest number of hedges of one attempt. Each starts `after` seconds after the one before."""
    percentile: float | None = None
    """Wait as long as this share of recent answers took (0.95), but at least `after`. None: wait `after`."""

    def __post_init__(self) -> None:
        options.seconds("hedge.after", self.after, zero=True)
        options.count("hedge.most", self.most)
        options.share("hedge.percentile", self.percentile, optional=True)


def next_hedge(hedge: Hedge, *, after: float | None, started: float, added: int, now: float) -> float | None:
    """Return the seconds until the next hedge (0: now); None: no hedge follows.

    `after` is `HedgeMachine.after()`, `started` is when the attempt's first call began, and `added` is the number of hedges
    it has.
    """
    if after is None or added >= hedge.most:
        return None
    return max(0.0, started + after * (added + 1) - now)


class HedgeMachine:
    """How long the recent answers of one target took."""

    __slots__ = ("_arrivals", "_hedge", "_sorted")

    def __init__(self, hedge: Hedge) -> None:
        self._hedge = hedge
        self._arrivals: deque[float] = deque()
        self._sorted: list[float] = []

    def took(self, seconds: float) -> None:
        """Record the duration of an answer, or of a call that was stopped because another one answered first.

        Without the stopped calls, slow answers would look rare and hedges would start earlier and earlier.
        """
        if self._hedge.percentile is None:
            return
        # Kept twice: in order of arrival to forget the oldest, and sorted to read a percentile without sorting.
        if len(self._arrivals) == _REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._arrivals.popleft())]
        self._arrivals.append(seconds)
        insort(self._sorted, seconds)

    def after(self) -> float | None:
        """Return the seconds to wait before a hedge; None: too few answers are known to hedge."""
        share = self._hedge.percentile
        if share is None:
            return self._hedge.after
        known = len(self._sorted)
        if known < ENOUGH:
            return None
        return max(self._hedge.after, self._sorted[math.ceil(share * known) - 1])
