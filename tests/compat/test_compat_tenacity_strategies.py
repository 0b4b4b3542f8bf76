"""tenacity's strategies: when to stop, how long to wait, whether to retry; R5, R9, R71."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from holdfast import InvalidError, Runtime
from holdfast.compat import tenacity
from holdfast.compat.tenacity import (
    Future,
    RetryCallState,
    retry_all,
    retry_always,
    retry_any,
    retry_if_exception,
    retry_if_exception_cause_type,
    retry_if_exception_message,
    retry_if_exception_type,
    retry_if_not_exception_message,
    retry_if_not_exception_type,
    retry_if_not_result,
    retry_if_result,
    retry_never,
    retry_unless_exception_type,
    stop_after_attempt,
    stop_after_delay,
    stop_all,
    stop_any,
    stop_before_delay,
    stop_never,
    stop_when_event_set,
    wait_chain,
    wait_combine,
    wait_exception,
    wait_exponential,
    wait_exponential_jitter,
    wait_fixed,
    wait_full_jitter,
    wait_incrementing,
    wait_none,
    wait_random,
    wait_random_exponential,
)
from holdfast.testing import Scripted, use_runtime


def state(attempt=1, since=0.0, *, value=None, error=None, upcoming=0.0):
    """A call after its attempt number `attempt`, as tenacity's own tests make one."""
    made = RetryCallState(None, None, (), {})
    made.attempt_number = attempt
    made.outcome = Future.construct(attempt, value if error is None else error, error is not None)
    made.outcome_timestamp = made.start_time + since
    made.upcoming_sleep = upcoming
    return made


def waits(strategy, attempts):
    return [strategy(state(attempt)) for attempt in attempts]


@pytest.fixture
def chance():
    """Give waits these numbers to draw, no more."""

    def draws(*numbers):
        return use_runtime(Runtime(rng=Scripted(*numbers)))

    return draws


# stop


def test_stop_after_attempt_counts_calls():
    assert [stop_after_attempt(3)(state(n)) for n in (2, 3, 4)] == [False, True, True]


@pytest.mark.parametrize("limit", [1, timedelta(seconds=1)])
def test_stop_after_delay_looks_at_the_end_of_the_attempt(limit):
    stop = stop_after_delay(limit)
    assert [stop(state(since=since, upcoming=9)) for since in (0.999, 1.0, 1.001)] == [False, True, True]


@pytest.mark.parametrize("limit", [1, timedelta(seconds=1)])
def test_stop_before_delay_looks_at_the_end_of_the_wait(limit):
    stop = stop_before_delay(limit)
    assert not stop(state(since=0.5, upcoming=0.25))
    assert stop(state(since=0.5, upcoming=0.5))
    assert stop(state(since=1.0))


def test_stop_never_and_stop_when_event_set():
    event = threading.Event()
    assert [stop_never(state(10**6, 10**6)), stop_when_event_set(event)(state())] == [False, False]
    event.set()
    assert stop_when_event_set(event)(state())


@pytest.mark.parametrize(
    "either", [stop_any(stop_after_delay(1), stop_after_attempt(4)), stop_after_delay(1) | stop_after_attempt(4)]
)
def test_stops_are_joined_by_or(either):
    assert [either(state(*at)) for at in ((3, 0.5), (4, 0.5), (3, 1.5), (4, 1.5))] == [False, True, True, True]


@pytest.mark.parametrize(
    "both", [stop_all(stop_after_delay(1), stop_after_attempt(4)), stop_after_delay(1) & stop_after_attempt(4)]
)
def test_stops_are_joined_by_and(both):
    assert [both(state(*at)) for at in ((3, 0.5), (4, 0.5), (3, 1.5), (4, 1.5))] == [False, False, False, True]


def test_a_plain_function_joins_from_either_side():
    def late(retry_state):
        return retry_state.attempt_number > 8

    assert (late | stop_after_attempt(3))(state(3))
    assert not (late & stop_after_attempt(3))(state(3))
    assert (late | retry_if_result(bool))(state(9, value=0))
    assert not (late & retry_if_result(bool))(state(9, value=0))


# wait


