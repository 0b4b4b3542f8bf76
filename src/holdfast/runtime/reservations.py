"""Reservations: what calls may cost is set aside before they are sent, and a call that does not fit waits for others to settle.

All budgets of one tree share one `Reservations`: its lock guards their ledgers, its queue holds the calls that wait.

Invariant: every reservation is given back once, however its call ends. Settling never waits for the lock: the garbage collector may close a
stream while this very thread holds it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from holdfast.policies.reservation import ReservationQueue
from holdfast.runtime.limiter import NotifyingLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.policies.reservation import Claim

__all__ = ["Reservations"]

Settle: TypeAlias = "Callable[[], Iterable[Callable[[], None]]]"
"""Changes ledgers under the lock, and returns what is to be done after that."""


class Reservations:
    """The lock and the queue of a tree of budgets."""

    def __init__(self) -> None:
        self.lock = NotifyingLock(self._pass_on)
        self._queue = ReservationQueue()
        self._due: deque[Settle] = deque()
        """Settlements that were made while somebody held the lock."""
        self._wakers: dict[Claim, Callable[[], None]] = {}

    def settle(self, apply: Settle) -> None:
        """Change the ledgers now, or as soon as the lock is free. Then calls that wait may go on."""
        self._due.append(apply)
        self._pass_on()

    def _pass_on(self) -> None:
        while self._due and self.lock.acquire(blocking=False):
            then: list[Callable[[], None]] = []
            try:
                while self._due:
                    then += self._due.popleft()()
                then += self._decided(self._queue.serve())
            finally:
                self.lock.release()
            # Outside the lock: a reader of an event may read the budget, and a waiter whose event loop is closed leaves.
            for each in then:
                each()

    def join(self, claim: Claim, wake: Callable[[], None]) -> bool:
        """Claim what a call may cost; return whether that is decided at once. Otherwise `wake` is called when it is."""
        with self.lock:
            self._wakers[claim] = wake
            decided = self._queue.join(claim)
            self._wakers.pop(claim, None) if claim.is_decided else None
            then = self._decided([other for other in decided if other is not claim])
        for each in then:
            each()
        return claim.is_decided

    def leave(self, claim: Claim) -> None:
        """The call does not wait any more, or needs its reservation no longer."""

        def apply() -> Iterable[Callable[[], None]]:
            self._wakers.pop(claim, None)
            return self._decided(self._queue.leave(claim))

        self.settle(apply)

    def leave_locked(self, claim: Claim) -> Iterable[Callable[[], None]]:
        """The same, for a caller that holds the lock. Returns what is to be done after that."""
        return self._decided(self._queue.leave(claim))

    def _decided(self, claims: list[Claim]) -> list[Callable[[], None]]:
        return [_Wake(self, claim, wake) for claim in claims if (wake := self._wakers.pop(claim, None)) is not None]


class _Wake:
    """Wakes a call whose claim is decided. If its event loop is closed, nobody will make the call, and its reservation goes back."""

    __slots__ = ("_claim", "_reservations", "_wake")

    def __init__(self, reservations: Reservations, claim: Claim, wake: Callable[[], None]) -> None:
        self._reservations, self._claim, self._wake = reservations, claim, wake

    def __call__(self) -> None:
        try:
            self._wake()
        except RuntimeError:
            self._reservations.leave(self._claim)
