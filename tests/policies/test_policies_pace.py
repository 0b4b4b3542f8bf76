"""The pace: calls start as fast as the other side accepts them."""

from __future__ import annotations

from bisect import insort
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.policies.pace import BURST, FREE, LONGEST_PAUSE_S, Pace, Places


class Bucket:
    """A limit: so many calls per second, and so many at once after a quiet time."""

    def __init__(self, per_second: float, burst: float = 1.0) -> None:
        self.per_second, self.burst, self.left, self.at = per_second, burst, burst, 0.0

    def takes(self, now: float) -> bool:
        self.left = min(self.burst, self.left + (now - self.at) * self.per_second)
        self.at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


def play(bucket: Bucket, seconds: float, pace: Pace | None = None) -> tuple[int, int]:
    """Start calls whenever the pace allows it; return how many were accepted and how many rejected."""
    pace, now, accepted, rejected = pace or Pace(), 0.0, 0, 0
    while now < seconds:
        if (wait := pace.wait(now)) > 0:
            now += wait
            continue
        pace.started(now)
        if bucket.takes(now):
            accepted += 1
            pace.accepted(now, now)
        else:
            rejected += 1
            pace.limited(now, now, None)
    return accepted, rejected


@pytest.mark.parametrize("per_second", [0.2, 1.0, 5.0, 40.0])
@pytest.mark.parametrize(("burst", "share"), [(1.0, 0.9), (3.0, 0.9), (10.0, 0.9)])
def test_a_limit_that_nobody_names_is_found_and_kept(per_second: float, burst: float, share: float) -> None:
    seconds = max(600.0, 300 / per_second)
    accepted, rejected = play(Bucket(per_second, burst), seconds)
    assert accepted >= share * per_second * seconds
    assert rejected <= 0.1 * (accepted + rejected)


def test_a_limit_that_is_gone_is_forgotten() -> None:
    pace = Pace()
    play(Bucket(1.0), 60, pace)
    now = 60.0
    while not pace.is_over(now) and now < 200:
        now += pace.wait(now)
        pace.started(now)
        pace.accepted(now, now)
    assert now < 60 + FREE


def test_calls_that_were_under_way_do_not_cut_it_again() -> None:
    pace = Pace()
    for at in range(20):
        pace.started(float(at))
    pace.limited(19.0, 20.0, None)
    before = pace.per_second(0.0)
    for _ in range(10):
        pace.limited(15.0, 20.1, None)
    assert pace.per_second(0.0) == before


def test_a_service_that_rejects_everything_is_called_more_and_more_rarely_and_then_at_full_pace() -> None:
    pace, now, starts = Pace(), 0.0, []
    while now < 60:
        now += pace.wait(now)
        pace.started(now)
        starts.append(now)
        pace.limited(now, now, None)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert gaps == sorted(gaps)
    assert max(gaps) == LONGEST_PAUSE_S
    pace.accepted(now, now)
    assert pace.per_second(now) >= 1


def test_a_delay_that_is_named_is_kept_and_a_long_one_is_looked_at_before_its_end() -> None:
    pace = Pace()
    pace.limited(0.0, 0.0, 8.0)
    assert pace.wait(0.0) == 8
    pace.limited(8.0, 8.0, 120.0)
    assert pace.wait(8.0) == 30
    pace.limited(40.0, 40.0, 12.0)
    assert pace.wait(40.0) == 10


def test_before_any_rejection_a_burst_is_spread_a_little() -> None:
    pace, now, starts = Pace(is_limited=False), 0.0, []
    for _ in range(200):
        now += pace.wait(now)
        pace.started(now)
        starts.append(now)
    assert starts[: BURST - 1] == [0.0] * (BURST - 1)
    assert starts[60] < 0.1, "a healthy service is hardly slower"
    assert 0.1 < starts[-1] < 0.2
    quiet = Pace(is_limited=False)
    for second in range(1000):
        assert quiet.wait(second / 10) == 0
        quiet.started(second / 10)


def test_those_who_wait_before_it_are_counted() -> None:
    pace = Pace()
    pace.limited(0.0, 0.0, 1.0)
    assert [pace.wait(0.0, ahead=ahead) for ahead in (0, 1, 4)] == sorted({1.0, pace.wait(0.0, 1), pace.wait(0.0, 4)})


