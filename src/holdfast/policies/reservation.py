"""Calls that wait until what they may cost fits into their budgets.

Invariant: of two calls that need the same limit, the one with the earlier turn is served first, however small the other one is. A call waits only
while another call is in flight whose settlement can help.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from holdfast.policies.queue import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.policies.budget import Account, Ledger, Reservation, Short
    from holdfast.policies.queue import Priority

Rank: TypeAlias = tuple[int, float, int]
"""The place of a call among those that wait for money: the smallest goes first."""

_NUMBERS = count()


def copy_of(rank: Rank) -> Rank:
    """Return the place of a copy of a call: right behind all calls with the same arrival."""
    return (*rank[:2], next(_NUMBERS))


def rank_of(priority: Priority, arrived: float) -> Rank:
    """Return the place of a call: by priority, then by arrival. What a budget has left is not worth sharing by weights."""
    return PRIORITIES.index(priority), arrived, next(_NUMBERS)


class BudgetClaim:
    """One call's claim on its budgets. After it was served, its ledger holds the reservation until `release`."""

    __slots__ = ("ledger", "owner", "reservation", "served", "short", "turn")

    def __init__(self, ledger: Ledger, reservation: Reservation, turn: Rank, owner: object = None) -> None:
        self.ledger = ledger
        self.owner = owner
        """Who makes the call: a task or a thread. It cannot wait for what it has reserved itself."""
        self.reservation = reservation
        self.turn = turn
        self.served = False
        """The reservation is made."""
        self.short: Short | None = None
        """The limit for which it was rejected."""

    @property
    def is_decided(self) -> bool:
        """Whether it was served or rejected."""
        return self.served or self.short is not None


class ReservationQueue:
    """The claims of one tree of budgets. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = ("_changed", "_claims", "_served", "_turns")

    def __init__(self) -> None:
        self._changed: tuple[Account, ...] = ()
        """The accounts of a change that was begun and not completed: an exception has interrupted it, as that of a signal's handler does."""
        self._served: dict[BudgetClaim, None] = {}
        """The claims that hold a reservation, the oldest first."""
        self._turns: list[Rank] = []
        self._claims: dict[Rank, BudgetClaim] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def join(self, claim: BudgetClaim) -> list[BudgetClaim]:
        """Let a call claim what it may cost; return the claims that are decided now, perhaps this one."""
        self._mend()
        if not self._turns and self._decide(claim) is None:
            return [claim]
        self._claims[claim.turn] = claim
        insort(self._turns, claim.turn)
        return self.serve()

    def take_over(self, claim: BudgetClaim, other: BudgetClaim) -> list[BudgetClaim]:
        """Let a call have the reservation of another one, whose request it makes; return the claims that are decided now.

        Nobody who waits comes between them: the other call may wait for this one.
        """
        self._remove(other)
        claim.turn = other.turn
        if claim.ledger.short_of(claim.reservation, claim.owner) is None and self._decide(claim) is None:
            return [claim]
        self._claims[claim.turn] = claim
        insort(self._turns, claim.turn)
        return self.serve()

    @property
    def served(self) -> Iterable[BudgetClaim]:
        """The claims that hold a reservation, the oldest first."""
        return self._served

    def leave(self, claim: BudgetClaim) -> list[BudgetClaim]:
        """A call does not want to wait any more, or is settled; return the claims of others that are decided now."""
        self._remove(claim)
        return self.serve()

    def serve(self) -> list[BudgetClaim]:
        """Decide about the claims that wait, in their order; return those that do not wait any more."""
        self._mend()
        decided: list[BudgetClaim] = []
        # A limit for which a call waits is closed to all that come after it: small calls must not go past a large one for ever.
        closed: set[Account] = set()
        for turn in self._turns:
            claim = self._claims[turn]
            if closed and not closed.isdisjoint(claim.ledger.accounts):
                continue
            blocking = self._decide(claim)
            if blocking is None:
                decided.append(claim)
            else:
                closed.add(blocking)
        for claim in decided:
            del self._claims[claim.turn]
            del self._turns[bisect_left(self._turns, claim.turn)]
        return decided

    def drop_others(self, owner: object) -> None:
        """Drop all claims but those of `owner`: nobody makes the calls of the others."""
        waiting = [claim for claim in self._claims.values() if claim.owner != owner]
        for claim in (*waiting, *(claim for claim in tuple(self._served) if claim.owner != owner)):
            self._remove(claim)

    def _remove(self, claim: BudgetClaim) -> None:
        self._mend()
        if claim.turn in self._claims:
            del self._claims[claim.turn]
            del self._turns[bisect_left(self._turns, claim.turn)]
        if claim in self._served:
            self._changed = claim.ledger.accounts
            del self._served[claim]
            claim.served = False
            claim.ledger.release(claim.reservation, claim.owner)
            self._changed = ()

    def _mend(self) -> None:
        """Complete a change that was interrupted. Which claims are served and which wait is right at every moment; the rest follows from it."""
        if not self._changed and len(self._turns) == len(self._claims):
            return
        for account in {account for claim in self._served for account in claim.ledger.accounts}.union(self._changed):
            account.held = dict.fromkeys(account.held, 0)
            account.owners = {}
        for claim in self._served:
            claim.served = True
            claim.ledger.reserve(claim.reservation, claim.owner)
        self._claims = {turn: claim for turn, claim in self._claims.items() if not claim.is_decided}
        self._turns = sorted(self._claims)
        self._changed = ()

    def holders(self, claim: BudgetClaim) -> list[BudgetClaim]:
        """Return the claims of others that hold a reservation in the same budgets, the oldest first."""
        accounts = claim.ledger.accounts
        return [
            other
            for other in self._served
            if other.owner != claim.owner and not set(accounts).isdisjoint(other.ledger.accounts)
        ]

    def _decide(self, claim: BudgetClaim) -> Account | None:
        """Serve or reject a claim; return the account that it must wait for, or None."""
        short = claim.ledger.short_of(claim.reservation, claim.owner)
        if short is not None and not short.is_final:
            return short.account
        if short is not None and claim.reservation.firm:
            claim.short = short
        else:
            self._changed = claim.ledger.accounts
            self._served[claim] = None
            claim.served = True
            claim.ledger.reserve(claim.reservation, claim.owner)
            self._changed = ()
        return None
