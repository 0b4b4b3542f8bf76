"""Clients that send what no client should: each is answered as specified, and the others notice nothing."""

from __future__ import annotations

import asyncio
import json
import resource
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from bridge_kit import LIMIT, Raw, limits, raw, serving
from socket_kit import BINARY, CLOSE, GOOD, ID, PING, TEXT, Wire, frame, wire

from holdfast.bridge.server import Bridge
from holdfast.wire.server import ServerLimits


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * LIMIT):
            await work()

    asyncio.run(limited())


@asynccontextmanager
async def attack(**options: Any) -> AsyncIterator[tuple[Wire, Raw, Bridge]]:
    """A bridge with a peaceful client in a session, and a hostile one in the same session."""
    async with serving(**options) as bridge, raw(bridge) as peaceful:
        await peaceful.auth()
        await peaceful.create("s")
        async with wire(bridge.url) as hostile:
            await hostile.say("auth", {"token": "token"})
            await hostile.until("connection_ack")
            await hostile.say("session_join", {"session_id": "s"})
            await hostile.until("session_state")
            yield hostile, peaceful, bridge
        assert (await peaceful.say("I am still here"))["status"] == "stored"


BROKEN = {
    "B15 a text that is not UTF-8": (frame(TEXT, b'{"a":"\xff"}'), 1007),
    "B17 a binary frame": (frame(BINARY, b"\x00\x01"), 1003),
    "B18 one byte too many": (frame(TEXT, b"x" * 20_001), 1009),
    "B18 a header that says 2^62 bytes": (frame(TEXT, length=2**62), 1009),
    "B19 fragments without an end": (frame(TEXT, b"x" * 100, fin=False) + frame(0, b"x" * 100, fin=False) * 1000, 1009),
    "B25 a frame without a mask": (frame(TEXT, b"{}", mask=False), 1002),
    "B25 an opcode that does not exist": (frame(5, b"{}"), 1002),
    "B25 a ping of 126 bytes": (frame(PING, b"x" * 126), 1002),
    "B25 a ping in fragments": (frame(PING, b"x", fin=False), 1002),
    "B25 a fragment of nothing": (frame(0, b"x"), 1002),
    "compressed, although that was not agreed on": (frame(TEXT, zlib.compress(b" " * 10_000_000), rsv=4), 1002),
}


@pytest.mark.parametrize(("data", "code"), BROKEN.values(), ids=BROKEN.keys())
def test_B15_to_B25_a_broken_frame_ends_only_its_own_connection(data: bytes, code: int) -> None:
    async def work() -> None:
        small = limits(connection=ServerLimits(max_frame=20_000))
        async with attack(limits=small) as (hostile, _, bridge):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            await hostile.send(data)
            assert await hostile.close_code() == code
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 5_000  # kB
            await _alone(bridge)

    run(work)


NOT_UTF8 = {
    "in one frame": frame(TEXT, b'{"a":"\xff"}'),
    "cut within a character": frame(TEXT, b'{"a":"\xc3', fin=False) + frame(0, b'"}'),
    "two at once": frame(TEXT, b"\xff") * 2,
}


@pytest.mark.parametrize("data", NOT_UTF8.values(), ids=NOT_UTF8.keys())
def test_B15_a_text_that_is_not_utf_8_is_one_line_of_the_log(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with attack() as (hostile, _, bridge):
            await hostile.send(data)
            while (came := await hostile.next())[0] != CLOSE:
                pass
            assert came[1] == (1007).to_bytes(2, "big") + b"invalid_utf8"
            await _alone(bridge)

    with caplog.at_level("INFO"):
        run(work)
    lines = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert [record.getMessage() for record in lines] == [
        "bridge: a client at 127.0.0.1 sent a text that is not UTF-8, and was disconnected"
    ]
    assert not any(record.exc_info for record in lines)


def test_a_character_that_is_cut_over_two_fragments_is_read() -> None:
    async def work() -> None:
        async with attack() as (client, peaceful, _):
            text = json.dumps(GOOD | {"payload": {"content": "é"}}, ensure_ascii=False).encode()
            cut = text.index(b"\xc3") + 1
            await client.send(frame(TEXT, text[:cut], fin=False) + frame(0, text[cut:]))
            assert (await peaceful.until("user_message"))["payload"]["content"] == "é"

    run(work)


async def _alone(bridge: Bridge) -> None:
    """Wait until only the peaceful client is left."""
    async with asyncio.timeout(LIMIT):
        while len(bridge.hub.connections) > 1:  # noqa: ASYNC110 - a connection that has ended sets no event
            await asyncio.sleep(0.001)


def test_compression_is_not_agreed_on_so_there_is_no_deflate_bomb() -> None:
    async def work() -> None:
        async with serving() as bridge:
            address = bridge.url.removeprefix("http://")
            host, _, port = address.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"GET /ws HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n".encode()
            )
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 101")
            assert b"permessage-deflate" not in answer.lower()
            writer.close()

    run(work)


def _text(**changes: Any) -> str:
    return json.dumps(GOOD | changes)


INVALID = {
    "B14 not JSON": ('{"type":', "json"),
    "B21 nested 2,000 deep": ('{"a":' * 2000 + "1" + "}" * 2000, "json"),
    "B21 nested 200,000 deep": ("[" * 200_000, "json"),
    "B22 NaN": (_text()[:-1] + ', "a": NaN}', "json"),
    "B22 1e999": (_text()[:-1] + ', "a": 1e999}', "json"),
    "B22 5,000 digits": (_text()[:-1] + f', "a": {"9" * 5000}}}', "json"),
    "B22 half a surrogate pair": (_text()[:-1] + ', "a": "\\ud800"}', "json"),
    "B22 a byte order mark": ("\ufeff" + _text(), "json"),
    "B22 something after it": (_text() + " x", "json"),
    "B9 a list as payload": (_text(payload=[]), "object"),
    "B9 null as payload": (_text(payload=None), "object"),
    "B9 a text as payload": (_text(payload="x"), "object"),
    "a list": ("[]", "object"),
    "a type with a line break": (_text(type="stop\n"), "matches"),
}


