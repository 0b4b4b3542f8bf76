"""What `ClientConnection` wants done: effects, which its driver performs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from holdfast.wire.close import CloseCode
from holdfast.wire.outbox import Acked, Outgoing

if TYPE_CHECKING:
    from holdfast.faults import Fault
    from holdfast.wire.envelope import Envelope
    from holdfast.wire.reconnect import Address


class Connect(NamedTuple):
    """Connect after `delay` seconds."""

    attempt: int
    delay: float
    address: Address


class Send(NamedTuple):
    """Send a text frame."""

    frame: bytes


class Drop(NamedTuple):
    """Close the socket. Nothing that it still sends comes to the machine."""

    code: int = CloseCode.BYE


class Deliver(NamedTuple):
    """A message for the application. One with an offset is a part of the session's log."""

    message: Envelope


class Expired(NamedTuple):
    """A message was not sent before it expired. It is not in the outbox any more."""

    message: Outgoing


class Held(NamedTuple):
    """A message is too large for the server, and is not sent. It stays in the outbox until it is discarded, and those after it go on."""

    message: Outgoing
    fault: Fault


class GapFound(NamedTuple):
    """Messages of a session are missing. Nothing of it is delivered until the application takes a snapshot: `reload`."""

    session_id: str
    gap: dict[str, Any]


class Online(NamedTuple):
    """The client is connected and authenticated."""

    ack: dict[str, Any]


class Joined(NamedTuple):
    """The client is in a session, for the first time or again."""

    session_id: str
    payload: dict[str, Any]


class NotJoined(NamedTuple):
    """The client may not join a session, or there is none of that name. It does not try again."""

    session_id: str
    fault: Fault


class TokenNeeded(NamedTuple):
    """The token has expired. The next attempt needs a new one: `token`."""

    fault: Fault


class Failed(NamedTuple):
    """The client has given up and does not connect again."""

    fault: Fault


ClientEffect: TypeAlias = (
    Connect
    | Send
    | Drop
    | Deliver
    | Acked
    | Expired
    | Held
    | GapFound
    | Online
    | Joined
    | NotJoined
    | TokenNeeded
    | Failed
)
