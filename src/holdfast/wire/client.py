"""`ClientConnection`: the client's side of the bridge over all its connections, as a machine.

    effects = client.received(frame)
    match effect:
        case Connect(delay, address): ...     # wait, then connect; tell `opened` or `connect_failed`
        case Send(frame): ...
        case Drop(): ...                      # close the socket and forget it; nothing of it comes to the machine any more
        case Deliver(message): ...            # to the application, each once and in order
        case Acked(…), Expired(…), GapFound(…), Online(…), Failed(…): ...

Invariant: the application gets each message of a session once and in order, or a gap that says what is missing. What it sends is stored
once by the server, or it learns why not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.views import wire
from holdfast.wire.client_effects import (
    Connect,
    Deliver,
    Drop,
    Expired,
    Failed,
    GapFound,
    Held,
    Joined,
    NotJoined,
    Online,
    Send,
    TokenNeeded,
)
from holdfast.wire.close import UNREADABLE, CloseCode, reconnects
from holdfast.wire.envelope import MAX_DEPTH, Envelope, Invalid, encode, is_abusive, read, stamp, wall_of
from holdfast.wire.heartbeat import HEARTBEAT_S, HEARTBEAT_TIMEOUT_S, HeartbeatWatch
from holdfast.wire.outbox import AckResult, Outbox, Outgoing
from holdfast.wire.position import Position
from holdfast.wire.reconnect import DEFAULT, Exhausted, NextAttempt, Reconnect

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock, Rng
    from holdfast.wire.client_effects import ClientEffect
    from holdfast.wire.messages import Role
    from holdfast.wire.reconnect import Schedule

Status: TypeAlias = Literal["disconnected", "connecting", "connected", "reconnecting", "error"]

PROTOCOL = (1, 2)
"""The versions of the protocol that this client speaks."""
PUBLIC_WARNING = "DIRECT_PUBLIC_CONNECTION"
"""The warning of a connection over the public internet."""


ANSWER_TIMEOUT_S = 30.0
"""How long a server may take to acknowledge a message, or to let a client in. A server whose store is slow needs some seconds."""
_MOST_UNREADABLE = 3
"""How often in a row the server may find the client's messages unreadable, with the same code and reason, before the client is to blame."""
_ACK_EVERY = 64
_ACK_WITHIN_S = 2.0
"""The server learns how far the application is after so many messages, or after so many seconds."""


class _Membership:
    """A session that the application wants to be in."""

    def __init__(self, role: Role, position: Position | None, history: str, creation: dict[str, Any] | None) -> None:
        self.role: Role = role
        self.position = position
        """The last message that was delivered."""
        self.history = history
        self.creation = creation
        """What the session is to be made with; None: it exists."""
        self.token = ""
        self.is_joined = False
        self.is_held_back = False
        """Whether the application has more than it can take. Nothing is delivered, and later it goes on at its position."""
        self.lacks: Literal["", "gap", "snapshot"] = ""
        """What it needs before it can go on: a decision about a gap, or the snapshot that was asked for."""
        self.taken: Position | None = None
        """The last message that the application has finished with."""
        self.acked = 0
        """The offset that the server has heard of last."""
        self.ack_at: float | None = None

    @property
    def takes(self) -> bool:
        """Whether messages of its log are delivered now."""
        return self.is_joined and not self.lacks and not self.is_held_back

    def is_behind(self, offset: Any) -> bool:
        """Whether the server has sent up to this offset, and not all of it arrived."""
        return self.takes and self.position is not None and isinstance(offset, int) and offset > self.position.offset


