"""The nested ledger (R90, N3-6)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.faults import InvalidError
from holdfast.policies.budget import NANO, Ledger, Left, Limits, Reached, Spend


def ledger(parent: Ledger | None = None, now: float = 0.0, **limits) -> Ledger:
    return Ledger(Limits(**limits), now=now, parent=parent)


# Limits


def test_without_limits_everything_is_left_and_nothing_is_reached():
    free = ledger()
    free.charge(usd=1e6, tokens=10**9, turns=10**6, attempts=10**6)
    assert free.left(1e9) == Left()
    assert free.check(1e9) is None
    assert free.deadline is None


def test_a_limit_is_spent_when_it_is_reached_not_when_it_is_exceeded():
    account = ledger(turns=3)
    account.charge(turns=2)
    assert account.check(0.0) is None
    account.charge(turns=1)
    assert account.check(0.0) == Reached("turns", 3, 3)
    account.charge(turns=5)
    assert account.left(0.0) == Left(turns=0), "an overdrawn limit has 0 left"


def test_ten_times_a_tenth_is_one():
    account = ledger(usd=1.0)
    for _ in range(10):
        account.charge(usd=0.1)
    assert account.check(0.0) == Reached("usd", 1.0, 1.0)
    assert account.spend().usd == 1.0


@pytest.mark.parametrize("unit", ["seconds", "usd", "tokens", "turns", "attempts"])
def test_R71_zero_means_nothing(unit):
    account = ledger(**{unit: 0})
    assert account.check(0.0) == Reached(unit, 0, 0)
    assert account.warnings(0.0) == []


def test_seconds_pass_without_charges():
    account = ledger(now=100.0, seconds=30)
    assert account.deadline == 130.0
    assert account.left(110.0) == Left(seconds=20.0)
    assert account.check(129.9) is None
    assert account.check(130.0) == Reached("seconds", 30.0, 30.0)
    assert account.left(200.0) == Left(seconds=0.0)


@given(st.floats(0, 1e6), st.floats(0.001, 1e5))
def test_at_its_deadline_a_budget_is_spent_whatever_binary_numbers_do(now, seconds):
    account = ledger(now=now, seconds=seconds)
    assert account.check(account.deadline).unit == "seconds"
    assert account.left(account.deadline).seconds == 0


# Nesting


def test_charges_count_in_outer_budgets_and_the_tightest_limit_holds():
    outer = ledger(usd=1.0, turns=10)
    inner = ledger(outer, usd=5.0, attempts=3)
    inner.charge(usd=0.75, turns=1, attempts=1)
    assert inner.left(0.0) == Left(usd=0.25, turns=9, attempts=2)
    assert outer.left(0.0) == Left(usd=0.25, turns=9)
    inner.charge(usd=0.25)
    assert inner.check(0.0) == Reached("usd", 1.0, 1.0), "the outer budget's"


def test_the_earliest_deadline_of_all_holds():
    outer = ledger(now=0.0, seconds=10)
    inner = ledger(outer, now=5.0, seconds=60)
    assert (inner.deadline, inner.left(5.0).seconds) == (65.0, 5.0)
    assert inner.check(10.0) == Reached("seconds", 10.0, 10.0)
    assert ledger(outer, now=5.0, seconds=2).deadline == 7.0
    assert ledger(outer, now=5.0).deadline is None
    assert ledger(outer, now=5.0).left(5.0).seconds == 5.0


def test_an_outer_budget_is_measured_by_its_own_clock():
    outer = ledger(now=1000.0, seconds=10)
    inner = ledger(outer, now=5.0, seconds=60)
    assert inner.left(6.0, (1004.0,)) == Left(seconds=6.0)
    assert inner.check(6.0, (1004.0,)) is None
    assert inner.warnings(6.0, (1009.0,)) == [Reached("seconds", 9.0, 10.0, level=1)]
    assert inner.check(6.0, (1010.0,)) == Reached("seconds", 10.0, 10.0)


def test_the_innermost_budget_answers_first():
    outer = ledger(turns=1)
    inner = ledger(outer, turns=1)
    outer.charge(turns=1)
    assert inner.check(0.0) == Reached("turns", 1, 1)
    inner.charge(turns=1)
    assert inner.check(0.0).used == 1, "inner: 1 of 1, not outer: 2 of 1"


CHARGES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.fixed_dictionaries(
            {
                "usd": st.none() | st.floats(0, 100),
                "tokens": st.none() | st.integers(0, 10**6),
                "turns": st.integers(0, 2),
                "attempts": st.integers(0, 2),
                "unknown": st.integers(0, 1),
                "recovery": st.booleans(),
            }
        ),
    ),
    max_size=40,
)


@given(CHARGES)
def test_R90_what_a_budget_spent_is_its_own_charges_and_its_childrens(charges):
    root = ledger()
    middle = ledger(root)
    ledgers = [root, middle, ledger(middle), ledger(root)]
    own = {"usd": 0, "tokens": 0, "turns": 0, "attempts": 0, "unknown": 0}
    for which, charge in charges:
        if which == 0:
            # The root's own charges are all known, so that this test can add them up.
            charge.update(usd=charge["usd"] or 0.0, tokens=charge["tokens"] or 0)
            for unit in own:
                own[unit] += round(charge[unit] * (NANO if unit == "usd" else 1))
        ledgers[which].charge(**charge)
    spent, children = root.accounts[0], [middle.accounts[0], ledgers[3].accounts[0]]
    for unit in ("usd", "tokens", "turns", "attempts"):
        assert spent.used[unit] == own[unit] + sum(child.used[unit] for child in children)
    assert spent.unknown == own["unknown"] + sum(child.unknown for child in children)


@given(CHARGES)
def test_the_cost_of_recovery_is_never_more_than_the_whole(charges):
    account = ledger()
    for _, charge in charges:
        account.charge(**charge)
    spend = account.spend()
    assert spend.recovery_usd <= spend.usd
    assert spend.recovery_tokens <= spend.tokens
    assert spend.recovery_attempts <= spend.attempts


# The cost of recovery


def test_the_cost_of_recovery_is_reported():
    account = ledger()
    account.charge(usd=0.25, tokens=100, attempts=1, turns=1)
    account.charge(usd=0.5, tokens=200, attempts=1, recovery=True)
    assert account.spend() == Spend(
        usd=0.75, tokens=300, turns=1, attempts=2, recovery_usd=0.5, recovery_tokens=200, recovery_attempts=1
    )


# Unknown usage


def test_R90_unknown_usage_is_charged_as_the_mean_of_what_is_known():
    account = ledger(usd=1.0)
    account.charge(usd=0.1, tokens=100, attempts=1)
    account.charge(usd=0.3, tokens=300, attempts=1)
    account.charge(attempts=1, unknown=1, recovery=True)
    assert account.spend() == Spend(
        usd=0.6, tokens=600, attempts=3, recovery_usd=0.2, recovery_tokens=200, recovery_attempts=1, unknown=1
    )


def test_R90_unknown_usage_blocks_nothing_and_is_charged_once_something_is_known():
    account = ledger(usd=1.0)
    account.charge(attempts=1, unknown=1)
    assert account.check(0.0) is None
    assert account.spend() == Spend(attempts=1, unknown=1)
    account.charge(usd=0.25, tokens=50, attempts=1, recovery=True)
    assert account.spend() == Spend(
        usd=0.5, tokens=100, attempts=2, recovery_usd=0.25, recovery_tokens=50, recovery_attempts=1, unknown=1
    )


def test_R90_what_was_owed_is_charged_once():
    account = ledger()
    account.charge(attempts=1, unknown=1)
    for _ in range(3):
        account.charge(usd=0.25, attempts=1)
    assert account.spend().usd == 1.0


def test_R90_an_estimate_of_next_to_nothing_is_not_zero():
    account = ledger()
    account.charge(tokens=1, attempts=3)
    account.charge(attempts=1, unknown=1)
    assert account.spend().tokens == 2


def test_R90_a_recovery_that_waited_for_its_estimate_is_still_a_recovery():
    account = ledger()
    account.charge(attempts=1, unknown=1, recovery=True)
    account.charge(usd=0.5, attempts=1)
    assert (account.spend().usd, account.spend().recovery_usd) == (1.0, 0.5)


def test_R90_a_given_estimate_holds():
    account = ledger(estimate_usd=0.02, estimate_tokens=500)
    account.charge(usd=9.0, tokens=9, attempts=1)
    account.charge(attempts=2, unknown=2)
    assert (account.spend().usd, account.spend().tokens) == (9.04, 1009)


def test_R90_a_new_inner_budget_takes_the_estimate_of_the_outer_ones():
    outer = ledger()
    outer.charge(usd=0.5, attempts=1)
    inner = ledger(outer)
    inner.charge(attempts=1, unknown=1)
    assert inner.spend().usd == 0.5
    assert outer.spend().usd == 1.0


def test_R90_known_tokens_without_a_price_are_known_tokens():
    account = ledger()
    account.charge(usd=0.5, tokens=1000, attempts=1)
    account.charge(tokens=10, attempts=1, unknown=1)
    assert (account.spend().usd, account.spend().tokens) == (1.0, 1010)


def test_an_attempt_that_was_rejected_and_cost_nothing_does_not_lower_the_estimate():
    account = ledger()
    account.charge(usd=0.5, attempts=1)
    account.charge(attempts=1)
    account.charge(attempts=1, unknown=1)
    assert account.spend().usd == 1.0


# Warnings


def test_N3_6_a_warning_is_due_once_at_eighty_percent_of_each_unit():
    account = ledger(turns=10, tokens=100)
    account.charge(turns=7)
    assert account.warnings(0.0) == []
    account.charge(turns=1, tokens=79)
    assert account.warnings(0.0) == [Reached("turns", 8, 10)]
    account.charge(turns=1, tokens=21)
    assert account.warnings(0.0) == [Reached("tokens", 100, 100)]
    assert account.warnings(0.0) == []


def test_N3_6_seconds_and_money_warn_in_their_own_units():
    account = ledger(now=50.0, seconds=10, usd=2.0)
    account.charge(usd=1.6)
    assert account.warnings(57.0) == [Reached("usd", 1.6, 2.0)]
    assert account.warnings(58.0) == [Reached("seconds", 8.0, 10)]
    assert account.warnings(59.0) == []


def test_N3_6_the_share_is_a_setting_and_every_budget_around_warns():
    outer = ledger(turns=4, warn_at=0.5)
    inner = ledger(outer, turns=2)
    inner.charge(turns=2)
    assert inner.warnings(0.0) == [Reached("turns", 2, 2), Reached("turns", 2, 4, level=1)]
    assert outer.warnings(0.0) == []


# Invalid input


@pytest.mark.parametrize(
    ("limits", "path"),
    [
        ({"seconds": -1}, "budget.seconds"),
        ({"seconds": math.inf}, "budget.seconds"),
        ({"usd": -0.01}, "budget.usd"),
        ({"usd": math.nan}, "budget.usd"),
        ({"usd": "1"}, "budget.usd"),
        ({"tokens": 1.5}, "budget.tokens"),
        ({"turns": True}, "budget.turns"),
        ({"attempts": -1}, "budget.attempts"),
        ({"warn_at": 0}, "budget.warn_at"),
        ({"warn_at": 80}, "budget.warn_at"),
        ({"estimate_usd": -1}, "budget.estimate_usd"),
        ({"estimate_tokens": 0.5}, "budget.estimate_tokens"),
    ],
)
def test_wrong_limits_say_where(limits, path):
    with pytest.raises(InvalidError, match=rf"{path}: expected .+, got "):
        Limits(**limits)


@pytest.mark.parametrize(
    "charge",
    [{"usd": -1}, {"usd": math.nan}, {"tokens": -1}, {"turns": 0.5}, {"attempts": None}, {"unknown": True}],
)
def test_an_invalid_charge_charges_nothing(charge):
    account = ledger()
    with pytest.raises(InvalidError, match=rf"charge.{next(iter(charge))}: expected .+, got "):
        account.charge(**charge)
    assert account.spend() == Spend()
