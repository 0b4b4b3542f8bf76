"""How many calls run at once behind one name, and who is next.

Invariant: never more than `concurrency` run; places are handed on in the order of arrival; a place that is given up, by
leaving or by a cancelled waiter that had just been woken, is handed on at once (R69).
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from holdfast import options

__all__ = ["Bulkhead", "BulkheadMachine", "Entry", "Place", "Waiting"]


class Bulkhead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """How many calls may run at once behind one name, and how many may wait for that."""

    concurrency: int
    """Calls in flight at once."""
    waiting: int | None = None
    """Calls that may wait for a place; more are refused. 0: none waits. None: any number."""

    def __post_init__(self) -> None:
        options.count("bulkhead.concurrency", self.concurrency)
        options.count("bulkhead.waiting", self.waiting, least=0, optional=True)


class Place(Enum):
    """The two answers that need no ticket."""

    ENTERED = "entered"
    """Run now, and call `leave()` at the end, however it ends."""
    FULL = "full"
    """All places are taken and nobody more may wait."""


class Waiting(msgspec.Struct, frozen=True):
    """Wait until this ticket is woken, then run and call `leave(ticket)`; or call `cancel(ticket)`."""

    ticket: int


Entry: TypeAlias = Place | Waiting

# An enum's member costs a lookup through its metaclass; every call comes through here.
_ENTERED: Final = Place.ENTERED
_FULL: Final = Place.FULL
_NO_TICKET: Final = 0


class BulkheadMachine:
    """The places of one bulkhead and the queue before them. A ticket is woken by whoever got it returned."""

    __slots__ = ("_places", "_queue", "_room", "_tickets", "_woken", "running")

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._places = bulkhead.concurrency
        self._room = bulkhead.waiting
        self._queue: OrderedDict[int, None] = OrderedDict()
        self._woken: set[int] = set()
        """Tickets that own a place: what makes a second `leave` or `cancel` of theirs harmless."""
        self._tickets = _NO_TICKET
        self.running = 0
        """Places taken, those of woken waiters included."""

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._queue)

    def enter(self) -> Entry:
        """Take a place, or a place in the queue, or be refused."""
        # With a free place nobody waits: a place that is given up goes to the queue first.
        if self.running < self._places:
            self.running += 1
            return _ENTERED
        if self._room is not None and len(self._queue) >= self._room:
            return _FULL
        self._tickets += 1
        self._queue[self._tickets] = None
        return Waiting(self._tickets)

    def try_acquire(self) -> bool:
        """Take a place if one is free; never wait for it. It is given up with `leave()`."""
        if self.running >= self._places:
            return False
        self.running += 1
        return True

    def leave(self, ticket: int = _NO_TICKET) -> int | None:
        """Give a place up; return the ticket to wake, if somebody waits. Who waited leaves with its ticket."""
        if ticket:
            if ticket not in self._woken:
                return None
            self._woken.remove(ticket)
        if self._queue:
            woken, _ = self._queue.popitem(last=False)
            self._woken.add(woken)
            return woken
        if self.running:
            self.running -= 1
        return None

    def cancel(self, ticket: int) -> int | None:
        """Stop waiting; return the ticket to wake where the waiter had been woken at the same moment."""
        if ticket in self._queue:
            del self._queue[ticket]
            return None
        return self.leave(ticket)
