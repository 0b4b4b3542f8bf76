"""The cases of section R about circuits, each under its id. Cases that need a function to call are tested in the runtime."""

from __future__ import annotations

import itertools

import pytest
from circuit_bench import CANCELLED, CLOSED, FAILURE, HALF_OPEN, IGNORED, OPEN, START, SUCCESS, Bench

from holdfast.policies.circuit import PROVIDER, Circuit, Rejection, Rule

BY_RATE = Circuit(failures=None, rate=0.5, volume=10, window=60.0)
TWO_PROBES = Circuit(successes=2)


def opened(config: Circuit = PROVIDER) -> Bench:
    bench = Bench(config).bad(5)
    assert bench.state is OPEN
    bench.taken()
    return bench


def half_open(config: Circuit = PROVIDER) -> Bench:
    return opened(config).wait(config.open_for)


def test_R41_nine_failures_of_a_volume_of_ten_leave_it_closed_and_the_tenth_opens_it():
    bench = Bench(BY_RATE).bad(9)
    assert bench.state is CLOSED
    assert bench.bad().state is OPEN


@pytest.mark.parametrize(("rate", "bad"), [(0.5, 5), (0.7, 7), (0.3, 3), (0.1, 1), (1.0, 10)])
def test_R41_a_rate_exactly_at_the_threshold_opens(rate, bad):
    bench = Bench(BY_RATE.replace(rate=rate)).good(10 - bad).bad(bad - 1)
    assert bench.state is CLOSED
    assert bench.bad().state is OPEN
    assert bench.taken()[0].rule is Rule.RATE


def test_R41_a_rate_just_below_the_threshold_does_not_open():
    assert Bench(BY_RATE).good(6).bad(5).state is CLOSED


def test_R41_a_good_call_that_fills_the_volume_does_not_open_it_but_the_next_failure_does():
    bench = Bench(BY_RATE).bad(9).good()
    assert bench.state is CLOSED
    assert bench.bad().state is OPEN


@pytest.mark.parametrize("config", [BY_RATE, Circuit(failures=10, counted="window", rate=None)], ids=["rate", "count"])
def test_R42_failures_spread_beyond_the_window_leave_it_closed(config):
    bench = Bench(config)
    for _ in range(50):
        bench.bad().wait(7.0)
    assert bench.state is CLOSED
    assert bench.metrics.failures == 50


def test_R42_the_window_slides_so_that_no_edge_hides_a_burst():
    """semian#24, gobreaker#21: a window that starts from zero forgets what happened just before its edge."""
    for offset in range(60):
        bench = Bench(BY_RATE, start=START + offset)
        bench.bad(5).wait(3.0).bad(5)
        assert bench.state is OPEN, offset


def test_R42_the_good_calls_before_an_edge_still_weigh_after_it():
    """gobreaker#21: nine per cent of failures looked like ninety, because the good calls had just been forgotten."""
    for offset in range(60):
        bench = Bench(BY_RATE, start=START + offset)
        bench.good(100).wait(3.0).bad(9)
        bench.good().bad()
        assert bench.state is CLOSED, offset


def test_R43_a_rejection_says_who_why_and_until_when():
    bench = Bench(PROVIDER).bad(4)
    bench.end(bench.permit(), FAILURE, "PROVIDER_TIMEOUT", text="no answer in 60 s")
    assert bench.wait(1.0).rejection() == Rejection(
        name="provider:claude",
        state=OPEN,
        retry_at=START + 30.0,
        reason="PROVIDER_TIMEOUT",
        last_failure="no answer in 60 s",
        rule=Rule.FAILURES,
    )


def test_R43_a_rejection_does_not_grow():
    bench = opened()
    assert all(bench.rejection() is bench.rejection() for _ in range(100))
    bench.breaker.reset(bench.now)
    for _ in range(5):
        bench.end(bench.permit(), FAILURE, text="x" * 10_000)
    assert bench.rejection().last_failure == "x" * 200


def test_R44_half_open_lets_no_more_than_its_probes_through():
    bench = half_open(Circuit(probes=3))
    for _ in range(3):
        assert bench.permit().probe
    assert bench.rejection().state is HALF_OPEN
    assert bench.rejection().retry_at is None


def test_R45_a_cancelled_probe_gives_its_place_back_and_leaves_no_trace():
    bench = half_open()
    bench.end(bench.permit(), CANCELLED)
    assert bench.state is HALF_OPEN
    assert bench.metrics.successes == 0
    assert bench.metrics.failures == 5
    bench.end(bench.permit(), SUCCESS)
    assert bench.state is CLOSED