def test_wait_fixed_and_none():
    assert waits(wait_fixed(1.5), (1, 9)) == [1.5, 1.5]
    assert waits(wait_fixed(timedelta(minutes=1)), (1,)) == [60.0]
    assert waits(wait_none(), (1, 9)) == [0, 0]


def test_wait_incrementing_goes_up_or_down_and_never_below_zero():
    assert waits(wait_incrementing(start=5, increment=10), (1, 2, 3)) == [5, 15, 25]
    assert waits(wait_incrementing(start=5, increment=10, max=20), (1, 2, 3)) == [5, 15, 20]
    assert waits(wait_incrementing(start=5, increment=-3), (1, 2, 3)) == [5, 2, 0]


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        (wait_exponential(), [1, 2, 4, 8, 16]),
        (wait_exponential(multiplier=50, max=300), [50, 100, 200, 300, 300]),
        (wait_exponential(min=3, max=10), [3, 3, 4, 8, 10]),
        (wait_exponential(exp_base=3, multiplier=0.5), [0.5, 1.5, 4.5, 13.5, 40.5]),
        (wait_exponential(min=10, max=5), [10, 10, 10, 10, 10]),
        (wait_exponential(multiplier=0), [0, 0, 0, 0, 0]),
        (wait_exponential_jitter(jitter=0, initial=3, max=20), [3, 6, 12, 20, 20]),
        (wait_exponential_jitter(jitter=0, multiplier=3, min=7), [7, 7, 12, 24, 48]),
    ],
)
def test_wait_exponential_counts_from_the_first_failure(wait, expected):
    assert waits(wait, range(1, 6)) == expected


@pytest.mark.parametrize("wait", [wait_exponential, wait_exponential_jitter, wait_random_exponential])
def test_R5_five_thousand_attempts_overflow_nothing(wait):
    assert 0 <= wait(max=60)(state(5000)) <= 60
    assert wait_exponential()(state(5000)) == pytest.approx(2**62)
    assert wait_exponential(multiplier=0)(state(5000)) == 0


def test_wait_random_draws_between_its_bounds(chance):
    with chance(0.0, 0.5, 0.999):
        assert waits(wait_random(1, 20), (1, 2, 3)) == [1, 10.5, pytest.approx(19.981)]


def test_wait_random_exponential_widens_its_window(chance):
    assert wait_full_jitter is wait_random_exponential
    with chance(0.5, 0.5, 0.5, 0.0):
        assert waits(wait_random_exponential(multiplier=10, max=60, min=2), (1, 2, 4, 4)) == [6, 11, 31, 2]


def test_wait_exponential_jitter_adds_and_then_caps(chance):
    with chance(0.5, 0.5, 0.5):
        assert waits(wait_exponential_jitter(initial=1, max=4, jitter=1), (1, 2, 3)) == [1.5, 2.5, 4]


def test_wait_chain_repeats_its_last():
    chain = wait_chain(*[wait_fixed(1)] * 2, *[wait_fixed(4)] * 2, lambda retry_state: timedelta(seconds=8))
    assert waits(chain, range(1, 8)) == [1, 1, 4, 4, 8, 8, 8]


@pytest.mark.parametrize(
    "both",
    [
        wait_combine(wait_fixed(3), wait_incrementing(0, 1)),
        wait_fixed(3) + wait_incrementing(0, 1),
        sum([wait_fixed(3), wait_incrementing(0, 1)]),
        (lambda retry_state: 3) + wait_incrementing(0, 1),
    ],
)
def test_waits_add_up(both):
    assert waits(both, (1, 2, 3)) == [3, 4, 5]


def test_a_number_is_no_wait():
    with pytest.raises(TypeError):
        5 + wait_fixed(1)


def test_R9_wait_exception_asks_the_exception_and_takes_results_too():
    wait = wait_exception(lambda error: error.args[0])
    assert wait(state(error=OSError(7))) == 7
    assert wait(state(value="not yet")) == 0


# retry


CAUSED = ValueError("outer")
CAUSED.__cause__ = KeyError("between")
CAUSED.__cause__.__cause__ = OSError("inner")


