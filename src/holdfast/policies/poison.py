"""Poison: whether a service fails because of single requests, or fails altogether.

    firsts.answered(started)   the first attempt of an operation was answered; it started then
    firsts.failed(started)     it failed
    firsts.gave_up(now)        an operation gave up: the service had failed on its request again and again
    firsts.since(time)         how many first attempts since then were answered, and how many failed

Only first attempts count. The retries of a request that always fails would make a service look ill that is well.

Where calls come one after the other, no other call is there to compare with. But if an operation gives up and the very next request is
answered, the failures were not the service's, most likely. The next time such failures are believed to be the request's own. If the next
request fails too, that is forgotten.
"""

from __future__ import annotations

from collections import deque

__all__ = ["FirstAttempts"]

RECENT = 64
"""So many answers and failures are remembered."""


class FirstAttempts:
    """What became of the latest first attempts at one target. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = ("_answered", "_failed", "_gave_up_at", "fail_alone")

    def __init__(self) -> None:
        self._answered: deque[float] = deque(maxlen=RECENT)
        self._failed: deque[float] = deque(maxlen=RECENT)
        self._gave_up_at: float | None = None
        self.fail_alone = False
        """After the last operation that gave up, the next request was answered."""

    @property
    def is_waiting(self) -> bool:
        """Whether the next first attempt will show what an operation has failed of."""
        return self._gave_up_at is not None

    def answered(self, started: float) -> None:
        """The first attempt of an operation was answered."""
        self._answered.append(started)
        self._learn(started, fail_alone=True)

    def failed(self, started: float) -> None:
        """The first attempt of an operation failed."""
        self._failed.append(started)
        self._learn(started, fail_alone=False)

    def gave_up(self, now: float) -> None:
        """An operation gave up, because the service had failed on its request again and again."""
        self._gave_up_at = now

    def since(self, time: float) -> tuple[int, int]:
        """Return how many of the latest first attempts that began since then were answered, and how many failed."""
        answered, failed = (sum(began >= time for began in those) for those in (self._answered, self._failed))
        return answered, failed

    def _learn(self, started: float, *, fail_alone: bool) -> None:
        if self._gave_up_at is not None and started >= self._gave_up_at:
            self._gave_up_at, self.fail_alone = None, fail_alone
