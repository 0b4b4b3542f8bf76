"""Counts mean what their names say (N1-6, N1-9, S1-13)."""

from __future__ import annotations

from circuit_bench import CANCELLED, CLOSED, IGNORED, OPEN, START, Bench

from holdfast.policies.circuit import PROVIDER, BreakerMetrics, Circuit


def test_N1_6_a_fresh_circuit_has_done_nothing():
    assert Bench(PROVIDER).metrics == BreakerMetrics(
        name="provider:claude",
        state=CLOSED,
        failures=0,
        successes=0,
        ignored=0,
        cancelled=0,
        total_calls=0,
        rejected=0,
        opens=0,
        consecutive_failures=0,
        window_calls=0,
        failure_rate=0.0,
        slow_rate=0.0,
        last_failure=None,
        last_success=None,
        last_state_change=None,
        open_until=None,
    )


def test_N1_6_every_count_after_a_life():
    bench = Bench(Circuit(failures=3)).good(4).wait(1.0).bad(2)
    bench.call(IGNORED)
    bench.call(CANCELLED)
    bench.wait(1.0).bad()
    bench.rejection()
    bench.rejection()
    assert bench.metrics == BreakerMetrics(
        name="provider:claude",
        state=OPEN,
        failures=3,
        successes=4,
        ignored=1,
        cancelled=1,
        total_calls=9,
        rejected=2,
        opens=1,
        consecutive_failures=3,
        window_calls=7,
        failure_rate=3 / 7,
        slow_rate=0.0,
        last_failure=START + 2.0,
        last_success=START,
        last_state_change=START + 2.0,
        open_until=START + 32.0,
    )


def test_N1_9_running_and_rejected_calls_are_not_calls_that_ended():
    bench = Bench(PROVIDER)
    bench.permit()
    assert bench.metrics.total_calls == 0
    bench.breaker.force_open(bench.now)
    bench.rejection()
    assert bench.metrics.total_calls == 0
    assert bench.metrics.rejected == 1


def test_each_opening_is_counted_reopening_included():
    bench = Bench(PROVIDER).bad(5).wait(30.0).bad().wait(30.0).good().bad(5)
    assert bench.metrics.opens == 3


def test_the_failure_rate_is_of_the_window_and_stays_while_open():
    bench = Bench(Circuit(failures=3, window=60.0)).good(3).wait(61.0).good().bad(3)
    assert bench.metrics.failure_rate == 0.75
    assert bench.wait(1000.0).metrics.failure_rate == 0.75
    assert bench.good().metrics.failure_rate == 0.0


def test_the_failure_rate_of_a_quiet_circuit_is_none():
    bench = Bench(PROVIDER).bad(3).wait(61.0)
    assert bench.metrics.failure_rate == 0.0
    assert bench.metrics.failures == 3