@pytest.mark.parametrize(
    ("condition", "after_values", "after_errors"),
    # values 1, 2; errors OSError("hi"), ValueError("hi there"), CAUSED
    [
        (retry_always, [1, 1], [1, 1, 1]),
        (retry_never, [0, 0], [0, 0, 0]),
        (retry_if_exception(lambda error: "there" in str(error)), [0, 0], [0, 1, 0]),
        (retry_if_exception_type(), [0, 0], [1, 1, 1]),
        (retry_if_exception_type((OSError, KeyError)), [0, 0], [1, 0, 0]),
        (retry_if_not_exception_type(OSError), [0, 0], [0, 1, 1]),
        (retry_unless_exception_type(OSError), [1, 1], [0, 1, 1]),
        (retry_if_exception_cause_type(OSError), [0, 0], [0, 0, 1]),
        (retry_if_exception_message(message="hi"), [0, 0], [1, 0, 0]),
        (retry_if_exception_message(match="hi"), [0, 0], [1, 1, 0]),
        (retry_if_not_exception_message(message="hi"), [1, 1], [0, 1, 1]),
        (retry_if_not_exception_message(match="hi"), [1, 1], [0, 0, 1]),
        (retry_if_result(lambda value: value == 1), [1, 0], [0, 0, 0]),
        (retry_if_not_result(lambda value: value == 1), [0, 1], [0, 0, 0]),
        (retry_if_result(lambda value: value == 1) | retry_if_exception_type(OSError), [1, 0], [1, 0, 0]),
        (retry_any(retry_if_exception_message(match="hi"), retry_if_exception_type(OSError)), [0, 0], [1, 1, 0]),
        (retry_if_exception_message(match="hi") & retry_if_exception_type(OSError), [0, 0], [1, 0, 0]),
        (retry_all(retry_if_result(lambda value: value > 0), retry_if_result(lambda v: v > 1)), [0, 1], [0, 0, 0]),
    ],
)
def test_whether_to_try_again(condition, after_values, after_errors):
    errors = (OSError("hi"), ValueError("hi there"), CAUSED)
    assert [condition(state(value=value)) for value in (1, 2)] == [bool(answer) for answer in after_values]
    assert [condition(state(error=error)) for error in errors] == [bool(answer) for answer in after_errors]


def test_a_chain_of_causes_that_bites_its_tail_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert not retry_if_exception_cause_type(OSError)(state(error=first))


# what makes no sense


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wait_fixed(-1), "wait_fixed: expected seconds ≥ 0 or a timedelta, got -1"),
        (lambda: wait_fixed(float("nan")), "got nan"),
        (lambda: wait_fixed(True), "got True"),
        (lambda: wait_random("1"), "wait_random: min: expected seconds"),
        (lambda: wait_exponential(multiplier=-1), "wait_exponential: multiplier"),
        (lambda: wait_exponential_jitter(initial=2, multiplier=3), "expected one of initial and multiplier, got both"),
        (wait_chain, "wait_chain: expected at least one wait, got none"),
        (lambda: stop_after_attempt(0), "stop_after_attempt: expected a whole number ≥ 1, got 0"),
        (lambda: stop_after_delay(timedelta(seconds=-1)), "stop_after_delay: expected seconds ≥ 0"),
        (retry_if_exception_message, "retry_if_exception_message: expected either message or match, got neither"),
        (lambda: retry_if_not_exception_message("a", "b"), "expected either message or match, got both"),
        (lambda: retry_if_result(3), "retry_if_result: expected a function, got 3"),
    ],
)
def test_R71_an_invalid_value_raises_where_it_is_written(make, message):
    with pytest.raises(InvalidError) as caught:
        make()
    assert message in str(caught.value)


def test_an_async_predicate_inside_a_condition_is_refused():
    async def perhaps(value):
        return False

    with pytest.raises(InvalidError, match="expected a plain function"):
        retry_if_result(perhaps)


def test_infinity_means_no_maximum():
    assert wait_exponential(max=float("inf"))(state(3)) == 4


def test_the_surface_is_sorted_and_there():
    assert sorted(tenacity.__all__, key=lambda name: (name[0].islower(), name)) == tenacity.__all__
    assert [name for name in tenacity.__all__ if not hasattr(tenacity, name)] == []
