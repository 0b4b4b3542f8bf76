"""Pacing: start calls only as fast as the other side accepts them, learned from the calls that it rejects.

    pace.limited(started, now, requested)   the other side rejected a call because there were too many
    pace.wait(now, ahead)                   how long a call must wait; `ahead` calls go before it
    pace.started(now)                       a call starts
    pace.accepted()                         a call was answered

Two rejections measure a limit: a bucket is empty at both, so the calls accepted between them are what it gives in that
time. From then on the pace follows TCP's CUBIC, counted in calls: soon back at what was accepted, flat around it, then ever
faster, because the limit may be gone.

Invariant: calls that were under way when the pace was cut do not cut it again. A service that rejects every call does not
cut it at all: that says nothing about how many calls it would accept, so calls only pause for longer and longer.
"""

from __future__ import annotations

__all__ = ["Pace"]

BURST = 10
OPEN_PER_S = 100.0
OPEN_GROWTH = 0.7
"""Before any rejection, a burst is spread a little, so that its first calls show the limit to the others: so many calls at
once, then so many per second, and this many more per second with each call. That doubles the pace every second: of a burst of
200 calls the last one starts after 1.2 s, of 10,000 after 6 s."""
FIRST_PER_S = 4.0
"""The pace after the first rejection, when nothing is known about the limit."""
SEARCH_GROWTH = 1.25
"""Until a limit is measured, each call makes the pace this much faster."""
CUT = 0.92
"""A rejection sets the pace to this share of what was accepted."""
DEEP_CUT = 0.5
"""The same if hardly a call was accepted since the last cut: the pace is far too fast."""
FEW = 3
"""Fewer calls than this between two rejections measure nothing."""
LEVEL = 8
"""Calls from a cut until the pace is what was accepted before it."""
FREE = 48
"""Calls without a rejection after which the limit is gone: the pace is then 11 times what was accepted."""
SLOWEST_PER_S = 1 / 60
"""The pace never falls below this."""
FIRST_PAUSE_S = 1.0
PAUSE_GROWTH = 1.6
LONGEST_PAUSE_S = 5.0
"""Where no call is accepted, the pauses between two calls grow from the first to the longest."""
TRUSTED_S = 10.0
TRUSTED_SHARE = 0.25
"""The call that was rejected waits for the whole delay that the other side names. The other calls wait for this share of it,
but at least this many seconds. Then one of them finds out whether the limit still holds."""


class Pace:
    """The learned pace of one target. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = ("_cut_at", "_is_measured", "_next", "_open_per_s", "_pause", "_starts", "_top")

    def __init__(self, *, is_limited: bool = True) -> None:
        self._open_per_s = 0.0 if is_limited else OPEN_PER_S
        """The pace before any rejection; 0 after one."""
        self._top = FIRST_PER_S
        """Calls per second that were accepted before the last cut."""
        self._is_measured = False
        self._starts = 0
        """Calls since the last cut, without those that were rejected."""
        self._cut_at = float("-inf")
        self._next = float("-inf")
        """When the next call may start."""
        self._pause = 0.0
        """Seconds between two calls while none is accepted; 0: they follow the pace."""

    @property
    def per_second(self) -> float:
        """Calls that may start per second."""
        if self._open_per_s:
            return self._open_per_s
        if self._pause:
            return 1.0 / self._pause
        if not self._is_measured:
            return self._top * SEARCH_GROWTH ** min(self._starts, FREE)
        rise = (min(self._starts, FREE) / LEVEL - 1.0) ** 3
        return max(SLOWEST_PER_S, self._top * (1.0 + (1.0 - CUT) * rise))

    @property
    def is_over(self) -> bool:
        """Whether so many calls were accepted in a row that there is no limit to keep to."""
        return self._starts >= FREE and not self._open_per_s

    def wait(self, now: float, ahead: int = 0) -> float:
        """Return the seconds until a call may start, if `ahead` calls go before it; 0: now."""
        if self._open_per_s:
            return max(0.0, self._next - now + (ahead - BURST + 1) / self._open_per_s)
        # While every call is rejected, nobody knows the pace of those that follow. The last known one is the best guess.
        return max(0.0, self._next - now + ahead / max(self.per_second, CUT * self._top))

    def started(self, now: float) -> None:
        """A call starts."""
        if self._open_per_s and self._next > now + (BURST - 1.5) / self._open_per_s:
            self._open_per_s += OPEN_GROWTH
        self._next = max(now, self._next) + 1.0 / self.per_second
        self._starts += 1

    def accepted(self) -> None:
        """A call was answered, so not every call is rejected."""
        self._pause = 0.0

    def limited(self, started: float, now: float, requested: float | None) -> None:
        """The other side rejected a call that began at `started`; `requested` is the pause it named."""
        began_before = started < self._cut_at
        if self._open_per_s:
            self._open_per_s, self._starts = 0.0, 0
        self._starts = max(0, self._starts - 1)
        if not began_before:
            self._cut(now)
        pause = 1.0 / self.per_second if requested is None else _trusted(requested)
        self._next = max(self._next, now + pause) if began_before else now + pause

    def _cut(self, now: float) -> None:
        accepted, took = self._starts, now - self._cut_at
        if accepted and took == float("inf"):
            # The first rejection. Nobody knows since when the calls before it were counted by the other side.
            self._top = FIRST_PER_S
        elif not accepted:
            self._pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, self._pause * PAUSE_GROWTH))
        elif accepted < FEW or took <= 0.0:
            self._top = max(SLOWEST_PER_S, self.per_second * DEEP_CUT / CUT)
            self._is_measured = True
        else:
            # The mean of two measurements: one alone is off by the calls that were under way.
            measured = max(SLOWEST_PER_S, accepted / took)
            self._top = (self._top + measured) / 2 if self._is_measured else measured
            self._is_measured = True
        self._starts = 0
        self._cut_at = now


def _trusted(requested: float) -> float:
    return min(requested, max(TRUSTED_S, TRUSTED_SHARE * requested))