def test_R46_a_probe_that_ends_in_an_ignored_error_neither_closes_nor_opens():
    bench = half_open()
    bench.end(bench.permit(), IGNORED)
    assert bench.state is HALF_OPEN
    assert bench.changes() == [(OPEN, HALF_OPEN)]
    bench.end(bench.permit(), IGNORED)
    assert bench.state is HALF_OPEN
    bench.end(bench.permit(), FAILURE)
    assert bench.state is OPEN


def test_R46_ignored_and_cancelled_calls_neither_count_nor_end_a_streak():
    bench = Bench(PROVIDER).bad(4)
    for verdict in (IGNORED, CANCELLED):
        bench.call(verdict)
    assert bench.metrics.window_calls == 4
    assert bench.bad().state is OPEN


def test_R47_a_probe_that_never_returns_stops_holding_its_place():
    bench = half_open(Circuit(probe_limit=60.0))
    bench.permit()
    bench.wait(59.5).rejection()
    bench.wait(0.5).good()
    assert bench.state is CLOSED


def test_R47_a_service_that_hangs_is_found_to_be_back_in_less_than_half_a_minute():
    bench = half_open(PROVIDER)
    bench.permit()  # it hangs for the minute that an attempt has, and meanwhile the service returns
    bench.wait(20.0).good()
    assert bench.state is CLOSED


def test_R47_a_probe_that_comes_back_after_all_still_counts_while_half_open():
    bench = half_open()
    lost = bench.permit()
    bench.wait(60.0)
    bench.permit()
    bench.taken()
    bench.end(lost, FAILURE)
    assert bench.changes() == [(HALF_OPEN, OPEN)]
    bench.permit()  # its time to the next probe was over while it was lost


def test_R49_a_late_failure_while_open_changes_nothing_but_the_totals():
    bench = Bench(PROVIDER)
    late = [bench.permit() for _ in range(5)]
    bench.bad(5)
    until = bench.rejection().retry_at
    opened_once = bench.changes()
    bench.wait(10.0)
    for permit in late:
        bench.end(permit, FAILURE, "PROVIDER_TIMEOUT")
    assert opened_once == [(CLOSED, OPEN)]
    assert bench.changes() == []
    assert bench.rejection().retry_at == until
    assert bench.rejection().reason == "PROVIDER_OVERLOADED"
    assert bench.metrics.failures == 10
    assert bench.metrics.opens == 1


def test_R49_a_late_success_does_not_close_what_has_opened_since():
    bench = Bench(TWO_PROBES)
    late = bench.permit()
    bench.bad(5)
    bench.end(late, SUCCESS)
    assert bench.state is OPEN
    bench.wait(30.0)
    early = bench.permit()
    bench.end(early, FAILURE)
    assert bench.state is OPEN


def test_R50_one_success_of_two_keeps_it_half_open():
    bench = half_open(TWO_PROBES).good()
    assert bench.state is HALF_OPEN
    assert bench.good().state is CLOSED


def test_R50_S4_11_one_good_probe_then_a_bad_one_reopens_with_a_fresh_timer():
    bench = half_open(TWO_PROBES).good().wait(2.0).bad()
    assert bench.state is OPEN
    assert bench.rejection().retry_at == bench.now + 20.0
    assert bench.taken()[-1].rule is Rule.PROBE


def test_R50_good_probes_of_the_last_time_do_not_count_this_time():
    bench = half_open(TWO_PROBES).good().bad().wait(30.0).good()
    assert bench.state is HALF_OPEN


def test_R50_a_late_success_cannot_override_the_failure_that_reopened_it():
    bench = half_open(Circuit(probes=2))
    first, second = bench.permit(), bench.permit()
    bench.end(first, FAILURE)
    bench.end(second, SUCCESS)
    assert bench.state is OPEN


def test_R51_closing_empties_the_window_so_that_it_does_not_trip_at_once():
    bench = Bench(BY_RATE).bad(10).wait(30.0).good()
    assert bench.state is CLOSED
    assert bench.metrics.window_calls == 0
    assert bench.bad(9).state is CLOSED


def test_R54_slow_calls_open_it_without_any_failure_and_the_threshold_itself_is_slow():
    config = Circuit(slow=5.0, slow_rate=0.5, volume=4)
    quick = Bench(config).good(20, took=4.875)
    assert quick.state is CLOSED
    bench = Bench(config).good(2).good(took=5.0)
    assert bench.state is CLOSED
    bench.good(took=5.0)
    assert bench.state is OPEN
    assert bench.metrics.failures == 0
    assert bench.taken()[0].rule is Rule.SLOW


