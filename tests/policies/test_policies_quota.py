"""Retries as a share of traffic, with a floor (R35, R38, R39)."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.faults import InvalidError
from holdfast.policies.quota import Quota, QuotaMachine


def granted(machine: QuotaMachine, now: float, most: int = 1000) -> int:
    return sum(machine.withdraw(now) for _ in range(most))


def test_R35_a_hundred_failing_callers_make_at_most_ten_retries_and_the_floor():
    machine = QuotaMachine(Quota(share=0.1, floor=3))
    attempts = 0
    for caller in range(100):
        now = 50.0 + caller / 1000
        machine.called(now)
        attempts += 1
        attempts += granted(machine, now, most=5)
    assert attempts == 100 + 10 + 3


def test_R35_the_bound_holds_when_all_call_first_and_all_retry_then():
    machine = QuotaMachine(Quota(share=0.1, floor=3))
    for _ in range(100):
        machine.called(0.0)
    assert granted(machine, 0.0) == 13


def test_R38_one_call_a_minute_still_gets_its_retry():
    machine = QuotaMachine(Quota())
    for minute in range(10):
        now = minute * 60.0
        machine.called(now)
        assert machine.withdraw(now)


def test_R39_a_success_gives_back_what_was_withdrawn():
    machine = QuotaMachine(Quota(share=0, floor=2))
    assert granted(machine, 0.0) == 2
    machine.succeeded(0.5)
    assert granted(machine, 0.5) == 1
    machine.succeeded(0.6, retries=2)
    assert granted(machine, 0.6) == 2


def test_R39_successes_never_lift_it_above_its_maximum():
    machine = QuotaMachine(Quota(share=0, floor=2))
    for _ in range(100):
        machine.succeeded(0.0)
    assert machine.left(0.0) == 2
    assert granted(machine, 0.0) == 2


def test_calls_earn_retries_for_one_window_only():
    machine = QuotaMachine(Quota(share=0.5, floor=0, window=10))
    for _ in range(10):
        machine.called(0.0)
    assert machine.left(8.9) == 5
    assert not machine.withdraw(10.0)


def test_a_withdrawn_retry_is_forgotten_after_the_window():
    machine = QuotaMachine(Quota(share=0, floor=1, window=10))
    assert machine.withdraw(0.0)
    assert not machine.withdraw(9.9)
    assert machine.withdraw(11.0)


def test_R71_zero_means_zero():
    machine = QuotaMachine(Quota(share=0, floor=0))
    for _ in range(100):
        machine.called(0.0)
    assert not machine.withdraw(0.0)


def test_a_share_that_binary_numbers_miss_by_a_hair_is_whole():
    machine = QuotaMachine(Quota(share=0.29, floor=0))
    for _ in range(100):
        machine.called(0.0)
    assert granted(machine, 0.0) == 29


EDGE = 1e-6
STEPS = st.lists(st.tuples(st.sampled_from(["call", "ask", "succeed", "ask"]), st.integers(0, 30)), max_size=120)


@given(STEPS, st.sampled_from([0.0, 0.1, 0.25, 1.0]), st.sampled_from([0.0, 1.0, 3.0]))
@example([("call", 28), ("call", 19), ("ask", 21), ("ask", 30), ("ask", 30)], 1.0, 1.0)
def test_R35_no_interleaving_exceeds_the_bound(steps, share, floor):
    """At every grant: retries of the last window, less what was given back, ≤ floor + share x calls of that window."""
    machine = QuotaMachine(Quota(share=share, floor=floor, window=10))
    now, calls, retries = 0.0, [], []
    for what, gap in steps:
        now += gap / 10
        if what == "call":
            machine.called(now)
            calls.append(now)
        elif what == "succeed":
            machine.succeeded(now)
            if retries:
                retries.pop()
        elif machine.withdraw(now):
            retries.append(now)
            # Ten tenths are not exactly one: what is at the edge of the window to a rounding error may count as inside or outside.
            recent = [
                sum(now - time < edge for time in times) for times, edge in ((retries, 10 - EDGE), (calls, 10 + EDGE))
            ]
            assert recent[0] <= floor + share * recent[1] + EDGE


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"share": -0.1}, "quota.share"),
        ({"share": 1.5}, "quota.share"),
        ({"share": math.nan}, "quota.share"),
        ({"share": True}, "quota.share"),
        ({"floor": -1}, "quota.floor"),
        ({"floor": math.inf}, "quota.floor"),
        ({"window": 0}, "quota.window"),
        ({"window": "10"}, "quota.window"),
    ],
)
def test_wrong_options_say_where(options, path):
    with pytest.raises(InvalidError, match=rf"{path}: expected .+, got "):
        Quota(**options)


def test_it_shows_what_was_set():
    assert repr(Quota(share=0.2)) == "Quota(share=0.2)"
