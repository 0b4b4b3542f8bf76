"""`Connection`: one client on its WebSocket. It drives the machine `ServerConnection` and performs its effects.

Invariant: frames are handled one after the other, in order. For each session that it has joined one loop sends the log, from the client's
position on: replay and live messages are the same loop, so there is no seam between them. A client that does not read is
disconnected, and nothing is kept for it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from holdfast.bridge.access.admission import MessagePace
from holdfast.bridge.access.mode import mode_of
from holdfast.bridge.message_ids import new_message_id
from holdfast.bridge.requests import Requests
from holdfast.bridge.sessions.frames import replay_frame
from holdfast.faults import Fault, HoldfastError
from holdfast.wire.close import close_code_for, close_reason
from holdfast.wire.messages import GapPayload, Presence, SessionJoined
from holdfast.wire.position import Gap, GoOn, Position
from holdfast.wire.server import CloseConnection, HandleMessage, Rejected, Send, ServerConnection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    from holdfast.bridge.access.identity import TokenHolder
    from holdfast.bridge.access.resume_tokens import Resumed
    from holdfast.bridge.hub import Hub
    from holdfast.bridge.sessions.live_session import LiveSession
    from holdfast.wire.envelope import Envelope
    from holdfast.wire.messages import Payload, Role
    from holdfast.wire.replay import RingMessage
    from holdfast.wire.server import Effect

__all__ = ["ABORT", "AUTHENTICATED", "CUT", "UNREAD", "WRITE_TEXT", "Connection"]

Message: TypeAlias = "MutableMapping[str, Any]"

ABORT = "holdfast.abort"
"""The extension of the scope with a function that ends the socket at once, without waiting for a client that does not read."""

CUT = "holdfast.cut"
"""The extension of the scope with a function that sends a close frame and ends the socket, without waiting for a client that does not read."""

WRITE_TEXT = "holdfast.write_text"
"""The extension of the scope with a function that writes a text if the client reads, and returns whether it did."""

AUTHENTICATED = "holdfast.authenticated"
"""The extension of the scope with a function that lets the socket take larger messages, because the client is known."""

UNREAD = "holdfast.unread"
"""The extension of the scope with a function that says whether bytes of the client wait for this process to read them."""

_BYES = (1000, 1001)
"""The close codes of a client that leaves on purpose."""
_FAREWELL_S = 1.0
"""How long a client may take to read that the server stops."""
_LAST_READ_S = 5.0
"""How long a client that did not read in time may take to read that it was disconnected."""
_LOOK_AGAIN_S = 0.1
"""How long a server that is behind waits until it looks again whether a client is silent."""
_ORDINARY = frozenset({"CONN_SUPERSEDED", "AUTH_TOKEN_EXPIRED", "AUTH_TOKEN_REVOKED"})
"""Ends of connections that are nobody's error."""


