"""Early calls: the plain client's attempts wait for a learned pace only where waiting demonstrably helps."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from holdfast.policies.early import (
    EXPERIMENT_S,
    FIRST_FREE_S,
    LONGEST_FREE_S,
    LONGEST_TRIAL_S,
    AnnouncedCalls,
    EarlyCalls,
)


def after(outcomes: str, early: EarlyCalls | None = None, now: float = 0.0, *, is_early: bool = True) -> EarlyCalls:
    """Return calls that ended so: `+` accepted, `-` rejected."""
    if early is None:
        early = EarlyCalls()
        early.retry_accepted()
    for outcome in outcomes:
        number = early.started(is_early=is_early)
        early.ended(now, number, rejected=outcome == "-", is_early=is_early)
    return early


def helped() -> EarlyCalls:
    """Return early calls after an experiment in which those in turn were accepted."""
    early = after("-" * 10)
    after("-+++", early, 1.0, is_early=False)
    assert not early.may_start(EXPERIMENT_S)
    return early


def test_nobody_waits_before_anything_was_rejected():
    assert EarlyCalls().may_start(0.0)


def test_eight_rejections_in_a_row_hold_nobody_back_and_nine_do():
    assert after("-" * 8).may_start(0.0)
    assert not after("-" * 9).may_start(0.0)


def test_retries_count_only_where_one_was_accepted():
    early = after("-" * 30, EarlyCalls())
    assert early.may_start(0.0)
    early.retry_accepted()
    assert not early.may_start(0.0)


def test_nine_first_attempts_are_enough():
    early = EarlyCalls()
    for _ in range(9):
        assert early.may_start(0.0)
        early.ended(0.0, early.started(is_early=True), rejected=True, is_early=True, first=early.first_started())
    assert not early.may_start(0.0)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2])
def test_rejections_at_random_hardly_hold_anybody_back(share: float):
    rng, early, held = Random(7), after(""), 0
    for number in range(5000):
        held += not early.may_start(float(number))
        after("-" if rng.random() < share else "+", early, float(number))
    assert held <= 5


def test_calls_without_an_answer_count_as_accepted():
    """Answers take long and rejections come at once: of a hundred calls ten were rejected, and nothing else is known."""
    early = EarlyCalls()
    numbers = [early.started(is_early=True) for _ in range(100)]
    for number in numbers[::10]:
        early.ended(0.1, number, rejected=True, is_early=True)
    assert early.may_start(0.1)


def test_where_calls_in_turn_are_rejected_too_everybody_goes_at_once_and_the_next_experiment_comes_later():
    early, now, began = after("-" * 10), 0.0, []
    while now < 200:
        was_held = early.is_held
        early.retry_accepted()
        early.may_start(now)
        if early.is_held and not was_held:
            began.append(now)
        after("-", early, now, is_early=not early.is_held)
        now += 0.5
    gaps = [later - sooner for sooner, later in pairwise([0.0, *began])]
    assert gaps[0] == EXPERIMENT_S + FIRST_FREE_S
    assert gaps == sorted(gaps)
    assert gaps[-1] > 8 * FIRST_FREE_S


def test_where_calls_in_turn_are_accepted_early_ones_wait():
    early = helped()
    for now in range(4, 40):
        after("+", early, float(now), is_early=False)
    assert early.is_held


def test_as_soon_as_calls_in_turn_are_rejected_as_often_as_early_ones_nobody_waits():
    early = helped()
    after("---", early, 5.0, is_early=False)
    assert early.may_start(5.0)


def test_one_call_is_tried_early_and_ever_more_rarely():
    early, now, tried = helped(), EXPERIMENT_S, []
    while now < 200:
        if early.may_start(now):
            tried.append(now)
            after("-", early, now)
        now += 0.5
    gaps = [later - sooner for sooner, later in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == LONGEST_TRIAL_S


def test_six_trials_that_are_accepted_are_enough():
    early, now, tried = helped(), EXPERIMENT_S, 0
    after("-" * 50, early, now)
    while early.is_held:
        now += 0.5
        if early.may_start(now):
            tried += 1
            after("+", early, now)
    assert tried == 6


def test_a_call_that_was_rejected_before_is_no_trial():
    early = helped()
    assert not early.may_start(100.0, may_be_trial=False)
    assert early.may_start(100.0)


def test_nobody_waits_longer_at_a_time_than_waiting_has_helped():
    early = after("-" * 10)
    assert early.longest_wait(0.0) == EXPERIMENT_S
    assert helped().longest_wait(EXPERIMENT_S + 20.0) == 20.0


def test_a_call_that_is_cancelled_while_it_waits_ends_an_experiment_and_the_next_one_comes_much_later():
    early = after("-" * 9)
    assert not early.may_start(1.0)
    early.lost(1.0)
    assert early.may_start(1.0)
    after("-" * 50, early, 1.0)
    assert early.may_start(LONGEST_FREE_S)
    early.retry_accepted()
    after("-", early, 1.0 + LONGEST_FREE_S)
    assert not early.may_start(1.0 + LONGEST_FREE_S)


def test_one_cancelled_call_among_many_that_waiting_helps_changes_nothing():
    early = helped()
    after("+" * 10, early, 4.0, is_early=False)
    early.lost(5.0)
    assert early.is_held


def test_where_as_many_calls_are_cancelled_while_they_wait_as_would_be_rejected_nobody_waits():
    early = helped()
    after("+" * 10, early, 4.0, is_early=False)
    for _ in range(5):
        early.lost(5.0)
    assert early.may_start(5.0)


def test_a_call_that_had_waited_for_most_of_its_time_counts_by_its_own_number():
    early = helped()
    numbers = [early.started(is_early=False) for _ in range(4)]
    for number in numbers:
        early.lost(9.0, number)
    assert early.may_start(9.0)


def test_a_cancelled_call_says_nothing_where_nobody_is_held():
    early = EarlyCalls()
    early.lost(1.0)
    assert after("-" * 8, early).may_start(1.0)


def test_an_announcement_is_believed_until_two_calls_were_accepted_all_the_same():
    early = AnnouncedCalls()
    assert not early.may_start(0.0)
    assert early.may_start(1.0)
    for _ in range(2):
        assert early.is_held
        early.ended(1.0, early.started(is_early=True), rejected=False, is_early=True)
    assert not early.is_held
