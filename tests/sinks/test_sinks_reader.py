"""Operations under way are remembered, but never more than a bounded number."""

from __future__ import annotations

import threading

from holdfast.events.tracker import Tracker


def test_what_is_put_is_got_and_taken_once():
    tracker = Tracker()
    tracker.put("a", 1)
    assert tracker.get("a") == 1
    assert (tracker.take("a"), tracker.take("a"), len(tracker)) == (1, None, 0)


def test_the_oldest_goes_where_there_are_too_many():
    lost = []
    tracker = Tracker(2, lost.append)
    for number in range(5):
        tracker.put(str(number), number)
    assert (lost, len(tracker), tracker.get("4")) == ([0, 1, 2], 2, 4)


def test_what_is_put_again_is_one_operation():
    tracker = Tracker(2)
    for _ in range(5):
        tracker.put("same", 1)
    assert len(tracker) == 1


def test_all_can_be_dropped_at_once():
    lost = []
    tracker = Tracker(9, lost.append)
    tracker.put("a", 1)
    tracker.put("b", 2)
    tracker.drop_all()
    assert (lost, len(tracker)) == ([1, 2], 0)


def test_many_threads_share_one_and_it_stays_bounded():
    tracker, errors = Tracker(10), []

    def work(name):
        try:
            for number in range(2_000):
                tracker.put(f"{name}-{number}", number)
                tracker.take(f"{name}-{number - 3}")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(tracker) <= 10
