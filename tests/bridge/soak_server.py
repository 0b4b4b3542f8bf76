"""Servers for the soak, as processes that can be killed: `python soak_server.py bridge PORT STORE`.

Each prints its port when it takes connections. `bridge` publishes messages of its own all the time; so does `socketio`, the peer, which keeps
in a file what it has sent and received. At SIGUSR1 they stop that, and print `quiet` when the last message is out.
"""

# ruff: noqa: T201, PLC0415, ASYNC110, ASYNC230, ASYNC240 - a program of its own, in which nothing else waits

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from bridge_kit import Tokens

from holdfast.bridge import Bridge
from holdfast.bridge.settings import BridgeSettings
from holdfast.wire.server import ServerLimits

SESSION = "soak"
BEAT = 0.4
"""Seconds between heartbeats, and that an answer to one may take."""


def silence() -> asyncio.Event:
    """Return what is set at SIGUSR1."""
    wanted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, wanted.set)
    return wanted


async def serve_bridge(port: int, store: str) -> None:
    wanted = silence()
    limits = ServerLimits(heartbeat=BEAT, heartbeat_timeout=BEAT)
    bridge = Bridge(None, store=store, tokens=Tokens(), settings=BridgeSettings(connection=limits))
    async with bridge.serving("127.0.0.1", port):
        print(bridge.url.rpartition(":")[2], flush=True)
        number = 0
        while not wanted.is_set():
            await asyncio.sleep(0.005)
            if SESSION in bridge.hub.sessions:
                live = bridge.hub.sessions[SESSION]
                await live.publish(("stream_chunk", {"stream_id": "soak", "text": f"c{number}"}))
                number += 1
        print("quiet", flush=True)
        await asyncio.Event().wait()


async def serve_socketio(port: int, journal: str) -> None:
    import socketio
    import uvicorn

    wanted = silence()
    server = socketio.AsyncServer(async_mode="asgi", ping_interval=BEAT, ping_timeout=BEAT)
    with Path(journal).open("a", encoding="utf-8", buffering=1) as file:

        @server.on("say")
        async def say(_sid: str, text: str) -> str:
            file.write(f"received {text}\n")
            return text

        config = uvicorn.Config(
            socketio.ASGIApp(server), host="127.0.0.1", port=port, log_level="critical", lifespan="off"
        )
        running = uvicorn.Server(config)
        task = asyncio.create_task(running.serve())
        while not running.started:
            await asyncio.sleep(0.01)
        print(running.servers[0].sockets[0].getsockname()[1], flush=True)
        number = sum(line.startswith("sent ") for line in Path(journal).read_text(encoding="utf-8").splitlines())
        while not task.done() and not wanted.is_set():
            await asyncio.sleep(0.005)
            file.write(f"sent c{number}\n")
            await server.emit("chunk", f"c{number}")
            number += 1
        print("quiet", flush=True)
        await task


def main(kind: str, port: str, path: str) -> None:
    serve = {"bridge": serve_bridge, "socketio": serve_socketio}[kind]
    asyncio.run(serve(int(port), path))


if __name__ == "__main__":
    main(*sys.argv[1:])
