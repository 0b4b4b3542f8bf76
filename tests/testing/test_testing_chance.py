"""Random sources that surprise nobody."""

from __future__ import annotations

import math

import pytest

from holdfast import InvalidError
from holdfast.clock import Rng
from holdfast.testing import Midpoint, Scripted, seeded


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
def test_a_number_that_random_never_returns_is_refused(number):
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
