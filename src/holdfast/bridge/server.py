"""`Bridge`: the server. People drive an agent on it from a phone, a browser or a second terminal.

Invariant: what is acknowledged is stored, and what is stored reaches every client once, or the client gets a gap that says what is missing.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from holdfast.bridge.connection import Connection
from holdfast.bridge.hub import Hub
from holdfast.bridge.port import Port
from holdfast.bridge.settings import BridgeSettings
from holdfast.stores import shared
from holdfast.stores.address import open_store

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from holdfast.bridge.identity import Authenticator
    from holdfast.runtime.runtime import Runtime
    from holdfast.stores import Store

__all__ = ["Bridge"]

PATHS = frozenset({"/ws", "/api/v1/ws"})
"""Where WebSocket clients connect."""


class Bridge:
    """Serves an agent to remote clients.

        async with Bridge(agent, store="sqlite:work.db", tokens=tokens).serving("127.0.0.1", 3000) as bridge:
            print(bridge.url)

    store: an open store, or an address; by default `stores.default_url()`.
    tokens: who may connect.
    settings: where it listens, what clients may do, and what is kept for them.
    tls: the TLS settings of the port; None: it is not encrypted.
    """

    def __init__(
        self,
        agent: Any = None,
        *,
        store: Store | str | Path | None = None,
        tokens: Authenticator,
        settings: BridgeSettings = BridgeSettings(),  # noqa: B008 - a frozen value
        tls: ssl.SSLContext | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.agent = agent
        self._given = store
        self._authenticator = tokens
        self.settings = settings
        self._tls = tls
        self._runtime = runtime
        self._owned: Store | None = None
        self._hub: Hub | None = None
        self._port: Port | None = None

    @property
    def hub(self) -> Hub:
        """What its connections share, while it is open."""
        assert self._hub is not None, "open the bridge first: async with bridge"
        return self._hub

    @property
    def url(self) -> str:
        """The address that it serves on."""
        assert self._port is not None, "the bridge is not serving"
        return self._port.url

    @property
    def ws_url(self) -> str:
        """The address for WebSocket clients."""
        return f"ws{self.url.removeprefix('http')}/ws"

    async def __aenter__(self) -> Self:
        if self._given is None or isinstance(self._given, (str, Path)):
            self._owned = await shared.join(open_store(self._given))
            store = self._owned
        else:
            store = self._given
        self._hub = Hub(store, self._authenticator, agent=self.agent, settings=self.settings, runtime=self._runtime)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.hub.stop()
        if self._owned is not None:
            await shared.leave(self._owned)
            self._owned = None

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Self]:
        """Serve on an address until the block is left: `async with bridge.serving("127.0.0.1", 3000): …`. Port 0 takes a free one."""
        async with self:
            opened = Port(self.app, max_frame=self.settings.connection.max_frame, tls=self._tls)
            await opened.open(host, port)
            self._port = opened
            try:
                yield self
            finally:
                await self.hub.stop()
                await opened.close()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        if scope["type"] == "websocket":
            if scope["path"] in PATHS:
                return await Connection(self.hub, scope, receive, send).run()
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"Not found\n"})
        return None
