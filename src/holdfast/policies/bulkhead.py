"""The bulkhead: how many calls to one target run at the same time, and which waiting call is next.

Invariant: no call starts while `concurrency` calls run. Waiting calls get their places in the order of their turns, which is that
of arrival among calls of one priority and caller. A released place goes to the next waiting call at once, also if the call that was just
woken is cancelled.
"""

from __future__ import annotations

from enum import Enum
from itertools import count
from typing import Final, TypeAlias

import msgspec

from holdfast import options
from holdfast.policies.queue import QueueTurn, WaitQueue

__all__ = ["Bulkhead", "BulkheadMachine", "Entry", "Place", "Queued"]


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


class Queued(msgspec.Struct, frozen=True):
    """Wait until this ticket is woken, then run and call `release(ticket)`. Or call `cancel(ticket)` to stop waiting."""

    ticket: int


Entry: TypeAlias = Place | Queued

# Every call needs these, and a member of an enum costs a lookup through its metaclass.
_ACQUIRED: Final = Place.ACQUIRED
_FULL: Final = Place.FULL
_NO_TICKET: Final = 0


class BulkheadMachine:
    """The places of one bulkhead and their queue. The caller that gets a ticket returned must wake its waiter.

    An exception may interrupt any method, as that of a signal's handler does. Who holds a place and who waits is right at every moment. After an
    interruption `mend` makes the rest of it.
    """

    __slots__ = ("_held", "_places", "_queue", "_room", "_tickets", "_turns")

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._places = bulkhead.concurrency
        self._room = bulkhead.waiting
        self._queue: WaitQueue[int] = WaitQueue()
        self._turns: dict[int, QueueTurn] = {}
        """The turns of the tickets that wait."""
        self._held: dict[int, None] = {}
        """The tickets that own a place. A second `release` or `cancel` with the same ticket is harmless. Places without a ticket have
        numbers below 0."""
        self._tickets = count(1)

    @property
    def running(self) -> int:
        """Places that are taken, including those of woken waiters."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        return len(self._queue)

    def ticket(self) -> int:
        """Return a ticket for `acquire`: whoever has it can always give back what it got."""
        return next(self._tickets)

    def holds(self, ticket: int) -> bool:
        """Whether a ticket owns a place."""
        return ticket in self._held

    def acquire(self, turn: QueueTurn | None = None, ticket: int = _NO_TICKET) -> Entry:
        """Take a place, or a ticket of the queue, or learn that the queue is full. Without a turn the call comes last of its kind.

        `ticket` is one of `ticket()`. Without one, a place is given back with `release()`.
        """
        # While a place is free, no call waits: a released place goes to the queue first. So this call overtakes nobody.
        if self.running < self._places:
            self._held[ticket or -next(self._tickets)] = None
            return _ACQUIRED
        if self._room is not None and len(self._queue) >= self._room:
            return _FULL
        ticket = ticket or next(self._tickets)
        turn = self._turns[ticket] = self._queue.turn("normal") if turn is None else turn
        self._queue.join(turn, ticket)
        return Queued(ticket)

    def resize(self, bulkhead: Bulkhead) -> list[int]:
        """Change the number of places; return the tickets to wake. Calls that run go on, and count until they end."""
        self._places, self._room = bulkhead.concurrency, bulkhead.waiting
        return self._wake_next(self._places - self.running)

    def try_acquire(self, ticket: int = _NO_TICKET) -> bool:
        """Take a place if one is free, without waiting. Give it back with `release`."""
        if self.running >= self._places:
            return False
        self._held[ticket or -next(self._tickets)] = None
        return True

    def release(self, ticket: int = _NO_TICKET) -> int | None:
        """Give a place back, or stop waiting for one; return the ticket to wake, if a call waits. A call that has a ticket passes it."""
        if not ticket:
            ticket = next((held for held in self._held if held < 0), ticket)
        if (turn := self._turns.get(ticket)) is not None:
            self._queue.leave(turn)
            del self._turns[ticket]
        if ticket not in self._held:
            return None
        del self._held[ticket]
        # After the number of places was lowered, more calls run than there are places: these give theirs up.
        woken = self._wake_next(min(1, self._places - self.running))
        return woken[0] if woken else None

    def _wake_next(self, most: int) -> list[int]:
        taken = self._queue.take(most)
        for turn, ticket in taken:
            self._held[ticket] = None
            self._queue.served(turn)
            del self._turns[ticket]
        return [ticket for _, ticket in taken]

    def wake_beyond(self, ticket: int) -> None:
        """Let a waiting ticket run although no place is free. It counts until it calls `release(ticket)`."""
        turn = self._turns[ticket]
        self._held[ticket] = None
        self._queue.leave(turn)
        del self._turns[ticket]

    def cancel(self, ticket: int) -> int | None:
        """Stop waiting. If the ticket was just woken, its place goes to the next ticket: return it, to be woken."""
        return self.release(ticket)

    def mend(self) -> list[int]:
        """Complete a change that was interrupted: queue those who wait anew; return the tickets to wake."""
        for ticket in [ticket for ticket in self._turns if ticket in self._held]:
            del self._turns[ticket]
        self._queue = WaitQueue()
        for ticket, turn in self._turns.items():
            self._queue.join(turn, ticket)
        return self._wake_next(self._places - self.running)
