"""Failures of connections to a bridge, over real sockets."""

from __future__ import annotations

import asyncio
import json
from socket import socketpair
from typing import Any
from uuid import uuid4

from websockets.asyncio.client import ClientConnection, connect

from holdfast.bridge import Bridge, BridgeSettings, Tokens
from holdfast.bridge.error_reports import ErrorReports
from holdfast.bridge.host.channel import HostChannel
from holdfast.faults import Fault, HoldfastError
from holdfast.sinks.metric import ErrorMetric
from holdfast.stores import MemoryStore
from holdfast.views import wire

_LIMIT = 20.0


async def _send(socket: ClientConnection, type_: str, payload: dict[str, Any]) -> None:
    stamp = "2026-11-15T01:02:03Z"
    await socket.send(json.dumps({"type": type_, "id": str(uuid4()), "timestamp": stamp, "payload": payload}))


async def _fault(socket: ClientConnection) -> Fault:
    """Return the fault of the next error that the server sends."""
    while True:
        message = json.loads(await socket.recv())
        if message["type"] in ("error", "connection_error"):
            return wire.read({"type": message["type"], "payload": message["payload"]})


def _answer(*messages: tuple[str, dict[str, Any]], headers: Any = None, before: int = 0, **settings: Any) -> Fault:
    """Return what the server answers to a client that sends these messages. `before`: others of the same client come first."""

    async def talk() -> Fault:
        tokens = Tokens()
        token = tokens.create("Ada").text
        async with asyncio.timeout(_LIMIT), MemoryStore() as store:
            bridge = Bridge(store=store, tokens=tokens, settings=BridgeSettings(port=0, **settings))
            async with bridge.serving():
                sockets = [await connect(bridge.ws_url, additional_headers=headers) for _ in range(before + 1)]
                for socket in sockets:
                    for type_, payload in messages:
                        known = {"token": token} if type_ == "auth" else {}
                        await _send(socket, type_, known | payload)
                    if socket is not sockets[-1]:
                        await socket.recv()
                # The first one is superseded; a limit hits the last one.
                fault = await _fault(sockets[0] if "client_id" in str(messages) else sockets[-1])
                await asyncio.gather(*(socket.close() for socket in sockets))
                return fault

    return asyncio.run(talk())


def _binary() -> Fault:
    async def talk() -> Fault:
        async with (
            asyncio.timeout(_LIMIT),
            MemoryStore() as store,
            Bridge(store=store, tokens=Tokens(), settings=BridgeSettings(port=0)).serving() as bridge,
            connect(bridge.ws_url) as socket,
        ):
            await socket.send(b"\x00")
            return await _fault(socket)

    return asyncio.run(talk())


def _slow() -> Fault:
    """A client that does not read is cut off, and the metrics say why."""
    counted: asyncio.Queue[ErrorMetric] = asyncio.Queue()

    async def talk() -> Fault:
        tokens = Tokens()
        settings = BridgeSettings(port=0, send_timeout=0.05)
        reports = ErrorReports(counted.put_nowait)
        async with asyncio.timeout(_LIMIT), MemoryStore() as store:
            bridge = Bridge(store=store, tokens=tokens, settings=settings, reports=reports)
            async with bridge.serving(), connect(bridge.ws_url, max_queue=1, close_timeout=0.05) as socket:
                await _send(socket, "auth", {"token": tokens.create("Ada").text})
                await _send(socket, "session_create", {"session_id": "s"})
                while "session_state" not in str(await socket.recv()):
                    pass
                live = bridge.hub.sessions["s"]
                while counted.empty():
                    # The store in memory never lets others run, and they are what is measured here.
                    await asyncio.sleep(0.001)
                    await live.publish(("stream_chunk", {"stream_id": "a", "text": "word " * 40_000}))
                code: Any = (await counted.get()).code
                return Fault.of(code)

    return asyncio.run(talk())


_PROXIED = {"x-forwarded-for": "192.168.1.7", "x-forwarded-proto": "http"}


def _agents_end() -> Fault:
    async def nothing(op: str, fields: dict[str, Any]) -> None: ...

    async def talk() -> Fault:
        near, far = socketpair()
        channel = HostChannel(*await asyncio.open_connection(sock=near), nothing)
        far.close()
        reading = asyncio.ensure_future(channel.run())
        try:
            await channel.call("stop_turn", session="s")
        except HoldfastError as error:
            return error.fault
        finally:
            await reading
        raise AssertionError

    return asyncio.run(talk())


CASES = [
    ("SYS_BRIDGE_ERROR", _agents_end),
    ("CONN_LIMIT", lambda: _answer(("auth", {}), before=1, max_connections=1)),
    ("CONN_MISCONFIGURED", lambda: _answer(("auth", {}), headers=_PROXIED, trusted_proxies=("127.0.0.1",))),
    ("CONN_SLOW_CONSUMER", _slow),
    ("CONN_SUPERSEDED", lambda: _answer(("auth", {"client_id": "phone"}), before=1)),
    ("PROTO_BINARY_NOT_SUPPORTED", _binary),
    ("PROTO_SEQUENCE_ERROR", lambda: _answer(("session_join", {"session_id": "s"}))),
    ("PROTO_VERSION_INCOMPATIBLE", lambda: _answer(("auth", {"protocol": [7]}))),
]
