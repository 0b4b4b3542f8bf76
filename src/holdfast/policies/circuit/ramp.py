"""The ramp: after a good probe, those who waited come back in growing numbers, and fewer where the service cannot take them.

Invariant: a service that answers calls of a moment and rejects a third of all has more calls than it can take. A service that rejects all
calls of a moment is ill for that moment, and one that rejects a few fails on single requests. Then the ramp does not change.
"""

from __future__ import annotations

import math

FULL_ROOM = 1024
"""A circuit closes at the latest when it lets so many calls run at the same time."""
RAMP_S = 10.0
"""Seconds after the first good probe in which the room grows."""
SAME_S = 0.25
FEWER = 0.75
"""If the service takes one and rejects one of two calls that begin within so many seconds, this share of its room is left."""
OVERLOAD = 1 / 3
"""So large is the share of the calls that it rejects then. Fewer may be requests that it fails on each time."""
NEWER = 0.1
"""The weight of the latest call in that share."""
STEADY_S = 20.0
"""A service that rejected calls while it answered others has returned when it has rejected none for so many seconds."""
REJECTIONS_KEPT = 31


class Ramp:
    """How many calls may run at the same time after the first good probe."""

    __slots__ = ("_back_since", "_full_at", "_rejected", "_rejections", "places")

    def __init__(self, places: int) -> None:
        self.places = places
        """Calls that may run at the same time."""
        self._back_since = -math.inf
        """When the first good probe ended."""
        self._full_at = -math.inf
        """When the service last rejected a call while it answered another: it takes about as many calls as there is room."""
        self._rejected = 0.0
        """The share of the calls that failed after a good probe, newer ones weighted more."""
        self._rejections: tuple[float, ...] = ()
        """When the latest calls began that failed after a good probe."""

    def room(self, now: float) -> int:
        """Return the calls that may run at the same time."""
        if self._full_at == -math.inf:
            # By time and not by answers: where an answer takes a minute, those who wait would come back one a minute.
            self.places = max(self.places, 2 ** int(1 + min(now - self._back_since, RAMP_S)))
        return self.places

    def answered(self, started: float, now: float, good: int) -> None:
        """A probe that began at `started` was answered. It is the number `good` of the good ones."""
        if good == 1:
            self._back_since = now
        self._rejected -= NEWER * self._rejected
        if self._rejected >= OVERLOAD and any(abs(started - at) < SAME_S for at in self._rejections):
            self.places, self._full_at, self._rejections = max(1, int(self.places * FEWER)), now, ()
        elif self._full_at == -math.inf:
            # Good answers that come within milliseconds must not bring everybody back in the first second.
            self.places = min(self.places + 1, 2 ** int(2 + min(now - self._back_since, RAMP_S)))
        elif good % self.places == 0:
            # It takes about as many. One more is tried when all were answered.
            self.places += 1

    def rejected(self, started: float) -> None:
        """A call that began at `started` failed after a good probe."""
        self._rejected += NEWER * (1 - self._rejected)
        self._rejections = (*self._rejections[-REJECTIONS_KEPT:], started)

    def is_steady(self, now: float) -> bool:
        """Whether the service takes as many calls as come."""
        return now - self._full_at >= STEADY_S

    def is_over(self, now: float) -> bool:
        """Whether everybody may come back."""
        return self.places >= FULL_ROOM and self.is_steady(now)
