"""Adaptive client throttling (R89)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.faults import InvalidError
from holdfast.policies.throttle import Throttle, ThrottleMachine


class Always:
    """A random source that always returns the same number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


UNLUCKY, LUCKY = Always(0.0), Always(0.999_999)


def after(accepted: int, rejected: int, k: float = 2.0) -> ThrottleMachine:
    machine = ThrottleMachine(Throttle(k=k))
    for _ in range(accepted):
        machine.accepted(0.0)
    for _ in range(rejected):
        machine.rejected(0.0)
    return machine


def test_a_healthy_service_is_never_throttled():
    machine = after(accepted=100, rejected=0)
    assert machine.risk(0.0) == 0.0
    assert machine.admit(0.0, UNLUCKY)


def test_running_calls_are_not_rejected_calls():
    machine = ThrottleMachine(Throttle())
    assert all(machine.admit(0.0, UNLUCKY) for _ in range(50))


@pytest.mark.parametrize(
    ("accepted", "rejected", "k", "risk"),
    [(50, 50, 2.0, 0.0), (25, 75, 2.0, 50 / 101), (0, 9, 2.0, 9 / 10), (90, 10, 1.0, 10 / 101), (90, 10, 1.1, 1 / 101)],
)
def test_the_risk_follows_the_formula_of_the_book(accepted, rejected, k, risk):
    assert after(accepted, rejected, k).risk(0.0) == pytest.approx(risk)


@given(st.integers(0, 3000), st.sampled_from([1.0, 2.0, 10.0]))
def test_R89_some_call_always_gets_through(rejected, k):
    machine = after(0, rejected, k)
    assert machine.risk(0.0) < 1.0
    assert machine.admit(0.0, Always(machine.risk(0.0)))


def test_R89_the_recovery_is_noticed():
    """The calls that are sent grow with every window: from one in 600 to all of them in about five windows."""
    rng = random.Random(7)
    machine = ThrottleMachine(Throttle(window=60))
    sent_while_down, now = 0, 0.0
    for _ in range(600):
        now += 0.1
        if machine.admit(now, rng):
            sent_while_down += 1
            machine.rejected(now)
    assert 5 <= sent_while_down < 60, "few calls reach a service that is down, but some do"
    admitted = []
    for _ in range(8 * 600):
        now += 0.1
        admitted.append(machine.admit(now, rng))
        if admitted[-1]:
            machine.accepted(now)
    assert all(admitted[-600:])


def test_a_call_that_is_not_sent_counts_as_rejected():
    machine = after(0, 1)
    before = machine.risk(0.0)
    assert not machine.admit(0.0, UNLUCKY)
    assert machine.risk(0.0) > before


def test_outcomes_are_forgotten_after_the_window():
    machine = after(0, 100)
    assert machine.risk(100.0) > 0.9
    assert machine.risk(120.0) == 0.0


@pytest.mark.parametrize(("options", "path"), [({"k": 0.9}, "throttle.k"), ({"window": 0}, "throttle.window")])
def test_wrong_options_say_where(options, path):
    with pytest.raises(InvalidError, match=rf"{path}: expected .+, got "):
        Throttle(**options)
