"""`Requests`: what each message of a client does.

Invariant: a message is acknowledged after it is stored, and an error names what was wrong with it. Messages are stored in the order in which they came.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from msgspec import UNSET

from holdfast._version import __version__
from holdfast.bridge.access.mode import MODE_TEXTS
from holdfast.bridge.access.resume_tokens import role_of
from holdfast.bridge.error_reports import of_client
from holdfast.bridge.sessions.agent_runner import agent_name
from holdfast.bridge.sessions.frames import notification_of, replay_frame
from holdfast.bridge.sessions.live_session import Incoming, LiveSession
from holdfast.bridge.sessions.summaries import summaries
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.fault_of import fault_of
from holdfast.sessions import admin
from holdfast.sessions.questions import answers
from holdfast.sessions.questions.question import Answer as GivenAnswer
from holdfast.stores import SessionState
from holdfast.stores.errors import session_ended
from holdfast.stores.records import FINAL
from holdfast.wire import messages as wire
from holdfast.wire.envelope import Invalid, Violation, stamp, wall_of
from holdfast.wire.outbox import AckResult
from holdfast.wire.position import Gap, Position
from holdfast.wire.server import PUBLIC_WARNING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from holdfast.bridge.access.identity import TokenHolder
    from holdfast.bridge.connection import Connection
    from holdfast.bridge.host.link import HostedRunner
    from holdfast.bridge.sessions.agent_runner import AgentRunner
    from holdfast.stores import SessionRecord
    from holdfast.wire.envelope import Envelope
    from holdfast.wire.messages import Role
    from holdfast.wire.replay import RingMessage
    from holdfast.wire.server import HandleMessage

__all__ = ["PROTOCOLS", "Requests"]

PROTOCOLS = (1, 2)
"""The versions of the protocol that the server speaks."""


_LOOKS, _LOOK_S = 50, 0.02
"""How often, and how many seconds apart, a password is offered to a program that is about to ask for it."""
_OPEN = (SessionState.ACTIVE, SessionState.CREATED)
_SOON_S = 0.2
"""How long the end of a session's work is waited for before the next message of the client is handled."""
_INSTEAD = "Call it again with these arguments instead: "
_SHOWN_SESSIONS = 100
_SHOWN_BYTES = 32_768
"""The most sessions that the answer to `auth` lists, and their bytes: every client reads it at every connection."""
_FRAME_REST = 1_000
"""Bytes of a message beside what it lists."""
_LONG_S = 0.002
"""A request that holds the event loop for longer is followed by a rest as long."""


class _Others:
    """Whether the event loop has come to anything else since this was made."""

    def __init__(self) -> None:
        self.came = False
        asyncio.get_running_loop().call_soon(self._come)

    def _come(self) -> None:
        self.came = True