class Connection:
    """One connection, as an ASGI application of its own: `await Connection(hub, scope, receive, send).run()`."""

    def __init__(
        self,
        hub: Hub,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        self.id = str(uuid4())
        self.hub = hub
        self.identity: TokenHolder | None = None
        self.client_key: tuple[str, str] | None = None
        self.client_id = ""
        self.protocol = 1
        self.peer = (scope.get("client") or ("", 0))[0]
        self.acked: dict[str, int] = {}
        """How far the client's application has come in each session, as it says."""
        headers = dict(scope.get("headers", ()))
        self.user_agent = headers.get(b"user-agent", b"").decode("latin-1")
        host = headers.get(b"host", b"").decode("latin-1")
        self.url = f"{scope.get('scheme', 'ws')}://{host}{scope.get('path', '')}" if host else ""
        """The address at which the client reaches the bridge."""
        self._was_lost = True
        mode = mode_of(
            self.peer,
            is_encrypted=scope.get("scheme") == "wss",
            host=host,
            allows_plain=hub.settings.insecure,
        )
        self.machine = ServerConnection(
            clock=hub.clock,
            new_id=new_message_id,
            limits=hub.settings.connection,
            mode=mode,
            lenient_ids=hub.settings.lenient_ids,
        )
        self._receive, self._send_asgi = receive, send
        self._abort: Callable[[], None] | None = scope.get("extensions", {}).get(ABORT)
        self._cut_off: Callable[[int, str, float], None] | None = scope.get("extensions", {}).get(CUT)
        self._write: Callable[[bytes], bool] | None = scope.get("extensions", {}).get(WRITE_TEXT)
        self._authenticated: Callable[[], None] = scope.get("extensions", {}).get(AUTHENTICATED, lambda: None)
        self.has_unread: Callable[[], bool] = scope.get("extensions", {}).get(UNREAD, lambda: False)
        """Whether bytes of the client wait for this process to read them."""
        self._sending = asyncio.Lock()
        self._tails: dict[str, asyncio.Task[None]] = {}
        self._lives: dict[str, LiveSession] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._requests = Requests(self)
        self._pace = MessagePace(hub.settings.messages_per_minute)

    # --- the socket ---

    async def run(self) -> None:
        """Serve the client until one of both ends the connection."""
        if (await self._receive())["type"] != "websocket.connect":
            return
        await self._send_asgi({"type": "websocket.accept"})
        try:
            self.hub.arrive(self)
            self._arm()
            await self._read()
        finally:
            self._gone()
            await self._requests.finish()

    async def _read(self) -> None:
        while not self.machine.is_closed:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                self._was_lost = message.get("code") not in _BYES
                return
            wait = self._pace.wait(self.hub.clock.monotonic())
            if wait > 0:
                # The server reads no further, so the client waits, and nothing is lost.
                await asyncio.sleep(wait)
            text = message.get("text")
            frame = message.get("bytes") or b"" if text is None else text
            await self.perform(self.machine.received(frame))

    def _gone(self) -> None:
        self.machine.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for session in tuple(self._lives):
            self.leave(session)
        self.hub.leave(self)

    async def perform(self, effects: Iterable[Effect]) -> None:
        """Perform what the machine wants, in order."""
        for effect in effects:
            match effect:
                case Send(frame):
                    await self.send(frame)
                case CloseConnection(code, reason):
                    await self._close(code, reason)
                case HandleMessage():
                    await self._requests.handle(effect)
                case Rejected(message, fault):
                    self._report(message, fault)

    def _report(self, message: Envelope | None, fault: Fault) -> None:
        session = "" if message is None else message.session_id or str(message.payload.get("session_id", ""))
        self.hub.reports.request(fault, session_id=session or None, user_agent=self.user_agent)
        if fault.code == "AUTH_FORBIDDEN" and self.identity is not None and message is not None:
            self.hub.access.forbidden(self.identity, session=session, what=message.type)

    async def send(self, frame: bytes) -> None:
        """Send a frame. A client that does not read for too long is disconnected."""
        if self._sends_at_once(frame):
            return
        message = {"type": "websocket.send", "text": frame.decode()}
        try:
            if self._cut_off is None:
                async with self._sending, asyncio.timeout(self.hub.settings.send_timeout):
                    await self._send_asgi(message)
                return
            async with self._sending:
                # Cutting ends the send, too.
                late = asyncio.get_running_loop().call_later(self.hub.settings.send_timeout, self._cut)
                try:
                    await self._send_asgi(message)
                finally:
                    late.cancel()
        except TimeoutError:
            self._cut()
        except (OSError, RuntimeError):
            # The client has gone. `_read` ends by itself.
            self.machine.is_closed = True

    def _sends_at_once(self, frame: bytes) -> bool:
        """Send a frame if nothing has to be waited for; return whether it was. Nearly every client reads."""
        # What waits already goes first.
        return self._write is not None and not self._sending.locked() and self._write(frame)

    def _cut(self) -> None:
        """End a connection whose client does not read."""
        if self.machine.is_closed:
            return
        self.machine.is_closed = True
        fault = Fault.of("CONN_SLOW_CONSUMER", context={"timeout_s": self.hub.settings.send_timeout})
        self.hub.reports.client(fault, user_agent=self.user_agent)
        if self._cut_off is not None:
            self._cut_off(close_code_for(fault.code), close_reason(fault.code), _LAST_READ_S)

    async def _close(self, code: int, reason: str) -> None:
        with suppress(OSError, RuntimeError, TimeoutError):  # the client has gone or reads nothing: it is cut off below
            async with self._sending, asyncio.timeout(self.hub.settings.send_timeout):
                await self._send_asgi({"type": "websocket.close", "code": code, "reason": reason})
                return
        if self._abort is not None:
            self._abort()

    async def end(self, fault: Fault) -> None:
        """End the connection for a reason that the client gets."""
        if not self.machine.is_closed and fault.code not in _ORDINARY:
            report = self.hub.reports.request if self.identity is None else self.hub.reports.client
            report(fault, user_agent=self.user_agent)
        await self.perform(self.machine.end(fault))

    async def tell(self, type_: str, payload: Payload, session_id: str = "") -> None:
        """Send a message that is stored in no log; about a session or about none."""
        await self.perform(self.machine.answer(type_, payload, session_id=session_id))

    async def shut_down(self, *, restarts: bool) -> None:
        """End the connection because the server stops, also if its client does not read."""
        try:
            async with asyncio.timeout(min(_FAREWELL_S, self.hub.settings.stop_timeout / 4)):
                await self.perform(self.machine.shut_down(restarts=restarts))
        except TimeoutError:
            if self._abort is not None:
                self._abort()

    # --- time ---

    def identified(self, identity: TokenHolder) -> None:
        """The client is known, or has a new token."""
        self.identity = identity
        self._authenticated()
        # The token may expire before the next tick.
        if self._timer is not None:
            self._timer.cancel()
        self._arm()

    def _arm(self) -> None:
        delay = max(0.0, self.machine.next_at - self.hub.clock.monotonic())
        until = None if self.identity is None else self.identity.expires_at
        if until is not None:
            delay = min(delay, max(0.0, until - self.hub.clock.wall()))
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        if self.machine.is_closed:
            return
        if self.hub.clock.monotonic() >= self.machine.next_at and self.has_unread():
            # This process is behind. What the client has sent in time is here, and will be read.
            self._timer = asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._tick)
            return
        # Every frame moves the next tick. The timer is not moved each time, so it may fire early.
        effects = self.machine.tick()
        if any(isinstance(effect, CloseConnection) for effect in effects):
            # It did not authenticate in time, or is silent.
            fault = Fault.of("CONN_HEARTBEAT_LOST" if self.identity is not None else "AUTH_REQUIRED")
            self.hub.reports.client(fault, user_agent=self.user_agent)
        until = None if self.identity is None else self.identity.expires_at
        if until is not None and until <= self.hub.clock.wall():
            effects += self.machine.end(Fault.of("AUTH_TOKEN_EXPIRED"))
        if effects:
            self.hub.spawn(self.perform(effects))
        if not self.machine.is_closed:
            self._arm()

    # --- sessions ---

    async def join(
        self,
        re: str,
        live: LiveSession,
        role: Role,
        *,
        after: Position | None,
        history: str = "tail",
        token: str = "",
        resume_status: Resumed | None = None,
    ) -> None:
        """Join a session, or join it again, and send its log from the client's position on."""
        fault = self.hub.enter(live, self)
        if fault is not None:
            raise HoldfastError(fault)
        self._stop_tail(live.id)
        self._lives[live.id] = live
        await live.catch_up()
        found = GoOn(live.start(history)) if after is None else await live.resume(after)
        reach, top = live.reach(), live.top
        gap = found.payload(snapshot=top) if isinstance(found, Gap) else None
        if gap is not None:
            self.hub.reports.reconnection_failed(live.id, user_agent=self.user_agent)
        begin = found.after if isinstance(found, GoOn) else found.requested
        joined = SessionJoined(
            session_id=live.id,
            state=live.state.value,
            role=role,
            epoch=live.epoch,
            oldest_offset=reach.oldest,
            top_offset=top,
            from_offset=begin,
            was_recovering=after is not None,
            recovered=after is not None and gap is None,
            resume_token=token,
            resume_status=resume_status,
            resume_expires_in_ms=int(self.hub.settings.resume_age * 1000),
            clients=len(live.clients),
            gap=gap,
        )
        await self.perform(self.machine.joined(re, joined))
        await self._announce(live)
        if gap is None:
            tail = self._tail(live, begin, top)
            self._tails[live.id] = asyncio.create_task(tail, name=f"bridge: {live.id} to {self.id}")

    def leave(self, session: str) -> None:
        """Leave a session."""
        self._stop_tail(session)
        live = self._lives.pop(session, None)
        self.machine.left(session)
        if live is not None:
            self.hub.exit(live, self, was_lost=self.machine.is_closed and self._was_lost)
            if self.identity is not None:
                now = self.hub.clock.monotonic()
                self.hub.resume_tokens.depart(self.identity.token_id, self.client_id, session, now)
            if live.clients:
                self.hub.spawn(self._announce(live))

    def live(self, session: str) -> LiveSession:
        """Return a session that it has joined."""
        return self._lives[session]

    async def _announce(self, live: LiveSession) -> None:
        """Tell the other clients of a session how many there are."""
        presence = Presence(session_id=live.id, clients=len(live.clients))
        for other in self.hub.others(live, self):
            self.hub.spawn(other.perform(other.machine.answer("presence", presence, session_id=live.id)))

    def _stop_tail(self, session: str) -> None:
        tail = self._tails.pop(session, None)
        if tail is not None:
            tail.cancel()

    async def _tail(self, live: LiveSession, cursor: int, top: int) -> None:
        """Send the log after `cursor`, for ever. What was there when the client joined comes as a replay."""
        epoch, is_live = live.epoch, False
        while not self.machine.is_closed:
            news = live.news()
            if live.epoch != epoch:
                return await self._send_gap(live, Gap(reason="reset", requested=cursor, oldest=1, top=live.top))
            found = await self._read_log(live, cursor)
            if found is None:
                return None
            if isinstance(found, Gap):
                return await self._send_gap(live, found)
            if cursor < top and found:
                cursor = await self._replay(live, found, top)
                continue
            if not is_live:
                is_live = True
                state = await live.summary(client=self._requests.client)
                await self.perform(self.machine.answer("session_state", state, session_id=live.id))
            for held in found:
                # Before it is sent: a heartbeat that comes between must not say that it was lost.
                self.machine.sent[live.id] = cursor = held.offset
                if not self._sends_at_once(held.frame):
                    await self.send(held.frame)
            if not found:
                await news.wait()
        return None

    async def _read_log(self, live: LiveSession, cursor: int) -> list[RingMessage] | Gap | None:
        try:
            return await live.read(cursor, reading=self.hub.reading, identity=self.identity)
        except HoldfastError as error:
            # The client comes back, and by then the store may answer again.
            await self.end(error.fault)
            return None

    async def _replay(self, live: LiveSession, found: list[RingMessage], top: int) -> int:
        last = found[-1].offset
        fields = {
            "session_id": live.id,
            "from": found[0].offset,
            "to": last,
            "more": last < top,
            "complete": True,
        }
        self.machine.sent[live.id] = last
        frame = replay_frame(found, fields, id_=new_message_id(), at=self.hub.clock.wall(), as_text=self.protocol == 1)
        await self.send(frame)
        return last

    async def _send_gap(self, live: LiveSession, gap: Gap) -> None:
        payload = GapPayload(session_id=live.id, **gap.payload(snapshot=live.top))
        await self.perform(self.machine.answer("gap", payload, session_id=live.id))
