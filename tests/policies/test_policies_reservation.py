"""Reservations: spent and reserved together stay within every limit, and no call waits in vain."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.policies.budget import NANO, Ledger, Limits, Reservation
from holdfast.policies.reservation import BudgetClaim, ReservationQueue


def dollars(usd: float, **options: Any) -> Reservation:
    return Reservation(usd=round(usd * NANO), firm=True, **options)


class Desk:
    """A queue, and claims that are numbered in their order."""

    def __init__(self) -> None:
        self.queue = ReservationQueue()
        self.numbers = count()

    def claim(self, ledger: Ledger, reservation: Reservation, owner: object = None) -> BudgetClaim:
        number = next(self.numbers)
        claim = BudgetClaim(ledger, reservation, (0.0, number), number if owner is None else owner)
        self.queue.join(claim)
        return claim

    def settle(self, claim: BudgetClaim, usd: float) -> None:
        claim.ledger.charge(usd=usd, settled=1)
        self.queue.leave(claim)


def test_XR2_a_call_that_does_not_fit_waits_for_those_in_flight() -> None:
    desk, ledger = Desk(), Ledger(Limits(usd=1.0), now=0.0)
    first, second = desk.claim(ledger, dollars(0.7)), desk.claim(ledger, dollars(0.7))
    assert (first.served, second.is_decided) == (True, False)
    desk.settle(first, 0.1)
    assert second.served
    desk.settle(second, 0.7)
    assert ledger.left(0.0).usd == pytest.approx(0.2)


def test_XR2_it_is_rejected_only_where_waiting_cannot_help() -> None:
    desk, ledger = Desk(), Ledger(Limits(usd=1.0), now=0.0)
    assert desk.claim(ledger, dollars(1.1)).short is not None
    first, second = desk.claim(ledger, dollars(0.7)), desk.claim(ledger, dollars(0.7))
    desk.settle(first, 0.5)
    assert second.short is not None
    assert (second.short.unit, second.short.price, second.short.left, second.short.limit) == ("usd", 0.7, 0.5, 1.0)


def test_XR2_the_limit_of_an_outer_budget_counts_and_one_beside_it_does_not() -> None:
    desk, outer = Desk(), Ledger(Limits(usd=1.0), now=0.0)
    left, right = (Ledger(Limits(usd=limit), now=0.0, parent=outer) for limit in (0.3, 5.0))
    first, waiting = desk.claim(left, dollars(0.2)), desk.claim(left, dollars(0.2))
    beside = desk.claim(right, dollars(0.6))
    assert (first.served, waiting.is_decided, beside.served) == (True, False, True)
    assert desk.claim(right, dollars(1.2)).short is not None


def test_XR2_a_small_call_does_not_go_past_a_large_one_that_waits() -> None:
    desk, ledger = Desk(), Ledger(Limits(usd=1.0), now=0.0)
    first, large, small = (desk.claim(ledger, dollars(usd)) for usd in (0.5, 0.9, 0.1))
    assert (large.is_decided, small.is_decided) == (False, False)
    desk.settle(first, 0.05)
    assert (large.served, small.is_decided) == (True, False)
    desk.queue.leave(large)
    assert small.served


def test_XR2_who_stops_waiting_lets_the_next_one_through() -> None:
    desk, ledger = Desk(), Ledger(Limits(usd=1.0), now=0.0)
    _, large, small = (desk.claim(ledger, dollars(usd)) for usd in (0.5, 0.9, 0.1))
    desk.queue.leave(large)
    assert small.served


def test_XR2_an_estimate_waits_for_others_but_is_never_rejected() -> None:
    desk, ledger = Desk(), Ledger(Limits(usd=1.0), now=0.0)
    first = desk.claim(ledger, Reservation(usd=NANO * 2))
    second = desk.claim(ledger, Reservation(usd=NANO * 2))
    assert (first.served, second.is_decided) == (True, False)
    desk.queue.leave(first)
    assert second.served


def test_XR2_nobody_waits_for_what_it_has_reserved_itself() -> None:
    """A task that reads a stream and makes another call meanwhile would wait for ever."""
    desk, ledger = Desk(), Ledger(Limits(usd=1.0), now=0.0)
    desk.claim(ledger, dollars(0.7), owner="task")
    assert desk.claim(ledger, dollars(0.7), owner="task").short is not None
    assert not desk.claim(ledger, dollars(0.7), owner="another").is_decided


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 100)), max_size=60))
def test_XR2_without_cancellations_everybody_is_served_or_rejected(calls: list[tuple[int, int]]) -> None:
    """Each call costs a share of its price. They settle in their order."""
    desk, ledger = Desk(), Ledger(Limits(tokens=100), now=0.0)
    claims = [desk.claim(ledger, Reservation(tokens=price, firm=True)) for price, _ in calls]
    for claim, (price, share) in zip(claims, calls, strict=True):
        assert claim.is_decided
        if claim.served:
            ledger.charge(tokens=price * share // 100, settled=1)
            desk.queue.leave(claim)
    assert (len(desk.queue), ledger.accounts[0].held) == (0, {"usd": 0, "tokens": 0})
    assert ledger.spend().tokens <= 100


class Tree(RuleBasedStateMachine):
    """Two budgets inside one: claims come, are settled at a share of their price, and are withdrawn, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.outer = Ledger(Limits(tokens=100), now=0.0)
        self.ledgers = [self.outer, *(Ledger(Limits(tokens=most), now=0.0, parent=self.outer) for most in (30, 80))]
        self.claims: list[BudgetClaim] = []

    @rule(ledger=st.integers(0, 2), price=st.integers(1, 90))
    def claim(self, ledger: int, price: int) -> None:
        self.claims.append(self.desk.claim(self.ledgers[ledger], Reservation(tokens=price, firm=True)))

    @rule(which=st.integers(0, 50), share=st.integers(0, 100))
    def settle(self, which: int, share: int) -> None:
        served = [claim for claim in self.claims if claim.served]
        if served:
            claim = served[which % len(served)]
            claim.ledger.charge(tokens=claim.reservation.tokens * share // 100, settled=1)
            self.claims.remove(claim)
            self.desk.queue.leave(claim)

    @rule(which=st.integers(0, 50))
    def withdraw(self, which: int) -> None:
        waiting = [claim for claim in self.claims if not claim.is_decided]
        if waiting:
            claim = waiting[which % len(waiting)]
            self.claims.remove(claim)
            self.desk.queue.leave(claim)

    @invariant()
    def nothing_is_exceeded(self) -> None:
        for account, most in zip((ledger.accounts[0] for ledger in self.ledgers), (100, 30, 80), strict=True):
            assert account.used["tokens"] + account.held["tokens"] <= most

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        waiting = [claim for claim in self.claims if not claim.is_decided]
        in_flight = [claim for claim in self.claims if claim.served]
        assert len(waiting) == len(self.desk.queue)
        assert in_flight or not waiting


TestTree = Tree.TestCase
