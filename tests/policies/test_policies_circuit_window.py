"""The sliding window against the list of all calls."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.circuit.window import PARTS, Window

SPAN = 60.0
WIDTH = SPAN / PARTS


def filled(window: Window, now: float, *, good: int = 0, bad: int = 0, slow: int = 0) -> None:
    if now >= window.ends:
        window.turn(now)
    window.good += good
    window.bad += bad
    window.slow += slow


def counts(window: Window, now: float) -> tuple[int, int, int]:
    if now >= window.ends:
        window.turn(now)
    return window.calls, window.failures, window.slow_calls


gaps = st.one_of(
    st.just(0.0), st.floats(0, WIDTH), st.floats(0, 2 * SPAN), st.integers(0, 3 * PARTS).map(WIDTH.__mul__)
)
steps = st.lists(st.tuples(gaps, st.integers(0, 3), st.integers(0, 3)), max_size=60)


@given(steps=steps, start=st.floats(0, 1e7))
def test_it_counts_what_lies_in_the_present_part_and_those_before_it(steps, start):
    window, now, calls = Window(SPAN), start, []
    for gap, good, bad in steps:
        now += gap
        filled(window, now, good=good, bad=bad, slow=bad)
        calls.append((now, good, bad))
        total, failures, slow = counts(window, now)
        surely = [call for call in calls if call[0] > now - SPAN + WIDTH + 1e-6]
        possibly = [call for call in calls if call[0] > now - SPAN - 1e-6]
        assert sum(g + b for _, g, b in surely) <= total <= sum(g + b for _, g, b in possibly)
        assert sum(b for _, _, b in surely) <= failures <= sum(b for _, _, b in possibly)
        assert slow == failures


def test_a_call_is_forgotten_with_its_part_and_not_before_nineteen_twentieths():
    window = Window(SPAN)
    filled(window, 0.0, bad=1)
    assert counts(window, SPAN - WIDTH)[1] == 1
    assert counts(window, SPAN - 0.001)[1] == 1
    assert counts(window, SPAN)[1] == 0


@pytest.mark.parametrize("long", [SPAN, 10 * SPAN, 1e9])
def test_after_a_long_silence_it_is_empty(long):
    window = Window(SPAN)
    for tick in range(PARTS):
        filled(window, tick * WIDTH, good=1, bad=1, slow=1)
    assert counts(window, (PARTS - 1) * WIDTH) == (2 * PARTS, PARTS, PARTS)
    assert counts(window, PARTS * WIDTH + long) == (0, 0, 0)


def test_an_earlier_time_goes_to_the_present_part():
    window = Window(SPAN)
    filled(window, 100.0, bad=1)
    window.turn(50.0)
    filled(window, 50.0, bad=1)
    assert counts(window, 100.0) == (2, 2, 0)


def test_clear_forgets_everything():
    window = Window(SPAN)
    filled(window, 0.0, good=2, bad=1, slow=1)
    filled(window, 10.0, good=2, bad=1, slow=1)
    window.clear()
    assert counts(window, 10.0) == (0, 0, 0)
    assert list(window.parts(10.0)) == []


@given(steps=steps, ahead=st.floats(0, 1e6), span=st.sampled_from([1.0, SPAN, 600.0]), offset=st.floats(0, SPAN))
def test_what_another_window_takes_over_never_outlives_its_time(steps, ahead, span, offset):
    """With another grid, length or clock, a call is forgotten too early rather than too late."""
    window, now, calls = Window(SPAN), 0.0, []
    for gap, good, bad in steps:
        now += gap
        filled(window, now, good=good, bad=bad)
        calls.append((now, good + bad))
    other, there = Window(span), now + ahead + offset
    other.load(window.parts(now), there)
    assert counts(other, there)[0] <= counts(window, now)[0]
    for age in (0.0, 0.25 * span, 0.5 * span, 0.9 * span, span):
        alive = sum(n for at, n in calls if at > now + age - span - span / PARTS * 0.01)
        assert counts(other, there + age)[0] <= alive


@given(steps=steps, start=st.floats(0, 1e6))
def test_a_window_taken_over_on_the_same_grid_is_the_same(steps, start):
    window, now = Window(SPAN), start
    for gap, good, bad in steps:
        now += gap
        filled(window, now, good=good, bad=bad)
    other = Window(SPAN)
    window.turn(now)
    other.load(window.parts(now), now)
    for later in range(PARTS + 1):
        assert counts(other, now + later * WIDTH) == counts(window, now + later * WIDTH)


def test_a_fresh_window_is_over_at_once_so_that_the_first_call_finds_its_part():
    window = Window(SPAN)
    assert window.ends == -math.inf
    window.turn(61.0)
    assert window.ends == 63.0
