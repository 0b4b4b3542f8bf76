"""What the tests of the bridge share: a bridge on a loopback port in this process, and a client without any logic of its own.

    async with serving() as bridge, raw(bridge) as client:
        await client.auth()
        joined = await client.create("s")
        await client.say("hello")

`raw` speaks the protocol message by message. For a client that reconnects use `holdfast.bridge.Client`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from holdfast.bridge.access.identity import TokenHolder
from holdfast.bridge.server import Bridge
from holdfast.bridge.settings import BridgeSettings
from holdfast.faults import Fault, HoldfastError
from holdfast.providers import Offers, Part, Reply, Request
from holdfast.stores import MemoryStore, Store
from holdfast.wire.envelope import stamp
from holdfast.wire.messages import DURABLE, FROM_SERVER

LIMIT = 5.0
"""The most seconds that a test waits for anything."""


class Tokens:
    """An authenticator with fixed tokens: `Tokens(ada=Identity(…))`; the token of each is its name."""

    def __init__(self, **known: TokenHolder) -> None:
        self.known = known or {"token": TokenHolder(token_id="t-1", kind="device", name="Ada")}
        self.tickets: dict[str, TokenHolder] = {}
        self.watchers: list[Callable[[str], None]] = []

    def identify(self, token: str, *, peer: str) -> TokenHolder:
        found = self.known.get(token)
        if found is None:
            raise HoldfastError(Fault.of("AUTH_FAILED"))
        return found

    def make_ticket(self, identity: TokenHolder) -> str:
        ticket = uuid4().hex
        self.tickets[ticket] = identity
        return ticket

    def redeem(self, ticket: str, *, peer: str) -> TokenHolder:
        found = self.tickets.pop(ticket, None)
        if found is None:
            raise HoldfastError(Fault.of("AUTH_FAILED"))
        return found

    def watch(self, revoked: Callable[[str], None]) -> None:
        self.watchers.append(revoked)

    def revoke(self, token: str) -> None:
        identity = self.known.pop(token)
        for watcher in self.watchers:
            watcher(identity.token_id)


class Model:
    """A model with these replies in turn."""

    name = "own/scripted"
    offers = Offers()

    def __init__(self, *replies: Reply) -> None:
        self.requests: list[Request] = []
        self._replies = list(replies)

    async def exchange(self, request: Request) -> Reply:
        self.requests.append(request)
        return self._replies.pop(0)

    @asynccontextmanager
    async def stream(self, request: Request, *, after_first: str = "raise") -> AsyncIterator[AsyncIterator[Part]]:
        async def parts() -> AsyncIterator[Part]:
            reply = await self.exchange(request)
            for word in reply.text.split():
                yield word
            yield reply

        yield parts()


@asynccontextmanager
async def serving(
    agent: Any = None,
    *,
    store: Store | str | None = None,
    tokens: Any = None,
    port: int = 0,
    limits: BridgeSettings | None = None,
    **options: Any,
) -> AsyncIterator[Bridge]:
    """Start a bridge on a loopback port. Other options go to `Bridge`; without `store` it keeps all in memory."""
    options = {"settings": limits or BridgeSettings()} | options
    async with MemoryStore() as memory:
        bridge = Bridge(agent, store=memory if store is None else store, tokens=tokens or Tokens(), **options)
        async with bridge.serving("127.0.0.1", port):
            yield bridge


def limits(**options: Any) -> BridgeSettings:
    """Return settings for a bridge: `limits(grace=0.05)`. Those of a connection go to `connection=ServerLimits(…)`."""
    return BridgeSettings(**options)


def check_described(message: dict[str, Any]) -> None:
    """Fail if the server sends what the description of the protocol does not have."""
    kind = FROM_SERVER[message["type"]]
    payload = msgspec.convert(message["payload"], kind)
    unknown = set(message["payload"]) - {field.encode_name for field in msgspec.structs.fields(type(payload))}
    assert not unknown, f"{message['type']} has fields that are not described: {unknown}"
    # A code for signing in is stored nowhere, so the question with it is not of the log.
    of_log = message["type"] in DURABLE and "user_code" not in message["payload"]
    assert ("offset" in message) == of_log, message


class Raw:
    """A socket with the protocol's messages, and nothing else."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.received: list[dict[str, Any]] = []
        self._unread = deque[dict[str, Any]]()

    async def send(self, type_: str, payload: dict[str, Any] | None = None, *, id_: str = "", **fields: Any) -> str:
        """Send a message; return its id."""
        id_ = id_ or str(uuid4())
        document = {"type": type_, "id": id_, "timestamp": stamp(1_700_000_000.0), "payload": payload or {}, **fields}
        await self.socket.send(json.dumps(document))
        return id_

    async def next(self) -> dict[str, Any]:
        """Return the next message: one that `ask` passed over, or the next of the socket."""
        return self._unread.popleft() if self._unread else await self._receive()

    async def _receive(self) -> dict[str, Any]:
        async with asyncio.timeout(LIMIT):
            message: dict[str, Any] = json.loads(await self.socket.recv())
        check_described(message)
        self.received.append(message)
        return message

    async def until(self, *types: str) -> dict[str, Any]:
        """Return the next message of one of these types. The others are in `received`."""
        while (message := await self.next())["type"] not in types:
            pass
        return message

    async def ask(self, type_: str, payload: dict[str, Any] | None = None, *answers: str) -> dict[str, Any]:
        """Send a message and return its answer: one of these types, or the error about it.

        What comes before the answer stays unread: an agent may have said its word before the server acknowledges.
        """
        id_ = await self.send(type_, payload)
        while True:
            message = await self._receive()
            is_about = message.get("re", id_) == id_ or id_ in message["payload"].get("ids", ())
            if is_about and message["type"] in (*answers, "error", "connection_error"):
                return message
            self._unread.append(message)

    async def said(self) -> str:
        """Return the next whole answer of the agent."""
        text = ""
        while (message := await self.until("stream_chunk", "stream_end"))["type"] != "stream_end" or not text:
            text += message["payload"].get("text", "")
        return text

    async def auth(self, token: str = "token", **payload: Any) -> dict[str, Any]:
        """Authenticate; return the answer."""
        return await self.ask("auth", {"token": token, "protocol": [1, 2], **payload}, "connection_ack")

    async def create(self, session: str, **payload: Any) -> dict[str, Any]:
        """Make a session and join it; return the payload of `session_joined`."""
        answer = await self.ask("session_create", {"session_id": session, **payload}, "session_joined")
        return dict(answer["payload"])

    async def join(self, session: str, **payload: Any) -> dict[str, Any]:
        """Join a session; return the payload of the answer."""
        answer = await self.ask("session_join", {"session_id": session, **payload}, "session_joined")
        return dict(answer["payload"])

    async def say(self, text: str, **payload: Any) -> dict[str, Any]:
        """Send a message; return what became of it, as the acknowledgement says."""
        answer = await self.ask("session_message", {"content": text, **payload}, "ack")
        return dict(answer["payload"]["results"][0] if answer["type"] == "ack" else answer["payload"])

    async def close_code(self) -> int:
        """Read until the server closes; return the code."""
        try:
            while True:
                await self.next()
        except ConnectionClosed as closed:
            return 1006 if closed.rcvd is None else closed.rcvd.code


@asynccontextmanager
async def raw(bridge: Bridge, **options: Any) -> AsyncIterator[Raw]:
    """Connect to a bridge. `options` go to `websockets.connect`."""
    options = {"ping_interval": None, "compression": None, "max_size": None} | options
    async with connect(bridge.ws_url, **options) as socket:
        yield Raw(socket)


def offsets(messages: list[dict[str, Any]]) -> list[int]:
    """Return the offsets of the log's messages, replayed and live ones, as they came."""
    found: list[int] = []
    for message in messages:
        if message["type"] == "replay_buffer":
            inner = [json.loads(each) if isinstance(each, str) else each for each in message["payload"]["messages"]]
            found += [each["offset"] for each in inner]
        elif "offset" in message:
            found.append(message["offset"])
    return found
