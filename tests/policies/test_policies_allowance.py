"""The allowance: no call starts that the service would reject by what it announced, and hardly anything stays unused."""

from __future__ import annotations

import math
import random
from heapq import heappop, heappush

import pytest

from holdfast.classify.hints import AnnouncedLimit, AnnouncedLimits
from holdfast.policies.allowance import LIES, TRUSTED_S, Allowance
from holdfast.testing.provider import Limit
from holdfast.testing.provider.limits import Limits


def requests(remaining: float, reset: float, limit: float | None = 60) -> AnnouncedLimits:
    return AnnouncedLimits(requests=AnnouncedLimit(limit, remaining, reset))


def tokens(remaining: float, reset: float) -> AnnouncedLimits:
    return AnnouncedLimits(tokens=AnnouncedLimit(10_000, remaining, reset))


def test_nothing_waits_while_nothing_is_announced() -> None:
    it = Allowance()
    it.started(0.0)
    assert it.wait(0.0, ahead=100) == 0


def counting_down() -> Allowance:
    """An allowance whose announcements were true so far."""
    it = Allowance()
    it.learn(requests(1, 0.0), since=-90.0, now=-89.0)
    return it


def test_where_nothing_remains_a_call_waits_until_it_is_back() -> None:
    it = counting_down()
    it.learn(requests(0, 20.0), since=0.0, now=1.0)
    assert it.wait(1.0) == pytest.approx(19.0)
    assert it.wait(20.0) == 0


def test_what_remains_is_used_once() -> None:
    it = Allowance()
    it.learn(requests(2, 30.0), since=0.0, now=1.0)
    assert it.wait(1.0) == it.wait(1.0, ahead=1) == 0
    assert it.wait(1.0, ahead=2) == pytest.approx(29.0)
    it.started(1.0)
    it.started(1.0)
    assert it.wait(2.0) == pytest.approx(28.0)


def test_an_announcement_does_not_know_of_calls_that_started_after_its_own() -> None:
    it = Allowance()
    it.learn(requests(9, 30.0), since=0.0, now=1.0)
    for at in (2.0, 3.0, 4.0):
        it.started(at)
    it.learn(requests(2, 27.0), since=3.0, now=8.0)
    assert it.wait(8.0) == it.wait(8.0, ahead=0) == 0
    assert it.wait(8.0, ahead=1) > 0, "the call of 4.0 has one of the two"


def test_an_older_announcement_that_comes_later_says_nothing() -> None:
    it = counting_down()
    it.learn(requests(0, 30.0), since=5.0, now=6.0)
    it.learn(requests(9, 30.0), since=4.0, now=7.0)
    assert it.wait(7.0) == pytest.approx(28.0)


def test_what_flows_back_evenly_is_used_as_it_comes() -> None:
    """60 a minute, 60 at once: after 40 calls, 20 remain, and all of it is back in 40 s."""
    it = Allowance()
    it.learn(requests(59, 1.0), since=0.0, now=0.5)
    it.learn(requests(20, 40.0), since=0.1, now=0.6)
    it.learn(requests(0, 60.0), since=0.2, now=0.7)
    assert it.wait(0.7) == pytest.approx(0.5, abs=0.1), "and not 60 s"
    assert it.wait(0.7, ahead=5) == pytest.approx(5.5, abs=0.2)


def test_what_comes_back_at_once_is_not_expected_before() -> None:
    it = Allowance()
    for at, left in ((0.0, 10), (2.0, 5), (4.0, 0)):
        it.learn(requests(left, 30.0 - at), since=at, now=at + 0.5)
    assert it.wait(10.0) == pytest.approx(20.0)
    assert it.wait(30.0) == 0
    for _ in range(60):
        it.started(30.0)
    assert it.wait(30.0) > 0, "60 a window, whoever says nothing about the new one"


def test_the_usual_tokens_of_a_call_are_learned_and_the_tighter_limit_decides() -> None:
    it = Allowance()
    left = 9000.0
    for number in range(6):
        it.learn(tokens(left, 60.0 - number), since=float(number), now=number + 0.5)
        it.started(number + 1.0)
        left -= 1000
    it.learn(tokens(3000, 54.0), since=6.0, now=6.5)
    for at in (6.5, 6.6):
        assert it.wait(at) == 0
        it.started(at)
    assert it.wait(7.0) == pytest.approx(53.0), "a call takes 1,000 or a little more, and 1,000 are left"
    it.learn(requests(50, 50.0), since=6.5, now=7.0)
    assert it.wait(7.0) == pytest.approx(53.0)


