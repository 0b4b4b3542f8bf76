"""Section R's cases of circuits, each under its name; the parts that need a function to call are the runtime's."""

from __future__ import annotations

import itertools

import pytest
from circuit_line import CANCELLED, CLOSED, FAILURE, HALF_OPEN, IGNORED, OPEN, START, SUCCESS, Line

from holdfast.policies.circuit import PROVIDER, Circuit, Rejection, Rule

BY_RATE = Circuit(failures=None, rate=0.5, volume=10, window=60.0)
TWO_PROBES = Circuit(successes=2)


def opened(config: Circuit = PROVIDER) -> Line:
    line = Line(config).bad(5)
    assert line.state is OPEN
    line.taken()
    return line


def half_open(config: Circuit = PROVIDER) -> Line:
    return opened(config).wait(config.open_for)


def test_R41_nine_failures_of_a_volume_of_ten_leave_it_closed_and_the_tenth_opens_it():
    line = Line(BY_RATE).bad(9)
    assert line.state is CLOSED
    assert line.bad().state is OPEN


@pytest.mark.parametrize(("rate", "bad"), [(0.5, 5), (0.7, 7), (0.3, 3), (0.1, 1), (1.0, 10)])
def test_R41_a_rate_exactly_at_the_threshold_opens(rate, bad):
    line = Line(BY_RATE.replace(rate=rate)).good(10 - bad).bad(bad - 1)
    assert line.state is CLOSED
    assert line.bad().state is OPEN
    assert line.taken()[0].rule is Rule.RATE


def test_R41_a_rate_just_below_the_threshold_does_not_open():
    assert Line(BY_RATE).good(6).bad(5).state is CLOSED


def test_R41_a_good_call_that_fills_the_volume_does_not_open_it_but_the_next_failure_does():
    line = Line(BY_RATE).bad(9).good()
    assert line.state is CLOSED
    assert line.bad().state is OPEN


@pytest.mark.parametrize("config", [BY_RATE, Circuit(failures=10, counted="window", rate=None)], ids=["rate", "count"])
def test_R42_failures_spread_beyond_the_window_leave_it_closed(config):
    line = Line(config)
    for _ in range(50):
        line.bad().wait(7.0)
    assert line.state is CLOSED
    assert line.metrics.failures == 50


def test_R42_the_window_slides_so_that_no_edge_hides_a_burst():
    """semian#24, gobreaker#21: a window that begins anew forgets what happened just before its edge."""
    for offset in range(60):
        line = Line(BY_RATE, start=START + offset)
        line.bad(5).wait(3.0).bad(5)
        assert line.state is OPEN, offset


def test_R42_the_good_calls_before_an_edge_still_weigh_after_it():
    """gobreaker#21: nine per cent of failures looked like ninety, since the good ones were just forgotten."""
    for offset in range(60):
        line = Line(BY_RATE, start=START + offset)
        line.good(100).wait(3.0).bad(9)
        line.good().bad()
        assert line.state is CLOSED, offset


def test_R43_a_rejection_says_who_why_and_until_when():
    line = Line(PROVIDER).bad(4)
    line.end(line.permit(), FAILURE, "PROVIDER_TIMEOUT", text="no answer in 60 s")
    assert line.wait(1.0).refusal() == Rejection(
        name="provider:claude",
        state=OPEN,
        retry_at=START + 30.0,
        reason="PROVIDER_TIMEOUT",
        last_failure="no answer in 60 s",
        rule=Rule.FAILURES,
    )


def test_R43_a_rejection_does_not_grow():
    line = opened()
    assert all(line.refusal() is line.refusal() for _ in range(100))
    line.breaker.reset(line.now)
    for _ in range(5):
        line.end(line.permit(), FAILURE, text="x" * 10_000)
    assert line.refusal().last_failure == "x" * 200


def test_R44_half_open_lets_no_more_than_its_probes_through():
    line = half_open(Circuit(probes=3))
    for _ in range(3):
        assert line.permit().probe
    assert line.refusal().state is HALF_OPEN
    assert line.refusal().retry_at is None


def test_R45_a_cancelled_probe_gives_its_place_back_and_leaves_no_trace():
    line = half_open()
    line.end(line.permit(), CANCELLED)
    assert line.state is HALF_OPEN
    assert line.metrics.successes == 0
    assert line.metrics.failures == 5
    line.end(line.permit(), SUCCESS)
    assert line.state is CLOSED


