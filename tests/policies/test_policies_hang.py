"""Hangs: a call is stopped when it takes far longer than usual, and hardly ever a slow one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from holdfast.policies.hang import ENOUGH, LEAST_S, SOME, UNSURE_S, HangWatch


def watch(*seconds: float) -> HangWatch:
    it = HangWatch()
    for each in seconds:
        it.took(each)
    return it


def test_nothing_is_stopped_while_nobody_knows_how_long_answers_take() -> None:
    assert watch(*[1.0] * (SOME - 1)).limit() is None
    assert watch(*[1.0] * SOME).limit() == UNSURE_S
    assert watch(*[1.0] * ENOUGH).limit() == LEAST_S


def test_the_slowest_of_the_recent_answers_counts() -> None:
    assert watch(*[1.0] * 60, 20.0).limit() == 80
    assert watch(20.0, *[1.0] * 500).limit() == LEAST_S, "an answer of long ago does not"


def test_stops_in_a_row_double_the_limit_and_an_answer_sets_it_back() -> None:
    it = watch(*[1.0] * 60)
    for at in (100.0, 100.1, 100.2):
        it.stopped(at)
    assert it.limit() == 2 * LEAST_S, "calls that hang in one moment hang for one reason"
    it.stopped(130.0)
    assert it.limit() == 4 * LEAST_S
    it.took(1.0)
    assert it.limit() == LEAST_S


TAILS: dict[str, Callable[[random.Random], float]] = {
    "exponential": lambda rng: rng.expovariate(1 / 5),
    "lognormal": lambda rng: rng.lognormvariate(1.0, 1.2),
    "pareto": lambda rng: rng.paretovariate(1.5),
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_at_most_one_in_a_thousand_slow_answers_is_stopped(tail: str, slower: float) -> None:
    """Also where all answers suddenly take three times as long."""
    calls, stopped = 20_000, 0
    rng, it = random.Random(11), HangWatch()
    for number in range(calls):
        took = TAILS[tail](rng) * (slower if number > calls / 2 else 1.0)
        limit = it.limit()
        if limit is not None and took > limit:
            stopped += 1
            it.stopped(float(number * 10))
        else:
            it.took(took)
    assert stopped <= calls / 1000


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_at_most_one_in_a_thousand_slow_streams_is_stopped(tail: str, slower: float) -> None:
    """Streams of 2 to 60 items, where one stream is one sample: its longest gap."""
    streams, stopped = 20_000, 0
    rng, it = random.Random(12), HangWatch()
    for number in range(streams):
        factor = slower if number > streams / 2 else 1.0
        longest = max(TAILS[tail](rng) * factor for _ in range(rng.randint(2, 60)))
        limit = it.limit()
        if limit is not None and longest > limit:
            stopped += 1
            it.stopped(float(number * 10))
        else:
            it.took(longest)
    assert stopped <= streams / 1000
