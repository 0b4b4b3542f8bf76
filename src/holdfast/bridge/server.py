"""`Bridge`: the server. People drive an agent on it from a phone, a browser or a second terminal.

Invariant: what is acknowledged is stored, and what is stored reaches every client once, or the client gets a gap that says what is missing.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from holdfast import options
from holdfast.bridge.access.guard import Guard
from holdfast.bridge.access.lockout import Lockout
from holdfast.bridge.access.pairing import Pairing
from holdfast.bridge.access.tls import RotationWatch, ServerTls, TlsFiles
from holdfast.bridge.access.tokens import Tokens
from holdfast.bridge.connection import Connection
from holdfast.bridge.file_watch import FileWatch
from holdfast.bridge.host.link import HostLink
from holdfast.bridge.host.store_relay import StoreRelay
from holdfast.bridge.http.checks import checks_of
from holdfast.bridge.http.listener import http_protocol
from holdfast.bridge.http.port import Port
from holdfast.bridge.http.responses import EXCEPTION_HANDLERS
from holdfast.bridge.http.routes import HttpApi
from holdfast.bridge.http.static import PAGE_PATHS, send_page_file
from holdfast.bridge.hub import Hub
from holdfast.bridge.log import log_warning
from holdfast.bridge.metrics import BridgeMetrics
from holdfast.bridge.sessions.agent_runner import agent_name
from holdfast.bridge.settings import BridgeSettings
from holdfast.extras import needs_extra
from holdfast.faults import InvalidError
from holdfast.runtime.runtime import default_runtime
from holdfast.stores import shared
from holdfast.stores.address import open_store

with needs_extra("holdfast.bridge", "starlette", "server"):
    from starlette.applications import Starlette

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.types import ASGIApp

    from holdfast.bridge.access.identity import Authenticator
    from holdfast.bridge.error_reports import ErrorReports
    from holdfast.bridge.host.link import AgentProcess
    from holdfast.faults import Fault
    from holdfast.runtime.runtime import Runtime
    from holdfast.stores import Store

__all__ = ["Bridge"]

_PATHS = frozenset({"/ws", "/api/v1/ws"})
"""Where WebSocket clients connect."""


class Bridge:
    """Serves an agent to remote clients.

        async with Bridge(agent, store="sqlite:work.db").serving("127.0.0.1", 3000) as bridge:
            await asyncio.Event().wait()

    agent: an `Agent`, a `CommandAgent`, a `FunctionAgent`, a role, or `async def agent(turn: Turn)`. None: messages are stored, and
        another program answers them.
    store: an open store, or an address; by default `stores.default_url()`.
    tokens: who may connect; by default the tokens of `holdfast tokens`, and those of the settings.
    settings: where it listens, what clients may do, and what is kept for them. By default those of the runtime's profile.
    reports: where errors are counted: `ErrorReports(count_errors())`. By default `/metrics` shows them, and they raise the alerts of
        `holdfast.toml`.
    agents: `AgentProcess(agent="app:agent")` runs the agent in a process that goes on when the server ends. By default it runs in this one.
    checks: further checks of `/health` by name, functions that return whether all is well: `checks={"licence": licence.is_valid}`.

    Starting raises CONFIG_INVALID if the settings are not safe: an address that others can reach without TLS, or without tokens.
    """

    @options.suggests
    def __init__(
        self,
        agent: Any = None,
        *,
        store: Store | str | Path | None = None,
        tokens: Authenticator | None = None,
        settings: BridgeSettings | None = None,
        runtime: Runtime | None = None,
        reports: ErrorReports | None = None,
        agents: AgentProcess | None = None,
        checks: Mapping[str, Callable[[], bool | Awaitable[bool]]] | None = None,
    ) -> None:
        self.agent = agent
        self.agents = agents
        """The process of its own in which the agent runs, if one was asked for."""
        if agents is not None and not (store is None or isinstance(store, (str, Path))):
            raise InvalidError.at("bridge.store", "the address of a store, which another process can open too", store)
        self._checks = dict(checks or {})
        self._own_reports = reports
        self._metrics: BridgeMetrics | None = None
        if settings is None:
            settings = BridgeSettings.of_profile((runtime or default_runtime()).profile.name)
        self.settings = settings
        self.tokens: Authenticator = tokens or Tokens(
            settings.tokens_path, given=settings.given_tokens, lockout=Lockout(settings.lockout)
        )
        self.app = Guard(self._serve, settings, report=self._report, tokens=self.tokens)
        """The ASGI application. It works while the bridge is open."""
        self._given = store
        self._runtime = runtime
        self._owned: Store | None = None
        self._hub: Hub | None = None
        self._http: HttpApi | None = None
        self._pages: ASGIApp | None = None
        self._port: Port | None = None
        self._has_stopped = False
        self._tls: ServerTls | None = None
        self._files = FileWatch()

    @property
    def hub(self) -> Hub:
        """What its connections share, while it is open."""
        assert self._hub is not None, "open the bridge first: async with bridge"
        return self._hub

    @property
    def host(self) -> str:
        """The host that it serves on: `127.0.0.1`."""
        return self._serving.address[0]

    @property
    def port(self) -> int:
        """The port that it serves on, also where it took a free one: `3000`."""
        return self._serving.address[1]

    @property
    def url(self) -> str:
        """The address that it serves on: `http://127.0.0.1:3000`."""
        return self._serving.url

    @property
    def ws_url(self) -> str:
        """The address for WebSocket clients: `ws://127.0.0.1:3000/ws`."""
        return f"ws{self.url.removeprefix('http')}/ws"

    @property
    def _serving(self) -> Port:
        assert self._port is not None, "the bridge is not serving"
        return self._port

    async def __aenter__(self) -> Self:
        self._has_stopped = False
        if self._given is None or isinstance(self._given, (str, Path)):
            self._owned = await shared.join(open_store(self._given))
            store = self._owned
        else:
            store = self._given
        host = None
        if self.agents is not None:
            store, host = await self._hosted(store, self.agents)
        if self._own_reports is None:
            self._metrics = BridgeMetrics(self._runtime)
        self._hub = Hub(
            store,
            self.tokens,
            agent=self.agent,
            settings=self.settings,
            runtime=self._runtime,
            reports=self._own_reports if self._metrics is None else self._metrics.reports,
            host=host,
        )
        if self._metrics is not None:
            self._metrics.watch(self._hub)
        self._http = HttpApi(
            self._hub,
            agents=() if self.agent is None else (agent_name(self.agent),),
            checks={**checks_of(self._hub, self.settings.tokens_path.parent), **self._checks},
            pairing=Pairing(self.tokens) if isinstance(self.tokens, Tokens) else None,
            metrics=None if self._metrics is None else self._metrics.text,
        )
        self._pages = Starlette(routes=self._http.routes, exception_handlers=EXCEPTION_HANDLERS)
        self._files = FileWatch([self.tokens, self._rotations(self._hub), self._tls])
        self._files.start()
        return self

    async def _hosted(self, store: Store, agents: AgentProcess) -> tuple[Any, HostLink]:
        """Return the store with which two processes wake each other, and the link to the other one."""
        relay = StoreRelay(store)
        link = HostLink(agents, self.settings, relay, None if self._given is None else str(self._given))
        try:
            await link.open()
        except BaseException:
            assert self._owned is not None
            await shared.leave(self._owned)
            raise
        return relay, link

    async def __aexit__(self, *_: object) -> None:
        await self._files.stop()
        await self._stop()
        if self._metrics is not None:
            self._metrics.close()
        if self._owned is not None:
            await shared.leave(self._owned)
            self._owned = None

    @asynccontextmanager
    async def serving(self, host: str | None = None, port: int | None = None) -> AsyncIterator[Self]:
        """Serve on an address, by default that of the settings, until the block is left. Port 0 takes a free one.

            async with bridge.serving("127.0.0.1", 0):
                print(bridge.url)

        When the block is left, clients are sent away with a code that lets them come back, turns that run are left to go on at the
        next start, and leases are given back; within `settings.stop_timeout` seconds.
        """
        settings = self.settings
        if host is not None or port is not None:
            settings = settings.replace(
                host=settings.host if host is None else host, port=settings.port if port is None else port
            )
        settings.check_start(getattr(self.tokens, "kinds", frozenset({"device", "hook"})))
        if settings.has_tls:
            assert settings.tls_cert is not None
            assert settings.tls_key is not None
            self._tls = ServerTls(settings.tls_cert, settings.tls_key)
        async with self:
            opened = Port(
                self.app,
                max_frame=settings.connection.max_frame,
                max_frame_before_auth=settings.connection.max_frame_before_auth,
                tls=None if self._tls is None else self._tls.context,
                http=http_protocol(settings, self.hub.make_room),
                idle_timeout=settings.idle_timeout,
                handshake_timeout=settings.header_timeout,
            )
            await opened.open(settings.host, settings.port)
            self._port = opened
            if self.hub.most_connections < settings.max_connections:
                most, wanted = self.hub.most_connections, settings.max_connections
                log_warning(
                    "%s clients may connect, not %s: the process may open too few files (ulimit -n)", most, wanted
                )
            self.hub.spawn(self.hub.go_on())
            try:
                yield self
            finally:
                opened.stop_accepting()
                await self._stop()
                await opened.close()

    def _rotations(self, hub: Hub) -> RotationWatch | None:
        """Return what makes scheduled rotations of a certificate that `holdfast tls` has made."""
        if self._tls is None or self.settings.tls_cert is None:
            return None
        return RotationWatch(TlsFiles(self.settings.tls_cert.parent), hub.announce_rotation, hub.clock)

    async def _stop(self) -> None:
        if self._has_stopped:
            # Once is enough: what did not end in its time would not end in the same time again.
            return
        self._has_stopped = True
        if self._http is not None:
            self._http.close()
        try:
            async with asyncio.timeout(self.settings.stop_timeout):
                await self.hub.stop()
        except TimeoutError:
            seconds = self.settings.stop_timeout
            log_warning("not everything ended within %s s of the stop", seconds)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            if scope["path"] in _PATHS:
                return await Connection(self.hub, scope, receive, send).run()
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        elif scope["type"] == "http" and scope["path"] in PAGE_PATHS:
            await send_page_file(scope, send)
        elif scope["type"] == "http" and self._pages is not None:
            await self._pages(scope, receive, send)
        return None

    def _report(self, fault: Fault, scope: Any) -> None:
        """Count a request that was rejected, or that crashed."""
        user_agent = dict(scope.get("headers", ())).get(b"user-agent", b"").decode("latin-1")
        self.hub.reports.request(fault, user_agent=user_agent)
