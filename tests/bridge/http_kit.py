"""The HTTP side of a bridge on a loopback port, with a token of each kind."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from bridge_kit import Tokens
from http_server import Served, serving
from starlette.applications import Starlette

from holdfast.bridge.access.guard import Guard
from holdfast.bridge.access.identity import TokenHolder
from holdfast.bridge.http.responses import EXCEPTION_HANDLERS
from holdfast.bridge.http.routes import HttpApi
from holdfast.bridge.hub import Hub
from holdfast.bridge.settings import BridgeSettings
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.stores import Commit, MemoryStore, NewEntry, NewSession, Store

KINDS = {
    "ada": TokenHolder(token_id="t-ada", kind="device", name="Ada"),
    "eve": TokenHolder(token_id="t-eve", kind="device", name="Eve", sessions=frozenset({"s-eve"})),
    "olaf": TokenHolder(token_id="t-olaf", kind="device", name="Olaf", role="observer"),
    "hook": TokenHolder(token_id="t-hook", kind="hook", name="hooks"),
    "metrics": TokenHolder(token_id="t-met", kind="metrics", name="prometheus"),
    "root": TokenHolder(token_id="t-root", kind="admin", name="Root"),
}


class Http:
    """A running HTTP side: `await http.get("/info", "ada")` asks with the token of Ada."""

    def __init__(self, served: Served, api: HttpApi, tokens: Tokens, store: Store) -> None:
        self.served, self.api, self.tokens, self.store = served, api, tokens, store
        self.client = served.client()

    async def get(self, path: str, token: str | None = "ada", **options: Any):
        return await self.ask("GET", path, token, **options)

    async def post(self, path: str, body: Any = None, token: str | None = "ada", **options: Any):
        return await self.ask("POST", path, token, json=body, **options)

    async def ask(self, method: str, path: str, token: str | None, **options: Any):
        headers = {**options.pop("headers", {}), **({"authorization": f"Bearer {token}"} if token else {})}
        return await self.client.request(method, path, headers=headers, **options)

    async def make(self, session: str, *messages: str) -> None:
        """Make a session with messages in its log."""
        manifest = Manifest(session_id=session, store_id=self.store.id, agent_type="coder", project_root="/work")
        await self.store.commit(Commit(session=session, create=NewSession(manifest=encode_manifest(manifest))))
        await self.publish(session, *messages)

    async def publish(self, session: str, *texts: str) -> None:
        for text in texts:
            body = msgspec.json.encode({"stream_id": "x", "text": text})
            entry = NewEntry(type="stream_chunk", body=body, id=f"e-{text}-{id(body)}")
            await self.store.commit(Commit(session=session, entries=(entry,)))


@contextlib.asynccontextmanager
async def http_side(
    settings: BridgeSettings | None = None,
    *,
    store: Store | None = None,
    tokens: Any = None,
    agent: Any = None,
    reports: Any = None,
    **options: Any,
):
    """Serve the routes behind the guard, on a store in memory."""
    settings = settings or BridgeSettings()
    async with MemoryStore() as memory:
        known = tokens or Tokens(**KINDS)
        hub = Hub(store or memory, known, settings=settings, agent=agent, reports=reports)
        api = HttpApi(hub, **options)
        app = Guard(Starlette(routes=api.routes, exception_handlers=EXCEPTION_HANDLERS), settings)
        async with serving(app, settings) as served:
            http = Http(served, api, known, store or memory)
            async with http.client:
                yield http
            api.close()
        await hub.stop()


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 20))