class ClientConnection:
    """A client of the bridge: `ClientConnection(token, clock=…, rng=…, new_id=…)`.

    client_id: the same for all connections of this client, also after a restart if its outbox is kept.
    outbox: what is not acknowledged yet; give one that was kept to go on with it.
    heartbeat_timeout: seconds that the server may take to answer a ping.
    answer_timeout: seconds that the server may take to acknowledge a message. After them the message or its answer was lost on the way,
        although the connection lives. The client connects again, and sends it again.
    accept_public: whether its user accepts that the bridge is reached over the public internet without a tunnel.
    """

    _ahead = 0.0
    """Seconds that the clock of the server is ahead of the client's. The clock of a phone may be hours off."""

    def __init__(
        self,
        token: str,
        *,
        clock: Clock,
        rng: Rng,
        new_id: Callable[[], str],
        client_id: str,
        client_version: str = "",
        platform: str = "python",
        schedule: Schedule = DEFAULT,
        outbox: Outbox | None = None,
        accept_public: bool = False,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT_S,
        answer_timeout: float = ANSWER_TIMEOUT_S,
    ) -> None:
        options.seconds("answer_timeout", answer_timeout)
        self.token = token
        self.status: Status = "disconnected"
        self.client_id = client_id
        self.outbox = Outbox() if outbox is None else outbox
        self.fault: Fault | None = None
        """Why it is not connected."""
        self._clock, self._rng, self._new_id = clock, rng, new_id
        self._about = {"client_version": client_version, "platform": platform}
        self._schedule = schedule
        self._accepts_public = accept_public
        self._awaits_consent = False
        self._reconnect: Reconnect | None = None
        self._heartbeat: HeartbeatWatch | None = None
        self._beats = (HEARTBEAT_S, heartbeat_timeout)
        self._sessions: dict[str, _Membership] = {}
        self._joins: dict[str, str] = {}
        """The sessions of `session_join` messages that are not answered yet."""
        self._answer_timeout = answer_timeout
        self._asked: dict[str, float] = {}
        """When requests were sent without whose answers it cannot go on, in the order of sending: `auth`, consent, joins."""
        self._awake_at = 0.0
        """When it was noticed last that this side was asleep. Time before that is not held against the server."""
        self._was_accepted = False
        """Whether the server has let it in since `connect`."""
        self._misread_as: tuple[int, str] | None = None
        """The code and reason of the last close because of a message that the server could not read; None: there was progress since."""
        self._misreads = 0
        """How often that close came in a row."""
        self._take: dict[str, Callable[[Envelope], list[ClientEffect]]] = {
            "connection_ack": self._accepted,
            "connection_error": self._ends,
            "acknowledgment_accepted": self._acknowledged,
            "heartbeat_ping": self._pinged,
            "heartbeat_pong": self._compare,
            "session_joined": self._joined,
            "replay_buffer": self._replayed,
            "gap": self._gap,
            "snapshot": self._snapshot,
            "ack": self._acked,
            "error": self._error,
        }
        """What it does with a message of the server. All others are for the application."""

    # --- what the application wants ---

    def connect(self) -> list[ClientEffect]:
        """Begin. The first attempt is made at once."""
        if self.status not in ("disconnected", "error"):
            return []
        self.status, self.fault, self._reconnect = "connecting", None, None
        self._was_accepted, self._misread_as = False, None
        return [Connect(1, 0.0, "resolve")]

    def disconnect(self) -> list[ClientEffect]:
        """End, and do not connect again."""
        was, self.status = self.status, "disconnected"
        self._lost()
        return [Drop()] if was != "disconnected" else []

    def join(
        self,
        session: str,
        *,
        role: Role = "controller",
        after: Position | None = None,
        history: str = "tail",
        creation: dict[str, Any] | None = None,
    ) -> list[ClientEffect]:
        """Join a session, now or as soon as the client is connected. With `creation` it is made first if it does not exist."""
        if session in self._sessions:
            raise InvalidError.saying("session", "a session that is not joined yet", repr(session))
        _readable((session, creation))
        self._sessions[session] = _Membership(role, after, history, creation)
        return [self._join(session)] if self._may_join else []

    def leave(self, session: str) -> list[ClientEffect]:
        """Leave a session."""
        found = self._sessions.pop(session, None)
        if found is None or not found.is_joined:
            return []
        return [self._message("session_leave", {"session_id": session})]

    def send(
        self, session: str, type_: str, payload: dict[str, Any], *, expires_at: float | None = None
    ) -> tuple[str, list[ClientEffect]]:
        """Put a message into the outbox, and send it if that is possible now. Return its id.

        Raises `HoldfastError`: SYS_RESOURCE_EXHAUSTED if the outbox is full, PROTO_MESSAGE_TOO_LARGE if it is too large for the server.
        """
        message = self.compose(session, type_, payload, expires_at=expires_at)
        return message.id, self.submit(message)

    def compose(
        self, session: str, type_: str, payload: dict[str, Any], *, expires_at: float | None = None
    ) -> Outgoing:
        """Return a message that can be kept before it is handed to `submit`. Raises as `send` does."""
        if session not in self._sessions:
            raise InvalidError.saying("session", "a session that was joined", repr(session))
        content = {**payload, "session_id": session}
        if expires_at is not None:
            content["expires_at"] = _time(expires_at)
        envelope = self._envelope(type_, content)
        message = Outgoing(envelope.id, session, _readable(envelope), expires_at)
        self.outbox.require_room(message)
        return message

    def submit(self, message: Outgoing) -> list[ClientEffect]:
        """Put a message into the outbox, and send it if that is possible now."""
        self.outbox.add(message)
        return self.flush()

    def ask(self, type_: str, payload: dict[str, Any]) -> tuple[str, list[ClientEffect]]:
        """Send something that is not kept, if the client is connected. Return its id: the answer has it as `re`, an error as `id`.

        Raises `HoldfastError` (PROTO_MESSAGE_TOO_LARGE) if it is too large for the server.
        """
        message = self._envelope(type_, payload)
        frame = _readable(message)
        fault = self.outbox.too_large(frame)
        if fault is not None:
            raise HoldfastError(fault)
        return message.id, [Send(frame)] if self.status == "connected" else []

    def reload(self, session: str) -> list[ClientEffect]:
        """Ask for a snapshot of a session, now or as soon as the client is connected. The client goes on at its position."""
        found = self._sessions[session]
        found.lacks, found.is_held_back = "snapshot", False
        return [self._join(session)] if self._may_join else []

    def hold_back(self, session: str) -> None:
        """Deliver nothing of a session until `catch_up`: the application has more than it can take. Nothing is lost by that."""
        if session in self._sessions:
            self._sessions[session].is_held_back = True

    def catch_up(self, session: str) -> list[ClientEffect]:
        """Go on after `hold_back`: join again after the last message that was delivered."""
        found = self._sessions.get(session)
        if found is None or not found.is_held_back:
            return []
        found.is_held_back = False
        if not found.is_joined or found.lacks:
            return []
        found.is_joined = False
        return [self._join(session)]

    def taken(self, session: str, position: Position) -> list[ClientEffect]:
        """The application has finished with a message. The server hears of it soon, for those who want to know who has seen what."""
        found = self._sessions.get(session)
        if found is None:
            return []
        found.taken = position
        if found.is_joined and (not found.acked or position.offset - found.acked >= _ACK_EVERY):
            return self._ack(session, found)
        found.ack_at = found.ack_at or self._clock.monotonic() + _ACK_WITHIN_S
        return []

    def position(self, session: str) -> Position | None:
        """Return the position of the last message of a session that was delivered."""
        found = self._sessions.get(session)
        return None if found is None else found.position

    # --- what happens to the connection ---

    def opened(self) -> list[ClientEffect]:
        """The socket is open: authenticate."""
        if self.status in ("disconnected", "error"):
            return [Drop()]
        interval, timeout = self._beats
        self._heartbeat = HeartbeatWatch(self._clock.monotonic(), interval=interval, timeout=timeout)
        payload = {"token": self.token, "client_id": self.client_id, "protocol": list(PROTOCOL), **self._about}
        return [self._request("auth", payload)]

    def connect_failed(self, fault: Fault) -> list[ClientEffect]:
        """An attempt to connect failed."""
        if self.status in ("disconnected", "error"):
            return []
        if not fault.retryable:
            # A certificate that is not accepted, or something else than a bridge at that address: it would fail the same way again.
            return self._give_up(fault)
        return self._again(fault, timed_out=fault.code == "CONN_TIMEOUT")

    def closed(self, code: int, reason: str = "") -> list[ClientEffect]:
        """The socket was closed, by the server or by the network."""
        if self.status in ("disconnected", "error"):
            return []
        context = {"close_code": code, "reason": reason}
        fault = self.fault or Fault.of("CONN_WEBSOCKET_CLOSED", context=context)
        if code in UNREADABLE and self._was_accepted:
            return self._misread(fault, code, reason)
        if not reconnects(code):
            return self._give_up(fault)
        effects: list[ClientEffect] = [TokenNeeded(fault)] if code == CloseCode.TOKEN_EXPIRED else []
        return effects + self._again(fault)

    def _misread(self, fault: Fault, code: int, reason: str) -> list[ClientEffect]:
        """Connect again: bytes were lost on the way. If the same happens again and again, a message of this client is to blame."""
        self._misreads = self._misreads + 1 if self._misread_as == (code, reason) else 1
        self._misread_as = (code, reason)
        if self._misreads < _MOST_UNREADABLE:
            return self._again(fault)
        if code == CloseCode.TOO_BIG and (held := self._hold_largest()):
            self._misread_as = None
            return [held, *self._again(fault)]
        why = f"{code} ({reason})" if reason else f"{code}"
        text = (
            f"The server closed the connection {self._misreads} times in a row with code {why} and acknowledged nothing between. "
            "A message in the outbox may be too large or wrong"
        )
        context = {"close_code": code, "reason": reason, "times": self._misreads}
        return self._give_up(Fault.of("CONN_WEBSOCKET_CLOSED", text, context=context))

    def _hold_largest(self) -> Held | None:
        """Hold the message that is most likely to be too large: something on the way takes less than the server says."""
        text = f"The server closed the connection {self._misreads} times in a row because of a message that is too large for it, and this is the largest"
        fault = Fault.of("PROTO_MESSAGE_TOO_LARGE", text)
        message = self.outbox.hold_largest(fault)
        return None if message is None else Held(message, fault)

    def _is_alive(self) -> None:
        """Something came while no message waits for the server. While one waits, only its acknowledgement shows that it can be read."""
        if not self.outbox.waits:
            self._misread_as = None

    def woke_up(self) -> list[ClientEffect]:
        """The device woke up, or is online again: find out at once whether the connection still works."""
        now = self._clock.monotonic()
        if self.status == "connected" and self._heartbeat is not None:
            self._heartbeat.wake(now)
            return [self._message("heartbeat_ping", {})]
        if self.status == "reconnecting":
            # Somebody is there again. The attempts that failed while nobody was do not count.
            self._reconnect = None
            return self._again(self.fault, is_awake=True)
        return []

    @property
    def next_at(self) -> float | None:
        """When to call `tick` next, by the monotonic clock; None: not before something else happens."""
        times = [found.ack_at for found in self._sessions.values() if found.ack_at is not None and found.is_joined]
        if self._heartbeat is not None:
            times.append(self._heartbeat.next_at)
        if (answer_by := self._answer_by) is not None:
            times.append(answer_by)
        expires_at = self.outbox.next_expiry
        if expires_at is not None:
            times.append(self._clock.monotonic() + max(0.0, expires_at - self._clock.wall()))
        return min(times, default=None)

    def tick(self) -> list[ClientEffect]:
        """Return what the time alone requires."""
        effects = self._expire()
        now = self._clock.monotonic()
        for session, found in self._sessions.items():
            if found.ack_at is not None and found.ack_at <= now and found.is_joined:
                effects += self._ack(session, found)
        if self._is_unanswered(now):
            message = f"The server did not answer a message within {self._answer_timeout:g} s"
            fault = Fault.of("CONN_HEARTBEAT_LOST", message, context={"timeout_s": self._answer_timeout})
            return [*effects, Drop(CloseCode.NO_HEARTBEAT), *self._again(fault)]
        match None if self._heartbeat is None else self._heartbeat.check(now):
            case "ping":
                return [*effects, self._message("heartbeat_ping", {})]
            case "dead":
                fault = Fault.of("CONN_HEARTBEAT_LOST", context={"timeout_s": self._beats[1]})
                return [*effects, Drop(CloseCode.NO_HEARTBEAT), *self._again(fault)]
            case _:
                return effects

    @property
    def _answer_by(self) -> float | None:
        """When the server must have answered the oldest message that it has not answered yet."""
        if self._heartbeat is None:
            return None
        times = (next(iter(self._asked.values()), None), self.outbox.sent_at)
        oldest = min((each for each in times if each is not None), default=None)
        return None if oldest is None else max(oldest, self._awake_at) + self._answer_timeout

    def _is_unanswered(self, now: float) -> bool:
        answer_by = self._answer_by
        if answer_by is None or now < answer_by:
            return False
        if now - answer_by > 2 * self._beats[0]:
            # This side was asleep. The answer may be here, unread.
            self._awake_at = now
            return False
        return True

    # --- what comes from the server ---

    def received(self, frame: str | bytes) -> list[ClientEffect]:
        """Take a frame of the server. One that cannot be read is skipped: its offset is then missing, and that is noticed."""
        if self._heartbeat is None:
            return []
        self._heartbeat.received(self._clock.monotonic())
        message = read(frame, lenient_ids=True)
        if isinstance(message, Invalid):
            return self._unreadable(frame)
        if message.offset:
            return self._in_order(message)
        # An answer names its request as `re`, or has its id.
        self._asked.pop(message.re, None)
        self._asked.pop(message.id, None)
        take = self._take.get(message.type)
        return [Deliver(message)] if take is None else take(message)

    def _unreadable(self, frame: str | bytes) -> list[ClientEffect]:
        """An error about something that the server could not read has no id. Everything else that cannot be read is skipped."""
        try:
            document = msgspec.json.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []
        if isinstance(document, dict) and document.get("type") == "connection_error":
            self.fault = _fault_of("connection_error", document.get("payload"))
        return []

    def _accepted(self, message: Envelope) -> list[ClientEffect]:
        payload = message.payload
        self.status, self.fault = "connected", None
        self._was_accepted = True
        self._asked.clear()
        interval = payload.get("heartbeat_interval_ms")
        if isinstance(interval, int) and interval > 0:
            self._beats = (interval / 1000, self._beats[1])
        server_time = wall_of(payload.get("server_time"))
        self._ahead = 0.0 if server_time is None else server_time - self._clock.wall()
        self._settle()
        online: list[ClientEffect] = [Online(payload), *self._limited(payload.get("limits"))]
        if payload.get("connection_mode") != "direct_public":
            return [*online, *self._join_all()]
        if self._accepts_public:
            self._awaits_consent = True
            # Nothing may be joined before the user's consent is known.
            return [*online, self._request("acknowledge_warning", {"warning_code": PUBLIC_WARNING})]
        reason = "the bridge is reached over the public internet without a tunnel. If its user accepts that, connect with accept_public=True"
        return [Drop(), *self._give_up(Fault.of("CONN_MISCONFIGURED", context={"reason": reason}))]

    def _limited(self, limits: Any) -> list[Held]:
        """Keep the largest message that the server takes, and hold what is larger."""
        most = limits.get("max_frame") if isinstance(limits, dict) else None
        if not isinstance(most, int) or most <= 0:
            return []
        return [Held(message, self.outbox.held[message.id]) for message in self.outbox.limited(most)]

    def _acknowledged(self, _: Envelope) -> list[ClientEffect]:
        self._awaits_consent = False
        self._asked.clear()
        return self._join_all()

    def _join_all(self) -> list[ClientEffect]:
        return [self._join(session) for session in self._sessions]

    def _settle(self) -> None:
        """Forget the attempts of the last loss, once everything is as it was. Until then they go on to be counted."""
        if all(found.is_joined for found in self._sessions.values()):
            self._reconnect = None

    def _ends(self, message: Envelope) -> list[ClientEffect]:
        """Keep why the server ends the connection. The close frame follows."""
        self.fault = _fault_of(message.type, message.payload)
        return []

    def _pinged(self, message: Envelope) -> list[ClientEffect]:
        return [self._message("heartbeat_pong", {}, re=message.id), *self._compare(message)]

    def _compare(self, message: Envelope) -> list[ClientEffect]:
        """Join again where the server has sent more than arrived. Without this, a loss would show only at the next message."""
        self._is_alive()
        offsets = message.payload.get("offsets")
        effects: list[ClientEffect] = []
        for session, sent in offsets.items() if isinstance(offsets, dict) else ():
            found = self._sessions.get(session)
            if found is not None and found.is_behind(sent):
                found.is_joined = False
                effects.append(self._join(session))
        return effects

    def _error(self, message: Envelope) -> list[ClientEffect]:
        session = self._joins.pop(message.id, None)
        if session is not None and session in self._sessions:
            return self._not_joined(session, _fault_of("error", message.payload))
        if message.id not in self.outbox:
            return [Deliver(message)]
        if message.payload.get("code") == "SESS_STORE_UNAVAILABLE":
            # A store that is locked or starts again cannot take it just now. It goes again, with those after it, until it expires.
            return [Drop(CloseCode.TRY_LATER), *self._again(_fault_of("error", message.payload))]
        return self._settled([AckResult(id=message.id, status="rejected", error=message.payload)])

    def _not_joined(self, session: str, fault: Fault) -> list[ClientEffect]:
        found = self._sessions[session]
        if found.creation is not None and fault.code == "SESS_NOT_FOUND":
            return [self._create(session, found.creation)]
        if found.creation is not None and fault.code == "SESS_ILLEGAL_TRANSITION":
            # Somebody else has made it meanwhile.
            found.creation = None
            return [self._join(session)]
        if fault.retryable or (fault.code == "CONN_LIMIT" and found.position is not None):
            # The server cannot just now, or others have taken the place of a session that the client was in. It is asked again as after a loss of the connection.
            return [Drop(CloseCode.TRY_LATER), *self._again(fault)]
        del self._sessions[session]
        self._settle()
        return [NotJoined(session, fault)]

    def _joined(self, message: Envelope) -> list[ClientEffect]:
        payload = message.payload
        self._joins.pop(message.re, None)
        session = str(payload.get("session_id", ""))
        found = self._sessions.get(session)
        if found is None:
            return []
        found.is_joined, found.creation, found.acked = True, None, 0
        found.token = str(payload.get("resume_token", ""))
        self._settle()
        effects: list[ClientEffect] = [Joined(session, payload)]
        if payload.get("gap"):
            effects += self._found_gap(session, payload["gap"])
        elif found.position is None or found.position.epoch != payload.get("epoch"):
            found.position = Position(epoch=str(payload.get("epoch", "")), offset=int(payload.get("from_offset", 0)))
        # What was sent before the connection was lost goes first, in its order.
        return effects + self.flush()

    def _replayed(self, message: Envelope) -> list[ClientEffect]:
        effects: list[ClientEffect] = []
        for each in message.payload.get("messages", ()):
            frame = each if isinstance(each, str) else msgspec.json.encode(each)
            missed = read(frame, lenient_ids=True)
            if isinstance(missed, Envelope) and missed.offset:
                effects += self._in_order(missed)
        return effects

    def _in_order(self, message: Envelope) -> list[ClientEffect]:
        """Deliver the next message of a session. One that came before is dropped, and one that comes too early shows a hole."""
        found = self._sessions.get(message.session_id)
        if found is None or not found.takes:
            return []
        place = found.position
        if place is None or place.epoch != message.epoch or message.offset > place.offset + 1:
            # Something between was lost on the way. Join again from where the application is.
            found.is_joined = False
            return [self._join(message.session_id)]
        if message.offset <= place.offset:
            return []
        found.position = Position(epoch=message.epoch, offset=message.offset, id=message.id)
        self._is_alive()
        return [Deliver(message)]

    def _gap(self, message: Envelope) -> list[ClientEffect]:
        return self._found_gap(message.session_id or str(message.payload.get("session_id", "")), message.payload)

    def _found_gap(self, session: str, gap: dict[str, Any]) -> list[ClientEffect]:
        found = self._sessions.get(session)
        # The application hears of a gap once, however often the client joins again before it has decided.
        if found is None or found.lacks:
            return []
        found.lacks = "gap"
        return [GapFound(session, gap)]

    def _snapshot(self, message: Envelope) -> list[ClientEffect]:
        session = str(message.payload.get("session_id") or message.session_id)
        found = self._sessions.get(session)
        self._joins.pop(message.re, None)
        if found is None or found.lacks != "snapshot":
            return []
        found.lacks = ""
        found.position = Position(epoch=str(message.payload["epoch"]), offset=int(message.payload["offset"]))
        return [Deliver(message), self._join(session)]

    def _acked(self, message: Envelope) -> list[ClientEffect]:
        try:
            results = msgspec.convert(message.payload.get("results", []), list[AckResult])
        except msgspec.ValidationError:
            return []
        return self._settled(results)

    def _settled(self, results: list[AckResult]) -> list[ClientEffect]:
        """The server has read messages of the outbox. Send the next ones."""
        acked = self.outbox.acked(results)
        if acked:
            self._misread_as = None
        return [*acked, *self.flush()]

    # --- what is sent ---

    @property
    def _may_join(self) -> bool:
        return self.status == "connected" and not self._awaits_consent

    def _ack(self, session: str, found: _Membership) -> list[ClientEffect]:
        found.ack_at = None
        if found.taken is None:
            return []
        found.acked = found.taken.offset
        place = {"epoch": found.taken.epoch, "offset": found.taken.offset}
        return [self._message("ack", {"session_id": session, **place})]

    def _create(self, session: str, creation: dict[str, Any]) -> Send:
        return self._request("session_create", {"session_id": session, **creation}, session)

    def _join(self, session: str) -> Send:
        found = self._sessions[session]
        if found.lacks == "snapshot":
            # It goes on at the position of the snapshot, so it joins after it has that.
            return self._request("session_snapshot", {"session_id": session}, session)
        payload: dict[str, Any] = {"session_id": session, "role": found.role, "history": found.history}
        if found.position is not None:
            payload["after"] = msgspec.to_builtins(found.position)
        if found.token:
            payload["resume_token"] = found.token
        return self._request("session_join", payload, session)

    def flush(self) -> list[ClientEffect]:
        """Send what may be sent to the sessions that are joined."""
        if self.status != "connected" or not self.outbox:
            return []
        effects = self._expire()
        joined = {session for session, found in self._sessions.items() if found.is_joined}
        return effects + [
            Send(self._by_server_clock(message)) for message in self.outbox.to_send(joined, self._clock.monotonic())
        ]

    def _by_server_clock(self, message: Outgoing) -> bytes:
        """Return the frame of a message. If it expires, the server judges that by its own clock."""
        if message.expires_at is None or not self._ahead:
            return message.frame
        document = msgspec.json.decode(message.frame)
        document["payload"]["expires_at"] = stamp(message.expires_at + self._ahead)
        return msgspec.json.encode(document)

    def _expire(self) -> list[ClientEffect]:
        return [Expired(message) for message in self.outbox.expired(self._clock.wall())]

    def _request(self, type_: str, payload: dict[str, Any], session: str = "") -> Send:
        """Send something without whose answer the client cannot go on."""
        message = self._envelope(type_, payload)
        self._asked[message.id] = self._clock.monotonic()
        if session:
            self._joins[message.id] = session
        return Send(encode(message))

    def _message(self, type_: str, payload: dict[str, Any], *, re: str = "") -> Send:
        return Send(encode(self._envelope(type_, payload, re)))

    def _envelope(self, type_: str, payload: dict[str, Any], re: str = "") -> Envelope:
        now = stamp(self._clock.wall())
        return Envelope(type=type_, id=self._new_id(), timestamp=now, payload=payload, re=re)

    # --- again, or not ---

    def _lost(self, fault: Fault | None = None) -> None:
        self._heartbeat = None
        self._awaits_consent = False
        self._joins.clear()
        self._asked.clear()
        self.outbox.disconnected(fault)
        for found in self._sessions.values():
            found.is_joined = False

    def _again(self, fault: Fault | None, *, timed_out: bool = False, is_awake: bool = False) -> list[ClientEffect]:
        now = self._clock.monotonic()
        self._lost(fault)
        self.status, self.fault = "reconnecting", fault
        self._reconnect = self._reconnect or Reconnect(self._schedule, lost_at=now)
        match self._reconnect.next(now, self._rng, timed_out=timed_out, is_awake=is_awake):
            case NextAttempt(number, delay, address):
                return [Connect(number, delay, address)]
            case Exhausted(exhausted):
                return self._give_up(exhausted)

    def _give_up(self, fault: Fault) -> list[ClientEffect]:
        self._lost()
        self.status, self.fault = "error", fault
        return [Failed(fault)]


def _readable(value: Any) -> bytes:
    """Return JSON that a server reads. It cannot say which message was wrong if it cannot read it, so the message would be sent for ever.

    Raises `InvalidError`.
    """
    try:
        frame = msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        expected = "a text that UTF-8 has an encoding for"
        raise InvalidError.saying("message", expected, f"a text with {error.object[error.start]!a}") from None
    except RecursionError:
        frame = b""
    if not frame or is_abusive(frame):
        expected = f"JSON with whole numbers of at most 64 bits, and nested {MAX_DEPTH} deep at most"
        raise InvalidError.saying("message", expected, "other JSON")
    return frame


def _time(wall: float) -> str:
    try:
        return stamp(wall)
    except (ValueError, OverflowError):
        raise InvalidError.saying("expires", "a time that a calendar has", str(wall)) from None


def _fault_of(type_: str, payload: Any) -> Fault:
    """Return the fault that a message carries. One without a code or a message still says that something failed."""
    try:
        return wire.read({"type": type_, "payload": payload})
    except InvalidError:
        return Fault.of("PROTO_INVALID_MESSAGE", f"The server sent {type_} without its code or message")
