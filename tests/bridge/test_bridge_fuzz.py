"""Messages that are well formed and mean nothing: every one is answered or has no effect, and none is an error of ours."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any
from uuid import uuid4

import pytest
from bridge_kit import LIMIT, limits, raw, serving
from websockets.exceptions import ConnectionClosed

from holdfast.wire.envelope import stamp
from holdfast.wire.examples import CLIENT_EXAMPLES
from holdfast.wire.messages import FROM_CLIENT
from holdfast.wire.server import ServerLimits

VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 2**53, -(2**63), 2**64 - 1, 1.5, 1e308, "", "s", "t", "a/b", "../../etc/passwd", "\x00", "s\n"),
    *("x" * 300, "é😀", "%s{}", "'; drop table session; --", "2026-11-15T01:02:03Z", "0001-01-01T00:00:00+23:59"),
    *("9999-12-31T23:59:60Z", [], ["x"], [1, 2], [[]], {}, {"a": 1}, {"epoch": "k", "offset": -1}, {"epoch": "", "offset": 2**60}),
    *([{"session_id": "s"}], [{"session_id": "s", "after": {"epoch": "x", "offset": 3}}], "controller", "observer", "full", "pending"),
]  # fmt: skip
# These end the session or the connection's part in it for good; they are tested where they belong.
LEFT_OUT = {"auth", "session_end", "session_close", "session_leave", "stop"}


def message(rng: random.Random) -> dict[str, Any]:
    type_ = rng.choice(sorted(set(FROM_CLIENT) - LEFT_OUT))
    payload = dict(CLIENT_EXAMPLES[type_])
    fields = FROM_CLIENT[type_].__struct_encode_fields__
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        if fields:
            payload[rng.choice(fields)] = rng.choice(VALUES)
    if rng.random() < 0.7 and "session_id" in fields and payload.get("session_id") == "release-42":
        payload["session_id"] = "s"
    document = {"type": type_, "id": str(uuid4()), "timestamp": stamp(0.0), "payload": payload}
    if rng.random() < 0.3:
        document[rng.choice(("session_id", "epoch", "offset", "re"))] = rng.choice(VALUES)
    return document


def fuzz(seed: int, count: int) -> None:
    rng = random.Random(seed)

    async def work() -> None:
        patient = ServerLimits(errors_per_minute=1_000_000)
        settings = limits(connection=patient, messages_per_minute=10_000_000)
        async with serving(limits=settings) as bridge:
            async with raw(bridge) as first:
                await first.auth()
                await first.create("s")
            left = count
            while left > 0:
                left = await converse(bridge, rng, left)
            async with raw(bridge) as peaceful:
                await peaceful.auth()
                assert (await peaceful.join("s", history="none"))["session_id"] == "s"
                assert (await peaceful.ask("session_snapshot", {"session_id": "s"}, "snapshot"))["type"] == "snapshot"

    async def converse(bridge: Any, rng: random.Random, left: int) -> int:
        async with raw(bridge) as client:
            await client.auth()
            await client.join("s", history="none")
            for number in range(min(left, 200)):
                sent = message(rng)
                await client.socket.send(json.dumps(sent))
                try:
                    # A heartbeat is answered after everything before it, so an answer is awaited without knowing which one.
                    await client.ask("heartbeat_ping", {}, "heartbeat_pong")
                except ConnectionClosed as closed:
                    raise AssertionError(f"seed {seed}: closed by {sent}: {closed}") from closed
                for each in client.received:
                    assert each["payload"].get("code") != "SYS_INTERNAL_ERROR", (seed, number, sent, each)
                client.received.clear()
        return left - 200

    async def limited() -> None:
        async with asyncio.timeout(LIMIT + count / 20):
            await work()

    asyncio.run(limited())


def test_messages_that_mean_nothing_are_never_an_error_of_the_server() -> None:
    fuzz(random.randrange(2**32), 300)


@pytest.mark.soak
def test_many_messages_that_mean_nothing() -> None:
    fuzz(random.randrange(2**32), 50_000)
