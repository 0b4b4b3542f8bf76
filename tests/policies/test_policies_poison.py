"""Poison: whether a service fails because of single requests."""

from __future__ import annotations

from holdfast.policies.poison import RECENT, FirstAttempts


def test_first_attempts_are_counted_from_a_moment_on():
    firsts = FirstAttempts()
    for started in range(10):
        (firsts.failed if started % 3 == 0 else firsts.answered)(float(started))
    assert firsts.since(0.0) == (6, 4)
    assert firsts.since(5.0) == (3, 2)


def test_only_the_latest_are_remembered():
    firsts = FirstAttempts()
    for started in range(3 * RECENT):
        firsts.answered(float(started))
    assert firsts.since(0.0) == (RECENT, 0)


def test_the_next_request_shows_whose_failure_it_was():
    firsts = FirstAttempts()
    firsts.gave_up(120.0)
    assert firsts.is_waiting
    firsts.answered(121.0)
    assert firsts.fail_alone
    assert not firsts.is_waiting


def test_a_request_that_began_before_shows_nothing():
    firsts = FirstAttempts()
    firsts.gave_up(120.0)
    firsts.answered(119.0)
    assert not firsts.fail_alone
    assert firsts.is_waiting


def test_an_outage_takes_back_what_was_learned():
    firsts = FirstAttempts()
    firsts.gave_up(120.0)
    firsts.answered(121.0)
    firsts.gave_up(300.0)
    firsts.failed(301.0)
    assert not firsts.fail_alone