class Room:
    """A limit: so many calls at the same time. Answers take a second, rejections a twentieth."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.ends: list[tuple[float, float, bool, int]] = []
        """When calls under way end, when they began, whether they are answered, and how many were under way beside them."""

    def start(self, now: float) -> None:
        accepted = sum(is_accepted for _, _, is_accepted, _ in self.ends) < self.places
        insort(self.ends, (now + (1.0 if accepted else 0.05), now, accepted, len(self.ends)))


def play_room(room: Room, pace: Pace, calls: int, now: float = 0.0) -> tuple[float, int]:
    """Start so many calls, each as soon as the pace allows it; return when the last was answered, and how many were rejected."""
    waiting, rejected = calls, 0
    while waiting or room.ends:
        if waiting and (wait := pace.wait(now)) <= 1e-9:
            waiting -= 1
            pace.started(now)
            room.start(now)
            continue
        upcoming = [room.ends[0][0]] if room.ends else []
        now = min([*upcoming, now + wait] if waiting else upcoming)
        while room.ends and room.ends[0][0] <= now:
            _, started, accepted, beside = room.ends.pop(0)
            if accepted:
                pace.accepted(started, now)
            else:
                waiting, rejected = waiting + 1, rejected + 1
                pace.limited(started, now, None, beside, waiting)
    return now, rejected


@pytest.mark.parametrize("places", [4, 8, 30])
def test_a_number_of_places_is_learned_and_each_answer_frees_one(places: int) -> None:
    pace, calls = Pace(is_limited=False), 25 * places
    took, rejected = play_room(Room(places), pace, calls)
    assert pace.places.is_known
    assert took <= calls / places + 3
    assert rejected <= 45 + calls / 20, "most of them in the first twentieth of a second, before anybody knows"


def test_more_places_are_found_and_a_limit_that_is_gone_is_forgotten() -> None:
    pace, room = Pace(is_limited=False), Room(4)
    now, _ = play_room(room, pace, 60)
    room.places = 12
    later, _ = play_room(room, pace, 300, now)
    assert later - now <= 40
    assert not pace.is_over(now)
    room.places = 10_000
    play_room(room, pace, 1000, later)
    assert pace.is_over(now)


def test_fewer_places_are_found() -> None:
    pace, room = Pace(is_limited=False), Room(12)
    now, _ = play_room(room, pace, 100)
    room.places = 10
    later, rejected = play_room(room, pace, 100, now)
    assert pace.places.is_known
    assert later - now <= 13
    assert rejected <= 10


def test_a_limit_per_second_is_not_taken_for_a_number_of_places() -> None:
    pace, bucket, now, under_way = Pace(is_limited=False), Bucket(2.0, 10.0), 0.0, list[float]()
    rejected = 0
    for _ in range(200):
        while (wait := pace.wait(now)) > 1e-9:
            now = min([now + wait, *(at + 1 for at in under_way[:1])])
            while under_way and under_way[0] + 1 <= now:
                pace.accepted(under_way.pop(0), now)
        pace.started(now)
        if bucket.takes(now):
            under_way.append(now)
        else:
            rejected += 1
            pace.limited(now, now, None, len(under_way), 100)
    assert pace.places.is_wrong
    assert rejected <= 20
    assert now <= 105


def test_places_are_not_guessed_where_few_calls_wait() -> None:
    pace = Pace(is_limited=False)
    for _ in range(9):
        pace.started(0.0)
    pace.limited(0.0, 0.1, None, beside=8, waiting=7)
    assert not pace.places.is_guessed
    pace.limited(0.0, 0.1, None, beside=7, waiting=7)
    assert pace.places.is_guessed


def test_a_call_that_fails_or_is_stopped_frees_its_place() -> None:
    pace, room = Pace(is_limited=False), Room(6)
    now, _ = play_room(room, pace, 60)
    assert pace.places.is_known
    while not pace.wait(now):
        pace.started(now)
    pace.ended()
    assert not pace.wait(now)


def test_a_call_behind_others_never_looks_all_the_time_for_a_guessed_place() -> None:
    """Those ahead may wait for an open circuit: a call looked every 3 µs whether they had gone, and took a whole processor."""
    places = Places()
    for _ in range(8):
        places.taken(0.0)
    places.rejected(0.0, beside=7, waiting=20, began_before=False)
    assert places.is_guessed
    for number in range(60):
        places.freed()
        places.taken(float(number))
        places.freed()
    assert places.wait(100.0, ahead=1) >= 0.01


def test_a_delay_that_is_named_is_kept_where_places_are_known() -> None:
    pace, room = Pace(is_limited=False), Room(6)
    now, _ = play_room(room, pace, 60)
    pace.started(now)
    pace.limited(now, now, 4.0)
    assert pace.wait(now) == pytest.approx(4)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("sssaelln"), st.floats(0, 30)), max_size=80))
def test_whatever_happens_the_pace_is_a_positive_number_and_waits_are_finite(steps: list[tuple[str, float]]) -> None:
    pace, now = Pace(is_limited=False), 0.0
    for step, seconds in steps:
        if step == "s":
            pace.started(now)
        elif step == "a":
            pace.accepted(max(0.0, now - seconds), now)
        elif step == "e":
            pace.ended()
        elif step == "l":
            pace.limited(max(0.0, now - seconds), now, None)
        else:
            pace.limited(now, now, seconds)
        now += seconds / 10
        assert 0 < pace.per_second(now) < float("inf")
        assert 0 <= pace.wait(now, ahead=3) < 3600


def test_XR13_a_quiet_time_between_two_rejections_does_not_make_the_pace_slower() -> None:
    pace, now = Pace(), 0.0
    for _ in range(3):  # ten calls in eleven seconds between two rejections, some of them close together
        pace.started(now)
        pace.limited(now, now, None)
        for call in range(10):
            pace.started(now + 9 + call / 10)
            pace.accepted(now + 9 + call / 10, now + 10)
        now += 11.0
    pace.started(now)
    pace.limited(now, now, None)
    before = pace.per_second(now)
    for hour in range(1, 6):
        pace.started(now + 3600.0 * hour)
    later = now + 6 * 3600.0
    pace.started(later)
    pace.limited(later, later, None)
    assert pace.per_second(later) == pytest.approx(before)


def test_XR13_a_quiet_time_before_the_first_measurement_does_not_make_the_pace_slower() -> None:
    """A bucket of 20 calls and one a second: after its first rejection a call a minute, then 21 at once."""
    pace = Pace()
    pace.started(0.0)
    pace.accepted(0.0, 0.1)
    pace.started(0.1)
    pace.limited(0.1, 0.2, None)
    for minute in range(1, 11):
        pace.started(60.0 * minute)
        pace.accepted(60.0 * minute, 60.0 * minute + 0.1)
    now = 660.0
    for _ in range(20):
        now += pace.wait(now)
        pace.started(now)
        pace.accepted(now, now)
    pace.started(now)
    pace.limited(now, now, None)
    assert pace.per_second(now) > 0.5
