"""The places of a bulkhead, its queue, and which call is next (R69)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.faults import InvalidError
from holdfast.policies.bulkhead import Bulkhead, BulkheadMachine, Place, Queued


def taken(concurrency: int = 1, waiting: int | None = None) -> BulkheadMachine:
    """A bulkhead whose places are all taken."""
    machine = BulkheadMachine(Bulkhead(concurrency=concurrency, waiting=waiting))
    for _ in range(concurrency):
        assert machine.acquire() is Place.ACQUIRED
    return machine


def queued(machine: BulkheadMachine) -> int:
    entry = machine.acquire()
    assert isinstance(entry, Queued)
    return entry.ticket


def test_calls_beyond_the_places_wait_and_are_woken_in_order():
    machine = taken(concurrency=2)
    first, second = queued(machine), queued(machine)
    assert machine.release() == first
    assert machine.release() == second
    assert (machine.running, machine.waiting) == (2, 0)
    assert machine.release(first) is None
    assert machine.release(second) is None
    assert machine.running == 0


def test_calls_beyond_the_queue_are_rejected():
    machine = taken(waiting=1)
    queued(machine)
    assert machine.acquire() is Place.FULL


def test_R71_a_queue_of_zero_lets_nobody_wait():
    assert taken(waiting=0).acquire() is Place.FULL


def test_nobody_overtakes_the_queue():
    machine = taken()
    first = queued(machine)
    assert machine.release() == first
    assert isinstance(machine.acquire(), Queued)


def test_R69_a_cancelled_waiter_frees_its_place_in_the_queue_and_the_next_runs():
    machine = taken(waiting=2)
    first, second = queued(machine), queued(machine)
    assert machine.cancel(first) is None
    assert queued(machine) > second, "there is room for one more again"
    assert machine.release() == second


def test_R69_a_waiter_woken_and_cancelled_at_once_passes_its_turn_on():
    machine = taken()
    first, second = queued(machine), queued(machine)
    assert machine.release() == first
    assert machine.cancel(first) == second
    assert machine.running == 1


def test_R69_with_nobody_behind_it_the_place_is_free_again():
    machine = taken()
    first = queued(machine)
    assert machine.release() == first
    assert machine.cancel(first) is None
    assert machine.running == 0
    assert machine.acquire() is Place.ACQUIRED


def test_settling_a_ticket_twice_changes_nothing():
    machine = taken()
    first, second, third = queued(machine), queued(machine), queued(machine)
    machine.release()
    assert machine.release(first) == second
    assert machine.release(first) is None
    assert machine.cancel(first) is None
    assert (machine.running, machine.waiting) == (1, 1)
    assert machine.cancel(third) is None
    assert machine.cancel(third) is None
    assert (machine.running, machine.waiting) == (1, 0)


def test_releasing_an_empty_bulkhead_adds_no_place():
    machine = BulkheadMachine(Bulkhead(concurrency=1))
    assert machine.release() is None
    assert machine.acquire() is Place.ACQUIRED
    assert isinstance(machine.acquire(), Queued)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"concurrency": 0}, "bulkhead.concurrency"),
        ({"concurrency": True}, "bulkhead.concurrency"),
        ({"concurrency": 2.0}, "bulkhead.concurrency"),
        ({"concurrency": 1, "waiting": -1}, "bulkhead.waiting"),
    ],
)
def test_wrong_options_say_where(options, path):
    with pytest.raises(InvalidError, match=rf"{path}: expected .+, got "):
        Bulkhead(**options)


class EveryInterleaving(RuleBasedStateMachine):
    """Calls acquire, release and are cancelled at any moment. A plain list is the model of the queue."""

    def __init__(self):
        super().__init__()
        self.bulkhead = BulkheadMachine(Bulkhead(concurrency=3, waiting=4))
        self.direct = 0
        self.queue: list[int] = []
        self.woken: list[int] = []

    def handed_on(self, ticket):
        """The call that is woken must be the one that waited longest."""
        assert ticket == (self.queue[0] if self.queue else None)
        if ticket is not None:
            self.woken.append(self.queue.pop(0))

    @rule()
    def enter(self):
        running = self.direct + len(self.woken)
        match self.bulkhead.acquire():
            case Place.ACQUIRED:
                assert running < 3
                self.direct += 1
            case Place.FULL:
                assert (running, len(self.queue)) == (3, 4)
            case Queued(ticket=ticket):
                assert running == 3
                self.queue.append(ticket)

    @precondition(lambda self: self.direct)
    @rule()
    def release(self):
        self.direct -= 1
        self.handed_on(self.bulkhead.release())

    @precondition(lambda self: self.woken)
    @rule(pick=st.integers(0, 9), cancelled=st.booleans())
    def end_of_a_woken_one(self, pick, cancelled):
        ticket = self.woken.pop(pick % len(self.woken))
        self.handed_on(self.bulkhead.cancel(ticket) if cancelled else self.bulkhead.release(ticket))

    @precondition(lambda self: self.queue)
    @rule(pick=st.integers(0, 9))
    def cancel_a_waiting_one(self, pick):
        ticket = self.queue.pop(pick % len(self.queue))
        assert self.bulkhead.cancel(ticket) is None

    @invariant()
    def never_too_many(self):
        assert self.bulkhead.running == self.direct + len(self.woken) <= 3
        assert self.bulkhead.waiting == len(self.queue) <= 4


TestEveryInterleaving = EveryInterleaving.TestCase
TestEveryInterleaving.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_ticket_may_run_beyond_the_places_and_gives_none_to_another() -> None:
    places = BulkheadMachine(Bulkhead(concurrency=1))
    places.acquire()
    first, second = places.acquire(), places.acquire()
    assert isinstance(first, Queued)
    assert isinstance(second, Queued)
    places.wake_beyond(second.ticket)
    assert (places.running, places.waiting) == (2, 1)
    assert places.release(second.ticket) is None
    assert places.release() == first.ticket
    assert places.release(first.ticket) is None
    assert places.running == 0