def test_R54_a_slow_failure_is_slow_and_failed():
    bench = Bench(Circuit(slow=5.0, slow_rate=1.0, volume=10)).good().bad(took=5.0)
    assert bench.metrics.failure_rate == 0.5
    assert bench.metrics.slow_rate == 0.5


def test_R54_a_probe_that_is_still_slow_reopens():
    bench = Bench(Circuit(slow=5.0, slow_rate=1.0, volume=1)).good(took=5.0).wait(30.0).good(took=6.0)
    assert bench.state is OPEN
    assert bench.wait(30.0).good(took=1.0).state is CLOSED


def test_R55_the_call_that_opens_it_gets_its_own_error():
    bench = Bench(PROVIDER).bad(4)
    permit = bench.permit()
    assert bench.breaker.settle(permit, FAILURE, bench.now) is None
    assert bench.state is OPEN


def test_R57_a_call_while_open_is_rejected_and_needs_no_settling():
    bench = opened()
    for _ in range(3):
        bench.rejection()
    assert bench.metrics.rejected == 3
    assert bench.metrics.total_calls == 5


def test_R58_only_the_time_it_is_handed_moves_it():
    """No wall clock is read: two breakers whose clocks are an hour apart behave alike, step by step."""
    for hour in (-3600.0, 3600.0):
        here, there = Bench(PROVIDER, start=7200.0), Bench(PROVIDER, start=7200.0 + hour)
        for verdict, seconds in itertools.product((FAILURE, SUCCESS, FAILURE), (0.0, 1.0, 29.5, 30.0, 61.0)):
            for bench in (here, there):
                answer = bench.breaker.admit(bench.now)
                if not isinstance(answer, Rejection):
                    bench.end(answer, verdict)
                bench.wait(seconds)
            assert here.state is there.state
            assert there.metrics.failure_rate == here.metrics.failure_rate


def test_R61_a_permit_per_attempt_counts_attempts_and_one_permit_counts_the_operation():
    per_attempt, per_operation = Bench(PROVIDER), Bench(PROVIDER)
    permit = per_operation.permit()
    for _ in range(3):
        per_attempt.bad()
    per_operation.end(permit, FAILURE)
    assert per_attempt.metrics.failures == 3
    assert per_operation.metrics.failures == 1


def test_R62_held_open_twice_and_released_once_it_is_still_open():
    bench = Bench(PROVIDER)
    bench.breaker.force_open(bench.now)
    bench.breaker.force_open(bench.now)
    bench.breaker.release(bench.now)
    assert bench.rejection().rule is Rule.FORCED
    bench.breaker.release(bench.now)
    assert bench.good().state is CLOSED


def test_R62_time_never_ends_what_is_held_open():
    bench = Bench(PROVIDER)
    bench.breaker.force_open(bench.now)
    assert bench.wait(1e9).state is OPEN
    assert bench.rejection().retry_at is None


def test_R85_state_survives_another_configuration():
    bench = opened()
    bench.breaker.reconfigure(Circuit(failures=50, successes=3), bench.now)
    assert bench.wait(29.0).state is OPEN
    assert bench.wait(1.0).good(2).state is HALF_OPEN
    assert bench.good().state is CLOSED


def test_R85_a_call_in_flight_ends_under_the_new_configuration():
    bench = Bench(PROVIDER).bad(2)
    permit = bench.permit()
    bench.breaker.reconfigure(Circuit(failures=3), bench.now)
    bench.end(permit, FAILURE)
    assert bench.state is OPEN


def test_R85_the_window_survives_another_length():
    bench = Bench(BY_RATE).good(3).wait(30.0).bad(4)
    bench.breaker.reconfigure(BY_RATE.replace(window=600.0), bench.now)
    assert (bench.metrics.window_calls, bench.metrics.failure_rate) == (7, 4 / 7)
    bench.breaker.reconfigure(BY_RATE.replace(window=20.0), bench.now)
    assert (bench.metrics.window_calls, bench.metrics.failure_rate) == (4, 1.0)


def test_R85_a_shorter_cap_shortens_an_open_time():
    bench = Bench(Circuit(open_for=600.0)).bad(5)
    bench.breaker.reconfigure(Circuit(open_for=5.0, open_cap=10.0), bench.now)
    assert bench.rejection().retry_at == bench.now + 10.0
    assert bench.wait(10.0).good().state is CLOSED


def test_S0_27_C10_the_open_boundary_belongs_to_half_open():
    assert opened().wait(29.9375).state is OPEN
    assert opened().wait(30.0).state is HALF_OPEN
