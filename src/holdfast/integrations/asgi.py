"""Web servers: every event of a request carries its id. For FastAPI, Starlette, Django and whatever else speaks ASGI.

Invariant: the application sees the same request as without it, and an id that nobody could send safely never reaches an event.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from holdfast.runtime.lineage import is_request_id, request

__all__ = ["RequestIds"]

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_HEADER = b"x-request-id"
_TRACE_PARTS = 4


class RequestIds:
    """ASGI middleware: what the application does for a request carries the request's id, and the answer names it.

        from starlette.applications import Starlette
        from holdfast.asgi import RequestIds

        app = Starlette()
        app.add_middleware(RequestIds)

    The id is the header `X-Request-ID`, else the trace of the header `traceparent`, else a new one.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        name = _id_of(dict(scope["headers"]))

        async def named(message: MutableMapping[str, Any]) -> None:
            if message["type"] in {"http.response.start", "websocket.accept"}:
                headers = list(message.get("headers", ()))
                if all(header.lower() != _HEADER for header, _ in headers):
                    message = {**message, "headers": [*headers, (_HEADER, name.encode("latin-1", "replace"))]}
            await send(message)

        with request(name):
            await self._app(scope, receive, named)


def _id_of(headers: dict[bytes, bytes]) -> str:
    """Return the id that a request has, or a new one."""
    given = headers.get(_HEADER, b"").decode("latin-1").strip()
    if is_request_id(given):
        return given
    parts = headers.get(b"traceparent", b"").decode("latin-1").split("-")
    if len(parts) >= _TRACE_PARTS and is_request_id(parts[1]):
        return parts[1]
    return os.urandom(16).hex()
