"""The mailbox of an actor: the part of it that stays when the actor is restarted.

A mailbox is bounded. When it is full, the sender gets an error: to grow without limit, or to drop older messages, is worse. It is full
for a message when so many wait that are as urgent or more urgent: a flood of low ones keeps no urgent one out.
From 80 % on it signals pressure, so that senders can slow down before that. Urgent messages (priority 10 and above) are
taken first, then normal ones (5 and above), then the others; each in the order they came.

Invariants: each letter that was accepted is either taken by an actor or rejected, and never both. A letter whose sender no longer
waits never keeps another one out.
"""

from __future__ import annotations

import asyncio
from math import ceil, inf
from sys import maxsize
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["NORMAL", "URGENT", "Letter", "Mailbox", "Pressure"]

URGENT = 10
"""Messages of this priority or a higher one are taken before all others."""
NORMAL = 5
"""The priority of a message that was given none."""

_HIGH = 0.8
_CALM = 0.6
"""The signal ends lower than it begins: senders that wait for its end would otherwise come back one by one."""
_LONG = 101
"""An actor that keeps up with its senders has a few letters waiting. More than 100 are worth a warning."""

Pressure: TypeAlias = Literal["none", "long", "high"]
"""How full a mailbox is: `long` above 100 letters, `high` from 80 % of its capacity on."""


class Letter(msgspec.Struct, eq=False):
    """One message to an actor. It is a struct, because every `ask` makes one and `__init__` in Python would be slow."""

    handler: Any
    """What runs: the method of the actor's class; its name for an actor in another process."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reply: asyncio.Future[Any] | None
    """Where the answer goes; None: nobody waits for one."""
    ends: float = inf
    """When the sender stops waiting, on the clock of the event loop."""
    ambient: Any = None
    """The budget or deadline of the sender, which holds for the work too."""
    is_clipped: bool = False
    """Whether a budget, and not the sender's own limit, ends the wait."""
    request: str = ""
    """What the sender works on: see `holdfast.request`."""

    @property
    def name(self) -> str:
        """What was sent, for people: `Coder.review`."""
        return str(getattr(self.handler, "__qualname__", self.handler))

    @property
    def withdrawn(self) -> bool:
        """Whether the sender no longer waits: the time was over, or the sender was cancelled."""
        return self.reply is not None and self.reply.done()

    def fail(self, error: BaseException) -> bool:
        """Raise this error in the sender; return False if nobody waits for the answer."""
        if self.reply is None or self.reply.done():
            return False
        self.reply.set_exception(error)
        return True