@pytest.mark.parametrize("is_reported", [True, False])
def test_XR13_the_tokens_of_other_programs_are_not_charged_to_our_own_calls(is_reported: bool) -> None:
    """Each of our calls takes 331 tokens. Another program makes three of 304 in the same time."""
    it, left_requests, left_tokens = Allowance(), 590.0, 90_000.0
    for number in range(30):
        at = 0.1 * number
        it.started(at)
        left_requests, left_tokens = left_requests - 4, left_tokens - 331 - 3 * 304
        both = AnnouncedLimits(
            requests=AnnouncedLimit(600, left_requests, (600 - left_requests) / 10),
            tokens=AnnouncedLimit(100_000, left_tokens, (100_000 - left_tokens) / 1666),
        )
        it.learn(both, since=at, now=at + 0.05)
        if is_reported:
            it.used(331)
    it.learn(tokens(700, 59.6), since=100.0, now=100.05)
    assert it.wait(100.05) == 0, "700 tokens are enough for one"
    assert it.wait(100.05, ahead=2) > 0, "and not for three"


def test_a_call_that_takes_more_than_there_ever_is_does_not_wait_for_ever() -> None:
    it = Allowance()
    it.learn(tokens(900, 6.0), since=0.0, now=0.1)
    it.started(1.0)
    it.learn(tokens(0, 60.0), since=1.0, now=1.1)
    assert it.wait(1.1) < 61


def announces_nothing(it: Allowance, now: float) -> list[float]:
    waits = []
    for _ in range(LIES + 3):
        now += it.wait(now)
        it.started(now)
        it.learn(requests(0, 40.0), since=now, now=now + 1.0)
        now += 1.0
        waits.append(it.wait(now))
    return waits


def test_a_service_that_announces_nothing_from_the_first_answer_on_is_not_believed() -> None:
    assert set(announces_nothing(Allowance(), 0.0)) == {0.0}


def test_a_service_that_announces_nothing_after_a_rejection_is_not_believed_for_long() -> None:
    it = Allowance()
    it.learn(requests(0, 40.0), since=0.0, now=0.0, accepted=False)
    assert it.wait(0.5) > 0
    assert set(announces_nothing(it, 0.0)[LIES:]) == {0.0}


def test_a_call_that_is_accepted_although_nothing_remained_shows_a_lie() -> None:
    it = Allowance()
    it.learn(requests(0, 300.0), since=0.0, now=0.0, accepted=False)
    assert it.wait(0.5) > 0
    it.started(150.0)
    it.learn(requests(0, 300.0), since=150.0, now=151.0)
    assert it.wait(165.0) == 0


def test_no_announced_time_is_waited_for_that_is_absurd() -> None:
    it = counting_down()
    it.learn(requests(0, 86_400.0), since=0.0, now=0.0)
    assert it.wait(0.0) == 21_600.0
    other = counting_down()
    other.learn(requests(0, 200.0), since=0.0, now=0.0)
    assert other.wait(0.0) == TRUSTED_S


@pytest.mark.parametrize("whole", [False, True], ids=["exact times", "whole seconds"])
@pytest.mark.parametrize("unit", [1, 331])
@pytest.mark.parametrize("burst", [5, 60])
@pytest.mark.parametrize("takes", [0.3, 4.0])
def test_a_bucket_is_used_up_and_hardly_ever_run_into(takes: float, burst: int, unit: int, whole: bool) -> None:
    """One call a second, twice as many due, for ten minutes, beside the fault provider's own bucket."""
    rng, minutes = random.Random(7), 10
    limit = Limit(requests=60, burst=burst) if unit == 1 else Limit(tokens=60 * unit, burst=burst * unit)
    service, it = Limits([limit]), Allowance()
    due = sorted(rng.uniform(0, 60 * minutes) for _ in range(120 * minutes))
    answers: list[tuple[float, int, float, AnnouncedLimits, bool]] = []
    now, accepted, rejected = 0.0, 0, 0
    while due and now < 60 * minutes:
        now = max(now, due[0])
        while answers and answers[0][0] <= now:
            at, _, since, limits, good = heappop(answers)
            it.learn(limits, since, at, accepted=good)
            if good:
                it.used(unit)
        if (wait := it.wait(now)) > 0:
            now = min(now + wait, answers[0][0] if answers else math.inf)
            continue
        due.pop(0)
        it.started(now)
        admission = service.admit("key", "model", tokens=unit, at=now)
        good = admission.rejection is None
        accepted, rejected = accepted + good, rejected + (not good)
        (standing,) = admission.standings
        reset = max(0.001, math.ceil(standing.seconds) if whole else standing.seconds)
        announced = AnnouncedLimit(standing.limit, standing.remaining, reset)
        limits = AnnouncedLimits(announced) if unit == 1 else AnnouncedLimits(tokens=announced)
        # The second number keeps answers of the same moment in order.
        heappush(answers, (now + (takes if good else 0.1), -len(due), now, limits, good))
    possible = 60 * minutes + burst
    assert accepted >= 0.95 * possible
    assert rejected <= 0.02 * possible + takes * 4
