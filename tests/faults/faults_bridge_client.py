"""Failures of a client of the bridge, for the codes that only it has."""

# ruff: noqa: SIM117 - the bridge, the proxy and the client are told apart more easily in blocks of their own
from __future__ import annotations

import asyncio
from typing import Any

from holdfast.bridge import Bridge, BridgeConnectionError, Client, ConnectionStatus, Schedule
from holdfast.bridge.access.tokens import Tokens
from holdfast.faults import Fault
from holdfast.stores import MemoryStore
from holdfast.testing.proxy import BlackHole, FaultProxy

ONCE = Schedule(delays=(0.001,), attempts=1, grace=None)


def _gave_up(url: str, **options: Any) -> Fault:
    async def connect() -> Fault:
        try:
            async with Client(url, token="token", reconnect=ONCE, **options):
                raise AssertionError("it is connected")
        except BridgeConnectionError as error:
            return error.fault

    return asyncio.run(connect())


def every_attempt_failed() -> Fault:
    return _gave_up("ws://127.0.0.1:1/ws")


def there_is_no_bridge() -> Fault:
    async def connect() -> Fault:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.to_thread(_gave_up, f"ws://127.0.0.1:{port}/ws")

    return asyncio.run(connect())


def the_bridge_is_silent() -> Fault:
    async def wait() -> Fault:
        seen: asyncio.Queue[ConnectionStatus] = asyncio.Queue()
        tokens = Tokens()
        token = tokens.create("Ada").text
        async with MemoryStore() as store, Bridge(store=store, tokens=tokens).serving(port=0) as bridge:
            async with FaultProxy(bridge.url.removeprefix("http://")) as proxy:
                url, options = f"ws://{proxy.address}/ws", {"heartbeat_timeout": 0.05, "on_status": seen.put_nowait}
                async with Client(url, token=token, **options) as client:
                    proxy.add(BlackHole())
                    client.wake_up()
                    while (now := await seen.get()).fault is None:
                        pass
                    return now.fault

    return asyncio.run(wait())
