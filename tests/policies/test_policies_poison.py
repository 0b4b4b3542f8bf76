"""Poison: whether a service fails because of single requests."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from holdfast.policies.poison import RECENT, Requests

CLIENT = 3
"""Attempts of the plain client."""


def after(requests: Requests, *, answered: int = 0, failed: int = 0, at: float = 1.0) -> Requests:
    """Return `requests` after first attempts that began then; one second later the answers came."""
    for _ in range(failed):
        requests.failed(at)
    for _ in range(answered):
        requests.answered(at, at + 1.0)
    return requests


def attempts_until_poison(requests: Requests, attempts: Iterable[int] = range(CLIENT, 40)) -> int:
    """Return the attempts of an operation that began at 0 and failed at 0.2 until it is poison."""
    requests.failed(0.0)
    return next((made for made in attempts if requests.are_poison(0.0, 0.2, made)), 40)


@pytest.mark.parametrize(("answered", "attempts"), [(60, 3), (9, 4), (4, 6), (3, 6)])
def test_a_request_that_fails_each_time_while_others_are_answered_is_poison(answered: int, attempts: int):
    assert attempts_until_poison(after(Requests(), answered=answered)) == attempts


@pytest.mark.parametrize("others", [{}, {"failed": 30}, {"answered": 2}, {"answered": 19, "failed": 45}])
def test_a_request_that_fails_as_others_do_is_none(others: dict[str, int]):
    assert attempts_until_poison(after(Requests(), **others)) >= 15


def test_retries_in_vain_of_all_operations_count_together():
    """Each of eight operations alone would take six attempts or more to show it."""
    requests = after(Requests(), answered=6, failed=8)
    for _ in range(8):
        requests.failed_again(0.0, 0.2)
        requests.failed_again(0.0, 0.2)
    assert requests.are_poison(0.0, 0.2, CLIENT)


def test_a_retry_that_was_answered_takes_that_back():
    requests = after(Requests(), answered=6, failed=8)
    for _ in range(16):
        requests.failed_again(0.0, 0.2)
    requests.helped()
    assert not requests.are_poison(0.0, 0.2, CLIENT)


@pytest.mark.parametrize("answer", [(-1.0, 5.0), (0.05, 0.1)], ids=["it began before", "it came before the failure"])
def test_an_answer_that_may_be_from_before_an_outage_shows_nothing(answer: tuple[float, float]):
    requests = Requests()
    for _ in range(60):
        requests.answered(*answer)
    for _ in range(60):
        requests.failed_again(0.0, 0.2)
    assert attempts_until_poison(requests) == 40


def one_gave_up(requests: Requests) -> Requests:
    requests.failed(0.0)
    requests.gave_up(120.0, attempts=26)
    return requests


def test_the_next_request_shows_whose_failure_it_was():
    requests = after(one_gave_up(Requests()), answered=1, at=121.0)
    requests.failed(130.0)
    assert requests.are_poison(130.0, 130.2, CLIENT)


def test_a_request_that_began_before_shows_nothing():
    requests = after(one_gave_up(Requests()), answered=1, at=119.0)
    requests.failed(130.0)
    assert not requests.are_poison(130.0, 130.2, CLIENT)


def test_more_failures_in_a_row_than_ever_are_an_outage():
    """One such call in ten was poison: one or two in a row are nothing new."""
    requests = one_gave_up(Requests())
    for number in range(5):
        after(requests, answered=9, failed=1, at=200.0 + number)
    requests.failed(300.0)
    assert requests.are_poison(300.0, 300.2, CLIENT)
    after(requests, failed=4, at=301.0)
    assert not requests.are_poison(301.0, 301.2, CLIENT)


def test_answers_from_before_an_outage_that_come_in_the_middle_of_it_do_not_end_it():
    requests = one_gave_up(Requests())
    for number in range(5):
        after(requests, answered=9, failed=1, at=200.0 + number)
    for second in range(4):
        after(requests, failed=1, at=301.0 + second)
        requests.answered(299.0 + second / 4, 302.0 + second)
    assert not requests.are_poison(301.0, 301.2, CLIENT)


def test_a_few_lucky_answers_do_not_hide_that_most_requests_fail():
    requests = Requests()
    for second in range(-40, -20):
        after(requests, failed=7, answered=3, at=float(second))
    after(requests, failed=3, answered=4, at=1.0)
    for _ in range(11):
        requests.failed_again(0.0, 0.2)
    assert not requests.are_poison(0.0, 0.2, 4)


def test_answers_are_watched_for_a_while_after_a_failure():
    requests = Requests()
    assert not requests.is_watched
    after(requests, failed=1, answered=RECENT - 1)
    assert requests.is_watched
    after(requests, answered=1)
    assert not requests.is_watched
