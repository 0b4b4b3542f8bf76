"""`ServerConnection`: the server's side of one connection, as a machine. Frames and the time go in, effects come out.

    effects = connection.received(frame)        # perform them in order, before the next frame
    match effect:
        case Send(frame): ...
        case Close(code, reason): ...
        case Handle(message, payload): ...      # authenticate, join, store …, then tell: `accepted`, `joined`, `stored`, `failed`
        case Rejected(message, fault): ...      # for the audit trail and the metrics; the reply is an effect of its own

Invariant: what is handed on is valid, allowed in the connection's phase, allowed for its role, and about a session that it has joined. A
message that is not gets a reply and has no effect.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from holdfast.faults import Fault
from holdfast.views import wire
from holdfast.wire.bridge_options import ServerLimits
from holdfast.wire.close import CloseCode, close_code_for, close_reason
from holdfast.wire.envelope import Envelope, Invalid, read, stamp, write
from holdfast.wire.heartbeat import HeartbeatWatch
from holdfast.wire.messages import (
    AcknowledgeWarning,
    AcknowledgmentAccepted,
    HealthStatus,
    Heartbeat,
    ServerAck,
    SessionJoined,
    read_payload,
)
from holdfast.wire.phases import ConnectionPhase, check_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.clock import Clock
    from holdfast.wire.messages import ConnectionAck, ConnectionMode, Payload, Role
    from holdfast.wire.outbox import AckResult

__all__ = [
    "PUBLIC_WARNING",
    "CloseConnection",
    "Effect",
    "HandleMessage",
    "Rejected",
    "Send",
    "ServerConnection",
    "ServerLimits",
]

PUBLIC_WARNING: Final = "DIRECT_PUBLIC_CONNECTION"
"""The warning that the user of a public connection acknowledges before a session can be joined."""

_CONTROLS = frozenset({
    "answer",
    "approval_response",
    "command",
    "message",
    "session_close",
    "session_end",
    "session_message",
    "session_pause",
    "session_rename",
    "stop",
})  # fmt: skip
"""What only a controller may send."""
_ABOUT_JOINED = _CONTROLS | {"ack", "request_replay", "session_leave"}
"""What is about a session that the connection has joined."""
_MINUTE = 60.0


def duration(seconds: float) -> str:
    """Return a time as people write it: `8h`, `90m`, `45s`."""
    for unit, name in ((3600, "h"), (60, "m")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds // unit:.0f}{name}"
    return f"{seconds:g}s"


class Send(NamedTuple):
    """Send a text frame."""

    frame: bytes


class CloseConnection(NamedTuple):
    """Close the connection, after what was sent before."""

    code: int
    reason: str


class HandleMessage(NamedTuple):
    """Do what a message asks for."""

    message: Envelope
    payload: Payload
    session_id: str = ""
    """The session that it is about, if it is about one that the connection has joined."""


class Rejected(NamedTuple):
    """A message was not executed."""

    message: Envelope | None
    """None: it could not be read."""
    fault: Fault


Effect: TypeAlias = Send | CloseConnection | HandleMessage | Rejected


class ServerConnection:
    """One connection of a client.

    clock, new_id: time, and the ids of the messages that it sends.
    mode: how the client reaches the server. A public connection must acknowledge a warning first.
    lenient_ids: accept ids that are not UUIDs, as older clients send them.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        new_id: Callable[[], str],
        limits: ServerLimits = ServerLimits(),  # noqa: B008 - a frozen value
        mode: ConnectionMode = "local_only",
        lenient_ids: bool = False,
    ) -> None:
        self.phase = ConnectionPhase.UNAUTHENTICATED
        self.mode: ConnectionMode = mode
        self.limits = limits
        self.roles: dict[str, Role] = {}
        """The sessions that it has joined, and as what. The one that it joined last is the last."""
        self.sent: dict[str, int] = {}
        """The last offset that was sent for each session. The sender of the messages of the log writes it."""
        self.is_closed = False
        self._clock = clock
        self._new_id = new_id
        self._lenient_ids = lenient_ids
        now = clock.monotonic()
        self._auth_until = now + limits.auth_timeout
        self._acknowledged_until: float | None = None
        """The time at which the acknowledgement of a public connection ends, if it has one."""
        self._heartbeat = HeartbeatWatch(now, interval=limits.heartbeat, timeout=limits.heartbeat_timeout)
        self._errors: deque[float] = deque()
        """When the last messages came that could not be read."""

    @property
    def next_at(self) -> float:
        """When to call `tick` next, by the monotonic clock."""
        if self.phase is ConnectionPhase.UNAUTHENTICATED:
            return min(self._auth_until, self._heartbeat.next_at)
        if self._acknowledged_until is not None:
            return min(self._acknowledged_until, self._heartbeat.next_at)
        return self._heartbeat.next_at

    def tick(self) -> list[Effect]:
        """Return what the time alone requires: a ping, or the end."""
        now = self._clock.monotonic()
        if self.is_closed:
            return []
        if self.phase is ConnectionPhase.UNAUTHENTICATED and now >= self._auth_until:
            return self.end(Fault.of("CONN_TIMEOUT", "The client did not authenticate in time"))
        if self._acknowledged_until is not None and now >= self._acknowledged_until:
            why = (
                f"The acknowledgement of this public connection has ended after {duration(self.limits.public_session)}"
            )
            return self.end(Fault.of("CONN_TIMEOUT", f"{why}: connect again, and acknowledge the warning"))
        match self._heartbeat.check(now):
            case "ping":
                return [self._send("heartbeat_ping", Heartbeat(offsets=self.sent))]
            case "dead":
                return self.end(Fault.of("CONN_HEARTBEAT_LOST", context={"timeout_s": self.limits.heartbeat_timeout}))
            case _:
                return []

    # --- what comes from the client ---

    def received(self, frame: str | bytes) -> list[Effect]:
        """Take a frame: a text as str, a binary one as bytes."""
        if self.is_closed:
            return []
        self._heartbeat.received(self._clock.monotonic())
        if isinstance(frame, bytes):
            return self.end(Fault.of("PROTO_BINARY_NOT_SUPPORTED"))
        most = (
            self.limits.max_frame_before_auth
            if self.phase is ConnectionPhase.UNAUTHENTICATED
            else self.limits.max_frame
        )
        # A character has at least one byte, so most frames need not be encoded to be measured.
        if len(frame) > most or (4 * len(frame) > most and len(frame.encode("utf-8", "replace")) > most):
            return self.end(Fault.of("PROTO_MESSAGE_TOO_LARGE", context={"limit": most}))
        message = read(frame, lenient_ids=self._lenient_ids)
        if isinstance(message, Invalid):
            return self._unreadable(message, None)
        fault = check_sequence(message.type, self.phase)
        if fault is not None:
            effects = self._reject(message, fault)
            # Somebody who does not begin with `auth` speaks another protocol.
            return effects if self.phase is not ConnectionPhase.UNAUTHENTICATED else [*effects, *self.end(fault)]
        payload = read_payload(message.type, message.payload, message.id)
        if isinstance(payload, Invalid):
            return self._unreadable(payload, message)
        return self._allowed(message, payload)

    def _allowed(self, message: Envelope, payload: Payload) -> list[Effect]:
        match message.type:
            case "heartbeat_ping":
                return [self._send("heartbeat_pong", Heartbeat(offsets=self.sent), re=message.id)]
            case "heartbeat_pong":
                return []
            case "acknowledge_warning" if isinstance(payload, AcknowledgeWarning):
                return self._acknowledged(message, payload)
            case type_ if type_ in _ABOUT_JOINED:
                return self._about_joined(message, payload)
            case _:
                return [HandleMessage(message, payload)]

    def _about_joined(self, message: Envelope, payload: Payload) -> list[Effect]:
        named = getattr(payload, "session_id", msgspec.UNSET)
        session = named if isinstance(named, str) else message.session_id or next(reversed(self.roles), "")
        role = self.roles.get(session)
        if role is None:
            # The same answer as for a session that does not exist.
            fault = Fault.of("SESS_NOT_FOUND", context={"session_id": session})
            return self._reject(message, fault)
        if role == "observer" and message.type in _CONTROLS:
            why = f"An observer of session '{session}' may not send {message.type}"
            return self._reject(message, Fault.of("AUTH_FORBIDDEN", why, context={"session_id": session}))
        return [HandleMessage(message, payload, session)]

    def _acknowledged(self, message: Envelope, payload: AcknowledgeWarning) -> list[Effect]:
        if payload.warning_code != PUBLIC_WARNING:
            context = {"expected": [PUBLIC_WARNING], "received": payload.warning_code}
            return self._reject(message, Fault.of("PROTO_SEQUENCE_ERROR", "There is no such warning", context=context))
        if self.phase is ConnectionPhase.AWAITING_ACK:
            self.phase = ConnectionPhase.HEALTHY
            self._acknowledged_until = self._clock.monotonic() + self.limits.public_session
        accepted = AcknowledgmentAccepted(
            warning_code=payload.warning_code, session_timeout=duration(self.limits.public_session)
        )
        return [self._send("acknowledgment_accepted", accepted, re=message.id)]

    def _unreadable(self, invalid: Invalid, message: Envelope | None) -> list[Effect]:
        now = self._clock.monotonic()
        self._errors.append(now)
        while now - self._errors[0] > _MINUTE:
            self._errors.popleft()
        effects: list[Effect] = [Rejected(message, invalid.fault), self._error(invalid.id, invalid.fault)]
        if len(self._errors) >= self.limits.errors_per_minute:
            effects += self.end(invalid.fault)
        return effects

    # --- what became of it ---

    def accepted(self, message: Envelope, ack: ConnectionAck) -> list[Effect]:
        """The client is who it says. The answer has the id of its `auth`."""
        self.phase = ConnectionPhase.AWAITING_ACK if self.mode == "direct_public" else ConnectionPhase.AUTHENTICATED
        return [self._send("connection_ack", ack, re=message.id, id_=message.id)]

    def checked(self, message: Envelope, status: HealthStatus) -> list[Effect]:
        """The answer to `health_check`."""
        if self.phase is ConnectionPhase.AUTHENTICATED and status.status != "blocked":
            self.phase = ConnectionPhase.HEALTHY
        return [self._send("health_status", status, re=message.id)]

    def joined(self, re: str, joined: SessionJoined) -> list[Effect]:
        """The connection is in a session. With `auth.resume` it is there at once."""
        # The last one is the one that messages without a session are for, also if it was joined before.
        self.roles.pop(joined.session_id, None)
        self.roles[joined.session_id] = joined.role
        self.phase = ConnectionPhase.JOINED
        return [self._send("session_joined", joined, re=re, session_id=joined.session_id)]

    def left(self, session: str) -> None:
        """The connection has left a session."""
        self.roles.pop(session, None)
        self.sent.pop(session, None)
        if not self.roles and self.phase is ConnectionPhase.JOINED:
            self.phase = ConnectionPhase.HEALTHY

    def stored(self, results: Iterable[AckResult]) -> list[Effect]:
        """Messages of the client are stored, were stored before, or cannot be."""
        found = list(results)
        return [self._send("ack", ServerAck(ids=[each.id for each in found], results=found))]

    def failed(self, message: Envelope, fault: Fault) -> list[Effect]:
        """What a message is for could not be done."""
        return self._reject(message, fault)

    def answer(self, type_: str, payload: Payload, *, re: str = "", session_id: str = "") -> list[Effect]:
        """Any other answer."""
        return [self._send(type_, payload, re=re, session_id=session_id)]

    def end(self, fault: Fault) -> list[Effect]:
        """End the connection: the client gets the reason, and a close code that says whether to come back."""
        if self.is_closed:
            return []
        self.is_closed = True
        document = wire.connection_error(fault, literal=True)
        reason = self._frame(document["type"], document["payload"], self._new_id())
        return [Send(reason), CloseConnection(close_code_for(fault.code), close_reason(fault.code))]

    def shut_down(self, *, restarts: bool) -> list[Effect]:
        """The server stops, in order."""
        if self.is_closed:
            return []
        self.is_closed = True
        code = CloseCode.RESTART if restarts else CloseCode.SHUTDOWN
        return [CloseConnection(code, code.name.lower())]

    def _reject(self, message: Envelope, fault: Fault) -> list[Effect]:
        return [Rejected(message, fault), self._error(message.id, fault)]

    def _error(self, id_: str | None, fault: Fault) -> Send:
        document = wire.error_reply(fault, id_, verdict=True, literal=True)
        return Send(self._frame("error", document["payload"], id_))

    def _send(self, type_: str, payload: Payload, *, re: str = "", session_id: str = "", id_: str = "") -> Send:
        id_, at = id_ or self._new_id(), stamp(self._clock.wall())
        return Send(write(type_, payload, id_=id_, timestamp=at, session_id=session_id, re=re))

    def _frame(self, type_: str, payload: dict[str, Any], id_: str | None) -> bytes:
        document = {"type": type_, "id": id_, "timestamp": stamp(self._clock.wall()), "payload": payload}
        return msgspec.json.encode(document)
