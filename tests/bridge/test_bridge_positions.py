"""Clients that drop and come back, over real sockets: each gets exactly what it missed, or a gap that says so."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from bridge_kit import LIMIT, Raw, Tokens, limits, offsets, raw, serving
from websockets.exceptions import ConnectionClosed

from holdfast.bridge.access.identity import TokenHolder
from holdfast.bridge.server import Bridge
from holdfast.bridge.sessions.live_session import Incoming, LiveSession
from holdfast.runtime.runtime import Runtime
from holdfast.sessions import Session
from holdfast.stores import Commit, MemoryStore, NewSession, SqliteStore
from holdfast.wire.outbox import AckResult


def run(work: Callable[[], Awaitable[None]], *, times: int = 4) -> None:
    async def limited() -> None:
        async with asyncio.timeout(times * LIMIT):
            await work()

    asyncio.run(limited())


class SetClock:
    """The clock of a machine whose date somebody sets. Durations go on, and `skip` lets them pass at once."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.passed = 0.0

    def wall(self) -> float:
        return time.time() + self.ahead + self.passed

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


async def chunk(bridge: Bridge, *numbers: int) -> None:
    """Let the agent say something: one message of the log for each number."""
    messages = [("stream_chunk", {"stream_id": "s-1", "text": str(number)}) for number in numbers]
    await bridge.hub.sessions["s"].publish(*messages)


def log_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of the log, replayed and live ones, as they came."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if message["type"] == "replay_buffer":
            found += [json.loads(each) if isinstance(each, str) else each for each in message["payload"]["messages"]]
        elif "offset" in message:
            found.append(message)
    return found


def after(message: dict[str, Any]) -> dict[str, Any]:
    return {"epoch": message["epoch"], "offset": message["offset"], "id": message["id"]}


async def catch_up(client: Raw, top: int) -> list[dict[str, Any]]:
    """Read until the message at offset `top` came; return all messages of the log."""
    while top not in offsets(client.received):
        await client.next()
    return log_of(client.received)


async def start(client: Raw, **auth: Any) -> dict[str, Any]:
    await client.auth(**auth)
    return await client.create("s")


def test_B33_a_client_that_has_received_nothing_recovers() -> None:
    async def work() -> None:
        async with serving() as bridge:
            async with raw(bridge) as client:
                joined = await start(client, client_id="phone")
            async with raw(bridge) as client:
                await client.auth(client_id="phone")
                again = await client.join("s", after={"epoch": joined["epoch"], "offset": 0})
                assert (again["recovered"], again.get("gap")) == (True, None)
                await client.until("session_state")
                assert log_of(client.received) == []

    run(work)


def test_B34_an_idle_client_recovers_at_the_top_however_old_the_last_message_is() -> None:
    async def work() -> None:
        clock = SetClock()
        settings = limits(ring_age=1800.0, replays_log=False)
        async with (
            MemoryStore(clock=clock) as store,
            serving(store=store, limits=settings, runtime=Runtime(clock=clock)) as bridge,
        ):
            async with raw(bridge) as client:
                await start(client)
                await chunk(bridge, 1, 2)
                last = (await catch_up(client, 2))[-1]
                clock.passed += 2 * 1800.0
                await client.send("heartbeat_pong")
            async with raw(bridge) as client:
                await client.auth()
                again = await client.join("s", after=after(last))
                assert (again["recovered"], again["from_offset"]) == (True, 2)

    run(work)


def test_B38_what_was_missed_and_is_too_old_is_a_gap_that_says_expired() -> None:
    async def work() -> None:
        clock = SetClock()
        settings = limits(ring_age=1800.0, replays_log=False)
        async with (
            MemoryStore(clock=clock) as store,
            serving(store=store, limits=settings, runtime=Runtime(clock=clock)) as bridge,
            raw(bridge) as client,
        ):
            await start(client)
            await chunk(bridge, 1, 2, 3)
            first = (await catch_up(client, 3))[0]
            clock.passed += 2 * 1800.0
            async with raw(bridge) as late:
                await late.auth()
                joined = await late.join("s", after=after(first))
                assert joined["recovered"] is False
                assert (joined["gap"]["reason"], joined["gap"]["requested"], joined["gap"]["top_offset"]) == (
                    "expired",
                    1,
                    3,
                )
                snapshot = await late.ask("session_snapshot", {"session_id": "s"}, "snapshot")
                again = await late.join("s", after={key: snapshot["payload"][key] for key in ("epoch", "offset")})
                assert again["recovered"] is True
                await chunk(bridge, 4)
                assert [each["offset"] for each in await catch_up(late, 4)] == [4]

    run(work)


