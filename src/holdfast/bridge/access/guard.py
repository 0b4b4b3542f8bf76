"""`Guard`: what every request passes before the bridge looks at it, over HTTP and over WebSocket.

    app = Guard(app, BridgeSettings(allowed_hosts=("bridge.example",), allowed_origins=("https://page.example",)))

It checks the Host (a page that rebinds its DNS name to us), the Origin (a foreign page in the user's browser), the rate of an address,
and the size, time and encoding of a body. It adds the headers that keep browsers careful, and turns a crash into an error with an id.

Invariant: a request that is rejected never reaches the app. Every answer has the security headers. Whatever the app does, a body is
read within its limits, and a request is answered once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import zlib
from typing import TYPE_CHECKING, Any

from holdfast.bridge.access.origins import Sender, sender_of
from holdfast.bridge.access.rates import AddressRates
from holdfast.bridge.http.request_parts import bearer_token
from holdfast.bridge.http.responses import error_response, rejected, request_id
from holdfast.faults import Fault, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from holdfast.bridge.access.identity import Authenticator
    from holdfast.bridge.http.responses import RejectedError
    from holdfast.bridge.settings import BridgeSettings

__all__ = ["Guard", "rates_of"]

_LOG = logging.getLogger("holdfast.bridge")

_BASE = "/api/v1"
_DRAIN_BYTES = 16 << 20
_DRAIN_S = 2.0
_SECURITY: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
"""An answer of the app may have its own value for each of them."""
_CORS = (
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type, idempotency-key, last-event-id"),
    (b"access-control-expose-headers", b"retry-after, x-request-id"),
    (b"access-control-max-age", b"600"),
)


class Guard:
    """An ASGI app around another one. `report` gets the fault of each request that is rejected or crashes, with its scope.

    tokens: knows who holds a token. The holder of a right one has as many requests as an address, beyond those of its address.

    Guard(app, BridgeSettings(max_body=65_536))
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: BridgeSettings,
        *,
        report: Callable[[Fault, Scope], object] | None = None,
        tokens: Authenticator | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self.settings = settings
        self._rates = AddressRates(rates_of(settings))
        self._report = report or (lambda _fault, _scope: None)
        self._tokens = tokens
        self._monotonic = monotonic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        id_ = secrets.token_hex(8)
        scope = {**scope, "state": {**scope.get("state", {}), "request_id": id_}}
        try:
            sender = self._admitted(scope)
        except HoldfastError as error:
            self._report(error.fault, scope)
            await _deny(scope, receive, send, error, id_)
            return
        scope["client"], scope["scheme"] = (sender.address, 0), sender.scheme(scope["type"])
        if scope["type"] == "websocket":
            await self.app(scope, receive, send)
        else:
            await self._answered(_Exchange(scope, receive, send, self.settings, sender), scope)

    def _admitted(self, scope: Scope) -> Sender:
        """Return who sends the request, or raise the reason why it is not let in."""
        sender = sender_of(scope, self.settings)
        group, now = _group(scope["path"]), self._monotonic()
        wait = self._rates.wait(group, sender.address, now)
        # What others send from the same address takes nothing from the holder of a token.
        if wait > 0 and (holder := self._holder_of(scope, sender)):
            wait = self._rates.wait(group, f"token {holder}", now)
        if wait > 0:
            raise HoldfastError(Fault.of("CONN_RATE_LIMITED", retry_after=wait))
        return sender

    def _holder_of(self, scope: Scope, sender: Sender) -> str:
        """Return who holds the token of a request; empty without a right one."""
        token = bearer_token(dict(scope["headers"]).get(b"authorization", b"").decode("latin-1"))
        try:
            return self._tokens.identify(token, peer=sender.address).token_id if token and self._tokens else ""
        except HoldfastError:
            return ""

    async def _answered(self, exchange: _Exchange, scope: Scope) -> None:
        """Let the app answer. If it broke a limit or crashed before it began to, answer in its place."""
        if exchange.is_preflight:
            await exchange.preflight()
            return
        failure: HoldfastError | None = exchange.check_head()
        if failure is None:
            try:
                await self.app(scope, exchange.receive, exchange.send)
            except Exception:
                failure = self._crashed(scope) if exchange.broken is None else exchange.broken
                if exchange.has_begun and not exchange.is_done:
                    # Half an answer must not look like a whole one. For an exception the server closes the connection.
                    raise
        failure = exchange.broken or failure
        if failure is not None:
            self._report(failure.fault, scope)
            await exchange.instead(failure)

    def _crashed(self, scope: Scope) -> HoldfastError:
        _LOG.exception("%s %s failed", scope["method"], scope["path"].encode("unicode_escape").decode())
        return HoldfastError(Fault.of("SYS_INTERNAL_ERROR"))