@pytest.mark.parametrize(("text", "constraint"), INVALID.values(), ids=INVALID.keys())
def test_B9_to_B22_an_invalid_message_gets_its_violations_and_the_connection_stays(text: str, constraint: str) -> None:
    async def work() -> None:
        async with attack() as (hostile, _, _bridge):
            await hostile.send(frame(TEXT, text.encode("utf-8", "surrogatepass")))
            error = await hostile.until("error")
            assert error["payload"]["code"] == "PROTO_INVALID_MESSAGE"
            assert [each["constraint"] for each in error["payload"]["violations"]] == [constraint]
            await hostile.say("session_message", {"content": "and again, right"})
            assert (await hostile.until("ack"))["payload"]["results"][0]["status"] == "stored"

    run(work)


def test_B7_B13_all_violations_come_at_once_with_the_id_as_it_was_and_no_path_of_ours() -> None:
    async def work() -> None:
        async with attack() as (hostile, _, _bridge):
            document = {"type": "session_message", "id": "msg 123", "timestamp": "2026-03-20 14:32:00"}
            await hostile.send(frame(TEXT, json.dumps(document).encode()))
            error = await hostile.until("error")
            assert error["id"] == "msg 123"
            found = {each["field"]: each["constraint"] for each in error["payload"]["violations"]}
            assert found == {"id": "uuid", "timestamp": "iso8601", "payload": "required"}
            assert error["payload"]["recoverable"] is False
            assert {"code", "severity", "message"} <= set(error["payload"])
            assert "holdfast/" not in json.dumps(error)
            assert "Traceback" not in json.dumps(error)

    run(work)


def test_B14_ten_invalid_messages_in_a_minute_end_the_connection() -> None:
    async def work() -> None:
        async with attack() as (hostile, _, bridge):
            await hostile.send(frame(TEXT, b'{"type":') * 10)
            assert await hostile.close_code() == 4508
            await _alone(bridge)

    run(work)


def test_B5_B6_B10_B11_B23_what_is_out_of_order_unknown_or_doubled() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as client:
            await client.auth()
            early = await client.say("before the join")
            assert (early["code"], early["details"]["currentPhase"]) == ("PROTO_SEQUENCE_ERROR", "authenticated")
            await client.create("s")
            again = await client.ask("auth", {"token": "wrong"}, "connection_ack")
            assert again["payload"]["code"] == "PROTO_SEQUENCE_ERROR"
            unknown = await client.ask("git_command", {}, "ack")
            assert unknown["payload"]["code"] == "PROTO_UNKNOWN_TYPE"
            assert (await client.say("and it goes on"))["status"] == "stored"
            doubled = _text(later={"x": 1})[:-1] + ', "payload": {"content": "the last one counts"}}'
            await client.socket.send(doubled)
            while (message := await client.until("user_message"))["payload"]["message_id"] != ID:
                pass
            assert message["payload"]["content"] == "the last one counts"

    run(work)


def test_before_auth_a_message_is_at_most_8_kB() -> None:
    async def work() -> None:
        async with serving() as bridge, wire(bridge.url) as hostile:
            await hostile.say("auth", {"token": "x" * 9000})
            assert await hostile.close_code() == 1009

    run(work)


@pytest.mark.parametrize(
    "parts",
    [
        [frame(TEXT, b"x" * 300_000, length=900_000)],
        [frame(TEXT, b"x" * 5_000, fin=False), frame(0, b"x" * 5_000, fin=False)],
        [frame(TEXT, b"{}"), frame(TEXT, b"x" * 300_000, length=900_000)],
    ],
    ids=["half a frame", "fragments", "after a message that is no auth"],
)
def test_before_auth_a_message_that_never_ends_is_cut_off_at_8_kB_too(parts: list[bytes]) -> None:
    async def work() -> None:
        async with serving() as bridge, wire(bridge.url) as hostile:
            for part in parts:
                hostile.writer.write(part)
                # The parts must not come as one.
                await asyncio.sleep(0.02)
            assert await hostile.close_code() in (1009, 1006)
            await _nobody(bridge)

    run(work)


def test_a_large_message_right_after_auth_is_taken() -> None:
    async def work() -> None:
        async with serving() as bridge, wire(bridge.url) as client:
            documents = [
                GOOD | {"type": "auth", "payload": {"token": "token"}},
                GOOD | {"type": "session_create", "payload": {"session_id": "s"}},
                GOOD | {"payload": {"content": "x" * 50_000}},
            ]
            await client.send(b"".join(frame(TEXT, json.dumps(each).encode()) for each in documents))
            assert (await client.until("ack"))["payload"]["results"][0]["status"] == "stored"

    run(work)


async def _nobody(bridge: Bridge) -> None:
    async with asyncio.timeout(LIMIT):
        while bridge.hub.connections:  # noqa: ASYNC110 - the server's own state has no event
            await asyncio.sleep(0.005)


def test_a_client_that_goes_away_in_the_middle_of_a_frame_is_forgotten() -> None:
    async def work() -> None:
        async with attack() as (hostile, _, bridge):
            await hostile.send(frame(TEXT, b'{"type"', length=5000))
            hostile.writer.transport.abort()
            await _alone(bridge)
            assert len(bridge.hub.sessions["s"].clients) == 1

    run(work)
