"""Who goes next: callers share a target fairly, by priority, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.queue import PRIORITIES, Priority, QueueTurn, WaitQueue


def queue_of(*calls: tuple[Priority, int]) -> WaitQueue[str]:
    queue: WaitQueue[str] = WaitQueue()
    for number, (priority, caller) in enumerate(calls):
        queue.join(queue.turn(priority, caller), f"{priority} {caller}.{number}")
    return queue


def serve(queue: WaitQueue[str], most: int = 999) -> list[str]:
    """Serve one call after the other, as a pace does."""
    served = []
    while queue and len(served) < most:
        [(turn, name)] = queue.take(1)
        queue.served(turn)
        served.append(name)
    return served


def test_higher_priorities_go_first_and_within_one_who_came_first() -> None:
    queue = queue_of(("low", 0), ("normal", 0), ("high", 0), ("high", 0), ("normal", 0))
    assert [name.partition(" ")[0] for name in serve(queue)] == ["high", "high", "normal", "normal", "low"]
    assert len(queue) == 0


def test_XR12_a_backlog_of_batch_work_never_overtakes_a_call_that_somebody_waits_for() -> None:
    queue = queue_of(*[("low", 1)] * 200)
    for _ in range(100):
        serve(queue, 1)
        queue.join(queue.turn("normal", 2), "person")
        assert serve(queue, 1) == ["person"]


def test_a_backlog_of_low_priority_has_its_share() -> None:
    queue = queue_of(*[("low", 1)] * 50, *[("normal", 2)] * 500)
    served = serve(queue, 220)
    assert 19 <= sum(name.startswith("low") for name in served) <= 21


def test_a_quiet_caller_does_not_wait_behind_a_busy_one() -> None:
    queue = queue_of(*[("normal", 1)] * 300)
    serve(queue, 20)
    queue.join(queue.turn("normal", 2), "quiet")
    assert "quiet" in serve(queue, 2)


def test_a_call_that_was_rejected_again_keeps_its_place_in_its_line() -> None:
    queue: WaitQueue[str] = WaitQueue()
    turns = [queue.turn("normal") for _ in range(5)]
    for turn in turns:
        queue.join(turn, str(turn.number))
    [(first, _)] = queue.take(1)
    queue.served(first)
    assert queue.ahead(first) == 0
    queue.join(first, "again")
    assert serve(queue, 1) == ["again"]


def test_who_leaves_is_not_taken_and_leaves_once() -> None:
    queue: WaitQueue[str] = WaitQueue()
    turns = [queue.turn("normal") for _ in range(3)]
    for turn in turns:
        queue.join(turn, str(turn))
    assert [queue.ahead(turn) for turn in turns] == [0, 1, 2]
    assert queue.leave(turns[0])
    assert not queue.leave(turns[0])
    assert queue.ahead(turns[2]) == 1
    assert [turn for turn, _ in queue.take(1)] == [turns[1]]
    assert not queue.leave(turns[1])


@given(
    st.lists(st.tuples(st.sampled_from(PRIORITIES), st.integers(0, 3)), max_size=40),
    st.integers(0, 50),
    st.integers(0, 20),
)
def test_it_takes_in_the_order_that_it_announces(calls: list[tuple[Priority, int]], most: int, before: int) -> None:
    queue: WaitQueue[QueueTurn] = WaitQueue()
    turns = [queue.turn(priority, caller) for priority, caller in calls]
    for turn in turns:
        queue.join(turn, turn)
    for turn, _ in queue.take(before):
        queue.served(turn)
        turns.remove(turn)
    places = {turn: queue.ahead(turn) for turn in turns}
    taken = [turn for turn, _ in queue.take(most)]
    assert [places[turn] for turn in taken] == sorted(places.values())[: len(taken)]
    assert len(queue) == len(turns) - len(taken)
    lines: dict[tuple[Priority, int], list[int]] = {}
    for turn in taken:
        lines.setdefault(turn[:2], []).append(turn.number)
    assert all(numbers == sorted(numbers) for numbers in lines.values())
