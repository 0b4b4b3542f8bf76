"""The bridge over HTTP: its state, sessions and their events, hooks, files, metrics, and what an admin may do.

    api = HttpApi(hub)
    app = Guard(Starlette(routes=api.routes, exception_handlers=EXCEPTION_HANDLERS), hub.settings)

Every path is also there below `/api/v1`.

Invariant: a session that somebody may not see does not exist for them. What is answered has passed the redactor. Nothing here changes a
session that a client has not asked to change.
"""

from __future__ import annotations

import asyncio
import time
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast._version import __version__
from holdfast.bridge.access.guard import rates_of
from holdfast.bridge.access.tokens import TICKET_S
from holdfast.bridge.error_reports import of_client
from holdfast.bridge.http.bodies import (
    Accepted,
    BatchReply,
    ClientReport,
    Command,
    CommandReply,
    EventPage,
    GapBody,
    Health,
    HookBatch,
    HookBody,
    HookRejection,
    HookReply,
    Info,
    NewEvent,
    Paired,
    PairRequest,
    Reason,
    Reloaded,
    ServerLimitsBody,
    SessionBody,
    SessionPage,
    Ticket,
    WaitingBody,
)
from holdfast.bridge.http.event_stream import HEARTBEAT_S
from holdfast.bridge.http.files import Folder, ProjectFiles
from holdfast.bridge.http.hooks import EVENTS, SEVEN, HookRules, HookStore, invalid, read_hook, rejection
from holdfast.bridge.http.openapi import Endpoint, Parameter, openapi
from holdfast.bridge.http.request_parts import (
    body_as,
    idempotency_key,
    identify,
    mode,
    peer_of,
    read_body,
    user_agent_of,
    violation,
)
from holdfast.bridge.http.responses import json_response, rejected
from holdfast.bridge.http.sessions import SessionRoutes
from holdfast.bridge.settings import is_loopback
from holdfast.extras import needs_extra
from holdfast.faults import Fault, HoldfastError, meaning, resolve
from holdfast.runtime import page_of
from holdfast.stores import SessionState
from holdfast.wire.envelope import stamp
from holdfast.wire.messages import Snapshot

with needs_extra("holdfast.bridge", "starlette", "server"):
    from starlette.responses import Response
    from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

    from holdfast.bridge.access.identity import TokenHolder, TokenKind
    from holdfast.bridge.access.pairing import Pairing
    from holdfast.bridge.http.hooks import HookEvent, Stored
    from holdfast.bridge.hub import Hub

__all__ = ["HttpApi"]

B = TypeVar("B")

BASE = "/api/v1"
"""The other place of every path."""
_STORE_S = 2.0
"""Seconds that the store may take for the check of `/health`."""
_PAGE_BYTES = 262_144
_FIRST_ERROR = 400
_TEXT = {"type": "string"}
_SESSION = Parameter("session_id", {"type": "string", "minLength": 1, "maxLength": 256}, "The session.", "path")
_OFFSET = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}


