"""Messages that come together: they are stored together and acknowledged together, and each has an outcome of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from bridge_kit import LIMIT, Raw, offsets, raw, serving
from socket_kit import GOOD, TEXT, Wire, frame, wire

from holdfast.bridge.sessions import live_session
from holdfast.bridge.sessions.live_session import Incoming, LiveSession
from holdfast.faults import HoldfastError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions.journal import fresh_id
from holdfast.stores import Commit, Entry, NewEntry, NewSession, SqliteStore
from holdfast.stores.errors import unavailable
from holdfast.wire.outbox import AckResult

COUNT = 25


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * LIMIT):
            await work()

    asyncio.run(limited())


class Counting(SqliteStore):
    """A store that counts how often a log is read."""

    reads = 0

    async def read(self, session: str, **options: Any) -> list[Entry]:
        self.reads += 1
        return await super().read(session, **options)


def message(text: str, id_: str = "") -> tuple[str, bytes]:
    document = GOOD | {"id": id_ or str(uuid4()), "payload": {"content": text}}
    return str(document["id"]), frame(TEXT, json.dumps(document).encode())


async def joined(client: Wire, session: str) -> None:
    await client.say("auth", {"token": "token"})
    await client.until("connection_ack")
    await client.say("session_create", {"session_id": session})
    await client.until("session_state")


async def until_offset(client: Raw, offset: int) -> None:
    while offset not in offsets(client.received):
        await client.next()


def test_messages_reach_all_clients_without_reading_the_store_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            Counting(tmp_path / "a.db") as store,
            serving(store=store) as bridge,
            wire(bridge.url) as sender,
            raw(bridge) as other,
        ):
            await joined(sender, "s")
            await other.auth()
            await other.join("s")
            await other.until("session_state")
            before, reads = bridge.hub.sessions["s"].top, store.reads
            for _ in range(4):
                sent = [message(f"text {number}") for number in range(COUNT)]
                await sender.send(b"".join(data for _, data in sent))
                acked: list[str] = []
                while len(acked) < COUNT:
                    acked += (await sender.until("ack"))["payload"]["ids"]
                assert acked == [id_ for id_, _ in sent]
            await until_offset(other, before + 4 * COUNT)
            assert offsets(other.received) == list(range(before + 1, before + 4 * COUNT + 1))
            # Of a hundred messages the store was read for none; now and then it is asked whether another process has written.
            assert store.reads - reads <= 8

    run(work)


def test_what_somebody_else_writes_between_comes_in_its_place(tmp_path: Path) -> None:
    """Another writer of the same store appends to the log while a client sends."""

    async def work() -> None:
        async with (
            Counting(tmp_path / "a.db") as store,
            SqliteStore(tmp_path / "a.db") as elsewhere,
            serving(store=store) as bridge,
            raw(bridge) as client,
        ):
            await client.auth()
            await client.create("s")
            await client.until("session_state")
            begin = bridge.hub.sessions["s"].top

            async def write() -> None:
                for number in range(COUNT):
                    body = json.dumps({"stream_id": "a", "text": str(number)}).encode()
                    entry = NewEntry(type="stream_chunk", body=body, id=fresh_id())
                    await elsewhere.commit(Commit(session="s", entries=(entry,)))

            async def say() -> None:
                for number in range(COUNT):
                    assert (await client.say(f"text {number}"))["status"] == "stored"

            await asyncio.gather(write(), say())
            await until_offset(client, begin + 2 * COUNT)
            assert offsets(client.received) == list(range(begin + 1, begin + 2 * COUNT + 1))

    run(work)


def test_each_of_several_messages_has_an_outcome_of_its_own() -> None:
    """A new one, the same again, the same id for something else, and another new one, all in one packet."""

    async def work() -> None:
        async with serving() as bridge, wire(bridge.url) as client:
            await joined(client, "s")
            first, data = message("one")
            last, end = message("two")
            await client.send(data + data + message("something else", first)[1] + end)
            ack = (await client.until("ack"))["payload"]
            assert [(each["id"], each["status"]) for each in ack["results"]] == [
                (first, "stored"),
                (first, "duplicate"),
                (last, "stored"),
            ]
            error = await client.until("error")
            assert (error["id"], error["payload"]["code"]) == (first, "PROTO_DUPLICATE_ID")

    run(work)


def test_messages_that_could_not_be_taken_are_answered_and_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with serving() as bridge, wire(bridge.url) as client:
            await joined(client, "s")
            take = bridge.hub.take

            async def broken(*_: Any) -> Any:
                monkeypatch.setattr(bridge.hub, "take", take)
                raise RuntimeError("the agent could not be started")

            monkeypatch.setattr(bridge.hub, "take", broken)
            (first, one), (second, two) = message("one"), message("two")
            await client.send(one + two)
            assert [(await client.until("error"))["id"] for _ in range(2)] == [first, second]
            last, data = message("three")
            await client.send(data)
            assert [each["id"] for each in (await client.until("ack"))["payload"]["results"]] == [last]

    run(work)


@pytest.mark.parametrize("submits", [True, False])
def test_a_store_without_submit_stores_the_same(tmp_path: Path, *, submits: bool) -> None:
    class Plain(SqliteStore):
        async def commit(self, commit: Commit) -> Any:
            return await super().commit(commit)

    async def work() -> None:
        async with SqliteStore(tmp_path / "a.db") if submits else Plain(tmp_path / "a.db") as store:
            await store.commit(Commit(session="s", create=NewSession(manifest=b"{}")))
            live = LiveSession(await store.session("s"), store, clock=default_runtime().clock)
            await live.open()
            messages = [Incoming(f"text {number}", client="c", id=f"m-{number}") for number in range(COUNT)]
            results = await live.store(messages)
            assert [each.offset for each in results if isinstance(each, AckResult)] == list(range(1, COUNT + 1))
            assert live.top == COUNT
            await live.close()
        (failed,) = await live.store([Incoming("too late", client="c", id="m")])
        assert isinstance(failed, HoldfastError)
        assert failed.fault.code == "SESS_STORE_UNAVAILABLE"

    run(work)


def test_what_could_not_be_read_at_once_is_read_when_the_store_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else writes while the file cannot be read. Nobody says a second time that there is something to read."""
    monkeypatch.setattr(live_session, "_STORE_DOWN_S", 0.01)

    class Failing(SqliteStore):
        fails = 0

        async def read(self, session: str, **options: Any) -> list[Entry]:
            if self.fails:
                self.fails -= 1
                raise unavailable("the disk failed")
            return await super().read(session, **options)

    async def work() -> None:
        async with Failing(tmp_path / "a.db") as store, serving(store=store) as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            await client.until("session_state")
            top = bridge.hub.sessions["s"].top
            store.fails = 2
            entry = NewEntry(type="stream_chunk", body=b'{"stream_id":"a","text":"x"}', id=fresh_id())
            await store.commit(Commit(session="s", entries=(entry,)))
            await until_offset(client, top + 1)
            assert store.fails == 0

    run(work)


def test_a_message_is_sent_as_it_is_read_from_the_store_later(tmp_path: Path) -> None:
    """The frame of a message that was just stored is made without its entry. It must be the same, byte by byte."""
    texts = [
        "",
        "plain",
        '"quotes" \\ and\nlines',
        "é 😀 \u2028",
        "my key is sk-ant-api03-" + "x" * 90,
        "password: hunter22",
        "<b>",
    ]

    async def work() -> None:
        async with SqliteStore(tmp_path / "a.db") as store:
            await store.commit(Commit(session="s", create=NewSession(manifest=b"{}")))
            clock = default_runtime().clock
            live = LiveSession(await store.session("s"), store, clock=clock)
            await live.open()
            await live.store([Incoming(text, client=f"c-{place}", id=f"m-{place}") for place, text in enumerate(texts)])
            later = LiveSession(await store.session("s"), store, clock=clock)
            await later.open()
            sent, read = await live.read(0), await later.read(0)
            assert isinstance(sent, list)
            assert isinstance(read, list)
            assert [held[:4] for held in sent] == [held[:4] for held in read]
            assert len(sent) == len(texts)
            assert b"sk-ant" not in sent[4].frame
            await live.close()
            await later.close()

    run(work)
