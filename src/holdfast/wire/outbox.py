"""`Outbox`: what a client has sent, or wants to send, until the server has stored it.

Invariant: a message leaves it only by the server's answer, by its own expiry, or by the user. The order of sending is the order of adding,
also after a connection was lost. A message that the server cannot take is held: it stays, and those after it go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError
from holdfast.policies.profiles import BRIDGE

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

AckStatus: TypeAlias = Literal["stored", "duplicate", "rejected"]


class Outgoing(NamedTuple):
    """A message that is not acknowledged yet."""

    id: str
    session_id: str
    frame: bytes
    expires_at: float | None = None
    """Wall clock. After it the message is not sent any more: an approval of three hours ago must not be applied."""


class AckResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What became of one message, as the server's `ack` says it."""

    id: str
    status: AckStatus
    offset: int | None = None
    """Where it stands in the session's log."""
    error: dict[str, Any] | None = None
    """Why it was rejected: the payload of the error."""


class Acked(NamedTuple):
    """A message and what became of it."""

    message: Outgoing
    result: AckResult


class Lost(NamedTuple):
    """How often a message was sent in vain, and why the last time."""

    times: int = 0
    fault: Fault | None = None


class Outbox:
    """The messages of one client that wait for their acknowledgement.

        outbox = Outbox()
        outbox.add(Outgoing("…", "release-42", b"{…}"))
        for message in outbox.to_send({"release-42"}, now): ...

    max_count, max_bytes: what it holds at most. One more raises, so that nothing is dropped unnoticed.
    window: how many may be sent and not acknowledged at the same time.
    """

    def __init__(
        self, *, max_count: int = int(BRIDGE.limits["event_queue"]), max_bytes: int = 10_000_000, window: int = 32
    ) -> None:
        options.count("outbox.max_count", max_count)
        options.count("outbox.max_bytes", max_bytes)
        options.count("outbox.window", window)
        self.max_count, self.max_bytes, self.window = max_count, max_bytes, window
        self.size = 0
        self._messages: dict[str, Outgoing] = {}
        self._sent: dict[str, float] = {}
        """When each message was sent that is not acknowledged, in the order of sending."""
        self.max_frame: int | None = None
        """The most bytes that the server takes as one message; None: it did not say yet."""
        self.lost: dict[str, Lost] = {}
        """The messages that were sent, and whose connection was lost before the server answered."""
        self.held: dict[str, Fault] = {}
        """The messages that are not sent, and why."""

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Outgoing]:
        return iter(self._messages.values())

    def __contains__(self, id_: object) -> bool:
        return id_ in self._messages

    def add(self, message: Outgoing) -> None:
        """Add a message. Raises `HoldfastError` (SYS_RESOURCE_EXHAUSTED) if the outbox is full."""
        if message.id in self._messages:
            return
        self.require_room(message)
        self._messages[message.id] = message
        self.size += len(message.frame)

    def require_room(self, message: Outgoing) -> None:
        """Raise `HoldfastError`: SYS_RESOURCE_EXHAUSTED if the outbox is too full for a message, PROTO_MESSAGE_TOO_LARGE if the server is not to take it."""
        fault = self.too_large(message.frame)
        if fault is not None:
            raise HoldfastError(fault)
        if len(self._messages) >= self.max_count or self.size + len(message.frame) > self.max_bytes:
            text = (
                f"The outbox is full: {len(self._messages)} messages ({self.size} bytes) wait for the server to acknowledge them. "
                "Send this one again when the connection is back"
            )
            context = {"messages": len(self._messages), "bytes": self.size}
            raise HoldfastError(Fault.of("SYS_RESOURCE_EXHAUSTED", text, context=context))

    def too_large(self, frame: bytes) -> Fault | None:
        """Return why the server would not take a message of this size; None if it would, or nobody knows."""
        size, limit = len(frame), self.max_frame
        if limit is None or size <= limit:
            return None
        text = (
            f"The message has {size} bytes, and the server takes {limit} at most: make it shorter, or send it in parts"
        )
        return Fault.of("PROTO_MESSAGE_TOO_LARGE", text, context={"limit": limit, "size": size})

    def limited(self, max_frame: int) -> list[Outgoing]:
        """Apply the limit that the server announced. Return the messages that are held from now on; a message that fits now is released."""
        self.max_frame = max_frame
        found = []
        for message in self._messages.values():
            fault, held = self.too_large(message.frame), self.held.get(message.id)
            # One that something on the way does not take has no size that is known to fit.
            if fault is None and held is not None and "limit" in held.context:
                del self.held[message.id]
            elif fault is not None and held is None:
                self.held[message.id] = fault
                found.append(message)
        return found

    def hold_largest(self, fault: Fault) -> Outgoing | None:
        """Hold the largest message that was sent and not acknowledged, and return it, or None."""
        sent = [self._messages[each] for each in self._sent]
        if not sent:
            return None
        largest = max(sent, key=lambda message: len(message.frame))
        del self._sent[largest.id]
        self.held[largest.id] = fault
        return largest

    def discard(self, id_: str) -> Outgoing | None:
        """Take a message out, because its user does not want it any more. One that was sent may be stored already."""
        return self._remove(id_)

    @property
    def waits(self) -> bool:
        """Whether a message waits for the server."""
        return len(self._messages) > len(self.held)

    def to_send(self, joined: Container[str], now: float) -> list[Outgoing]:
        """Return what may be sent to the sessions that are joined, in order, and count it as sent at `now` (monotonic clock)."""
        chosen = []
        for message in self._messages.values():
            if len(self._sent) >= self.window:
                break
            if message.id not in self._sent and message.id not in self.held and message.session_id in joined:
                self._sent[message.id] = now
                chosen.append(message)
        return chosen

    def acked(self, results: list[AckResult]) -> list[Acked]:
        """Take out what the server has answered. Answers to messages that are not here any more are ignored."""
        found = []
        for result in results:
            message = self._remove(result.id)
            if message is not None:
                found.append(Acked(message, result))
        return found

    def disconnected(self, fault: Fault | None = None) -> None:
        """Everything that was not acknowledged is sent again, in order, after the client has joined anew. `fault`: why."""
        for id_ in self._sent:
            self.lost[id_] = Lost(self.lost.get(id_, Lost()).times + 1, fault)
        self._sent.clear()

    @property
    def sent_at(self) -> float | None:
        """The monotonic time at which the oldest unacknowledged message was sent, or None."""
        return next(iter(self._sent.values()), None)

    @property
    def next_expiry(self) -> float | None:
        """When the next message expires that is not sent, by the wall clock."""
        times = (message.expires_at for message in self._messages.values() if message.id not in self._sent)
        return min((each for each in times if each is not None), default=None)

    def expired(self, wall: float) -> list[Outgoing]:
        """Take out what has expired, except what is sent and may be stored already."""
        over = [
            message
            for message in self._messages.values()
            if message.expires_at is not None and message.expires_at <= wall and message.id not in self._sent
        ]
        for message in over:
            self._remove(message.id)
        return over

    def _remove(self, id_: str) -> Outgoing | None:
        message = self._messages.pop(id_, None)
        if message is not None:
            self._sent.pop(id_, None)
            self.held.pop(id_, None)
            self.lost.pop(id_, None)
            self.size -= len(message.frame)
        return message
