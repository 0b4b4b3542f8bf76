"""Our own speed limit (GCRA), and pacing by what the other side announces.

Invariant: of the starts that were promised and not given back, any `t` seconds hold at most `per_second x t + burst`. A
reservation that is given back never lets two others start closer together.
"""

from __future__ import annotations

from heapq import heappop, heappush

import msgspec

from holdfast import options
from holdfast.faults import InvalidError

__all__ = ["RateLimit", "RateLimitMachine"]

_INFINITY = float("inf")
_SAME = 1e-6
"""Callers add a wait to their own reading of time; two such sums mean one reservation if they differ by less."""


class RateLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """How many calls may start per second behind one name; more of them wait."""

    per_second: float
    """Starts per second in the long run. 0.5 is one every two seconds."""
    burst: int = 1
    """Starts at once after a rest."""

    def __post_init__(self) -> None:
        options.at_least("rate_limit.per_second", self.per_second, 0)
        if self.per_second == 0:
            raise InvalidError.at("rate_limit.per_second", "a number of calls > 0", self.per_second)
        options.count("rate_limit.burst", self.burst)


class RateLimitMachine:
    """The state of one limit. Without a `RateLimit` it only follows what it is told by `learn`."""

    __slots__ = ("_ahead", "_before", "_free", "_interval", "_last", "_left", "_next", "_pace", "_period", "_until")

    def __init__(self, limit: RateLimit | None = None) -> None:
        self._interval = 0.0 if limit is None else 1.0 / limit.per_second
        self._ahead = 0.0 if limit is None else (limit.burst - 1) * self._interval
        """How long before its even time a call may start: GCRA's tolerance."""
        self._next = -_INFINITY
        """The even time of the next call: GCRA's theoretical arrival time."""
        self._last = -_INFINITY
        """When the latest reservation starts; `_before` is what `_next` was without it."""
        self._before = -_INFINITY
        self._free: list[float] = []
        """Starts that were reserved and given back, as a heap."""
        self._until = -_INFINITY
        """When the announcement of the other side is over. Until then it takes `_left` more calls."""
        self._left = 0
        self._period = 0.0
        self._pace = 0.0
        """Seconds between the calls that wait for the announcement to be over."""

    def reserve(self, now: float) -> float:
        """Reserve the next start and return the seconds to wait for it; 0 is "go".

        Who does not start after all calls `cancel(now + wait)`.
        """
        interval = self._obey() if now < self._until else self._interval
        if self._free and (start := self._take_free(now)) is not None:
            return start - now
        even = self._before = self._next
        if even <= now:
            # A rest: nobody is due before us.
            self._next = now + interval
            self._last = now
            return 0.0
        self._next = even + interval
        self._last = max(even - self._ahead, now)
        return self._last - now

    def peek(self, now: float) -> float:
        """Return the wait that `reserve` would return, without reserving."""
        held = now < self._until and self._left <= 0
        earliest = self._until if held else now
        free = min((start for start in self._free if start >= earliest), default=_INFINITY)
        return min(max(self._next - self._ahead, earliest), free) - now

    def cancel(self, start: float) -> None:
        """Give back the reservation that was to start at `start`."""
        if start < self._until:
            self._left += 1
        if abs(start - self._last) <= _SAME:
            # Nobody comes after it: as if it had never been made.
            self._next = self._before
            self._last = -_INFINITY
        else:
            # Others do. Only a call at this very time keeps its distance from its neighbours.
            heappush(self._free, start)

    def learn(self, limit: float | None, remaining: float | None, reset: float | None, now: float) -> None:
        """Follow an announcement: `remaining` of `limit` calls until `reset` seconds from now.

        The remaining calls may start at our own speed; more wait for the reset and then come one by one. What makes no
        sense is ignored, since headers are written by strangers. Waits already promised stay as they are.
        """
        # Not-a-number fails both comparisons.
        if remaining is None or reset is None or not (0 <= remaining < _INFINITY and 0 < reset < _INFINITY):
            return
        self._left = int(remaining)
        self._until = now + reset
        # The length of their window is not announced; the longest time to a reset comes close to it.
        self._period = max(self._period, reset)
        if limit is not None and 1 <= limit < _INFINITY:
            self._pace = self._period / limit

    def _obey(self) -> float:
        """Take one of the calls that are left, or move behind the reset; return the distance to the call after it."""
        if self._left > 0:
            self._left -= 1
            return self._interval
        self._next = max(self._next, self._until + self._ahead)
        while self._free and self._free[0] < self._until:
            heappop(self._free)
        return max(self._interval, self._pace)

    def _take_free(self, now: float) -> float | None:
        """Return the soonest start that was given back and has not passed; those in the past are lost."""
        while self._free:
            start = heappop(self._free)
            if start >= now:
                return start
        return None
