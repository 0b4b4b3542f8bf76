"""Early calls: the plain client's attempts wait for a learned pace only where most of them are rejected."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from holdfast.policies.early import ANNOUNCED, LONGEST_TRIAL_S, EarlyCalls


def after(outcomes: str, early: EarlyCalls | None = None) -> EarlyCalls:
    """Return early calls that ended so: `+` accepted, `-` rejected."""
    early = early or EarlyCalls()
    for outcome in outcomes:
        early.ended(0.0, rejected=outcome == "-")
    return early


def test_nobody_waits_before_anything_was_rejected():
    assert EarlyCalls().may_start(0.0)


def test_six_rejections_in_a_row_hold_nobody_back_and_seven_do():
    assert after("-" * 6).may_start(0.0)
    assert not after("-" * 7).may_start(0.0)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2])
def test_rejections_at_random_hardly_hold_anybody_back(share: float):
    rng, early, held = Random(7), EarlyCalls(), 0
    for number in range(5000):
        held += not early.may_start(float(number))
        early.ended(float(number), rejected=rng.random() < share)
    assert held <= 5


def test_one_call_is_tried_after_a_second_and_ever_more_rarely():
    early, now, tried = after("-" * 7), 0.0, []
    while now < 200:
        if early.may_start(now):
            tried.append(now)
            early.ended(now, rejected=True)
        now += 0.5
    gaps = [later - sooner for sooner, later in pairwise(tried)]
    assert tried[0] == 1.0
    assert gaps == sorted(gaps)
    assert gaps[-1] == LONGEST_TRIAL_S


def test_the_next_trial_follows_one_that_was_accepted_at_once():
    early = after("-" * 12)
    assert not early.may_start(0.5)
    assert early.may_start(1.0)
    assert not early.may_start(1.0)
    early.ended(1.2, rejected=False)
    assert early.may_start(1.2)


def test_six_that_are_accepted_are_enough_whatever_was_before():
    early = after("-" * 500)
    assert after("+" * 5, early).is_held
    assert not after("+", early).is_held


def test_a_call_that_was_rejected_before_is_no_trial():
    early = after("-" * 7)
    assert not early.may_start(5.0, again=True)
    assert early.may_start(5.0)


def test_an_announcement_is_believed_until_two_calls_were_accepted_all_the_same():
    early = EarlyCalls(ANNOUNCED)
    assert not early.may_start(0.0)
    assert early.may_start(1.0)
    assert early.is_held
    assert not after("++", early).is_held
