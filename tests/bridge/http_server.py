"""Serves an ASGI app on a loopback port with the bridge's own listener, and talks to it over plain sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import httpx
import uvicorn

from holdfast.bridge.http.listener import http_protocol
from holdfast.bridge.settings import BridgeSettings


class Served:
    def __init__(self, port: int, server: uvicorn.Server) -> None:
        self.port, self.server = port, server
        self.url = f"http://127.0.0.1:{port}"
        self.host = f"127.0.0.1:{port}"

    def client(self, **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=10, **options)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def exchange(self, request: bytes) -> Answer:
        """Send bytes and return the answer. The connection must be closed by the server within the test's limits."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            return Answer(await asyncio.wait_for(reader.read(), 10))
        finally:
            writer.close()


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1]) if raw else 0
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}

    def json(self) -> Any:
        return json.loads(self.body)


@contextlib.asynccontextmanager
async def serving(app: Any, settings: BridgeSettings | None = None, **options: Any):
    """Serve an app until the block ends."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http=http_protocol(settings or BridgeSettings()),
        timeout_keep_alive=(settings or BridgeSettings()).idle_timeout,
        ws="websockets-sansio",
        server_header=False,
        proxy_headers=False,
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
        **options,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listening])
    server.server_state.default_headers = [(b"date", b"now")]
    try:
        yield Served(listening.getsockname()[1], server)
    finally:
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
        for task in list(server.server_state.tasks):
            task.cancel()
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
        for each in server.servers:
            each.close()
        listening.close()
