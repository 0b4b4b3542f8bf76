"""Early calls: whether calls may start although a learned pace would hold them back.

    early.may_start(now)            whether a call may start before its turn
    early.ended(now, rejected=…)    such a call was answered, or rejected because there were too many

A rejection says that somebody's calls are too many, but not whose. The limit may be another tenant's, it may be gone, or the other
side rejects at random. So calls go on as without a pace, until most of them are rejected. Then they wait for their turn, and one
after the other is tried early, until some are accepted again.

Invariant: while most early calls are accepted, nobody waits.
"""

from __future__ import annotations

__all__ = ["EarlyCalls"]

NEWER = 0.1
"""The weight of the latest outcome."""
MOST = 0.5
LARGEST = 0.9
ANNOUNCED = 0.6
"""If a larger share than the first is rejected, calls wait: after seven rejections in a row. The share is never larger than the second, so
six that are accepted in a row are enough to go on as before. Where the other side announces that it accepts no more, it begins with the
third: calls wait, until two were accepted all the same.
"""
FIRST_TRIAL_S = 1.0
TRIAL_GROWTH = 2.0
LONGEST_TRIAL_S = 30.0
"""While calls wait, one is tried early after these seconds, and ever more rarely while it is rejected. The next one follows at once
if it is accepted."""


class EarlyCalls:
    """The outcomes of calls that started before their turn. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = ("_next", "_pause", "_rejected")

    def __init__(self, rejected: float = 0.0) -> None:
        self._rejected = rejected
        """The share of rejections, newer ones weighted more."""
        self._pause = 0.0
        self._next: float | None = None
        """When the next one is tried; None: nobody has waited yet."""

    @property
    def is_held(self) -> bool:
        """Whether calls wait for their turn."""
        return self._rejected > MOST

    def may_start(self, now: float, *, again: bool = False) -> bool:
        """Return whether a call may start before its turn. If calls wait, this one is the trial, unless it was rejected before."""
        if not self.is_held:
            return True
        due = self._plan(now) if self._next is None else self._next
        if again or now < due:
            return False
        # Until its outcome is known, no other one is tried.
        self._plan(now)
        return True

    def ended(self, now: float, *, rejected: bool) -> None:
        """An early call was answered, or rejected because there were too many."""
        was_held = self.is_held
        self._rejected = min(LARGEST, self._rejected + NEWER * (rejected - self._rejected))
        if not rejected:
            self._pause /= TRIAL_GROWTH**2
            self._next = float("-inf")
        elif self.is_held and not was_held:
            self._plan(now)

    def _plan(self, now: float) -> float:
        self._pause = min(LONGEST_TRIAL_S, max(FIRST_TRIAL_S, self._pause * TRIAL_GROWTH))
        self._next = now + self._pause
        return self._next
