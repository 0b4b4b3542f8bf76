"""Reservations: what calls may cost is set aside before they are sent, and a call that does not fit waits for others to settle.

All budgets of a process share one `Reservations`: its lock guards their ledgers, its queue holds the calls that wait. A budget may be
entered inside of different ones, in several threads at once, so no part of them could have a lock of its own.

Invariant: every reservation is given back once, however its call ends. Settling never waits for the lock: the garbage collector may close a
stream while this very thread holds it.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

from holdfast._lazy import lazy_module
from holdfast._platform import after_fork
from holdfast.policies.reservation import BudgetClaim, ReservationQueue, copy_of, rank_of
from holdfast.runtime.ambient import priority_of
from holdfast.runtime.event_loop import is_abandoned, present_owner
from holdfast.runtime.locks import After, if_free, new_lock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from holdfast.policies.models.quote import Quote
    from holdfast.runtime.operation.operation import Operation
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = ["RESERVATIONS", "CallClaim", "Reservations"]

Settle: TypeAlias = "Callable[[], Iterable[Callable[[], None]]]"
"""Changes ledgers under the lock, and returns what is to be done after that."""


class CallClaim(BudgetClaim):
    """The claim of one call, with what others must know about the call that holds it.

    `op` is its `Operation`, and `charges` are the `Charges` of that.
    """

    __slots__ = ("_holder", "charge_lost", "is_inside", "name", "parts", "quote", "sends", "since")

    def __init__(self, op: Operation, charges: Any, quote: Quote | None) -> None:
        super().__init__(charges.ledger, charges.prepare(quote), rank_of(priority_of(op), op.started), present_owner())
        self.hold_by(charges)
        self.charge_lost: Callable[[CallClaim], None] = charges.charge_lost()
        self.quote = quote
        self.name = op.plan.name or "a function"
        self.sends: bool = op.plan.through_client
        """It is a client's call, which sends the request itself. A function may leave that to another task, and wait for it."""
        self.is_inside = op.outer is not None
        """A function around it makes it, so it makes nobody else's request."""
        self.parts = 0
        """Parts of its stream that have come."""
        self.since = -math.inf
        """When the call was sent, on its budget's clock; minus infinity: it was not."""

    def hold_by(self, holder: Any) -> None:
        """Let `holder`, its charges or what charges its body, settle it. A weak reference: a claim that nobody has any more is found by that."""
        self._holder = ref(holder)

    @property
    def charges(self) -> Any:
        """The `Charges` of the call; None: nobody has them any more."""
        return self._holder()

    @property
    def ends_by_itself(self) -> bool:
        """Whether the answer of the service ends it, whatever other calls do. A stream ends when its reader reads it."""
        return self.sends and not self.parts

    def is_behalf_of(self, other: CallClaim) -> bool:
        """Whether this is a client's call, with the request of a function that is under way."""
        mine, theirs = self.quote, other.quote
        return (
            not other.sends
            and other.served
            and other.owner != self.owner
            and mine is not None
            and theirs is not None
            and (mine.model, mine.output) == (theirs.model, theirs.output)
            # It may add a system prompt or tools.
            and mine.input >= theirs.input
        )

    def copy(self) -> CallClaim:
        """Return the claim of a copy of the call."""
        other = copy.copy(self)
        other.turn, other.served, other.short, other.parts = copy_of(self.turn), False, None, 0
        return other


