"""A second call when the first is slow (R37)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.faults import InvalidError
from holdfast.policies.hedge import ENOUGH, Hedge, HedgeMachine, next_hedge


def wait(hedge: Hedge, *, added: int, now: float) -> float | None:
    after = HedgeMachine(hedge).after()
    return next_hedge(hedge, after=after, started=100.0, added=added, now=now)


def test_a_hedge_is_due_when_the_call_is_slow():
    hedge = Hedge(after=2)
    assert wait(hedge, added=0, now=100.0) == 2.0
    assert wait(hedge, added=0, now=101.5) == 0.5
    assert wait(hedge, added=0, now=107.0) == 0.0


def test_there_are_at_most_the_configured_hedges_each_after_the_one_before():
    hedge = Hedge(after=2, most=2)
    assert wait(hedge, added=1, now=102.0) == 2.0
    assert wait(hedge, added=2, now=104.0) is None


def test_R37_a_spent_quota_suppresses_the_new_hedge_and_nothing_else():
    hedge = Hedge(after=2, most=3)
    assert wait(hedge, added=1, now=104.0) == 0.0, "a spent quota leaves no trace: the next hedge is due as before"


def test_R71_zero_means_at_once():
    assert wait(Hedge(after=0), added=0, now=100.0) == 0.0


def test_without_a_percentile_latencies_change_nothing():
    machine = HedgeMachine(Hedge(after=2))
    for _ in range(200):
        machine.took(50.0)
    assert machine.after() == 2


def test_with_a_percentile_nothing_is_hedged_before_enough_is_known():
    hedge = Hedge(after=0.1, percentile=0.95)
    machine = HedgeMachine(hedge)
    for _ in range(ENOUGH - 1):
        machine.took(1.0)
    assert machine.after() is None
    assert next_hedge(hedge, after=None, started=0, added=0, now=9) is None
    machine.took(1.0)
    assert machine.after() == 1.0


def test_a_percentile_is_of_the_recent_past_and_after_is_its_floor():
    machine = HedgeMachine(Hedge(after=0.5, percentile=0.9))
    for number in range(1, 101):
        machine.took(number / 10)
    assert machine.after() == 9.0
    for _ in range(100):
        machine.took(0.01)
    assert machine.after() == 0.5


@given(st.lists(st.floats(0, 100), min_size=ENOUGH, max_size=300), st.sampled_from([0.5, 0.9, 0.95, 1.0]))
def test_that_share_of_the_last_hundred_answers_came_within_it(latencies, percentile):
    machine = HedgeMachine(Hedge(after=0, percentile=percentile))
    for seconds in latencies:
        machine.took(seconds)
    recent = latencies[-100:]
    after = machine.after()
    assert after in recent
    assert sum(seconds <= after for seconds in recent) >= percentile * len(recent) - 1e-9
    assert sum(seconds < after for seconds in recent) < percentile * len(recent) + 1e-9


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"after": -1}, "hedge.after"),
        ({"after": math.nan}, "hedge.after"),
        ({"after": 1, "most": 0}, "hedge.most"),
        ({"after": 1, "percentile": 0}, "hedge.percentile"),
        ({"after": 1, "percentile": 95}, "hedge.percentile"),
    ],
)
def test_wrong_options_say_where(options, path):
    with pytest.raises(InvalidError, match=rf"{path}: expected .+, got "):
        Hedge(**options)