class _Exchange:
    """One request over HTTP and its answer, within the limits."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: BridgeSettings, sender: Sender) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._settings, self._sender = settings, sender
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._until = asyncio.get_running_loop().time() + settings.body_timeout
        self._size = 0
        self._inflater: Any = None
        self._is_read = False
        self._is_late = False
        self.broken: RejectedError | None = None
        """The limit that the request broke while it was read."""
        self.has_begun = False
        self.is_done = False

    @property
    def is_preflight(self) -> bool:
        return self._scope["method"] == "OPTIONS" and b"access-control-request-method" in self._headers

    def check_head(self) -> RejectedError | None:
        """Return what the head alone shows to be wrong with the body; None if it may be read."""
        length = self._headers.get(b"content-length", b"0")
        has_body = b"transfer-encoding" in self._headers or length != b"0"
        self._is_read = not has_body
        if not has_body:
            return None
        if self._scope["method"] in {"GET", "HEAD", "OPTIONS"}:
            self.broken = rejected(400, f"{self._scope['method']} takes no body")
        elif length.isdigit() and int(length) > self._settings.max_body:
            self.broken = _too_large(self._settings.max_body)
        else:
            self._check_encoding(self._headers.get(b"content-encoding", b"identity").lower())
        return self.broken

    def _check_encoding(self, encoding: bytes) -> None:
        if encoding in {b"gzip", b"x-gzip"}:
            self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        elif encoding != b"identity":
            self.broken = rejected(
                415, "Content-Encoding must be identity or gzip", suggestion="Send the body as it is, or with gzip"
            )

    async def receive(self) -> Message:
        """Return the next piece of the body. After a broken limit the app sees a client that is gone."""
        if self.broken is not None:
            return {"type": "http.disconnect"}
        if self._is_read:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
            return self._taken(message)
        except TimeoutError:
            # Nothing is left to drain: whoever was too slow would be too slow again.
            self._is_late = True
            self.broken = rejected(
                408, f"The body did not come within {self._settings.body_timeout:g} s", "CONN_TIMEOUT"
            )
        except _LimitError as error:
            self.broken = error.why
        return {"type": "http.disconnect"}

    def _taken(self, message: Message) -> Message:
        if message["type"] != "http.request":
            return message
        self._is_read = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        if self._inflater is not None:
            body = self._inflated(body)
        self._size += len(body)
        if self._size > self._settings.max_body:
            raise _LimitError(_too_large(self._settings.max_body))
        return {**message, "body": body}

    def _inflated(self, body: bytes) -> bytes:
        most = self._settings.max_body - self._size + 1
        try:
            found: bytes = self._inflater.decompress(body, most)
        except zlib.error:
            raise _LimitError(rejected(400, "The body is not what its Content-Encoding says")) from None
        if self._inflater.unconsumed_tail:
            raise _LimitError(_too_large(self._settings.max_body))
        return found

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on, unless the request broke a limit: then the guard answers."""
        if self.broken is not None and not self.has_begun:
            return
        if message["type"] == "http.response.start":
            await self._drain()
            self.has_begun = True
            message = {**message, "headers": self._dressed(list(message.get("headers", ())))}
        elif message["type"] == "http.response.body":
            self.is_done = not message.get("more_body", False)
        await self._send(message)

    async def instead(self, error: HoldfastError) -> None:
        """Answer in place of the app, and close the connection, because what follows on it is not known."""
        if self.has_begun:
            return
        await self._drain()
        self.broken, self._is_read = None, True
        answer = error_response(error, request_id=request_id(self._scope), headers={"connection": "close"})
        await answer(self._scope, self._receive, self.send)

    async def preflight(self) -> None:
        """Answer a browser that asks whether a page elsewhere may send its request. The guard has checked its Origin."""
        self._is_read = True
        headers = [(b"content-length", b"0"), *_CORS]
        await self.send({"type": "http.response.start", "status": 204, "headers": headers})
        await self.send({"type": "http.response.body", "body": b""})

    def _dressed(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        known = {name.lower() for name, _ in headers}
        headers += [(name, value) for name, value in _SECURITY if name not in known]
        headers.append((b"x-request-id", request_id(self._scope).encode()))
        if self._sender.foreign_origin:
            headers.append((b"access-control-allow-origin", self._sender.foreign_origin.encode()))
            headers.append((b"vary", b"origin"))
        if not self._is_read and b"connection" not in known:
            headers.append((b"connection", b"close"))
        return headers

    async def _drain(self) -> None:
        """Read what is left of the body, within limits. A client that still sends would not see the answer otherwise."""
        if self._is_read or self._is_late or b"expect" in self._headers:
            return
        left = _DRAIN_BYTES
        try:
            async with asyncio.timeout(_DRAIN_S):
                while left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        self._is_read = message["type"] == "http.request"
                        return
        except TimeoutError:
            return


class _LimitError(Exception):
    def __init__(self, why: RejectedError) -> None:
        super().__init__(why)
        self.why = why


def _too_large(most: int) -> RejectedError:
    return rejected(413, f"The body has more than {most} bytes", "PROTO_MESSAGE_TOO_LARGE", limit=most)


_GROUPS = ("/health", "/info", "/hooks/event", "/hooks/batch", "/sessions", "/files")
"""The beginnings of paths that have a rate of their own."""


def rates_of(settings: BridgeSettings) -> dict[str, int]:
    """Return how many requests an address has in a minute, by the beginning of the path."""
    info, sessions = settings.info_per_minute, settings.sessions_per_minute
    hooks, batches, files = settings.hooks_per_minute, settings.batches_per_minute, settings.files_per_minute
    return dict(zip(_GROUPS, (info, info, hooks, batches, sessions, files), strict=True))


def _group(path: str) -> str:
    """Return the group of a path. Other paths have no rate: wrong tokens are counted elsewhere, and connections are limited."""
    path = path.removeprefix(_BASE)
    return next((known for known in _GROUPS if path == known or path.startswith(f"{known}/")), "")


async def _deny(scope: Scope, receive: Receive, send: Send, error: HoldfastError, id_: str) -> None:
    """Answer a request that is not let in. A WebSocket is rejected before it is opened."""
    answer = error_response(error, request_id=id_, headers={"connection": "close"})
    answer.raw_headers += [*_SECURITY, (b"x-request-id", id_.encode())]
    if scope["type"] == "http":
        await answer(scope, receive, send)
    elif "websocket.http.response" in scope.get("extensions", {}):
        start = {"type": "websocket.http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
        await send(start)
        await send({"type": "websocket.http.response.body", "body": answer.body})
    else:
        await send({"type": "websocket.close", "code": error.fault.entry.close_code or 1008})
