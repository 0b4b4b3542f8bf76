"""`SharedTarget`: the part of a `TargetState` that several processes share, as the link and the calls use it.

Invariant: what the others know changes the target under its lock, and wakes its calls outside of it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.circuit import Breaker
    from holdfast.policies.fleet import FleetAnswer, FleetReport
    from holdfast.policies.pace import Pace
    from holdfast.policies.queue import Priority, WaitQueue
    from holdfast.runtime.fleet.share import TargetShare
    from holdfast.runtime.locks import Lock

__all__ = ["SharedTarget"]


class SharedTarget:
    """What a target does with its share. Only `TargetState` is made."""

    __slots__ = ()
    if TYPE_CHECKING:
        share: TargetShare | None
        _lock: Lock
        _breaker: Breaker
        _queue: WaitQueue[Callable[[], None]]
        _pace: Pace | None

    # --- the caller holds the lock ---

    @abstractmethod
    def _set_pace(self, pace: Pace | None) -> None: ...

    @abstractmethod
    def _take_due(self, now: float, most: int = 1) -> list[Callable[[], None]]: ...

    def _governing_share(self, now: float) -> TargetShare | None:
        """Return what decides when calls start, if other processes have a say in it."""
        share = self.share
        if share is None:
            return None
        share.used(now)
        return share if share.governs(now) else None

    def _free_starts(self, now: float) -> int | None:
        """Return how many calls could start; None: the others have no say in it."""
        share = self._governing_share(now)
        return None if share is None or share.is_alone(now) else share.free(now)

    @property
    def _is_shared_pace(self) -> bool:
        return self.share is not None and self.share.has_pace

    def _want_start(self, priority: Priority) -> None:
        """A call waits: the others hear of it."""
        if self.share is not None and (self._breaker.paced or self._breaker.is_away):
            self.share.wants_start(priority)

    # --- for the link ---

    def report_shared(self, share: TargetShare, process: str, now: float) -> FleetReport:
        """Return what the others are to hear."""
        with self._lock:
            return share.report(process, self._queue.waiting(), now, is_away=self._breaker.is_away)

    def take_back_report(self, share: TargetShare, report: FleetReport) -> None:
        """The others have not heard it."""
        with self._lock:
            share.take_back(report)

    def hear_shared(self, share: TargetShare, answer: FleetAnswer, now: float) -> None:
        """Take over what the others know, and wake the calls that may start."""
        with self._lock:
            breaker = self._breaker
            came_back = share.hear(answer, now, is_quiet=not self._queue and not breaker.is_away)
            if came_back:
                breaker.answered_elsewhere(now)
            elif share.takes_probe():
                breaker.probe_at(now)
            elif share.holds_for and not breaker.good_probes:
                breaker.probe_at(now + share.holds_for)
            self._set_pace(self._pace)
            due = self._take_due(now)
        for wake in due:
            wake()
