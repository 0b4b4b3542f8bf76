"""The documents' circuits, number by number (REQUIREMENTS part 9, C9)."""

from __future__ import annotations

import pytest
from circuit_bench import CLOSED, HALF_OPEN, OPEN, Bench

from holdfast.policies.circuit import ACTOR, BRIDGE, PROVIDER, SPEC016, Circuit


def test_part_9_S0_breaker_bridge():
    """5th failure opens; calls within 60 s are rejected; after that half-open; a success closes and zeroes; a failure reopens."""
    bench = Bench(BRIDGE).bad(4)
    assert bench.state is CLOSED
    assert bench.bad().state is OPEN
    bench.wait(59.0).rejection()
    assert bench.wait(1.0).state is HALF_OPEN
    assert bench.bad().state is OPEN
    assert bench.wait(60.0).good().state is CLOSED
    assert bench.bad(4).state is CLOSED
    assert bench.bad().state is OPEN


def test_part_9_S1_breaker_provider_S1_29_S1_30():
    """Opens on the 5th consecutive failure, half-open at 30 s, closes on the first good probe."""
    bench = Bench(PROVIDER).good(100).bad(4)
    assert bench.state is CLOSED
    assert bench.bad().state is OPEN
    assert bench.wait(29.0).state is OPEN
    assert bench.wait(1.0).state is HALF_OPEN
    assert bench.permit().probe
    bench.rejection()
    assert bench.wait(60.0).good().state is CLOSED


def test_part_9_S1_breaker_provider_opens_at_half_of_ten_calls():
    bench = Bench(PROVIDER)
    for _ in range(4):
        bench.good().bad()
    assert bench.good().state is CLOSED
    assert bench.bad().state is OPEN


def test_part_9_S1_breaker_spec016_needs_ten_calls_and_closes_after_two():
    """S1-12, N1-6: five failures in the window open it only once ten calls were seen."""
    bench = Bench(SPEC016).bad(9)
    assert bench.state is CLOSED
    assert bench.bad().state is OPEN
    assert bench.wait(30.0).good().state is HALF_OPEN
    assert bench.good().state is CLOSED


def test_N1_6_spec016_counts_failures_in_the_window_not_in_a_row():
    bench = Bench(SPEC016).good(8)
    for _ in range(4):
        bench.bad().good()
    assert bench.state is CLOSED
    assert bench.bad().state is OPEN


def test_N1_6_spec016_forgets_failures_older_than_its_window():
    bench = Bench(SPEC016).good(8).bad(4).wait(60.0).good(9).bad()
    assert bench.state is CLOSED


def test_part_9_S4_breaker_actor_closes_after_two_and_one_good_then_one_bad_reopens():
    bench = Bench(ACTOR).bad(5).wait(59.0)
    assert bench.state is OPEN
    assert bench.wait(1.0).good().state is HALF_OPEN
    assert bench.bad().state is OPEN
    assert bench.wait(60.0).good(2).state is CLOSED


def test_C9_the_default_is_the_provider_preset():
    assert Circuit() == PROVIDER


@pytest.mark.parametrize("preset", [PROVIDER, BRIDGE, SPEC016, ACTOR])
def test_a_preset_can_be_pasted_from_its_repr(preset):
    assert eval(repr(preset), {"Circuit": Circuit}) == preset


def test_consecutive_failures_count_however_slowly_they_come():
    bench = Bench(BRIDGE)
    for _ in range(5):
        bench.bad().wait(3600.0)
    assert bench.metrics.opens == 1
