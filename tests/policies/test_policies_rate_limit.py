"""Our own rate limit, and pacing by announced limits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.faults import InvalidError
from holdfast.policies.rate_limit import RateLimit, RateLimitMachine


def limited(per_second: float, burst: int = 1) -> RateLimitMachine:
    return RateLimitMachine(RateLimit(per_second=per_second, burst=burst))


def waits(machine: RateLimitMachine, now: float, calls: int) -> list[float]:
    return [round(machine.reserve(now), 9) for _ in range(calls)]


def test_calls_come_evenly():
    assert waits(limited(2), 10.0, 4) == [0, 0.5, 1.0, 1.5]


def test_a_burst_goes_at_once_after_a_rest_and_not_again_before_the_next():
    machine = limited(1, burst=3)
    assert waits(machine, 0.0, 5) == [0, 0, 0, 1, 2]
    assert waits(machine, 100.0, 4) == [0, 0, 0, 1]


def test_peek_says_what_reserve_would_and_reserves_nothing():
    machine = limited(1, burst=2)
    for now in (0.0, 0.1, 0.2, 0.3):
        assert machine.peek(now) == machine.peek(now) == machine.reserve(now)


def test_the_latest_reservation_given_back_is_as_if_never_made():
    machine = limited(1)
    machine.reserve(0.0)
    wait = machine.reserve(0.0)
    machine.cancel(0.0 + wait)
    assert machine.reserve(0.0) == wait


def test_a_reservation_given_back_in_the_middle_is_the_next_callers():
    machine = limited(1)
    assert waits(machine, 0.0, 4) == [0, 1, 2, 3]
    machine.cancel(1.0)
    assert machine.peek(0.5) == pytest.approx(0.5)
    assert waits(machine, 0.5, 2) == [0.5, 3.5]


def test_a_start_given_back_too_late_is_lost_and_never_crowds_its_neighbours():
    machine = limited(1)
    assert waits(machine, 0.0, 3) == [0, 1, 2]
    machine.cancel(1.0)
    assert machine.reserve(1.5) == pytest.approx(1.5), "not at 1.5, half a second before the call of 2.0"


def test_R69_a_queue_that_is_given_up_keeps_nobody_waiting():
    machine = limited(1)
    starts = waits(machine, 0.0, 100)
    for start in starts[1:]:
        machine.cancel(start)
    assert machine.reserve(0.0) == 1.0


STEPS = st.lists(st.tuples(st.sampled_from(["reserve", "reserve", "cancel"]), st.integers(0, 12)), max_size=60)


@given(STEPS, st.sampled_from([0.5, 1.0, 3.0, 8.0]), st.integers(1, 4))
def test_no_interleaving_exceeds_rate_times_time_plus_burst(steps, per_second, burst):
    machine, now, starts = limited(per_second, burst), 0.0, []
    for what, number in steps:
        now += number / 10
        if what == "reserve":
            starts.append(now + machine.reserve(now))
        else:
            pending = [start for start in starts if start >= now]
            if pending:
                given_back = pending[number % len(pending)]
                starts.remove(given_back)
                machine.cancel(given_back)
    starts.sort()
    for first, begin in enumerate(starts):
        for last in range(first, len(starts)):
            assert last - first + 1 <= per_second * (starts[last] - begin) + burst + 1e-6


def test_an_announcement_lets_the_remaining_calls_go_and_holds_the_others_until_the_reset():
    machine = RateLimitMachine()
    machine.learn(limit=60, remaining=2, reset=30, now=0.0)
    assert waits(machine, 1.0, 5) == [0, 0, 29, 29.5, 30], "after the reset one by one, at the pace of their limit"


def test_after_the_reset_our_own_speed_holds_again():
    machine = limited(10)
    machine.learn(limit=60, remaining=0, reset=30, now=0.0)
    assert machine.peek(0.0) == 30
    assert machine.peek(31.0) == 0
    assert waits(machine, 31.0, 2) == [0, 0.1]


def test_our_own_limit_holds_beside_an_announcement():
    machine = limited(1, burst=2)
    machine.learn(limit=1000, remaining=3, reset=60, now=0.0)
    assert waits(machine, 0.0, 3) == [0, 0, 1]
    assert waits(machine, 0.0, 2) == [60, 61], "a burst does not start before the reset"


def test_a_newer_announcement_takes_the_place_of_the_older():
    machine = RateLimitMachine()
    machine.learn(limit=10, remaining=0, reset=60, now=0.0)
    machine.learn(limit=10, remaining=5, reset=60, now=1.0)
    assert machine.reserve(1.0) == 0


def test_a_remaining_call_that_is_given_back_remains():
    machine = RateLimitMachine()
    machine.learn(limit=10, remaining=1, reset=60, now=0.0)
    machine.cancel(5.0 + machine.reserve(5.0))
    assert machine.peek(5.0) == machine.reserve(5.0) == 0
    assert machine.peek(5.0) == 55


def test_a_start_after_the_reset_that_is_given_back_is_as_if_never_reserved():
    machine = RateLimitMachine()
    machine.learn(limit=60, remaining=0, reset=30, now=0.0)
    machine.cancel(0.0 + machine.reserve(0.0))
    assert machine.reserve(0.0) == 30


def test_starts_given_back_before_the_reset_are_not_used_where_nothing_remains():
    machine = limited(1)
    assert waits(machine, 0.0, 3) == [0, 1, 2]
    machine.cancel(1.0)
    machine.learn(limit=None, remaining=0, reset=30, now=0.0)
    assert machine.peek(0.0) == machine.reserve(0.0) == 30


@pytest.mark.parametrize(
    ("remaining", "reset"),
    [(None, 10), (0, None), (-1, 10), (0, 0), (0, -5), (math.nan, 10), (0, math.nan), (0, math.inf), (math.inf, 10)],
)
def test_an_announcement_that_makes_no_sense_is_ignored(remaining, reset):
    machine = RateLimitMachine()
    machine.learn(limit=10, remaining=remaining, reset=reset, now=0.0)
    assert machine.reserve(0.0) == 0


@pytest.mark.parametrize("limit", [None, 0, -1, math.nan, math.inf])
def test_a_limit_that_makes_no_sense_sets_no_pace(limit):
    machine = RateLimitMachine()
    machine.learn(limit=limit, remaining=0, reset=10, now=0.0)
    assert waits(machine, 0.0, 2) == [10, 10]


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"per_second": 0}, "rate_limit.per_second"),
        ({"per_second": -1}, "rate_limit.per_second"),
        ({"per_second": math.inf}, "rate_limit.per_second"),
        ({"per_second": 1, "burst": 0}, "rate_limit.burst"),
        ({"per_second": 1, "burst": 1.5}, "rate_limit.burst"),
    ],
)
def test_wrong_options_say_where(options, path):
    with pytest.raises(InvalidError, match=rf"{path}: expected .+, got "):
        RateLimit(**options)
