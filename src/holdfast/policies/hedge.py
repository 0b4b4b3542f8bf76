"""A second call when the first is late: whichever answers first wins.

Invariant: at most `most` hedges are added to an attempt, none before its time, and none without the quota's leave; what
is already running is never stopped by a refusal (R37).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from holdfast import options

__all__ = ["ENOUGH", "Hedge", "HedgeMachine", "next_hedge"]

ENOUGH = 20
"""Answers that must have been seen before a percentile of them says anything."""
_REMEMBERED = 100


class Hedge(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """When to send the same call again although the first is still running."""

    after: float
    """Seconds before a further call is added; with `percentile`, the least such time. 0: at once."""
    most: int = 1
    """Calls added to one attempt at most, each `after` the one before."""
    percentile: float | None = None
    """Wait as long as this share of recent answers took (0.95), but not less than `after`. None: just `after`."""

    def __post_init__(self) -> None:
        options.seconds("hedge.after", self.after, zero=True)
        options.count("hedge.most", self.most)
        options.share("hedge.percentile", self.percentile, optional=True)


def next_hedge(
    hedge: Hedge, *, after: float | None, started: float, added: int, now: float, quota_allows: bool
) -> float | None:
    """Return the seconds until a further call is due (0: now), or None where there will be none.

    `after` is `HedgeMachine.after()`; `started` is when the attempt's first call began, `added` how many hedges it has.
    """
    if after is None or added >= hedge.most or not quota_allows:
        return None
    return max(0.0, started + after * (added + 1) - now)


class HedgeMachine:
    """How long answers take behind one name, as far as a hedge wants to know it."""

    __slots__ = ("_arrivals", "_hedge", "_sorted")

    def __init__(self, hedge: Hedge) -> None:
        self._hedge = hedge
        self._arrivals: deque[float] = deque()
        self._sorted: list[float] = []

    def took(self, seconds: float) -> None:
        """Take note of an answer, or of a call that was stopped after `seconds` because another had answered.

        Leaving the stopped ones out would make the slow look rare and hedges ever earlier.
        """
        if self._hedge.percentile is None:
            return
        if len(self._arrivals) == _REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._arrivals.popleft())]
        self._arrivals.append(seconds)
        insort(self._sorted, seconds)

    def after(self) -> float | None:
        """Return the seconds to wait before a hedge, or None while too little is known to hedge at all."""
        share = self._hedge.percentile
        if share is None:
            return self._hedge.after
        known = len(self._sorted)
        if known < ENOUGH:
            return None
        return max(self._hedge.after, self._sorted[math.ceil(share * known) - 1])