class Requests:
    """The handlers of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._hub = connection.hub
        self._storing: set[asyncio.Task[None]] = set()
        self._arrived: list[tuple[Envelope, LiveSession, str]] = []
        """The messages of this turn of the event loop, each with its session and its text."""
        self._unanswered = 0
        """How many messages are not stored and answered yet."""
        self._handlers: dict[str, Callable[[HandleMessage, Any], Awaitable[None]]] = {
            "auth": self._auth,
            "health_check": self._health,
            "session_list": self._list,
            "session_create": self._create,
            "session_start": self._start,
            "session_join": self._join,
            "session_resume": self._resume,
            "session_snapshot": self._snapshot,
            "session_message": self._message,
            "message": self._message,
            "answer": self._answer,
            "approval_response": self._approval,
            "request_replay": self._request_replay,
            "ack": self._acked,
            "session_leave": self._leave,
            "session_pause": self._pause,
            "session_end": self._end,
            "session_close": self._end,
            "session_rename": self._rename,
            "stop": self._stop,
            "command": self._command,
            "refresh_token": self._refresh,
            "notification_ack": self._seen,
        }

    async def handle(self, handle: HandleMessage) -> None:
        """Do what a message asks for, or tell the client why not."""
        message = handle.message
        handler = self._handlers.get(message.type, self._unknown)
        if message.type in ("session_message", "message"):
            await self._tried(handler, handle)
            return
        # What a client does after it sent a message comes after that message is stored.
        await self.finish()
        others, begun = _Others(), self._hub.clock.monotonic()
        if await self._tried(handler, handle) and not self._connection.machine.is_closed:
            # A message is counted when it is stored, and a rejected `auth` when the connection ends.
            self._hub.reports.answered()
        took = self._hub.clock.monotonic() - begun
        if not others.came:
            # Everybody else waited for it. Now they come first for as long: one client has half of the server at most. Messages need
            # no such rest: those of one packet are stored together, and the next ones wait for that.
            await asyncio.sleep(took if took > _LONG_S else 0)

    async def _tried(self, handler: Callable[[HandleMessage, Any], Awaitable[None]], handle: HandleMessage) -> bool:
        try:
            await handler(handle, handle.payload)
        except Exception as error:  # noqa: BLE001 - whatever fails is the answer to the client, and other clients go on
            await self._failed(handle.message, error)
            return False
        return True

    async def finish(self) -> None:
        """Wait until everything that came before is stored."""
        if self._storing:
            await asyncio.wait(set(self._storing))

    async def _unknown(self, handle: HandleMessage, _: wire.Payload) -> None:
        raise HoldfastError(Fault.of("SYS_NOT_IMPLEMENTED", context={"received": handle.message.type}))

    async def _failed(self, message: Envelope, error: Exception) -> None:
        fault = of_client(error.fault) if isinstance(error, HoldfastError) else fault_of(error)
        if not isinstance(error, HoldfastError):
            # An error of ours. Its text may have details that are not for clients.
            logging.getLogger("holdfast").error("bridge: %s failed", message.type, exc_info=error)
            fault = Fault.of("SYS_INTERNAL_ERROR", context={"received": message.type, "cause": fault.code})
        self._hub.access.failed(fault)
        await self._connection.perform(self._connection.machine.failed(message, fault))

    async def _reply(self, handle: HandleMessage, type_: str, payload: wire.Payload, session: str = "") -> None:
        effects = self._connection.machine.answer(type_, payload, re=handle.message.id, session_id=session)
        await self._connection.perform(effects)

    @property
    def _identity(self) -> TokenHolder:
        identity = self._connection.identity
        assert identity is not None, "the machine hands on nothing before auth"
        return identity

    @property
    def client(self) -> str:
        """Whose message ids these are."""
        return self._connection.client_id or self._identity.token_id

    # --- who is there ---

    async def _auth(self, handle: HandleMessage, auth: wire.Auth) -> None:
        connection = self._connection
        try:
            identity = self._identified(auth)
            connection.protocol = _protocol(auth)
        except HoldfastError as error:
            if auth.resume:
                self._hub.reports.reconnection_failed(user_agent=connection.user_agent)
            return await connection.end(error.fault)
        connection.identified(identity)
        connection.user_agent = f"{auth.platform} {auth.client_version}".strip() or connection.user_agent
        connection.client_id = auth.client_id or auth.device_id
        if connection.client_id and auth.purpose == "primary":
            connection.client_key = (identity.token_id, connection.client_id)
        fault = self._hub.admit(connection)
        if fault is not None:
            return await connection.end(fault)
        resumed = [each for each in auth.resume if identity.may_see(each.session_id)]
        await connection.perform(
            connection.machine.accepted(handle.message, await self._ack(tuple(each.session_id for each in resumed)))
        )
        if self._hub.rotation is not None:
            await self._reply(handle, "certificate_rotation_scheduled", self._hub.rotation)
        for each in resumed:
            await self._join_again(handle, each)
        return None

    def _identified(self, auth: wire.Auth) -> TokenHolder:
        authenticator, peer = self._hub.authenticator, self._connection.peer
        if self._connection.machine.mode == "misconfigured":
            # Before the token is looked at: it has crossed the network for everybody to read.
            raise HoldfastError(Fault.of("CONN_MISCONFIGURED", context={"reason": MODE_TEXTS["misconfigured"]}))
        identity = (
            authenticator.redeem(auth.ticket, peer=peer)
            if auth.ticket and not auth.token
            else authenticator.identify(auth.token, peer=peer)
        )
        if identity.kind not in ("device", "admin"):
            why = f"A token for {identity.kind} may not open a connection"
            raise HoldfastError(Fault.of("AUTH_INSUFFICIENT_SCOPE", why, context={"kind": identity.kind}))
        return identity

    async def _ack(self, resumed: tuple[str, ...]) -> wire.ConnectionAck:
        settings, connection = self._hub.settings, self._connection
        mode = connection.machine.mode
        in_use = [live for live in self._hub.sessions.values() if live.state is SessionState.PAUSED]
        shown: list[SessionRecord | LiveSession] = [live for live in in_use if self._identity.may_see(live.id)]
        shown += await self._hub.visible(self._identity, states=_OPEN, most=_SHOWN_SESSIONS)
        active = await summaries(shown[:_SHOWN_SESSIONS], self._hub.sessions, most=_SHOWN_BYTES)
        name = "" if self._hub.agent is None else agent_name(self._hub.agent)
        return wire.ConnectionAck(
            connection_id=connection.id,
            protocol=connection.protocol,
            server_version=__version__,
            server_time=stamp(self._hub.clock.wall()),
            heartbeat_interval_ms=int(settings.connection.heartbeat * 1000),
            limits=wire.Limits(
                max_frame=settings.connection.max_frame,
                max_inflight=settings.max_inflight,
                replay_bytes=settings.ring_bytes,
                replay_age_ms=int(settings.ring_age * 1000),
                grace_ms=int(settings.grace * 1000),
            ),
            connection_mode=mode,
            connection_mode_description=MODE_TEXTS[mode],
            bridge_url=connection.url,
            requires_health_verification=mode == "direct_public",
            active_sessions=tuple(active),
            supported_agents=(name,) if name else (),
            resumed=resumed,
        )

    async def _join_again(self, handle: HandleMessage, each: wire.ResumeRequest) -> None:
        if self._connection.machine.mode == "direct_public":
            return
        try:
            # An observer comes back as an observer, whatever its token may do.
            role: Role = "observer" if "observer" in (each.role, role_of(each.resume_token)) else "controller"
            await self._enter(handle.message.id, each.session_id, role, each.after, shown=each.resume_token)
        except HoldfastError as error:
            # The client gets an error about this session, and goes on with the others.
            self._hub.reports.reconnection_failed(each.session_id, user_agent=self._connection.user_agent)
            context = {"session_id": each.session_id}
            fault = Fault.of(error.fault.code, error.fault.message, context=context)
            await self._connection.perform(self._connection.machine.failed(handle.message, fault))

    async def _health(self, handle: HandleMessage, check: wire.HealthCheck) -> None:
        machine, now = self._connection.machine, self._hub.clock.wall()
        is_public = machine.mode == "direct_public" and machine.phase.value == "awaiting_ack"
        skew = wall_of(check.timestamp)
        status = wire.HealthStatus(
            status="warning" if is_public else "healthy",
            connection_mode=machine.mode,
            ready=not is_public,
            server_timestamp=stamp(now),
            warnings=(PUBLIC_WARNING,) if is_public else (),
            warning_details={PUBLIC_WARNING: MODE_TEXTS["direct_public"]} if is_public else {},
            checks={
                "tls_valid": machine.mode != "misconfigured",
                "clock_sync": skew is None or abs(now - skew) < 300,
                "version_compatible": True,
                "token_permissions": True,
            },
            latency_ms=None if skew is None else max(0, int((now - skew) * 1000)),
            requires_acknowledgment=is_public,
        )
        await self._connection.perform(machine.checked(handle.message, status))

    # --- which session ---

    async def _list(self, handle: HandleMessage, asked: wire.SessionList) -> None:
        # The client takes messages of the size that it may send.
        most = self._hub.settings.connection.max_frame - _FRAME_REST
        records: Sequence[SessionRecord | LiveSession]
        if asked.in_use:
            mine = (live for live in self._hub.sessions.values() if self._identity.may_see(live.id))
            records = sorted((live for live in mine if live.id > asked.after), key=attrgetter("id"))
        else:
            records = await self._hub.visible(self._identity, after=asked.after)
        shown = await summaries(records, self._hub.sessions, most=most)
        after = shown[-1].session_id if len(shown) < len(records) else ""
        await self._reply(handle, "sessions", wire.SessionsPayload(sessions=shown, next=after))

    async def _create(self, handle: HandleMessage, create: wire.SessionCreate) -> None:
        live = await self._make(handle, create)
        await self._enter(handle.message.id, live.id, "controller", None)

    async def _start(self, handle: HandleMessage, start: wire.SessionStart) -> None:
        session = start.session_id if isinstance(start.session_id, str) else ""
        if start.resume and not session:
            raise _invalid(handle.message, "payload.session_id", "required")
        if not start.resume and not (session and await self._exists(session)):
            try:
                session = (await self._make(handle, start)).id
            except HoldfastError as error:
                # Another client has made it at the same time, which is as good.
                if error.fault.code != "SESS_ILLEGAL_TRANSITION" or not await self._exists(session):
                    raise
        live = await self._enter(handle.message.id, session, "controller", None)
        ready = wire.SessionReady(session_id=live.id, agent=start.agent, working_directory=start.working_directory)
        await self._reply(handle, "session_ready", ready, live.id)

    async def _make(self, handle: HandleMessage, wanted: wire.SessionCreate | wire.SessionStart) -> LiveSession:
        session = wanted.session_id if isinstance(wanted.session_id, str) else ""
        identity = self._identity
        if identity.role != "controller" or (session and not identity.may_see(session)):
            raise HoldfastError(Fault.of("AUTH_FORBIDDEN", "This token may not make sessions"))
        if not session and identity.sessions is not None:
            raise HoldfastError(Fault.of("AUTH_FORBIDDEN", "This token may not make sessions"))
        try:
            return await self._hub.create(
                session,
                agent=wanted.agent,
                title=wanted.title,
                working_directory=wanted.working_directory,
                device=identity.token_id,
            )
        except HoldfastError as error:
            if error.fault.code != "CONFIG_OPTION_INVALID":
                raise
            raise _invalid(handle.message, "payload.session_id", "a name", session) from error

    async def _exists(self, session: str) -> bool:
        try:
            self._check_visible(session)
            await self._hub.record(session)
        except HoldfastError as error:
            if error.fault.code != "SESS_NOT_FOUND":
                raise
            return False
        return True

    async def _find(self, session: str) -> LiveSession:
        self._check_visible(session)
        return await self._hub.live(session, self._identity.token_id)

    def _check_visible(self, session: str) -> None:
        # One that exists and one that may not be seen get the same answer.
        if not self._identity.may_see(session):
            raise HoldfastError(Fault.of("SESS_NOT_FOUND", context={"session_id": session}))

    async def _join(self, handle: HandleMessage, join: wire.SessionJoin) -> None:
        await self._enter(
            handle.message.id, join.session_id, join.role, join.after, join.history, shown=join.resume_token
        )

    async def _resume(self, handle: HandleMessage, resume: wire.SessionResume) -> None:
        live = await self._find(resume.session_id)
        if self._identity.role == "observer":
            raise HoldfastError(Fault.of("AUTH_FORBIDDEN", context={"session_id": live.id}))
        with self._hub.holding(live):
            await self._hub.activate(live)
            await self._enter(handle.message.id, resume.session_id, "controller", None)

    async def _enter(
        self,
        re: str,
        session: str,
        role: Role,
        after: Position | None,
        history: str = "tail",
        *,
        shown: str = "",
    ) -> LiveSession:
        live = await self._find(session)
        # One in error can be joined: whoever was away reads there why it has ended.
        if live.state is SessionState.CLOSED:
            raise HoldfastError(session_ended(session))
        # What a client says of itself only narrows what its token may do.
        granted: Role = "observer" if "observer" in (role, self._identity.role) else "controller"
        tokens, place = self._hub.resume_tokens, (self._identity.token_id, self._connection.client_id, session)
        worth = tokens.check(shown, *place, self._hub.clock.monotonic()) if shown else None
        token = tokens.issue(*place, granted)
        await self._connection.join(re, live, granted, after=after, history=history, token=token, resume_status=worth)
        return live

    async def _leave(self, handle: HandleMessage, _: wire.SessionPlain) -> None:
        self._connection.leave(handle.session_id)
        await self._acknowledge(handle)

    async def _snapshot(self, handle: HandleMessage, asked: wire.SessionPlain) -> None:
        session = asked.session_id if isinstance(asked.session_id, str) else ""
        session = session or handle.message.session_id or next(reversed(self._connection.machine.roles), "")
        self._check_visible(session)
        snapshot = await (await self._hub.look_at(session)).snapshot()
        await self._reply(handle, "snapshot", snapshot, session)

    async def _end(self, handle: HandleMessage, payload: wire.SessionEnd) -> None:
        self._check_expiry(handle, payload.expires_at)
        live = self._connection.live(handle.session_id)
        await self._when_done(handle, live, self._hub.close(live, payload.reason))

    async def _pause(self, handle: HandleMessage, _: wire.SessionPlain) -> None:
        live = self._connection.live(handle.session_id)
        await self._when_done(handle, live, self._hub.pause(live))

    async def _when_done(self, handle: HandleMessage, live: LiveSession, ends: Coroutine[Any, Any, None]) -> None:
        """Acknowledge a message when a session's work has ended. That may take as long as a turn: other messages are handled meanwhile."""

        async def end() -> None:
            try:
                with self._hub.holding(live):
                    await ends
                await self._acknowledge(handle)
            except Exception as error:  # noqa: BLE001 - whatever fails is the answer to the client
                await self._failed(handle.message, error)

        # Mostly it is over at once. Then what the client has sent after it comes after it.
        await asyncio.wait((self._hub.spawn(end()),), timeout=_SOON_S)

    async def _rename(self, handle: HandleMessage, given: wire.SessionRename) -> None:
        self._check_expiry(handle, given.expires_at)
        await admin.rename(self._hub.store, handle.session_id, given.title.strip(), by=self._identity.name)
        await self._acknowledge(handle)

    async def _stop(self, handle: HandleMessage, stop: wire.SessionStop) -> None:
        self._check_expiry(handle, stop.expires_at)
        live = self._connection.live(handle.session_id)
        if live.runner is None or not await live.runner.stop_turn(stop.turn):
            await self._check_not_ended(live)
            message = f"Session '{handle.session_id}' has no turn to stop"
            if stop.turn is not None:
                message = (
                    f"Turn {stop.turn} of session '{handle.session_id}' does not run (any more): nothing was stopped"
                )
            context = {"session_id": handle.session_id, "turn": stop.turn}
            raise HoldfastError(Fault.of("SESS_ILLEGAL_TRANSITION", message, context=context))
        await self._acknowledge(handle)

    async def _command(self, handle: HandleMessage, command: wire.Command) -> None:
        self._check_expiry(handle, command.expires_at)
        live = self._connection.live(handle.session_id)
        runner = live.runner
        if runner is None or not await runner.command(command.run, command.command, self._identity.name):
            await self._check_not_ended(live)
            message = f"Operation '{command.run}' does not wait for {command.command} (any more)"
            context = {"session_id": live.id, "run": command.run, "command": command.command}
            raise HoldfastError(Fault.of("SESS_NOT_FOUND", message, context=context))
        await self._acknowledge(handle)

    async def _check_not_ended(self, live: LiveSession) -> None:
        state = (await self._hub.store.session(live.id)).state
        if state in FINAL:
            raise HoldfastError(session_ended(live.id, state))

    async def _refresh(self, handle: HandleMessage, refresh: wire.RefreshToken) -> None:
        found = self._hub.authenticator.identify(refresh.token, peer=self._connection.peer)
        old = self._identity
        if (found.kind, found.role, found.sessions) != (old.kind, old.role, old.sessions):
            message = "The new token is not for the same: connect again with it"
            raise HoldfastError(Fault.of("AUTH_FORBIDDEN", message))
        self._connection.identified(found)
        await self._acknowledge(handle)

    async def _seen(self, handle: HandleMessage, seen: wire.NotificationAck) -> None:
        # They stay in the log, and other clients get them.
        self._hub.seen.extend((self.client, id_) for id_ in seen.notification_ids)
        await self._acknowledge(handle)

    # --- what is said ---

    async def _message(self, handle: HandleMessage, said: wire.SessionMessage) -> None:
        content = said.text if said.content is UNSET else said.content
        if not isinstance(content, str):
            raise _invalid(handle.message, "payload.content", "required")
        self._check_expiry(handle, said.expires_at)
        if self._unanswered >= self._hub.settings.max_inflight:
            # The client has sent more than it may. It waits, and nothing is lost.
            await self.finish()
        # It is stored also if the connection has ended when the task begins.
        self._arrived.append((handle.message, self._connection.live(handle.session_id), content))
        self._unanswered += 1
        if len(self._arrived) == 1:
            # A task for each message would cost a fifth of all that a message costs. This one begins when all that came are here.
            task = asyncio.create_task(self._store_arrived())
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)

    async def _store_arrived(self) -> None:
        """Store the messages that came in one turn of the event loop. Those of one session are acknowledged with one message."""
        arrived, self._arrived = self._arrived, []
        client = self.client
        for live, group in groupby(arrived, key=itemgetter(1)):
            messages = [(message, content) for message, _, content in group]
            results = await self._take(live, [Incoming(content, client, message.id) for message, content in messages])
            acks = [result for result in results if isinstance(result, AckResult)]
            if acks:
                self._hub.reports.answered(len(acks))
                await self._connection.perform(self._connection.machine.stored(acks))
            for (message, _), result in zip(messages, results, strict=True):
                if isinstance(result, Exception):
                    await self._failed(message, result)
            self._unanswered -= len(messages)

    async def _take(self, live: LiveSession, messages: list[Incoming]) -> list[AckResult | Exception]:
        try:
            return await self._hub.take(live, messages)
        except Exception as error:  # noqa: BLE001 - the client learns of any failure
            return [error for _ in messages]

    def _check_expiry(self, handle: HandleMessage, expires_at: str | None) -> None:
        until = None if expires_at is None else wall_of(expires_at)
        if expires_at is not None and until is None:
            raise _invalid(handle.message, "payload.expires_at", "iso8601", expires_at)
        if until is not None and until <= self._hub.clock.wall():
            message = "The message had expired when it arrived, and was not stored"
            raise HoldfastError(Fault.of("SESS_INTERACTION_EXPIRED", message, context={"expires_at": expires_at}))

    async def _answer(self, handle: HandleMessage, answer: wire.Answer) -> None:
        self._check_expiry(handle, answer.expires_at)
        given = GivenAnswer(answer.value, answer.outcome, answer.reason)
        await self._give(handle, answer.question_id, given, answer.arguments_hash)

    async def _approval(self, handle: HandleMessage, response: wire.ApprovalResponse) -> None:
        live = self._connection.live(handle.session_id)
        question = await live.question_of_call(response.tool_call_id, response.question_id)
        if response.decision == "modified":
            given = GivenAnswer.no(self._modified(handle, response))
        else:
            given = GivenAnswer(value=True) if response.decision == "approved" else GivenAnswer.no(response.reason)
        await self._give(handle, question, given, response.arguments_hash)

    def _modified(self, handle: HandleMessage, response: wire.ApprovalResponse) -> str:
        """Return the answer to a call with other arguments, for the model.

        The call itself is rejected: an approval holds for the arguments that were shown. The model makes a call with the new ones, so that
        they are checked and shown as those of any call, and so that the conversation says what ran.
        """
        if response.modifications is None:
            raise _invalid(handle.message, "payload.modifications", "required")
        wanted = msgspec.json.encode(response.modifications).decode()
        return f"{response.reason}\n{_INSTEAD}{wanted}".lstrip()

    async def _give(self, handle: HandleMessage, question: str, given: GivenAnswer, shown: str) -> None:
        live, sent = self._connection.live(handle.session_id), (self.client, handle.message.id)
        runner = live.runner
        if runner is not None and await runner.give(question, given):
            # A password goes to the program that asks for it, and is stored nowhere.
            live.handed_over.append(sent)
        if sent in live.handed_over:
            return await self._acknowledge(handle)
        by = self._identity.name
        try:
            store, runtime = self._hub.store, self._hub.runtime
            await answers.answer(store, handle.session_id, question, given, by=by, shown=shown, runtime=runtime)
        except HoldfastError as error:
            is_password = error.fault.context.get("expected") == answers.GIVEN_DIRECTLY
            if runner is None or not is_password or not await _given_soon(runner, question, given):
                raise
            live.handed_over.append(sent)
        return await self._acknowledge(handle)

    async def _acknowledge(self, handle: HandleMessage) -> None:
        result = AckResult(id=handle.message.id, status="stored")
        await self._connection.perform(self._connection.machine.stored([result]))

    # --- what was missed ---

    async def _acked(self, handle: HandleMessage, ack: wire.ClientAck) -> None:
        client = self._connection.client_id
        self._hub.resume_tokens.confirm(self._identity.token_id, client, handle.session_id)
        if ack.epoch == self._connection.live(handle.session_id).epoch:
            self._connection.acked[handle.session_id] = ack.offset

    async def _request_replay(self, handle: HandleMessage, asked: wire.RequestReplay) -> None:
        live = self._connection.live(handle.session_id)
        await live.catch_up()
        if asked.since_offset is not None:
            return await self._replay_after(handle, live, asked.since_offset, asked.epoch or live.epoch)
        since = None
        if asked.since is not None:
            wall = wall_of(asked.since)
            if wall is None:
                raise _invalid(handle.message, "payload.since", "iso8601", asked.since)
            since = stamp(wall)
        held, is_complete = live.held_since(since)
        everything, _ = live.held_since(None)
        if since is not None and everything and not held:
            # A time after the newest message is the time of another clock, so nobody knows what is missing.
            newest = wall_of(everything[-1].timestamp) or 0.0
            is_complete = (wall_of(since) or 0.0) <= newest + 1.0
        held = self._without_seen(held)
        fields = {"session_id": live.id, "complete": is_complete}
        frame = replay_frame(
            held, fields, id_=str(uuid4()), at=self._hub.clock.wall(), as_text=self._connection.protocol == 1
        )
        return await self._connection.send(frame)

    def _without_seen(self, held: list[RingMessage]) -> list[RingMessage]:
        """Leave out the notifications that this client has acknowledged."""
        mine = {id_ for client, id_ in self._hub.seen if client == self.client}
        if not mine:
            return held
        return [each for each in held if notification_of(each.frame) not in mine]

    async def _replay_gap(self, handle: HandleMessage, live: LiveSession, gap: Gap) -> None:
        buffer = wire.ReplayBuffer(messages=[], session_id=live.id, complete=False, gap=gap.payload())
        await self._reply(handle, "replay_buffer", buffer, live.id)

    async def _replay_after(self, handle: HandleMessage, live: LiveSession, after: int, epoch: str) -> None:
        found = await live.resume(Position(epoch=epoch, offset=after))
        if isinstance(found, Gap):
            return await self._replay_gap(handle, live, found)
        messages = await live.read(after, reading=self._hub.reading, identity=self._connection.identity)
        if isinstance(messages, Gap):
            return await self._replay_gap(handle, live, messages)
        last = messages[-1].offset if messages else after
        fields = {"session_id": live.id, "complete": True, "from": after + 1, "to": last, "more": last < live.top}
        frame = replay_frame(messages, fields, id_=str(uuid4()), at=self._hub.clock.wall())
        return await self._connection.send(frame)


def _protocol(auth: wire.Auth) -> int:
    """Return the newest version of the protocol that both sides speak."""
    named = (int(each.removeprefix("v")) for each in auth.supported_protocols if each.removeprefix("v").isdigit())
    wanted = set(auth.protocol) | set(named) or {1}
    common = wanted & set(PROTOCOLS)
    if not common:
        context = {"expected": list(PROTOCOLS), "received": sorted(wanted)}
        raise HoldfastError(Fault.of("PROTO_VERSION_INCOMPATIBLE", context=context))
    return max(common)


def _invalid(message: Envelope, field: str, constraint: str, received: Any = None) -> HoldfastError:
    violation = Violation(field=field, constraint=constraint, received=received)
    return HoldfastError(Invalid((violation,), message.id).fault)


async def _given_soon(runner: AgentRunner | HostedRunner, question: str, given: GivenAnswer) -> bool:
    """Give a password to a program that has stored its question and is about to wait for the answer. False: it is not there."""
    for _ in range(_LOOKS):
        if await runner.give(question, given):
            return True
        await asyncio.sleep(_LOOK_S)
    return False