class HttpApi:
    """The routes of a bridge over HTTP.

        api = HttpApi(hub, agents=("coder",), checks={"agent_sdk": agent.is_well})

    checks: further checks of `/health`, by name: functions, also async ones, that return whether all is well.
    metrics: returns the text of `/metrics`; by default that of prometheus-client.
    reload_hooks: reads the rules for hook events anew. pairing: turns one-time codes into tokens of new devices.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        agents: tuple[str, ...] = (),
        checks: Mapping[str, Callable[[], bool | Awaitable[bool]]] | None = None,
        metrics: Callable[[], bytes] | None = None,
        reload_hooks: Callable[[], HookRules] | None = None,
        pairing: Pairing | None = None,
        heartbeat: float = HEARTBEAT_S,
    ) -> None:
        self.hub = hub
        self.settings = settings = hub.settings
        events = EVENTS if settings.extended_hooks else SEVEN
        self.rules = HookRules(events=events, strict=settings.strict_hooks, skew=settings.hook_skew)
        self._pairing = pairing
        self.reports = hub.reports
        self._agents = agents
        self._checks = dict(checks or {})
        self._metrics = metrics
        self._reload_hooks = reload_hooks
        self._hooks = HookStore(hub.store, clock=hub.clock)
        self.sessions = SessionRoutes(hub, heartbeat=heartbeat)
        self._started = time.monotonic()
        root = settings.served_root
        self._files = None if root is None else ProjectFiles(root)
        self.endpoints = tuple(each for each in self._endpoints() if pairing is not None or each.path != "/pair")
        self._openapi = msgspec.json.encode(openapi(self.endpoints))

    @property
    def routes(self) -> list[Route]:
        """The routes, each at its path and below `/api/v1`."""
        return [
            Route(f"{base}{each.path}", self._answering(each), methods=[each.method])
            for base in ("", BASE)
            for each in self.endpoints
        ]

    def close(self) -> None:
        """End all streams, because the server stops."""
        self.sessions.close()

    def _answering(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers a route. Errors are counted by where they come from."""
        is_hook = endpoint.path.startswith("/hooks/")

        async def answer(request: Request) -> Response:
            try:
                response = await endpoint.handler(request)
            except HoldfastError as error:
                report = self.reports.hook if is_hook else self.reports.request
                session = request.path_params.get("session_id")
                report(error.fault, session_id=session, user_agent=user_agent_of(request))
                self.hub.access.failed(error.fault)
                of_sender = of_client(error.fault)
                if of_sender is not error.fault:
                    raise HoldfastError(of_sender) from error
                raise
            if not is_hook and response.status_code < _FIRST_ERROR:
                self.reports.answered()
            return response

        return answer

    def _endpoints(self) -> tuple[Endpoint, ...]:
        page = (
            Parameter("epoch", _TEXT, "The epoch of `after`."),
            Parameter("after", _OFFSET, "The last offset that is known."),
            Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1_000}, "The most events."),
        )
        sessions = self.sessions
        find: tuple[Any, ...] = ("SESS_NOT_FOUND", "SESS_STORE_UNAVAILABLE")
        states = [state.value for state in SessionState]
        listing = (
            Parameter("state", {"type": "string", "enum": states}, "Only sessions in this state."),
            Parameter("after", _TEXT, "The `next` of the page before."),
            Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1_000}, "The most sessions."),
        )
        history = Parameter("history", {"type": "string", "enum": ["tail", "full", "none"]}, "Where to begin.")
        last = Parameter("Last-Event-ID", _TEXT, "The id of the last event that is known.", "header")
        key = Parameter(
            "Idempotency-Key", {"type": "string", "maxLength": 256}, "The same key is stored once.", "header"
        )
        path = Parameter("path", {"type": "string"}, "A path below the project's root.", "path")
        code = Parameter("code", {"type": "string", "maxLength": 64}, "A code.", "path")
        hook: tuple[Any, ...] = ("HOOK_AUTH_FAILED", "SESS_CLOSED", "PROTO_DUPLICATE_ID", "SESS_STORE_UNAVAILABLE")
        return (
            Endpoint("GET", "/health", self.health, "Whether the bridge works", Health, (), more={503: Health}, errors=("AUTH_REQUIRED",)),
            Endpoint("GET", "/info", self.info, "What the bridge is and allows", Info),
            Endpoint("GET", "/openapi.json", self.openapi, "This document", None, ()),
            Endpoint("GET", "/sessions", sessions.sessions, "The sessions", SessionPage, parameters=listing, errors=find[1:]),
            Endpoint("GET", "/sessions/{session_id}", sessions.session, "A session", SessionBody, parameters=(_SESSION,), errors=find),
            Endpoint("GET", "/sessions/{session_id}/events", sessions.events, "A page of the session's log", EventPage, parameters=(_SESSION, *page), errors=find, more={409: GapBody}),
            Endpoint("POST", "/sessions/{session_id}/events", sessions.add_event, "Send a message, or answer a question", Accepted, parameters=(_SESSION, key), body=NewEvent, status=202, errors=(*find, "SESS_CLOSED")),
            Endpoint("GET", "/sessions/{session_id}/snapshot", sessions.snapshot, "The session as it is, and where its log goes on", Snapshot, parameters=(_SESSION,), errors=find),
            Endpoint("GET", "/sessions/{session_id}/stream", sessions.stream, "The session's messages as they come", None, parameters=(_SESSION, last, history), errors=(*find, "CONN_LIMIT"), more={409: GapBody}, media_type="text/event-stream"),
            Endpoint("POST", "/hooks/event", self.hook_event, "A hook event", HookReply, ("hook",), (key,), HookBody, errors=hook, more={400: HookRejection}),
            Endpoint("POST", "/hooks/batch", self.hook_batch, "Several hook events", BatchReply, ("hook",), (), HookBatch, errors=hook, more={400: BatchReply}),
            Endpoint("GET", "/files", self.files, "The folder of the project", Folder, errors=("TOOL_FILE_NOT_FOUND",)),
            Endpoint("GET", "/files/{path:path}", self.file, "A file, or what a folder holds", None, parameters=(path,), errors=("TOOL_FILE_NOT_FOUND", "PROTO_MESSAGE_TOO_LARGE"), media_type="application/octet-stream"),
            Endpoint("GET", "/metrics", self.metrics, "Metrics for Prometheus", None, ("metrics",), media_type="text/plain"),
            Endpoint("POST", "/tickets", self.ticket, "A ticket for a browser's WebSocket", Ticket),
            Endpoint("POST", "/pair", self.pair, "Make the token of a new device from a one-time code", Paired, (), body=PairRequest, errors=("AUTH_INVALID_TOKEN",)),
            Endpoint("POST", "/errors", self.client_error, "Report an error that a client has seen", CommandReply, body=ClientReport),
            Endpoint("GET", "/errors/{code}", self.error_page, "What a code means, and what to do: the `documentation_url` of errors", None, (), (code,), errors=("TOOL_FILE_NOT_FOUND",), media_type="text/markdown"),
            Endpoint("GET", "/admin/waiting", self.waiting, "Operations that wait", WaitingBody, ("admin",)),
            Endpoint("POST", "/admin/commands", self.command, "Tell an operation that waits what to do", CommandReply, ("admin",), body=Command),
            Endpoint("POST", "/admin/reload-hooks", self.reload_hooks, "Read the rules for hook events anew", Reloaded, ("admin",)),
            Endpoint("POST", "/admin/sessions/{session_id}/close", sessions.close_session, "Close a session for good", SessionBody, ("admin",), (_SESSION,), Reason, errors=(*find, "SESS_CLOSED", "SESS_LEASE_LOST")),
            Endpoint("GET", "/ws", self.upgrade, "The WebSocket", None, (), errors=("CONN_UPGRADE_REQUIRED",), status=101),
        )  # fmt: skip

    # --- the bridge itself ---

    async def health(self, request: Request) -> Response:
        """Answer whether all is well. Only somebody with a token learns what is not; without one only this machine may ask."""
        has_token = "authorization" in request.headers
        if has_token:
            self._identity(request, "device", "metrics")
        elif not is_loopback(peer_of(request)):
            raise HoldfastError(Fault.of("AUTH_REQUIRED"))
        checks, problems = await self._checked()
        is_well = all(checks.values())
        body = Health(
            status="healthy" if is_well else "degraded",
            timestamp=stamp(self.hub.clock.wall()),
            version=__version__ if has_token else "",
            checks=checks if has_token else {},
            problems=problems if has_token else {},
        )
        return json_response(body, 200 if is_well else 503)

    async def _checked(self) -> tuple[dict[str, bool], dict[str, str]]:
        found, problems = {"websocket_server": True, "hook_endpoint": True}, dict[str, str]()
        for name, check in {"store": self._store_answers, **self._checks}.items():
            try:
                result = check()
                found[name] = bool(await result if isawaitable(result) else result)
            except Exception as error:  # noqa: BLE001 - a check that fails is a check that says no
                found[name] = False
                if isinstance(error, HoldfastError):
                    problems[name] = ". ".join((error.fault.message, *error.fault.entry.suggestions[-1:]))
        return found, problems

    async def _store_answers(self) -> bool:
        try:
            async with asyncio.timeout(_STORE_S):
                await self.hub.store.sessions(limit=1)
                # A full disk can still be read.
                await self.hub.access.check_commits()
        except TimeoutError as error:
            message = f"The session store did not answer within {_STORE_S:g} s"
            raise HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE", message)) from error
        return True

    async def info(self, request: Request) -> Response:
        self._identity(request, "device")
        settings = self.settings
        limits = ServerLimitsBody(
            max_sessions=settings.max_sessions,
            max_websocket_connections=settings.max_connections,
            max_message_size_mb=round(settings.connection.max_frame / 1_048_576, 3),
            hook_timeout_seconds=settings.hook_timeout,
            max_body_bytes=settings.max_body,
            requests_per_minute=rates_of(settings),
            grace_seconds=settings.grace,
            replay_bytes=settings.ring_bytes,
            replay_age_seconds=settings.ring_age,
        )
        body = Info(
            server_version=__version__,
            protocols=[1, 2],
            connection_mode=mode(request, self.hub),
            limits=limits,
            supported_agents=list(self._agents),
            hook_events=list(self.rules.events),
            active_sessions=len(self.hub.sessions),
            connections=len(self.hub.connections),
            uptime_seconds=round(time.monotonic() - self._started, 3),
        )
        return json_response(body)

    async def openapi(self, _request: Request) -> Response:
        return Response(self._openapi, media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        self._identity(request, "metrics")
        if self._metrics is not None:
            return Response(self._metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")
        with needs_extra("/metrics", "prometheus-client", "prometheus"):
            import prometheus_client  # noqa: PLC0415 - only who reads metrics needs it
        return Response(
            prometheus_client.generate_latest(), headers={"content-type": prometheus_client.CONTENT_TYPE_LATEST}
        )

    async def ticket(self, request: Request) -> Response:
        identity = self._identity(request, "device")
        body = Ticket(ticket=self.hub.authenticator.make_ticket(identity), expires_in_ms=int(TICKET_S * 1000))
        return json_response(body)

    async def pair(self, request: Request) -> Response:
        """Answer the token of a new device, once. Wrong codes are counted as wrong tokens are."""
        assert self._pairing is not None, "without it there is no such route"
        given = await body_as(request, PairRequest)
        made = self._pairing.redeem(given.code, given.name, peer=peer_of(request))
        return json_response(
            Paired(token=made.text, token_id=made.record.id, name=made.record.name, role=made.record.role)
        )

    async def upgrade(self, _request: Request) -> Response:
        raise HoldfastError(Fault.of("CONN_UPGRADE_REQUIRED"))

    async def error_page(self, request: Request) -> Response:
        """Answer the page of a code, also under an older name of it."""
        entry = resolve(request.path_params["code"])
        if entry is None:
            raise rejected(
                404, "There is no code of this name", "TOOL_FILE_NOT_FOUND", suggestion="`holdfast codes` lists them"
            )
        return Response(page_of(entry.code), media_type="text/markdown; charset=utf-8")

    async def client_error(self, request: Request) -> Response:
        self._identity(request, "device")
        report = await body_as(request, ClientReport)
        self.reports.client(
            Fault.of(meaning(report.code).code), session_id=report.session_id or None, user_agent=user_agent_of(request)
        )
        return json_response(CommandReply(done=True))

    # --- hooks ---

    async def hook_event(self, request: Request) -> Response:
        identity = self._hook_identity(request)
        now = self.hub.clock.wall()
        read = read_hook(await read_body(request), now=now, rules=self.rules)
        if isinstance(read, list):
            self.reports.hook(invalid(read).fault, user_agent=user_agent_of(request))
            return json_response(rejection(read, now), 400)
        stored = await self._add(identity, read, idempotency_key(request))
        live = self.hub.sessions.get(read.session_id)
        return json_response(
            HookReply(
                received=True,
                event_id=stored.event_id,
                broadcast_count=0 if live is None else len(live.clients),
                timestamp=stamp(now),
                offset=stored.offset,
                duplicate=stored.duplicate,
            )
        )

    async def hook_batch(self, request: Request) -> Response:
        """Store the events that are right, and answer what was wrong with the others. If none is right, the answer is a 400.

        A store that is down is a 503 if the whole batch can be posted again: nothing is stored yet, or a key says what is.
        """
        identity = self._hook_identity(request)
        given = await read_body(request)
        events = given.get("events") if isinstance(given, dict) else given
        if not isinstance(events, list) or not 0 < len(events) <= _MOST_EVENTS:
            raise violation("events", f"a list of 1 to {_MOST_EVENTS} events")
        now, key = self.hub.clock.wall(), idempotency_key(request)
        ids: list[str] = []
        errors: list[dict[str, Any]] = []
        down: HoldfastError | None = None
        for index, one in enumerate(events):
            if down is not None:
                errors.append(_not_stored(index, down.fault))
                continue
            read = read_hook(one, now=now, rules=self.rules)
            if isinstance(read, list):
                self.reports.hook(invalid(read).fault, user_agent=user_agent_of(request))
                errors.append({"index": index, "code": "HOOK_VALIDATION_FAILED", "errors": msgspec.to_builtins(read)})
                continue
            try:
                # A tool call is its own key, however it is posted.
                own = f"{key}/{index}" if key and not read.key else ""
                ids.append((await self._add(identity, read, own)).event_id)
            except HoldfastError as error:
                if error.fault.code == "SESS_STORE_UNAVAILABLE":
                    if key or not ids:
                        raise
                    # It takes its time to fail, so the rest is not tried.
                    down = error
                self.reports.hook(error.fault, session_id=read.session_id, user_agent=user_agent_of(request))
                errors.append(_not_stored(index, error.fault))
        body = BatchReply(
            received=bool(ids),
            count=len(events),
            accepted=len(ids),
            rejected=len(errors),
            event_ids=ids,
            errors=errors,
            timestamp=stamp(now),
        )
        return json_response(body, 200 if ids else 400)

    async def _add(self, identity: TokenHolder, event: HookEvent, key: str) -> Stored:
        if identity.sessions is not None and event.session_id not in identity.sessions:
            raise HoldfastError(Fault.of("SESS_NOT_FOUND", context={"session_id": event.session_id}))
        return await self._hooks.add(event, key, by=identity.token_id)

    async def reload_hooks(self, request: Request) -> Response:
        self._identity(request, "admin")
        if self._reload_hooks is not None:
            self.rules = self._reload_hooks()
        return json_response(Reloaded(reloaded=True, strict=self.rules.strict, skew_seconds=self.rules.skew))

    # --- files ---

    async def files(self, request: Request) -> Response:
        return await self._file(request, "")

    async def file(self, request: Request) -> Response:
        return await self._file(request, request.path_params["path"])

    async def _file(self, request: Request, path: str) -> Response:
        if self._identity(request, "device").sessions is not None:
            message = "This token is for some sessions only, and the files are those of the whole project"
            raise HoldfastError(Fault.of("AUTH_INSUFFICIENT_SCOPE", message, context={"received": "sessions"}))
        if self._files is None:
            raise rejected(404, "This bridge shows no files: set project_root", "TOOL_FILE_NOT_FOUND")
        found = await asyncio.to_thread(self._files.read, path)
        if isinstance(found, Folder):
            return json_response(found)
        # Always a download: a page of the project must not run as a page of the bridge. Ranges are ignored on purpose.
        headers = {"content-disposition": "attachment", "accept-ranges": "none"}
        return Response(found, media_type="application/octet-stream", headers=headers)

    # --- admin ---

    async def waiting(self, request: Request) -> Response:
        self._identity(request, "admin")
        return json_response(WaitingBody(waiting=await self.hub.waiting()))

    async def command(self, request: Request) -> Response:
        identity = self._identity(request, "admin")
        given = await body_as(request, Command)
        return json_response(CommandReply(done=await self.hub.command(given.run, given.command, identity.name)))

    # --- who asks ---

    def _identity(self, request: Request, *kinds: TokenKind) -> TokenHolder:
        return identify(request, self.hub, *kinds)

    def _hook_identity(self, request: Request) -> TokenHolder:
        try:
            return self._identity(request, "hook")
        except HoldfastError as error:
            # A token of another kind is as wrong here as one that nobody knows.
            is_wrong = error.fault.entry.http_status == 401 or error.fault.code == "AUTH_INSUFFICIENT_SCOPE"
            if is_wrong and error.fault.retry_after is None:
                raise HoldfastError(Fault.of("HOOK_AUTH_FAILED")) from error
            raise


def _not_stored(index: int, fault: Fault) -> dict[str, Any]:
    problem = {"field": "session_id", "message": fault.message, "code": fault.code}
    return {"index": index, "code": fault.code, "errors": [problem]}


_MOST_EVENTS = 1_000
