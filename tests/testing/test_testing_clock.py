"""The virtual clock and the random sources for tests."""

from __future__ import annotations

import math

import pytest

from holdfast import InvalidError
from holdfast.clock import Clock, Rng
from holdfast.testing import Midpoint, Scripted, VirtualClock, seeded


def test_it_is_a_clock_and_starts_at_the_given_times():
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
def test_R58_a_jump_moves_the_wall_clock_and_no_duration(by):
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
def test_a_jump_before_the_epoch_raises(seconds):
    clock = VirtualClock(wall=1000)
    with pytest.raises(InvalidError, match="jump: expected a finite number ≥ -1000"):
        clock.jump(seconds)
    assert clock.wall() == 1000


@pytest.mark.parametrize("start", [{"wall": -1}, {"monotonic": math.nan}])
def test_an_invalid_start_raises(start):
    with pytest.raises(InvalidError, match=next(iter(start))):
        VirtualClock(**start)


def test_its_repr_can_be_pasted():
    clock = VirtualClock(wall=1000, monotonic=40)
    clock.advance(2)
    again = eval(repr(clock))
    assert (again.wall(), again.monotonic()) == (1002, 42)


def test_the_midpoint_is_always_the_middle():
    rng: Rng = Midpoint()
    assert [rng.random() for _ in range(3)] == [0.5, 0.5, 0.5]


def test_scripted_numbers_come_in_order_and_a_draw_too_many_fails():
    rng = Scripted(0, 0.25, 0.999)
    assert (rng.random(), rng.random(), rng.left) == (0, 0.25, 1)
    assert rng.random() == 0.999
    with pytest.raises(AssertionError, match="at most 3 random numbers to be drawn, got one draw more"):
        rng.random()


@pytest.mark.parametrize("number", [-0.1, 1, 1.5, math.nan, True, "0.5"])
def test_a_number_that_random_never_returns_raises(number):
    with pytest.raises(InvalidError, match=r"numbers\[1\]: expected a number"):
        Scripted(0.5, number)


def test_one_seed_gives_the_same_numbers_and_another_gives_others():
    def drawn(seed):
        rng = seeded(seed)
        return [rng.random() for _ in range(5)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


@pytest.mark.parametrize("seed", [None, 1.5, "1", True, -1])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(InvalidError, match="seed: expected a whole number"):
        seeded(seed)


@pytest.mark.parametrize("rng", [Midpoint(), Scripted(0.5, 0.25)])
def test_a_repr_can_be_pasted(rng):
    assert repr(eval(repr(rng))) == repr(rng)