def test_B43_two_clients_with_the_same_old_position_get_the_same_bytes() -> None:
    async def work() -> None:
        async with serving() as bridge:
            async with raw(bridge) as client:
                await start(client)
                await chunk(bridge, *range(20))
                seen = (await catch_up(client, 20))[4]
            replays = []
            for _ in range(2):
                async with raw(bridge) as client:
                    await client.auth()
                    await client.join("s", after=after(seen))
                    replays.append(json.dumps(await catch_up(client, 20)))
            assert replays[0] == replays[1]
            assert [each["offset"] for each in json.loads(replays[0])] == list(range(6, 21))

    run(work)


def test_B45_B46_a_state_message_comes_before_the_first_live_one_and_says_what_waits() -> None:
    async def work() -> None:
        async with MemoryStore() as store, serving(store=store) as bridge:
            async with raw(bridge) as client:
                await start(client)
                last = {"epoch": client.received[-1]["payload"]["epoch"], "offset": 0}
            async with Session.open("s", store=store) as session:
                asking = asyncio.create_task(session.confirm("Deploy?", expires=60))
                async with raw(bridge) as client:
                    await client.auth()
                    await client.join("s", after=last)
                    while True:
                        await client.send("session_leave")
                        await client.until("ack")
                        client.received.clear()
                        await client.join("s", after=last)
                        state = (await client.until("session_state"))["payload"]
                        if state["turn"] == "requires_action":
                            break
                    assert [each["prompt"] for each in state["pending_questions"]] == ["Deploy?"]
                    assert "question" in {each["type"] for each in log_of(client.received)}
                    types = [each["type"] for each in client.received]
                    assert types.index("replay_buffer") < types.index("session_state")
                    await chunk(bridge, 1)
                    await client.until("stream_chunk")
                    asking.cancel()
                    with suppress(asyncio.CancelledError):
                        await asking

    run(work)


def test_B47_what_is_not_in_the_log_has_no_offset_and_moves_no_position() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as client:
            await start(client)
            await chunk(bridge, 1)
            await catch_up(client, 1)
            async with raw(bridge) as other:
                await other.auth()
                await other.join("s")
                await client.until("presence")
                pong = await client.ask("heartbeat_ping", {}, "heartbeat_pong")
                assert pong["payload"]["offsets"] == {"s": 1}
            await chunk(bridge, 2)
            assert [each["offset"] for each in await catch_up(client, 2)] == [1, 2]
            apart = [
                each
                for each in client.received
                if each["type"] in ("presence", "heartbeat_pong", "ack", "session_state")
            ]
            assert apart
            assert not any("offset" in each or "epoch" in each for each in apart)

    run(work)


def test_B30_a_client_that_comes_back_within_the_grace_finds_its_session() -> None:
    async def work() -> None:
        async with serving(limits=limits(grace=0.2)) as bridge:
            async with raw(bridge) as client:
                await start(client)
                assert (await client.say("hello"))["status"] == "stored"
            live = bridge.hub.sessions["s"]
            async with raw(bridge) as client:
                await client.auth()
                await client.join("s")
                # Longer than the grace: a timer that was not cancelled would end the session now.
                async with asyncio.timeout(LIMIT):
                    for _ in range(5):
                        await client.ask("heartbeat_ping", {}, "heartbeat_pong")
                        await asyncio.sleep(0.06)  # the time is real here: a timer of the event loop is what is tested
                assert bridge.hub.sessions["s"] is live
                assert (await client.say("again"))["status"] == "stored"

    run(work)


