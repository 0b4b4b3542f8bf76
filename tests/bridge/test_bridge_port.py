"""The socket of a connection: frames leave together at the end of a turn of the event loop, in order, and before the goodbye."""

from __future__ import annotations

import asyncio
import json
from asyncio import selector_events
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from bridge_kit import LIMIT, serving
from socket_kit import BINARY, CLOSE, GOOD, TEXT, Wire, frame, wire

PINGS = 40


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * LIMIT):
            await work()

    asyncio.run(limited())


def ping() -> tuple[str, bytes]:
    document = GOOD | {"type": "heartbeat_ping", "id": str(uuid4()), "payload": {}}
    return str(document["id"]), frame(TEXT, json.dumps(document).encode())


async def pongs(client: Wire, count: int) -> list[str]:
    return [(await client.until("heartbeat_pong"))["re"] for _ in range(count)]


def test_answers_of_one_turn_leave_the_socket_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system call for each of them would cost more than everything else that is done for it."""
    written: list[bytes] = []
    # What asyncio gives to a protocol. Its types do not name it.
    transport_class: Any = vars(selector_events)["_SelectorSocketTransport"]
    write = transport_class.write

    def counted(transport: Any, data: bytes) -> None:
        if b"heartbeat_pong" in data:
            written.append(bytes(data))
        write(transport, data)

    monkeypatch.setattr(transport_class, "write", counted)

    async def work() -> None:
        async with serving() as bridge, wire(bridge.url) as client:
            await client.say("auth", {"token": "token"})
            await client.until("connection_ack")
            asked = [ping() for _ in range(PINGS)]
            await client.send(b"".join(data for _, data in asked))
            assert await pongs(client, PINGS) == [id_ for id_, _ in asked]
            assert len(written) <= PINGS // 10

    run(work)


def test_the_answers_before_the_end_of_a_connection_come_before_it() -> None:
    """A binary frame ends the connection. What came before it in the same packet is answered first."""

    async def work() -> None:
        async with serving() as bridge, wire(bridge.url) as client:
            await client.say("auth", {"token": "token"})
            await client.until("connection_ack")
            asked = [ping() for _ in range(PINGS)]
            await client.send(b"".join(data for _, data in asked) + frame(BINARY, b"\x00"))
            assert await pongs(client, PINGS) == [id_ for id_, _ in asked]
            await client.until("connection_error")
            assert (await client.next())[0] == CLOSE

    run(work)


def test_a_burst_larger_than_the_buffer_comes_whole_and_in_order() -> None:
    """More than a turn of the event loop may hold back, to a client that reads slowly at first."""

    async def work() -> None:
        async with serving() as bridge, wire(bridge.url, limit=1024, receive_buffer=4096) as client:
            await client.say("auth", {"token": "token"})
            await client.until("connection_ack")
            asked = [ping() for _ in range(1_000)]
            _, answered = await asyncio.gather(
                client.send(b"".join(data for _, data in asked)), pongs(client, len(asked))
            )
            assert answered == [id_ for id_, _ in asked]

    run(work)
