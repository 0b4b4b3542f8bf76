"""Adaptive thresholds: the usual failure rate moves them within bounds, and an outage is never learned as usual."""

from __future__ import annotations

import pytest
from circuit_bench import CLOSED, OPEN, Bench
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.circuit import Circuit
from holdfast.policies.circuit.window import LEAST, MOST, UsualRate

ADAPTIVE = Circuit(failures=6, rate=None, adaptive=True)


def after(calls: int, every: int | None, config: Circuit = ADAPTIVE) -> Bench:
    """Return a bench whose history holds these calls, one a second, of which every n-th failed."""
    bench = Bench(config)
    for number in range(calls):
        (bench.bad if every and number % every == 0 else bench.good)()
        bench.wait(1.0)
    # Calls become history when they leave the window, and the next call is what moves the window.
    return bench.wait(120.0).good()


def failures_until_open(bench: Bench) -> int:
    for count in range(1, 100):
        if bench.bad().state is OPEN:
            return count
    raise AssertionError("it never opened")


@pytest.mark.parametrize(
    ("every", "expected"), [(None, 3), (10, 6), (2, 12)], ids=["spotless", "one in ten", "every second"]
)
def test_the_count_scales_from_half_to_double_with_what_is_usual(every, expected):
    assert failures_until_open(after(400, every)) == expected


def test_off_by_default():
    assert failures_until_open(after(400, None, Circuit(failures=6, rate=None))) == 6


def test_without_enough_history_the_thresholds_are_as_written():
    assert failures_until_open(after(19, None)) == 6


def test_the_rate_scales_too_and_never_beyond_all():
    config = Circuit(failures=None, rate=0.6, volume=10, adaptive=True)
    strict = after(400, None, config).wait(60.0).good(7).bad(2)
    assert strict.state is CLOSED
    assert strict.bad().state is OPEN
    tolerant = after(400, 2, config).wait(60.0).bad(9)
    assert tolerant.state is CLOSED
    assert tolerant.bad().state is OPEN


def test_an_outage_teaches_nothing():
    bench = after(400, None)
    bench.bad(3)
    for _ in range(50):
        bench.wait(30.0).bad()
    assert bench.wait(30.0).good().state is CLOSED
    assert failures_until_open(bench.wait(120.0)) == 3


def test_it_learns_and_forgets():
    usual = UsualRate()
    for _ in range(1000):
        usual.learn(10, 10)
    assert usual.factor() == MOST
    for _ in range(1000):
        usual.learn(10, 0)
    assert usual.factor() == pytest.approx(LEAST, abs=0.01)


@given(st.lists(st.integers(0, 1000).flatmap(lambda calls: st.tuples(st.just(calls), st.integers(0, calls)))))
def test_the_factor_is_bounded_whatever_happened(parts):
    usual = UsualRate()
    for calls, bad in parts:
        usual.learn(calls, bad)
    assert LEAST <= usual.factor() <= MOST


def test_what_was_learned_survives_another_configuration_that_is_adaptive_too():
    bench = after(400, None)
    bench.breaker.reconfigure(ADAPTIVE.replace(failures=8), bench.now)
    assert failures_until_open(bench) == 4
    other = after(400, None)
    other.breaker.reconfigure(ADAPTIVE.replace(adaptive=False), other.now)
    assert failures_until_open(other) == 6
    other.breaker.reset(other.now)
    other.breaker.reconfigure(ADAPTIVE, other.now)
    assert failures_until_open(other) == 6
