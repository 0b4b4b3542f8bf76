"""Many clients come at once while the server does not read: none of them is sent away, and nothing that is load is final."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from uuid import uuid4

import pytest
import websockets
from bridge_kit import limits, serving
from test_bridge_load import in_a_process

from holdfast.bridge.client.client import Client
from holdfast.bridge.client.dial import Dialer
from holdfast.bridge.server import Bridge
from holdfast.faults import HoldfastError
from holdfast.testing.proxy import FaultProxy
from holdfast.wire.bridge_options import ServerLimits
from holdfast.wire.envelope import stamp

MANY = 300
UPGRADE = (
    "GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


@contextmanager
def came_while_stalled(bridge: Bridge, count: int, request: str) -> Iterator[list[socket.socket]]:
    """Connect and send without giving the event loop a turn: the server finds them all at once, with their requests unread."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection((bridge.host, bridge.port))) for _ in range(count)]
        for each in sockets:
            each.sendall(request.format(port=bridge.port).encode())
            each.setblocking(False)
        yield sockets


async def head_of(connection: socket.socket) -> str:
    received = b""
    while b"\r\n\r\n" not in received:
        data = await asyncio.get_running_loop().sock_recv(connection, 65_536)
        if not data:
            break
        received += data
    return received.split(b"\r\n", 1)[0].decode()


def test_XB1_clients_that_came_while_the_server_stalled_are_all_let_in():
    async def scenario():
        async with serving() as bridge:
            with came_while_stalled(bridge, MANY, UPGRADE) as sockets:
                heads = await asyncio.gather(*map(head_of, sockets))
        assert {head.split(" ", 2)[1] for head in heads} == {"101"}

    run(scenario())


def test_XB1_requests_that_came_while_the_server_stalled_are_all_answered():
    async def scenario():
        async with serving() as bridge:
            request = "GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
            with came_while_stalled(bridge, MANY, request) as sockets:
                heads = await asyncio.gather(*map(head_of, sockets))
        assert {head.split(" ", 2)[1] for head in heads} == {"200"}

    run(scenario())


def test_XB1_headers_that_wait_unread_longer_than_their_time_are_read():
    async def scenario():
        async with serving(limits=limits(header_timeout=0.05)) as bridge:
            opened = [socket.create_connection((bridge.host, bridge.port)) for _ in range(20)]
            with ExitStack() as stack:
                for each in opened:
                    stack.enter_context(each)
                await asyncio.sleep(0.01)
                # They are accepted, and their time runs. Now the server stalls, and meanwhile their requests come.
                for each in opened:
                    each.sendall(UPGRADE.format(port=bridge.port).encode())
                    each.setblocking(False)
                time.sleep(0.1)  # noqa: ASYNC251 - the loop is to stall
                heads = await asyncio.gather(*map(head_of, opened))
        assert {head.split(" ", 2)[1] for head in heads} == {"101"}

    run(scenario())


def test_XB1_an_auth_that_waits_unread_longer_than_its_time_is_read():
    async def scenario():
        settings = limits(connection=ServerLimits(auth_timeout=0.05))
        async with serving(limits=settings) as bridge:
            connection = await websockets.connect(bridge.ws_url, proxy=None)
            auth = {"type": "auth", "id": str(uuid4()), "timestamp": stamp(0.0), "payload": {"token": "token"}}
            sent = asyncio.create_task(connection.send(json.dumps(auth)))
            await asyncio.sleep(0)
            time.sleep(0.1)  # noqa: ASYNC251 - the loop is to stall
            await sent
            assert json.loads(await connection.recv())["type"] == "connection_ack"
            await connection.close()

    run(scenario())


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_XB1_an_answer_that_is_load_is_not_final_for_the_client(status):
    body = {"code": "PROTO_INVALID_MESSAGE", "message": "The headers did not come within 10 s", "error": "X"}

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        text = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(text), text))
        writer.close()

    async def scenario():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(HoldfastError) as caught:
                await Dialer(f"ws://127.0.0.1:{port}/ws", timeout=5).dial("resolve")
        assert caught.value.fault.retryable

    run(scenario())


def test_XB1_a_bridge_without_a_free_place_is_tried_again():
    async def scenario():
        settings = limits(max_connections=1)
        statuses = []
        async with serving(limits=settings) as bridge, Client(bridge.ws_url, token="token"):
            late = Client(
                bridge.ws_url, token="token", offline=True, on_status=lambda each: statuses.append(each.status)
            )
            async with late:
                while "reconnecting" not in statuses:  # noqa: ASYNC110 - the status sets no event
                    await asyncio.sleep(0.01)
                assert late.status != "error"

    run(scenario())


# --- clients that come back ---


async def burst(tmp_path, count: int, stall: float, *, behind_a_proxy: bool) -> float:
    """Cut all clients off, stop the server for `stall` seconds, and return how long after that the last one is back."""
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(in_a_process(f"sqlite:{tmp_path / 's.db'}", roomy=False))
        address, proxy = served.url.removeprefix("http://"), None
        if behind_a_proxy:
            proxy = await stack.enter_async_context(FaultProxy(address))
            address = proxy.address
        clients = [Client(f"ws://{address}/ws", token="token", connect_timeout=30) for _ in range(count)]
        for some in range(0, count, 50):
            here = clients[some : some + 50]
            await asyncio.gather(*(stack.enter_async_context(each) for each in here))
            # Five clients in each session.
            sessions = [each.create(f"s-{(some + number) // 5}") for number, each in enumerate(here)]
            await asyncio.gather(*(stack.enter_async_context(each) for each in sessions))
        os.kill(served.process.pid, signal.SIGSTOP)
        if proxy is not None:
            proxy.cut()
        else:
            for each in clients:
                each._driver._link._socket.transport.abort()
        await asyncio.sleep(stall)
        os.kill(served.process.pid, signal.SIGCONT)
        started = time.monotonic()
        while not all(_is_back(each) for each in clients):
            assert not [each for each in clients if each.status == "error"]
            assert time.monotonic() - started < 60
            await asyncio.sleep(0.05)
        return time.monotonic() - started


def _is_back(client: Client) -> bool:
    machine = client._driver.machine
    return machine.status == "connected" and all(each.is_joined for each in machine._sessions.values())


@pytest.mark.parametrize("behind_a_proxy", [False, True])
def test_XB1_clients_are_back_after_a_stall(tmp_path, behind_a_proxy):
    run(burst(tmp_path, 50, 0.2, behind_a_proxy=behind_a_proxy))


@pytest.mark.soak
@pytest.mark.parametrize("behind_a_proxy", [False, True])
def test_XB1_1000_clients_of_one_address_are_back_10_s_after_a_stall_of_3_s(tmp_path, behind_a_proxy):
    took = asyncio.run(asyncio.wait_for(burst(tmp_path, 1000, 3.0, behind_a_proxy=behind_a_proxy), 240))
    sys.stdout.write(f"1,000 clients back {took:.1f} s after a stall of 3 s, behind a proxy: {behind_a_proxy}\n")
    assert took < 10
