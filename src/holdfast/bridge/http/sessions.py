"""The sessions of a bridge over HTTP: lists, pages of their logs, snapshots, streams, messages and answers.

Invariant: a session that somebody may not see does not exist for them. Reading a session changes nothing: it starts no agent, counts as
no client, and begins no grace.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from holdfast.bridge.access.lockout import address_group
from holdfast.bridge.http.bodies import Accepted, Checkpoint, EventPage, NewEvent, Reason, SessionBody, SessionPage
from holdfast.bridge.http.event_stream import HEARTBEAT_S, SessionEventStream, read_event_id
from holdfast.bridge.http.request_parts import body_as, choice, idempotency_key, identify, number, peer_of, violation
from holdfast.bridge.http.responses import error_response, json_response, request_id
from holdfast.bridge.sessions.live_session import Incoming, LiveSession
from holdfast.extras import needs_extra
from holdfast.faults import Fault, HoldfastError
from holdfast.sessions import admin
from holdfast.sessions.manifest import decode_manifest
from holdfast.sessions.questions import answers
from holdfast.sessions.questions.question import Answer
from holdfast.stores import SessionState
from holdfast.stores.errors import session_ended
from holdfast.stores.records import FINAL
from holdfast.wire.envelope import MAX_OFFSET, stamp
from holdfast.wire.position import Gap, Position

with needs_extra("holdfast.bridge", "starlette", "server"):
    from starlette.responses import Response, StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from holdfast.bridge.access.identity import TokenHolder
    from holdfast.bridge.hub import Hub
    from holdfast.stores import SessionRecord

__all__ = ["SessionRoutes"]

_PAGE_BYTES = 262_144


class SessionRoutes:
    """What answers the paths below `/sessions`."""

    def __init__(self, hub: Hub, *, heartbeat: float = HEARTBEAT_S) -> None:
        self._hub = hub
        self._heartbeat = heartbeat
        self.streams: set[SessionEventStream] = set()
        self._reading = hub.reading
        self._followed: dict[tuple[str, str], tuple[LiveSession, int]] = {}
        """The sessions that streams follow, by id and epoch, each with how many do: what one has read need not be read again."""
        hub.authenticator.watch(self._revoked)

    def close(self) -> None:
        """End all streams, because the server stops."""
        for stream in tuple(self.streams):
            stream.end()

    def _revoked(self, token_id: str) -> None:
        for stream in tuple(self.streams):
            if stream.identity.token_id == token_id:
                stream.end()

    async def sessions(self, request: Request) -> Response:
        identity = identify(request, self._hub, "device")
        limit = number(request, "limit", 100, least=1, most=1_000)
        states = states_of(request)
        found: list[SessionRecord] = []
        after, is_more = request.query_params.get("after", ""), True
        async with self._reading.turn(identity):
            while is_more and len(found) <= limit:
                page = await self._hub.store.sessions(states=states, after=after, limit=limit + 1)
                found += [record for record in page if identity.may_see(record.id)]
                is_more = len(page) > limit
                after = page[-1].id if page else after
            shown = [await self._described(record) for record in found[:limit]]
        return json_response(SessionPage(sessions=shown, next=shown[-1].session_id if len(found) > limit else None))

    async def session(self, request: Request) -> Response:
        _, record = await self._found(request)
        return json_response(await self._described(record, with_checkpoint=True))

    async def _described(self, record: SessionRecord, *, with_checkpoint: bool = False) -> SessionBody:
        manifest, problem = None, ""
        try:
            manifest = decode_manifest(record.id, bytes(record.manifest))
        except HoldfastError as error:
            problem = error.fault.message
        stored = await self._hub.store.checkpoint(record.id) if with_checkpoint else None
        live = self._hub.sessions.get(record.id)
        return SessionBody(
            session_id=record.id,
            state=record.state.value,
            resumable=record.state is SessionState.PAUSED and manifest is not None and manifest.resumable,
            agent="" if manifest is None else manifest.agent_type,
            title="" if manifest is None else manifest.title,
            working_directory="" if manifest is None else manifest.project_root or "",
            created_at=stamp(record.created_at),
            last_activity_at=stamp(record.last_at),
            epoch=record.epoch,
            oldest_offset=record.oldest,
            top_offset=record.top,
            in_use=admin.in_use(record, self._hub.store, self._hub.runtime),
            clients=0 if live is None else len(live.clients),
            checkpoint=None
            if stored is None
            else Checkpoint(
                offset=stored.offset, message_count=stored.message_count, last_message_id=stored.last_message_id
            ),
            problem=problem,
        )

    async def events(self, request: Request) -> Response:
        """Answer a page of the log. A client that asks again with `next_after` gets every message once."""
        identity, record = await self._found(request)
        after = number(request, "after", record.oldest - 1, least=0, most=MAX_OFFSET)
        limit = number(request, "limit", 500, least=1, most=1_000)
        async with self._reading.turn(identity), self._log(record) as live:
            wanted = Position(epoch=request.query_params.get("epoch", live.epoch), offset=after)
            reached = await live.resume(wanted)
            held = reached if isinstance(reached, Gap) else await live.read(after, most_bytes=_PAGE_BYTES)
            if isinstance(held, Gap):
                return self._gap(request, held, record)
            events = held[:limit]
            last = events[-1].offset if events else after
            body = EventPage(
                session_id=live.id,
                epoch=live.epoch,
                events=[msgspec.Raw(each.frame) for each in events],
                next_after=last,
                has_more=last < live.top,
            )
        return json_response(body)

    async def snapshot(self, request: Request) -> Response:
        identity, record = await self._found(request)
        async with self._reading.turn(identity), self._log(record) as live:
            return json_response(await live.snapshot())

    async def stream(self, request: Request) -> Response:
        identity, record = await self._found(request)
        async with self._reading.turn(identity):
            live = await self._follow(record)
        try:
            given = request.headers.get("last-event-id", "")
            if given:
                reached = await live.resume(read_event_id(given))
                if isinstance(reached, Gap):
                    await self._leave(live)
                    return self._gap(request, reached, record)
                after = reached.after
            else:
                after = live.start(choice(request, "history", ("tail", "full", "none")))
            self._check_places(record.id, peer_of(request))
        except BaseException:
            await self._leave(live)
            raise
        if record.state in FINAL and after >= live.top:
            await self._leave(live)
            # EventSource stops asking for this answer alone.
            return Response(status_code=204)
        stream = SessionEventStream(
            live,
            identity,
            peer=peer_of(request),
            after=after,
            clock=self._hub.clock,
            reading=self._reading,
            heartbeat=self._heartbeat,
        )
        self.streams.add(stream)
        return _StreamAnswer(stream, lambda: self._ended(stream, live))

    async def _ended(self, stream: SessionEventStream, live: LiveSession) -> None:
        self.streams.discard(stream)
        await self._leave(live)

    async def _follow(self, record: SessionRecord) -> LiveSession:
        """Return a session that follows its log. Whoever takes it leaves it at the end."""
        key = (record.id, record.epoch)
        if key not in self._followed:
            live = self._made(record)
            await live.open()
            if key in self._followed:
                # Somebody else was quicker.
                await live.close()
            else:
                self._followed[key] = (live, 0)
        live, count = self._followed[key]
        self._followed[key] = (live, count + 1)
        return live

    async def _leave(self, live: LiveSession) -> None:
        key = next(each for each, (followed, _) in self._followed.items() if followed is live)
        count = self._followed[key][1] - 1
        self._followed[key] = (live, count)
        if not count:
            del self._followed[key]
            await live.close()

    def _check_places(self, session: str, peer: str) -> None:
        """Raise CONN_LIMIT if there are as many streams as there may be sockets: of all, of an address, and in a session."""
        settings, address = self._hub.settings, address_group(peer)
        of_address = sum(each.address == address for each in self.streams)
        in_session = sum(each.session == session for each in self.streams)
        for count, most, where in (
            (len(self.streams), self._hub.most_connections, ""),
            (of_address, settings.max_connections_per_address, " from this address"),
            (in_session, settings.max_clients, f" in session '{session}'"),
        ):
            if count >= most:
                raise HoldfastError(Fault.of("CONN_LIMIT", f"Too many streams{where}", context={"limit": most}))

    async def add_event(self, request: Request) -> Response:
        """Store a message or an answer, and answer when it is stored."""
        identity, record = await self._found(request)
        if identity.role != "controller":
            raise HoldfastError(Fault.of("AUTH_FORBIDDEN", "An observer may not send"))
        event = await body_as(request, NewEvent)
        id_ = event.id if isinstance(event.id, str) else idempotency_key(request) or str(uuid4())
        if event.type == "answer":
            if not isinstance(event.question_id, str):
                raise violation("question_id", "required")
            answer = Answer(event.value, event.outcome, event.reason)
            await answers.answer(
                self._hub.store,
                record.id,
                event.question_id,
                answer,
                by=identity.name,
                shown=event.arguments_hash,
                runtime=self._hub.runtime,
            )
            await self._hub.answered(record.id)
            return json_response(Accepted(accepted=True, message_id=id_), 202)
        if not isinstance(event.content, str):
            raise violation("content", "required")
        if record.state in FINAL:
            raise HoldfastError(session_ended(record.id, record.state))
        live = await self._hub.live(record.id, identity.token_id) if self._hub.agent is not None else self._made(record)
        incoming = Incoming(event.content, client=f"http:{identity.token_id}", id=id_)
        (result,) = await self._hub.take(live, [incoming])
        if isinstance(result, Exception):
            raise result
        body = Accepted(accepted=True, message_id=id_, offset=result.offset, duplicate=result.status == "duplicate")
        return json_response(body, 202)

    async def _found(self, request: Request) -> tuple[TokenHolder, SessionRecord]:
        """Return who asks and the session of the path. One that they may not see is as missing as one that is not there."""
        identity = identify(request, self._hub, "device")
        return identity, await self._record(identity, request.path_params["session_id"])

    async def _record(self, identity: TokenHolder, session: str) -> SessionRecord:
        missing = HoldfastError(Fault.of("SESS_NOT_FOUND", context={"session_id": session[:128]}))
        if not identity.may_see(session):
            raise missing
        try:
            return await self._hub.store.session(session)
        except HoldfastError as error:
            # No session can have a name that is not valid.
            if error.fault.code in {"CONFIG_OPTION_INVALID", "SESS_NOT_FOUND"}:
                raise missing from error
            raise

    def _made(self, record: SessionRecord) -> LiveSession:
        # Not the hub's: that one counts clients and starts a grace when the last one leaves, and reading is neither.
        settings = self._hub.settings
        return LiveSession(
            record, self._hub.store, clock=self._hub.clock, ring_bytes=settings.ring_bytes, ring_age=settings.ring_age
        )

    @asynccontextmanager
    async def _log(self, record: SessionRecord) -> AsyncIterator[LiveSession]:
        # One that is in use knows its log already, and counts nobody who only reads. But here everything can be read that the store has.
        in_use = self._hub.sessions.get(record.id) if self._hub.settings.replays_log else None
        live = in_use if in_use is not None and in_use.epoch == record.epoch else self._made(record)
        await live.catch_up()
        yield live

    def _gap(self, request: Request, gap: Gap, record: SessionRecord) -> Response:
        answer = error_response(gap.fault, request_id=request_id(request.scope))
        body = msgspec.json.decode(answer.body) | {"gap": gap.payload(snapshot=record.checkpoint)}
        return json_response(body, answer.status_code)

    async def close_session(self, request: Request) -> Response:
        identity = identify(request, self._hub, "admin")
        record = await self._record(identity, request.path_params["session_id"])
        reason = (await body_as(request, Reason)).reason
        live = self._hub.sessions.get(record.id)
        if live is None:
            await admin.close(self._hub.store, record.id, reason)
        else:
            await self._hub.close(live, reason)
        return json_response(await self._described(await self._hub.store.session(record.id)))


class _StreamAnswer(StreamingResponse):
    """A stream as an answer. `ended` is called also if the client is gone before the first event."""

    def __init__(self, stream: SessionEventStream, ended: Callable[[], Awaitable[None]]) -> None:
        headers = {"x-accel-buffering": "no"}
        super().__init__(stream.events(), media_type="text/event-stream", headers=headers)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._ended()


def states_of(request: Request) -> tuple[SessionState, ...]:
    if "state" not in request.query_params:
        return ()
    return (SessionState(choice(request, "state", tuple(SessionState))),)
