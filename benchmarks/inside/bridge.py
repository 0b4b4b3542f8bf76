"""The servers of the bridge's benchmark, each in a process of its own: `python -m benchmarks.inside.bridge NAME [STORE]` prints its port.

All of them run on uvloop, and none compresses.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

PLENTY = 10_000_000


def _announce(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


async def _until_input_ends() -> None:
    await asyncio.to_thread(sys.stdin.read)


async def _uvicorn(app: Any) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        port=0,
        http="httptools",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        log_level="error",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    _announce(server.servers[0].sockets[0].getsockname()[1])
    await _until_input_ends()
    server.should_exit = True
    await serving


async def starlette() -> None:
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute
    from starlette.websockets import WebSocketDisconnect

    async def echo(socket: Any) -> None:
        await socket.accept()
        try:
            while True:
                await socket.send_text(await socket.receive_text())
        except WebSocketDisconnect:
            return

    await _uvicorn(Starlette(routes=[WebSocketRoute("/ws", echo)]))


async def websockets() -> None:
    from websockets.asyncio.server import serve

    async def echo(socket: Any) -> None:
        async for message in socket:
            await socket.send(message)

    async with serve(echo, "127.0.0.1", 0, compression=None) as server:
        _announce(next(iter(server.sockets)).getsockname()[1])
        await _until_input_ends()


async def socketio() -> None:
    import socketio

    server = socketio.AsyncServer(async_mode="asgi")

    @server.event
    async def message(_: str, data: Any) -> Any:
        # What a handler returns is the acknowledgement.
        return data

    await _uvicorn(socketio.ASGIApp(server))


async def holdfast(store: str) -> None:
    from holdfast.bridge.access.identity import TokenHolder
    from holdfast.bridge.server import Bridge
    from holdfast.bridge.settings import BridgeSettings
    from holdfast.wire.server import ServerLimits

    class Anybody:
        def identify(self, token: str, *, peer: str) -> TokenHolder:  # noqa: ARG002 - as the protocol has it
            return TokenHolder(token_id=token, kind="device", name="bench")

        redeem = identify

        def make_ticket(self, identity: TokenHolder) -> str:
            return identity.token_id

        def watch(self, revoked: Any) -> None: ...

    settings = BridgeSettings(
        messages_per_minute=PLENTY,
        max_connections_per_address=1000,
        max_unauthenticated_per_address=1000,
        connection=ServerLimits(heartbeat=600.0, heartbeat_timeout=600.0),
    )
    authenticator: Any = Anybody()
    async with Bridge(store=store, tokens=authenticator, settings=settings).serving("127.0.0.1", 0) as bridge:
        _announce(int(bridge.url.rpartition(":")[2]))
        await _until_input_ends()


def main() -> None:
    import uvloop

    name, *more = sys.argv[1:]
    work: Any = {"starlette": starlette, "websockets": websockets, "socketio": socketio, "holdfast": holdfast}[name]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(*more))


if __name__ == "__main__":
    main()
