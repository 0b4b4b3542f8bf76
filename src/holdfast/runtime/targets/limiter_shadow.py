"""What a limiter would have done to plain calls: who would have been rejected, and how long the others would have waited.

The shadow plays the places and the starts with the calls that observe mode sees. A call that would have waited is assumed to take as
long as the plain call did, so it holds its place in the shadow until later than it ran.

Invariant: nothing here waits, and nothing here is shared with a limiter that acts.
"""

from __future__ import annotations

import threading
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from holdfast.policies.bulkhead import BulkheadMachine, Place
from holdfast.policies.rate_limit import RateLimitMachine

if TYPE_CHECKING:
    from holdfast.policies.bulkhead import Bulkhead
    from holdfast.policies.rate_limit import RateLimit

__all__ = ["LimiterShadow", "Visit"]

_MOST = 10_000
"""Calls that wait in the shadow. Where more would, the others only count as waiting: memory stays bounded."""


class Visit:
    """One plain call at a limiter."""

    __slots__ = ("arrived", "start", "ticket", "took")

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.start: float | None = None
        """When it would have started; None: it still waits."""
        self.took: float | None = None
        """Seconds of the plain call; None: it still runs."""
        self.ticket = 0


class LimiterShadow:
    """The places and starts of one target, as they would be."""

    def __init__(self, bulkhead: Bulkhead | None, rate: RateLimit | None) -> None:
        self._places = None if bulkhead is None else BulkheadMachine(bulkhead)
        self._pace = None if rate is None else RateLimitMachine(rate)
        self._waiting: dict[int, Visit] = {}
        self._ends: list[tuple[float, int, Visit]] = []
        """When the calls that have places would end."""
        self._numbers = count()
        self._lock = threading.Lock()

    def arrives(self, now: float) -> Visit | None:
        """A plain call begins; None: it would have been rejected."""
        with self._lock:
            self._advance(now)
            visit = Visit(now)
            entry = Place.ACQUIRED if self._places is None else self._places.acquire()
            if entry is Place.FULL:
                return None
            if isinstance(entry, Place):
                self._start(visit, now)
            elif len(self._waiting) < _MOST:
                visit.ticket = entry.ticket
                self._waiting[entry.ticket] = visit
            elif self._places is not None:
                self._places.cancel(entry.ticket)
            return visit

    def ends(self, visit: Visit, now: float) -> float:
        """The plain call has ended; return how long it would have waited, as far as that is known by now."""
        with self._lock:
            visit.took = now - visit.arrived
            if visit.start is not None:
                self._schedule_end(visit)
            self._advance(now)
            return (now if visit.start is None else visit.start) - visit.arrived

    def _start(self, visit: Visit, at: float) -> None:
        visit.start = at if self._pace is None else at + self._pace.reserve(at)
        if visit.took is not None:
            self._schedule_end(visit)

    def _schedule_end(self, visit: Visit) -> None:
        assert visit.start is not None
        assert visit.took is not None
        if self._places is not None:
            heappush(self._ends, (visit.start + visit.took, next(self._numbers), visit))

    def _advance(self, now: float) -> None:
        """Let the calls end that would have ended by now, and those start that wait for their places."""
        while self._ends and self._ends[0][0] <= now:
            at, _, visit = heappop(self._ends)
            assert self._places is not None
            woken = self._places.release(visit.ticket)
            if woken is not None:
                self._start(self._waiting.pop(woken), at)