def test_R46_a_probe_that_ends_in_an_ignored_error_neither_closes_nor_opens():
    line = half_open()
    line.end(line.permit(), IGNORED)
    assert line.state is HALF_OPEN
    assert line.changes() == [(OPEN, HALF_OPEN)]
    line.end(line.permit(), IGNORED)
    assert line.state is HALF_OPEN
    line.end(line.permit(), FAILURE)
    assert line.state is OPEN


def test_R46_ignored_and_cancelled_calls_neither_count_nor_end_a_streak():
    line = Line(PROVIDER).bad(4)
    for verdict in (IGNORED, CANCELLED):
        line.call(verdict)
    assert line.metrics.window_calls == 4
    assert line.bad().state is OPEN


def test_R47_a_probe_that_never_returns_stops_holding_its_place():
    line = half_open(Circuit(probe_limit=60.0))
    line.permit()
    line.wait(59.5).refusal()
    line.wait(0.5).good()
    assert line.state is CLOSED


def test_R47_a_service_that_hangs_is_found_to_be_back_in_less_than_half_a_minute():
    line = half_open(PROVIDER)
    line.permit()  # it hangs for the minute that an attempt has, and meanwhile the service returns
    line.wait(20.0).good()
    assert line.state is CLOSED


def test_R47_a_probe_that_comes_back_after_all_still_counts_while_half_open():
    line = half_open()
    lost = line.permit()
    line.wait(60.0)
    line.permit()
    line.taken()
    line.end(lost, FAILURE)
    assert line.changes() == [(HALF_OPEN, OPEN)]
    line.permit()  # its time to the next probe was over while it was lost


def test_R49_a_late_failure_while_open_changes_nothing_but_the_totals():
    line = Line(PROVIDER)
    late = [line.permit() for _ in range(5)]
    line.bad(5)
    until = line.refusal().retry_at
    opened_once = line.changes()
    line.wait(10.0)
    for permit in late:
        line.end(permit, FAILURE, "PROVIDER_TIMEOUT")
    assert opened_once == [(CLOSED, OPEN)]
    assert line.changes() == []
    assert line.refusal().retry_at == until
    assert line.refusal().reason == "PROVIDER_OVERLOADED"
    assert line.metrics.failures == 10
    assert line.metrics.opens == 1


def test_R49_a_late_success_does_not_close_what_has_opened_since():
    line = Line(TWO_PROBES)
    late = line.permit()
    line.bad(5)
    line.end(late, SUCCESS)
    assert line.state is OPEN
    line.wait(30.0)
    early = line.permit()
    line.end(early, FAILURE)
    assert line.state is OPEN


def test_R50_one_success_of_two_keeps_it_half_open():
    line = half_open(TWO_PROBES).good()
    assert line.state is HALF_OPEN
    assert line.good().state is CLOSED


def test_R50_S4_11_one_good_probe_then_a_bad_one_reopens_with_a_fresh_timer():
    line = half_open(TWO_PROBES).good().wait(2.0).bad()
    assert line.state is OPEN
    assert line.refusal().retry_at == line.now + 20.0
    assert line.taken()[-1].rule is Rule.PROBE


def test_R50_good_probes_of_the_last_time_do_not_count_this_time():
    line = half_open(TWO_PROBES).good().bad().wait(30.0).good()
    assert line.state is HALF_OPEN


def test_R50_a_late_success_cannot_override_the_failure_that_reopened_it():
    line = half_open(Circuit(probes=2))
    first, second = line.permit(), line.permit()
    line.end(first, FAILURE)
    line.end(second, SUCCESS)
    assert line.state is OPEN


def test_R51_closing_empties_the_window_so_that_it_does_not_trip_at_once():
    line = Line(BY_RATE).bad(10).wait(30.0).good()
    assert line.state is CLOSED
    assert line.metrics.window_calls == 0
    assert line.bad(9).state is CLOSED


def test_R54_slow_calls_open_it_without_any_failure_and_the_threshold_itself_is_slow():
    config = Circuit(slow=5.0, slow_rate=0.5, volume=4)
    quick = Line(config).good(20, took=4.875)
    assert quick.state is CLOSED
    line = Line(config).good(2).good(took=5.0)
    assert line.state is CLOSED
    line.good(took=5.0)
    assert line.state is OPEN
    assert line.metrics.failures == 0
    assert line.taken()[0].rule is Rule.SLOW


