"""The virtual clock: moves when told, measures without noticing what the wall does."""

from __future__ import annotations

import math

import pytest

from holdfast import InvalidError
from holdfast.clock import Clock
from holdfast.testing import VirtualClock


def test_it_is_a_clock_and_starts_where_it_is_told():
    clock: Clock = VirtualClock(wall=1000, monotonic=40)
    assert (clock.wall(), clock.monotonic()) == (1000.0, 40.0)


def test_it_starts_at_the_same_instant_in_every_run():
    assert VirtualClock().wall() == VirtualClock().wall() == 1_735_689_600.0


@pytest.mark.parametrize("move", [VirtualClock.advance, VirtualClock.sleep])
def test_advancing_and_sleeping_move_both_readings(move):
    clock = VirtualClock(wall=1000, monotonic=40)
    move(clock, 160)
    assert (clock.wall(), clock.monotonic()) == (1160.0, 200.0)


@pytest.mark.parametrize("by", [3600, -3600])
def test_R58_the_wall_jumps_and_what_is_measured_does_not(by):
    clock = VirtualClock(wall=10_000, monotonic=5)
    clock.jump(by)
    assert (clock.wall(), clock.monotonic()) == (10_000 + by, 5.0)
    clock.advance(1)
    assert (clock.wall(), clock.monotonic()) == (10_001 + by, 6.0)


def test_many_small_steps_are_not_lost_to_rounding():
    clock = VirtualClock()
    for _ in range(100_000):
        clock.advance(1e-6)
    assert clock.wall() - VirtualClock().wall() == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, True, "1", None])
def test_it_never_goes_back_and_takes_only_numbers(seconds):
    clock = VirtualClock()
    with pytest.raises(InvalidError, match="advance: expected a finite number of seconds"):
        clock.advance(seconds)
    assert clock.monotonic() == 0


@pytest.mark.parametrize("seconds", [-1001, math.nan, math.inf, True, "1"])
def test_a_jump_before_the_epoch_is_refused(seconds):
    clock = VirtualClock(wall=1000)
    with pytest.raises(InvalidError, match="jump: expected a finite number ≥ -1000"):
        clock.jump(seconds)
    assert clock.wall() == 1000


@pytest.mark.parametrize("start", [{"wall": -1}, {"monotonic": math.nan}])
def test_a_start_that_is_no_time_is_refused(start):
    with pytest.raises(InvalidError, match=next(iter(start))):
        VirtualClock(**start)


def test_its_repr_can_be_pasted():
    clock = VirtualClock(wall=1000, monotonic=40)
    clock.advance(2)
    again = eval(repr(clock))
    assert (again.wall(), again.monotonic()) == (1002, 42)
