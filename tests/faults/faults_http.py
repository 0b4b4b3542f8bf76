"""Failures of the bridge over HTTP: hook events, bodies, paths, and an app that crashes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.routing import Route

from holdfast.bridge.access.guard import Guard
from holdfast.bridge.access.tokens import Tokens
from holdfast.bridge.http.hooks import HookRules, invalid, read_hook
from holdfast.bridge.http.responses import EXCEPTION_HANDLERS
from holdfast.bridge.http.routes import HttpApi
from holdfast.bridge.hub import Hub
from holdfast.bridge.settings import BridgeSettings
from holdfast.faults import Fault
from holdfast.stores import MemoryStore
from holdfast.views import wire

EVENT = {"event": "Stop", "timestamp": "2026-03-20T14:32:00Z", "session_id": "s", "payload": {}}


def wrong_event(**fields: Any) -> Fault:
    (error,) = read_hook(
        EVENT | fields, now=time.time(), rules=HookRules(skew=None if "timestamp" not in fields else 300)
    )
    return error.fault


def event_is_wrong() -> Fault:
    return invalid(read_hook({}, now=0.0)).fault


def answer_to(method: str, path: str, peer: str = "127.0.0.1", **options: Any) -> Fault:
    """Return the fault of the answer to a request."""

    async def crash(_request: Any) -> None:
        raise RuntimeError("a bug")

    async def ask() -> Fault:
        settings = BridgeSettings(max_body=1_000)
        async with MemoryStore() as store:
            api = HttpApi(Hub(store, Tokens(), settings=settings))
            routes = [*api.routes, Route("/crash", crash)]
            app = Guard(Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS), settings)
            transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(peer, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return wire.read((await http.request(method, path, **options)).json())

    return asyncio.run(ask())


CASES = (
    ("HOOK_VALIDATION_FAILED", event_is_wrong),
    ("HOOK_INVALID_EVENT_TYPE", lambda: wrong_event(event="Explode")),
    ("HOOK_INVALID_TIMESTAMP", lambda: wrong_event(timestamp="yesterday")),
    ("HOOK_STALE_TIMESTAMP", lambda: wrong_event(timestamp="2001-01-01T00:00:00Z")),
    ("HOOK_INVALID_SESSION_ID", lambda: wrong_event(session_id="")),
    ("HOOK_INVALID_PAYLOAD", lambda: wrong_event(payload=[])),
    ("HOOK_AUTH_FAILED", lambda: answer_to("POST", "/hooks/event", json=EVENT)),
    ("CONN_INSECURE_TRANSPORT", lambda: answer_to("GET", "/info", peer="203.0.113.9")),
    ("CONN_UPGRADE_REQUIRED", lambda: answer_to("GET", "/ws")),
    ("PROTO_MESSAGE_TOO_LARGE", lambda: answer_to("POST", "/hooks/event", content=b"x" * 2_000)),
    ("SYS_INTERNAL_ERROR", lambda: answer_to("GET", "/crash")),
)