def test_B53_a_time_of_the_servers_clock_is_exact_and_one_of_another_clock_is_not_complete() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as client:
            await client.ask("auth", {"token": "token"}, "connection_ack")
            await client.create("s")
            await chunk(bridge, 1, 2, 3)
            messages = await catch_up(client, 3)
            exact = await client.ask("request_replay", {"since": messages[-1]["timestamp"]}, "replay_buffer")
            assert exact["payload"]["complete"] is True
            assert offsets([exact])[-1] == 3
            ahead = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
            late = await client.ask("request_replay", {"since": ahead}, "replay_buffer")
            assert (late["payload"]["complete"], late["payload"]["messages"]) == (False, [])
            behind = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
            early = await client.ask("request_replay", {"since": behind}, "replay_buffer")
            assert (early["payload"]["complete"], offsets([early])) == (True, [1, 2, 3])

    run(work)


@pytest.mark.parametrize("reason", ["expired", "evicted"])
def test_B53_what_the_server_has_dropped_is_not_complete_although_nothing_is_left(reason: str) -> None:
    async def work() -> None:
        small = limits(ring_age=0.05) if reason == "expired" else limits(ring_bytes=500)
        async with serving(limits=small) as bridge, raw(bridge) as client:
            await client.ask("auth", {"token": "token"}, "connection_ack")
            await client.create("s")
            nothing = await client.ask("request_replay", {"since": "2026-01-01T00:00:00Z"}, "replay_buffer")
            assert nothing["payload"]["complete"] is True
            await chunk(bridge, 1)
            first = (await catch_up(client, 1))[-1]
            await client.say("x" * 600)
            await catch_up(client, 2)
            live = bridge.hub.sessions["s"]
            async with asyncio.timeout(LIMIT):
                while live.held_since(None)[0]:  # noqa: ASYNC110 - the ring drops what is too old when it is read
                    await asyncio.sleep(0.01)
            late = await client.ask("request_replay", {"since": first["timestamp"]}, "replay_buffer")
            assert (late["payload"]["messages"], late["payload"]["complete"]) == ([], False)

    run(work)


@pytest.mark.parametrize("jump", [-600.0, 86_400.0])
def test_B54_a_clock_that_is_set_changes_no_offset_and_ends_nothing(jump: float) -> None:
    async def work() -> None:
        clock = SetClock()
        async with (
            MemoryStore(clock=clock) as store,
            serving(store=store, runtime=Runtime(clock=clock)) as bridge,
            raw(bridge) as client,
        ):
            await start(client)
            await chunk(bridge, 1)
            clock.ahead += jump
            await chunk(bridge, 2)
            assert (await client.say("after the jump"))["status"] == "stored"
            await client.ask("heartbeat_ping", {}, "heartbeat_pong")
            messages = await catch_up(client, 3)
            assert [each["offset"] for each in messages] == [1, 2, 3]
            times = [each["timestamp"] for each in messages]
            assert times == sorted(times)
            async with raw(bridge) as again:
                await again.auth()
                joined = await again.join("s", after=after(messages[0]))
                assert joined["recovered"] is True
                assert [each["offset"] for each in await catch_up(again, 3)] == [2, 3]

    run(work)


def test_B65_of_two_answers_the_first_wins_and_both_clients_learn_it() -> None:
    async def work() -> None:
        async with MemoryStore() as store, serving(store=store) as bridge, raw(bridge) as one, raw(bridge) as two:
            await start(one)
            await two.auth()
            await two.join("s")
            async with Session.open("s", store=store) as session:
                asking = asyncio.create_task(session.confirm("Deploy?", expires=60))
                question = (await one.until("question"))["payload"]["question_id"]
                await two.until("question")
                payload = {"question_id": question}
                answers = await asyncio.gather(
                    one.ask("answer", payload | {"value": True}, "ack"),
                    two.ask("answer", payload | {"value": False}, "ack"),
                )
                assert sorted(each["type"] for each in answers) == ["ack", "error"]
                won = answers[0]["type"] == "ack"
                assert await asking is won
                for client in (one, two):
                    seen = [each for each in client.received if each["type"] == "question_closed"]
                    closed = seen[0] if seen else await client.until("question_closed")
                    assert closed["payload"]["by"] == "Ada"

    run(work)


def test_B70_one_connection_too_many_is_closed_and_the_others_stay() -> None:
    async def work() -> None:
        async with serving(limits=limits(max_connections=2)) as bridge, raw(bridge) as one, raw(bridge) as two:
            await start(one)
            await two.auth()
            async with raw(bridge) as three:
                answer = await three.auth()
                assert answer["payload"]["code"] == "CONN_LIMIT"
                assert await three.close_code() == 4504
            assert (await one.say("still here"))["status"] == "stored"

    run(work)


