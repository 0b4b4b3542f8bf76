"""A count over a sliding window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.tally import Tally

GAPS = st.lists(st.integers(0, 7), max_size=60)


def test_what_just_happened_is_counted_and_what_is_old_is_not():
    tally = Tally(1.0, 10)
    for _ in range(3):
        tally.add(100.0)
    assert tally.total(100.0) == 3
    assert tally.total(108.9) == 3
    assert tally.total(110.0) == 0


def test_slices_are_forgotten_one_by_one():
    tally = Tally(1.0, 3)
    for now in (0.0, 1.0, 2.0):
        tally.add(now)
    assert [tally.total(now) for now in (2.5, 3.0, 4.0, 5.0)] == [3, 2, 1, 0]


def test_a_clock_may_start_anywhere():
    for start in (-1e6, 0.0, 1e9):
        tally = Tally(1.0, 10)
        assert tally.total(start) == 0
        tally.add(start)
        assert tally.total(start) == 1


def test_the_latest_are_taken_back_first_and_never_more_than_there_are():
    tally = Tally(1.0, 3)
    tally.add(0.0)
    tally.add(1.0)
    tally.add(1.0)
    tally.take_back(1.0, 1)
    assert tally.total(1.0) == 2
    tally.take_back(2.0, 1)
    assert [tally.total(now) for now in (2.0, 3.0)] == [1, 0], "the event of 0.0 stays"
    tally.take_back(3.0, 5)
    assert tally.total(3.0) == 0


@given(GAPS)
def test_it_remembers_between_one_slice_less_and_the_whole_window(gaps):
    tally, now, times = Tally(1.0, 5), 0.0, []
    for gap in gaps:
        now += gap / 2
        tally.add(now)
        times.append(now)
        surely = sum(now - time < 4.0 for time in times)
        possibly = sum(now - time < 5.0 for time in times)
        assert surely <= tally.total(now) <= possibly


def test_memory_does_not_grow_with_traffic():
    tally = Tally(0.001, 10)
    for step in range(5000):
        tally.add(step * 0.0007)
    assert len(tally._past) < 10
