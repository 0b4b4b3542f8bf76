"""Who goes next: by priority, then by arrival, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.queue import PRIORITIES, WaitQueue, turn_of


def taken(queue: WaitQueue[str], most: int = 99) -> list[str]:
    return [wait for _, wait in queue.take(most)]


def test_higher_priorities_go_first_and_within_one_who_came_first() -> None:
    queue: WaitQueue[str] = WaitQueue()
    for arrived, priority in ((0.0, "low"), (1.0, "normal"), (2.0, "high"), (3.0, "high"), (4.0, "normal")):
        queue.join(turn_of(arrived, priority), f"{priority} {arrived:g}")  # type: ignore[arg-type]
    assert taken(queue) == ["high 2", "high 3", "normal 1", "normal 4", "low 0"]
    assert len(queue) == 0


def test_nobody_starves() -> None:
    queue: WaitQueue[str] = WaitQueue()
    queue.join(turn_of(0.0, "low"), "low")
    for second in range(200):
        queue.join(turn_of(float(second), "high"), f"high {second}")
    assert taken(queue, 121)[-1] == "low", "two steps of priority are two minutes"


def test_who_leaves_is_not_taken_and_leaves_once() -> None:
    queue: WaitQueue[str] = WaitQueue()
    turns = [turn_of(float(second), "normal") for second in range(3)]
    for turn in turns:
        queue.join(turn, str(turn))
    assert [queue.ahead(turn) for turn in turns] == [0, 1, 2]
    assert queue.leave(turns[0])
    assert not queue.leave(turns[0])
    assert queue.ahead(turns[2]) == 1
    assert [turn for turn, _ in queue.take(1)] == [turns[1]]
    assert not queue.leave(turns[1])


@given(st.lists(st.tuples(st.floats(0, 1000), st.sampled_from(PRIORITIES)), max_size=40), st.integers(0, 50))
def test_it_takes_in_the_order_of_the_turns(calls: list, most: int) -> None:
    queue: WaitQueue[int] = WaitQueue()
    turns = [turn_of(arrived, priority) for arrived, priority in calls]
    for number, turn in enumerate(turns):
        queue.join(turn, number)
    assert [turn for turn, _ in queue.take(most)] == sorted(turns)[:most]
    assert len(queue) == max(0, len(turns) - most)