def test_B70_one_client_of_a_session_too_many_is_refused() -> None:
    async def work() -> None:
        async with serving(limits=limits(max_clients=1)) as bridge, raw(bridge) as one, raw(bridge) as two:
            await start(one)
            await two.auth()
            answer = await two.ask("session_join", {"session_id": "s"}, "session_joined")
            assert answer["payload"]["code"] == "CONN_LIMIT"
            assert (await one.say("still here"))["status"] == "stored"

    run(work)


class CountingStore(MemoryStore):
    """A store that counts the entries that are read from it."""

    read_entries = 0

    async def read(self, session: str, **options: Any) -> Any:
        found = await super().read(session, **options)
        self.read_entries += len(found)
        return found


def test_a_join_does_not_read_the_whole_log_again() -> None:
    async def work() -> None:
        async with CountingStore() as store, serving(store=store) as bridge:
            async with raw(bridge) as client:
                await start(client)
            await chunk(bridge, *range(3000))
            await bridge.hub.sessions["s"].catch_up()
            states = []
            for number in range(5):
                async with raw(bridge) as client:
                    await client.auth()
                    await client.join("s", history="none")
                    states.append((await client.until("session_state"))["payload"]["at_offset"])
                    await chunk(bridge, number)
                    await client.until("stream_chunk")
            assert states == [3000, 3001, 3002, 3003, 3004]
            # Once into the ring, and once to learn what the session does; then only what is new.
            assert store.read_entries < 2 * 3000 + 100

    run(work)


def test_clients_that_start_the_same_session_at_once_are_all_in_it() -> None:
    async def work() -> None:
        async with serving() as bridge, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(raw(bridge)) for _ in range(5)]
            for client in clients:
                await client.auth()
            starts = [client.ask("session_start", {"session_id": "new"}, "session_ready") for client in clients]
            assert [each["type"] for each in await asyncio.gather(*starts)] == ["session_ready"] * 5
            assert len(bridge.hub.sessions["new"].clients) == 5

    run(work)


class PagesStore(MemoryStore):
    """A store that counts the sessions that are read from it."""

    read_sessions = 0

    async def sessions(self, **options: Any) -> Any:
        found = await super().sessions(**options)
        self.read_sessions += len(found)
        return found


def test_B106_a_client_that_authenticates_does_not_read_every_session_of_the_store() -> None:
    async def work() -> None:
        async with PagesStore() as store:
            for number in range(500):
                async with Session.open(f"s-{number:03}", store=store):
                    pass
            few = TokenHolder(
                token_id="b", kind="device", name="Bob", sessions=frozenset({"s-002", "s-499", "no-such"})
            )
            tokens = Tokens(token=TokenHolder(token_id="a", kind="device", name="Ada"), bob=few)
            async with serving(store=store, tokens=tokens) as bridge, raw(bridge) as ada, raw(bridge) as bob:
                store.read_sessions = 0
                listed = (await ada.auth())["payload"]
                assert len(listed["active_sessions"]) <= 100
                await bob.auth("bob")
                assert store.read_sessions <= 100
                sessions = (await bob.ask("session_list", {}, "sessions"))["payload"]["sessions"]
                assert [each["session_id"] for each in sessions] == ["s-002", "s-499"]
                assert len((await ada.ask("session_list", {}, "sessions"))["payload"]["sessions"]) == 500

    run(work)


# --- everything at once ---


async def reconnect_at_random(bridge: Bridge, rng: random.Random, times: int) -> list[dict[str, Any]]:
    """Read a session's log while dropping the connection again and again; return what the application has taken."""
    taken: list[dict[str, Any]] = []
    for _ in range(times):
        async with raw(bridge) as client:
            await client.auth(client_id="phone")
            joined = await client.join("s", **({"after": after(taken[-1])} if taken else {"history": "full"}))
            assert joined.get("gap") is None
            for _ in range(rng.randrange(6)):
                try:
                    message = await client.next()
                except ConnectionClosed:
                    break
                taken += log_of([message])
            if rng.random() < 0.5:
                client.socket.transport.abort()
    return taken


