"""The bulkhead: how many calls to one target run at the same time, and which waiting call is next.

Invariant: no call starts while `concurrency` calls run. Waiting calls get their places in the order of their turns, which is that
of arrival among calls of one priority and caller. A released place goes to the next waiting call at once, also if the call that was just
woken is cancelled.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

import msgspec

from holdfast import options
from holdfast.policies.queue import Turn, WaitQueue

__all__ = ["Bulkhead", "BulkheadMachine", "Entry", "Place", "Waiting"]


class Bulkhead(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """How many calls to one target may run at the same time, and how many may wait for a place."""

    concurrency: int
    """Calls that may run at the same time."""
    waiting: int | None = None
    """Calls that may wait for a place; further calls are rejected. 0: no call waits. None: any number."""

    def __post_init__(self) -> None:
        options.count("bulkhead.concurrency", self.concurrency)
        options.count("bulkhead.waiting", self.waiting, least=0, optional=True)


class Place(Enum):
    """The answers to a call that does not have to wait."""

    ACQUIRED = "acquired"
    """Run now, and call `release()` at the end, however the call ends."""
    FULL = "full"
    """All places are taken, and no further call may wait."""


class Waiting(msgspec.Struct, frozen=True):
    """Wait until this ticket is woken, then run and call `release(ticket)`. Or call `cancel(ticket)` to stop waiting."""

    ticket: int


Entry: TypeAlias = Place | Waiting

# Every call needs these, and a member of an enum costs a lookup through its metaclass.
_ACQUIRED: Final = Place.ACQUIRED
_FULL: Final = Place.FULL
_NO_TICKET: Final = 0


class BulkheadMachine:
    """The places of one bulkhead and their queue. The caller that gets a ticket returned must wake its waiter."""

    __slots__ = ("_places", "_queue", "_room", "_tickets", "_turns", "_woken", "running")

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._places = bulkhead.concurrency
        self._room = bulkhead.waiting
        self._queue: WaitQueue[int] = WaitQueue()
        self._turns: dict[int, Turn] = {}
        """The turns of the tickets that wait."""
        # Tickets that own a place. They make a second `release` or `cancel` with the same ticket harmless.
        self._woken: set[int] = set()
        self._tickets = _NO_TICKET
        self.running = 0
        """Places that are taken, including those of woken waiters."""

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        return len(self._queue)

    def acquire(self, turn: Turn | None = None) -> Entry:
        """Take a place, or a ticket of the queue, or learn that the queue is full. Without a turn the call comes last of its kind."""
        # While a place is free, no call waits: a released place goes to the queue first. So this call overtakes nobody.
        if self.running < self._places:
            self.running += 1
            return _ACQUIRED
        if self._room is not None and len(self._queue) >= self._room:
            return _FULL
        self._tickets += 1
        turn = self._turns[self._tickets] = self._queue.turn("normal") if turn is None else turn
        self._queue.join(turn, self._tickets)
        return Waiting(self._tickets)

    def resize(self, bulkhead: Bulkhead) -> list[int]:
        """Change the number of places; return the tickets to wake. Calls that run go on, and count until they end."""
        self._places, self._room = bulkhead.concurrency, bulkhead.waiting
        free = max(0, self._places - self.running)
        self.running += min(free, len(self._queue))
        return self._wake_next(free)

    def try_acquire(self) -> bool:
        """Take a place if one is free, without waiting. Give it back with `release()`."""
        if self.running >= self._places:
            return False
        self.running += 1
        return True

    def release(self, ticket: int = _NO_TICKET) -> int | None:
        """Give a place back; return the ticket to wake, if a call waits. A call that has waited passes its ticket."""
        if ticket:
            if ticket not in self._woken:
                return None
            self._woken.remove(ticket)
        # After the number of places was lowered, more calls run than there are places: these give theirs up.
        if self.running <= self._places and (woken := self._wake_next(1)):
            return woken[0]
        if self.running:
            self.running -= 1
        return None

    def _wake_next(self, most: int) -> list[int]:
        taken = self._queue.take(most)
        woken = [ticket for _, ticket in taken]
        for turn, ticket in taken:
            self._queue.served(turn)
            del self._turns[ticket]
        self._woken.update(woken)
        return woken

    def wake_beyond(self, ticket: int) -> None:
        """Let a waiting ticket run although no place is free. It counts until it calls `release(ticket)`."""
        turn = self._turns.pop(ticket)
        self._queue.leave(turn)
        self._woken.add(ticket)
        self.running += 1

    def cancel(self, ticket: int) -> int | None:
        """Stop waiting. If the ticket was just woken, its place goes to the next ticket: return it, to be woken."""
        turn = self._turns.pop(ticket, None)
        if turn is not None:
            self._queue.leave(turn)
            return None
        return self.release(ticket)