class Reservations:
    """The lock and the queue of all budgets."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.after = After(self._pass_on)
        """`with reservations.after, reservations.lock:` makes the settlements that came meanwhile."""
        self._queue = ReservationQueue()
        self._due: deque[Settle] = deque()
        """Settlements that were made while somebody held the lock."""
        self._wakers: dict[BudgetClaim, Callable[[], None]] = {}

    def settle(self, apply: Settle) -> None:
        """Change the ledgers now, or as soon as the lock is free. Then calls that wait may go on."""
        self._due.append(apply)
        self._pass_on()

    def _pass_on(self) -> None:
        while self._due and (then := if_free(self.lock, self._settle_due)) is not None:
            # Outside the lock: a reader of an event may read the budget, and a waiter whose event loop is closed leaves.
            for each in then:
                each()

    def _settle_due(self) -> list[Callable[[], None]]:
        then: list[Callable[[], None]] = []
        while self._due:
            then += self._due.popleft()()
        return [*then, *self._decided(self._queue.serve())]

    def join(self, claim: CallClaim, wake: Callable[[], None]) -> bool:
        """Claim what a call may cost; return whether that is decided at once. Otherwise `wake` is called when it is."""
        with self.after, self.lock:
            self._wakers[claim] = wake
            asker = self._find_asker(claim)
            decided = self._queue.join(claim) if asker is None else self._queue.take_over(claim, asker)
            self._wakers.pop(claim, None) if claim.is_decided else None
            then = self._decided([other for other in decided if other is not claim])
        if asker is not None and asker.charges is not None:
            # It is charged here, and not to the function.
            asker.charges.pass_on_to(claim.charges)
        for each in then:
            each()
        if not claim.is_decided:
            self.end_abandoned(claim)
        return claim.is_decided

    def _find_asker(self, claim: CallClaim) -> CallClaim | None:
        """Return the claim of the function that has handed its request over to this call, which is made in another task."""
        if not claim.sends or claim.is_inside:
            return None
        accounts = set(claim.ledger.accounts)
        found: Iterable[Any] = self._queue.served
        return next(
            (one for one in found if claim.is_behalf_of(one) and not accounts.isdisjoint(one.ledger.accounts)), None
        )

    def end_abandoned(self, claim: BudgetClaim) -> None:
        """End the calls in the way of a claim that nothing else can end: their event loops were closed, or nobody has them any more."""
        for other in self.holders(claim):
            if (charges := other.charges) is None:
                other.charge_lost(other)
            elif is_abandoned(other.owner):
                charges.end_stopped()

    def leave(self, claim: BudgetClaim) -> None:
        """The call does not wait any more, or needs its reservation no longer."""

        def apply() -> Iterable[Callable[[], None]]:
            self._wakers.pop(claim, None)
            return self._decided(self._queue.leave(claim))

        self.settle(apply)

    def leave_locked(self, claim: BudgetClaim) -> Iterable[Callable[[], None]]:
        """The same, for a caller that holds the lock. Returns what is to be done after that."""
        return self._decided(self._queue.leave(claim))

    def holders(self, claim: BudgetClaim) -> list[Any]:
        """Return the calls of others that have reserved money of the same budgets."""
        with self.after, self.lock:
            return self._queue.holders(claim)

    def look_again(self) -> None:
        """Decide about the calls that wait: the tasks of others may have ended."""
        self.settle(tuple)

    def belongs_to(self, claim: BudgetClaim, owner: object) -> None:
        """Another task reads the stream of a call from now on."""

        def apply() -> Iterable[Callable[[], None]]:
            if claim.served:
                claim.ledger.release(claim.reservation, claim.owner)
                claim.ledger.reserve(claim.reservation, owner)
            claim.owner = owner
            return ()

        self.settle(apply)

    def after_fork(self) -> None:
        """Drop what other threads of the parent have reserved, and their waits: their calls are not made in this process."""
        # Another thread of the parent may have held the lock during the fork.
        self.lock = new_lock()
        self._wakers.clear()
        self._queue.drop_others(present_owner())

    def _decided(self, claims: list[BudgetClaim]) -> list[Callable[[], None]]:
        return [_Wake(self, claim, wake) for claim in claims if (wake := self._wakers.pop(claim, None)) is not None]


RESERVATIONS = Reservations()
"""What is reserved in all budgets of this process."""

after_fork(RESERVATIONS.after_fork)


class _Wake:
    """Wakes a call whose claim is decided. If its event loop is closed, nobody will make the call, and its reservation goes back."""

    __slots__ = ("_claim", "_reservations", "_wake")

    def __init__(self, reservations: Reservations, claim: BudgetClaim, wake: Callable[[], None]) -> None:
        self._reservations, self._claim, self._wake = reservations, claim, wake

    def __call__(self) -> None:
        try:
            self._wake()
        except RuntimeError:
            self._reservations.leave(self._claim)