class Mailbox:
    """What waits for one actor. It belongs to one event loop; `Ref` brings in letters from other threads.

    capacity: the most letters that may wait. stash: the most that may wait while the actor is being restarted.
    """

    __slots__ = (
        "_calm_at",
        "_incoming",
        "_limit",
        "_low",
        "_outgoing",
        "_pressed_at",
        "_relieved",
        "_urgent",
        "_withdrawn",
        "begun",
        "capacity",
        "closed",
        "current",
        "name",
        "on_pressure",
        "pressure",
        "reader",
        "size",
        "stash",
    )

    def __init__(self, name: str, *, capacity: int = 1000, stash: int | None = None) -> None:
        self.name = name
        options.count("mailbox.capacity", capacity)
        options.count("mailbox.stash", stash, least=0, optional=True)
        self.capacity = capacity
        self.stash = capacity if stash is None else min(stash, capacity)
        # Two lists are one queue: letters are added to the first, taken from the end of the second, and the first is reversed
        # when the second is empty. An empty list takes 56 bytes, a deque 620, and there may be 100,000 idle actors.
        self._incoming: list[Letter] = []
        self._outgoing: list[Letter] = []
        self._urgent: list[Letter] | None = None
        self._low: list[Letter] | None = None
        self.reader: asyncio.Future[Letter] | None = None
        """Where the actor waits for its next letter, once it has taken all that were there."""
        self.current: Letter | None = None
        """The letter that the actor works on, or was handed last."""
        self.begun: Letter | None = None
        """The letter that the actor has begun to work on. From then on nobody knows whether it took effect."""
        self._relieved: dict[asyncio.Future[None], None] | None = None
        self._withdrawn = 0
        """How many of the letters that wait may be withdrawn, at most."""
        self.size = 0
        """How many letters wait."""
        self._limit = capacity
        self.pressure: Pressure = "none"
        """How full it is. From `high` on, senders should slow down."""
        self._pressed_at = min(_LONG, ceil(capacity * _HIGH))
        self._calm_at = -1
        self.closed: HoldfastError | None = None
        """Why it accepts nothing any more."""
        self.on_pressure: Callable[[Mailbox], None] | None = None
        """Called when the pressure changes."""

    def put(self, letter: Letter, priority: int = NORMAL, *, is_bounded: bool = True) -> None:
        """Add a letter. Raises `HoldfastError` with ACTOR_STOPPED or ACTOR_MAILBOX_FULL."""
        if self.closed is not None:
            raise self._rejection()
        reader = self.reader
        if reader is not None:
            # The actor waits, so nothing is before this letter: it is handed over and need not be queued.
            self.reader = None
            if not reader.done():
                self.current = letter
                reader.set_result(letter)
                return
        if self.size >= self._limit and self._withdrawn:
            self._remove_withdrawn()
        size = self.size + 1
        if size > self._limit and is_bounded and self._ahead_of(priority) >= self._limit:
            context = {"actor": self.name, "size": self.size, "restarting": self.is_restarting}
            raise HoldfastError(Fault.of("ACTOR_MAILBOX_FULL", context=context))
        if priority == NORMAL:
            self._incoming.append(letter)
        elif priority >= URGENT:
            self._urgent = self._urgent or []
            self._urgent.append(letter)
        elif priority >= NORMAL:
            self._incoming.append(letter)
        else:
            self._low = self._low or []
            self._low.append(letter)
        self.size = size
        if size >= self._pressed_at:
            self._pressed()

    def _ahead_of(self, priority: int) -> int:
        """Return how many letters wait that are taken before one of this priority. Less urgent ones do not fill the mailbox for it."""
        ahead = len(self._urgent or ())
        if priority >= URGENT:
            return ahead
        ahead += len(self._incoming) + len(self._outgoing)
        return ahead if priority >= NORMAL else self.size

    def take(self) -> Letter:
        """Return the next letter. Something must wait: `size` says so."""
        self.size = size = self.size - 1
        if size <= self._calm_at:
            self._calmed()
        if self._urgent:
            letter = self._urgent.pop(0)
        elif self._outgoing:
            letter = self._outgoing.pop()
        elif self._incoming:
            self._incoming, self._outgoing = self._outgoing, self._incoming
            self._outgoing.reverse()
            letter = self._outgoing.pop()
        else:
            assert self._low, "size counts letters that are in no list"
            letter = self._low.pop(0)
        self.current = letter
        return letter

    @property
    def is_restarting(self) -> bool:
        """Whether the actor is being restarted. Until it is back, the stash limits how many letters wait."""
        return self._limit != self.capacity

    @is_restarting.setter
    def is_restarting(self, is_restarting: bool) -> None:
        self._limit = self.stash if is_restarting else self.capacity

    def put_back(self) -> None:
        """Put the present letter back in front, unless work on it has begun: its reader ended before."""
        letter, self.current, self.reader = self.current, None, None
        if letter is not None and self.begun is not letter:
            self.size += 1
            self._outgoing.append(letter)

    def withdrew(self, count: int = 1) -> None:
        """So many senders no longer wait. Their letters are removed once they are half of all: one search for many of them."""
        self._withdrawn += count
        if 2 * self._withdrawn >= self.size:
            self._remove_withdrawn()

    def _remove_withdrawn(self) -> None:
        self._withdrawn = size = 0
        for letters in (self._urgent, self._outgoing, self._incoming, self._low):
            if letters:
                letters[:] = [letter for letter in letters if not letter.withdrawn]
                size += len(letters)
        self.size = size
        if size <= self._calm_at:
            self._calmed()

    def letters(self) -> Iterator[Letter]:
        """Return every letter that waits, and the one that is worked on."""
        for letters in ([self.current], self._urgent, reversed(self._outgoing), self._incoming, self._low):
            for letter in letters or ():
                if letter is not None:
                    yield letter

    def close(self, error: HoldfastError) -> Iterator[Letter]:
        """Accept no more letters, and return those that wait, in the order in which they would have been taken."""
        if self.closed is None:
            self.closed = error
        while self.size:
            yield self.take()
        if self.pressure != "none":
            self._calmed()

    async def relieved(self) -> None:
        """Return when the pressure is not high, or not any more; also when the actor has stopped."""
        while self.pressure == "high" and self.closed is None:
            waits = asyncio.get_running_loop().create_future()
            waiting = self._relieved = self._relieved or {}
            waiting[waits] = None
            try:
                await waits
            finally:
                # A sender that stops waiting leaves nothing behind.
                waiting.pop(waits, None)

    def _pressed(self) -> None:
        high = ceil(self.capacity * _HIGH)
        self.pressure = "high" if self.size >= high else "long"
        self._pressed_at = high if self.pressure == "long" else maxsize
        self._calm_at = int((high if self.pressure == "high" else min(_LONG, high)) / _HIGH * _CALM)
        if self.on_pressure is not None:
            self.on_pressure(self)

    def _calmed(self) -> None:
        self.pressure = "none"
        self._pressed_at, self._calm_at = min(_LONG, ceil(self.capacity * _HIGH)), -1
        if self.on_pressure is not None:
            self.on_pressure(self)
        waiting, self._relieved = self._relieved, None
        for waits in tuple(waiting or ()):
            if not waits.done():
                waits.set_result(None)

    def _rejection(self) -> HoldfastError:
        assert self.closed is not None
        # Each sender gets an error of its own: a traceback would grow with every sender that raises the same object.
        error = type(self.closed)(self.closed.fault)
        error.__cause__ = self.closed.__cause__
        return error