def test_R54_a_slow_failure_is_slow_and_failed():
    line = Line(Circuit(slow=5.0, slow_rate=1.0, volume=10)).good().bad(took=5.0)
    assert line.metrics.failure_rate == 0.5
    assert line.metrics.slow_rate == 0.5


def test_R54_a_probe_that_is_still_slow_reopens():
    line = Line(Circuit(slow=5.0, slow_rate=1.0, volume=1)).good(took=5.0).wait(30.0).good(took=6.0)
    assert line.state is OPEN
    assert line.wait(30.0).good(took=1.0).state is CLOSED


def test_R55_the_call_that_trips_it_is_not_told_that_the_circuit_is_open():
    line = Line(PROVIDER).bad(4)
    permit = line.permit()
    assert line.breaker.settle(permit, FAILURE, line.now) is None
    assert line.state is OPEN


def test_R57_entering_while_open_is_refused_and_needs_no_settling():
    line = opened()
    for _ in range(3):
        line.refusal()
    assert line.metrics.rejected == 3
    assert line.metrics.total_calls == 5


def test_R58_only_the_time_it_is_handed_moves_it():
    """No wall clock is read: two breakers on lines an hour apart behave alike, step by step."""
    for hour in (-3600.0, 3600.0):
        here, there = Line(PROVIDER, start=7200.0), Line(PROVIDER, start=7200.0 + hour)
        for verdict, seconds in itertools.product((FAILURE, SUCCESS, FAILURE), (0.0, 1.0, 29.5, 30.0, 61.0)):
            for line in (here, there):
                answer = line.breaker.admit(line.now)
                if not isinstance(answer, Rejection):
                    line.end(answer, verdict)
                line.wait(seconds)
            assert here.state is there.state
            assert there.metrics.failure_rate == here.metrics.failure_rate


def test_R61_a_permit_per_attempt_counts_attempts_and_one_permit_counts_the_operation():
    per_attempt, per_operation = Line(PROVIDER), Line(PROVIDER)
    permit = per_operation.permit()
    for _ in range(3):
        per_attempt.bad()
    per_operation.end(permit, FAILURE)
    assert per_attempt.metrics.failures == 3
    assert per_operation.metrics.failures == 1


def test_R62_held_open_twice_and_released_once_it_is_still_open():
    line = Line(PROVIDER)
    line.breaker.force_open(line.now)
    line.breaker.force_open(line.now)
    line.breaker.release(line.now)
    assert line.refusal().rule is Rule.FORCED
    line.breaker.release(line.now)
    assert line.good().state is CLOSED


def test_R62_held_open_it_is_never_left_by_time():
    line = Line(PROVIDER)
    line.breaker.force_open(line.now)
    assert line.wait(1e9).state is OPEN
    assert line.refusal().retry_at is None


def test_R85_state_survives_another_configuration():
    line = opened()
    line.breaker.reconfigure(Circuit(failures=50, successes=3), line.now)
    assert line.wait(29.0).state is OPEN
    assert line.wait(1.0).good(2).state is HALF_OPEN
    assert line.good().state is CLOSED


def test_R85_a_call_in_flight_ends_under_the_new_configuration():
    line = Line(PROVIDER).bad(2)
    permit = line.permit()
    line.breaker.reconfigure(Circuit(failures=3), line.now)
    line.end(permit, FAILURE)
    assert line.state is OPEN


def test_R85_the_window_survives_another_length():
    line = Line(BY_RATE).good(3).wait(30.0).bad(4)
    line.breaker.reconfigure(BY_RATE.replace(window=600.0), line.now)
    assert (line.metrics.window_calls, line.metrics.failure_rate) == (7, 4 / 7)
    line.breaker.reconfigure(BY_RATE.replace(window=20.0), line.now)
    assert (line.metrics.window_calls, line.metrics.failure_rate) == (4, 1.0)


def test_R85_a_shorter_cap_shortens_an_open_time():
    line = Line(Circuit(open_for=600.0)).bad(5)
    line.breaker.reconfigure(Circuit(open_for=5.0, open_cap=10.0), line.now)
    assert line.refusal().retry_at == line.now + 10.0
    assert line.wait(10.0).good().state is CLOSED


def test_S0_27_C10_the_open_boundary_belongs_to_half_open():
    assert opened().wait(29.9375).state is OPEN
    assert opened().wait(30.0).state is HALF_OPEN