@pytest.mark.parametrize("replays_log", [True, False])
def test_B42_200_reconnects_while_the_agent_speaks_leave_no_hole_and_no_double(*, replays_log: bool) -> None:
    async def work() -> None:
        settings = limits(replays_log=replays_log, ring_bytes=102_400 if replays_log else 10_000_000)
        async with serving(limits=settings) as bridge:
            async with raw(bridge) as first:
                await start(first)
            speaking = asyncio.create_task(_speak(bridge))
            taken = await reconnect_at_random(bridge, random.Random(7), 200)
            speaking.cancel()
            assert [each["offset"] for each in taken] == list(range(1, len(taken) + 1))
            assert [each["payload"]["text"] for each in taken] == [str(number) for number in range(len(taken))]
            assert len(taken) > 200

    run(work, times=12)


async def _speak(bridge: Bridge) -> None:
    for number in range(0, 10_000, 5):
        await chunk(bridge, *range(number, number + 5))
        await asyncio.sleep(
            0.002
        )  # about as fast as clients can reconnect, so that every reconnect meets messages under way


def test_two_tokens_do_not_see_each_other_in_a_shared_bridge() -> None:
    async def work() -> None:
        tokens = Tokens(
            ada=TokenHolder(token_id="a", kind="device", name="Ada", sessions=frozenset({"s"})),
            bob=TokenHolder(token_id="b", kind="device", name="Bob", sessions=frozenset({"t"})),
        )
        async with serving(tokens=tokens) as bridge, raw(bridge) as ada, raw(bridge) as bob:
            await ada.auth("ada")
            await ada.create("s")
            await bob.auth("bob")
            await bob.create("t")
            assert (await ada.say("for Ada only"))["status"] == "stored"
            listed = await bob.ask("session_list", {}, "sessions")
            assert [each["session_id"] for each in listed["payload"]["sessions"]] == ["t"]
            for type_ in ("session_join", "session_snapshot", "session_resume"):
                refused = await bob.ask(type_, {"session_id": "s"}, "session_joined", "snapshot")
                missing = await bob.ask(type_, {"session_id": "no-such"}, "session_joined", "snapshot")
                assert refused["payload"]["code"] == missing["payload"]["code"] == "SESS_NOT_FOUND"
                shape = json.dumps(refused["payload"]).replace("'s'", "'no-such'").replace('"s"', '"no-such"')
                assert json.loads(shape) == missing["payload"]
            assert "for Ada only" not in json.dumps(bob.received)

    run(work)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_what_two_processes_store_at_once_is_the_same_log_for_the_clients_of_both(kind: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            # Two stores on one file are as two processes: neither is told what the other writes.
            first = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "a.db")
            second = first if kind == "memory" else SqliteStore(tmp_path / "a.db")
            for store in {first, second}:
                await stack.enter_async_context(store)
            await first.commit(Commit(session="s", create=NewSession(manifest=b"{}")))
            lives = [LiveSession(await store.session("s"), store, clock=SetClock()) for store in (first, second)]
            for live in lives:
                await live.open()
                stack.push_async_callback(live.close)
            said = [
                live.store([Incoming(f"{number}: token=abc{number}DEF456", client="c", id=f"{side}-{number}")])
                for number in range(30)
                for side, live in enumerate(lives)
            ]
            acks = [ack for (ack,) in await asyncio.gather(*said) if isinstance(ack, AckResult)]
            await asyncio.gather(*(live.store([Incoming("again", client="c", id="0-0")]) for live in lives))
            logs = []
            for live in lives:
                await live.catch_up()
                found = await live.read(0, most_bytes=1_000_000)
                assert isinstance(found, list)
                logs.append([held._replace(at=0.0) for held in found])
            assert sorted(ack.offset or 0 for ack in acks) == [held.offset for held in logs[0]] == list(range(1, 61))
            # As whoever reads the store gets it, and with secrets masked.
            fresh = LiveSession(await first.session("s"), first, clock=SetClock())
            await fresh.catch_up()
            read = await fresh.read(0, most_bytes=1_000_000)
            assert logs[0] == logs[1] == [held._replace(at=0.0) for held in read]  # type: ignore[union-attr]
            assert b"DEF456" not in b"".join(held.frame for held in logs[0])

    run(work)
