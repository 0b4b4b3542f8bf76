"""The bridge over real sockets: who comes in, what is stored, what arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from bridge_kit import LIMIT, Raw, Tokens, limits, offsets, raw, serving

from holdfast.bridge.access.identity import TokenHolder
from holdfast.bridge.error_reports import ErrorReports
from holdfast.sessions import Session
from holdfast.sinks.metric import ErrorMetric
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.wire.envelope import stamp
from holdfast.wire.server import ServerLimits


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * LIMIT):
            await work()

    asyncio.run(limited())


def test_B3_auth_is_answered_with_its_own_id_and_the_limits() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as client:
            id_ = await client.send("auth", {"token": "token", "protocol": [1, 2]})
            ack = await client.next()
            assert (ack["type"], ack["id"], ack["payload"]["protocol"]) == ("connection_ack", id_, 2)
            assert ack["payload"]["limits"]["max_frame"] == 1_000_000
            assert ack["payload"]["heartbeat_interval_ms"] == 15_000
            assert ack["payload"]["connection_mode"] == "local_only"

    run(work)


def test_a_wrong_token_ends_the_connection_for_good() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as client:
            answer = await client.auth("wrong")
            assert answer["type"] == "connection_error"
            assert answer["payload"]["code"] == "AUTH_FAILED"
            assert await client.close_code() == 4500

    run(work)


def test_B1_a_client_that_does_not_begin_with_auth_is_closed() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as client:
            await client.send("session_join", {"session_id": "s"})
            error = await client.next()
            assert error["payload"]["code"] == "PROTO_SEQUENCE_ERROR"
            assert error["payload"]["details"]["currentPhase"] == "unauthenticated"
            assert await client.close_code() == 4501

    run(work)


def test_B2_silence_is_closed_after_the_auth_timeout() -> None:
    async def work() -> None:
        short = limits(connection=ServerLimits(auth_timeout=0.05))
        async with serving(limits=short) as bridge, raw(bridge) as client:
            assert await client.close_code() == 4502
            assert not bridge.hub.connections

    run(work)


def test_a_message_is_stored_once_and_reaches_every_client() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as one, raw(bridge) as two:
            await one.auth(client_id="one")
            await two.auth(client_id="two")
            joined = await one.create("s")
            assert (joined["top_offset"], joined["role"], joined["recovered"]) == (0, "controller", False)
            await two.join("s")
            assert await one.say("hello") == {
                "id": one.received[-1]["payload"]["ids"][0],
                "status": "stored",
                "offset": 1,
            }
            for client in (one, two):
                message = next((m for m in client.received if m["type"] == "user_message"), None)
                message = message or await client.until("user_message")
                assert message["payload"]["content"] == "hello"
                assert (message["offset"], message["session_id"]) == (1, "s")

    run(work)


def test_B26_B27_the_same_id_is_stored_once_and_another_body_is_refused() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as client:
            await client.auth(client_id="phone")
            await client.create("s")
            id_ = await client.send("session_message", {"content": "hello"})
            first = (await client.until("ack"))["payload"]["results"][0]
            await client.send("session_message", {"content": "hello"}, id_=id_)
            again = (await client.until("ack"))["payload"]["results"][0]
            assert (first["status"], again["status"], first["offset"], again["offset"]) == ("stored", "duplicate", 1, 1)
            await client.send("session_message", {"content": "other"}, id_=id_)
            error = await client.until("error")
            assert (error["id"], error["payload"]["code"]) == (id_, "PROTO_DUPLICATE_ID")
            assert (await bridge.hub.store.session("s")).top == 1

    run(work)


async def _filled(client: Raw, messages: int) -> None:
    await client.auth(client_id="writer")
    await client.create("s")
    for number in range(messages):
        await client.say(f"message {number}")


def test_B35_a_client_resumes_where_it_was() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as writer:
            await _filled(writer, 10)
            epoch = bridge.hub.sessions["s"].epoch
            async with raw(bridge) as client:
                await client.auth()
                joined = await client.join("s", after={"epoch": epoch, "offset": 8})
                assert (joined["recovered"], joined["was_recovering"], joined["from_offset"]) == (True, True, 8)
                replay = await client.until("replay_buffer")
                assert [each["offset"] for each in replay["payload"]["messages"]] == [9, 10]
                assert replay["payload"]["complete"]
                assert not replay["payload"]["more"]
                state = await client.next()
                assert (state["type"], state["payload"]["at_offset"], state["payload"]["turn"]) == (
                    "session_state",
                    10,
                    "idle",
                )
                await writer.say("live")
                live = await client.until("user_message")
                assert (live["offset"], live["payload"]["content"]) == (11, "live")

    run(work)


def test_a_client_learns_what_its_resume_token_is_worth_and_is_let_in_in_any_case() -> None:
    async def work() -> None:
        async with serving(limits=limits(resume_age=0.05)) as bridge:
            async with raw(bridge) as client:
                await client.auth(client_id="phone")
                first = await client.create("s")
                assert first.get("resume_status") is None
                second = await client.join("s", resume_token=first["resume_token"])
                assert second["resume_status"] == "ok"
                assert (await client.join("s", resume_token="another"))["resume_status"] == "unknown"
                newest = (await client.join("s"))["resume_token"]
            async with raw(bridge) as other:
                await other.auth(client_id="tablet")
                assert (await other.join("s", resume_token=newest))["resume_status"] == "unknown"
                # A token of the whole lifetime of a client that is away has a real clock.
                await asyncio.sleep(0.06)
            async with raw(bridge) as client:
                resume = [{"session_id": "s", "resume_token": newest}]
                await client.auth(client_id="phone", resume=resume)
                assert (await client.until("session_joined"))["payload"]["resume_status"] == "expired"

    run(work)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"offset": 99}, "ahead"),
        ({"offset": 3, "epoch": "another"}, "epoch"),
        ({"offset": 3, "id": "00000000-0000-0000-0000-000000000000"}, "diverged"),
    ],
)
def test_B39_B41_a_position_that_is_not_in_the_log_is_a_gap(after: dict[str, Any], reason: str) -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as writer:
            await _filled(writer, 5)
            async with raw(bridge) as client:
                await client.auth()
                epoch = bridge.hub.sessions["s"].epoch
                joined = await client.join("s", after={"epoch": epoch} | after)
                assert (joined["recovered"], joined["gap"]["reason"]) == (False, reason)
                snapshot = (await client.ask("session_snapshot", {"session_id": "s"}, "snapshot"))["payload"]
                assert (snapshot["offset"], snapshot["state"]["messages"]) == (5, 5)
                again = await client.join("s", after={"epoch": snapshot["epoch"], "offset": snapshot["offset"]})
                assert again["recovered"]
                assert offsets(client.received) == []

    run(work)


@pytest.mark.parametrize("replays_log", [True, False])
def test_B37_what_the_ring_lost_comes_from_the_store_or_is_a_gap(*, replays_log: bool) -> None:
    async def work() -> None:
        small = limits(ring_bytes=600, replays_log=replays_log)
        async with serving(limits=small) as bridge, raw(bridge) as writer:
            await _filled(writer, 20)
            async with raw(bridge) as client:
                await client.auth()
                joined = await client.join("s", after={"epoch": bridge.hub.sessions["s"].epoch, "offset": 2})
                if not replays_log:
                    assert joined["gap"]["reason"] == "evicted"
                    return
                await client.until("session_state")
                assert offsets(client.received) == list(range(3, 21))

    run(work)


def test_B55_after_a_restart_a_client_resumes_from_the_file(tmp_path: Path) -> None:
    async def work() -> None:
        async with SqliteStore(tmp_path / "work.db") as store:
            async with serving(store=store) as bridge, raw(bridge) as writer:
                await _filled(writer, 5)
                while offsets(writer.received) != [1, 2, 3, 4, 5]:
                    await writer.next()
                epoch = bridge.hub.sessions["s"].epoch
                before = [m for m in writer.received if m.get("offset")]
            async with serving(store=store) as bridge, raw(bridge) as client:
                await client.auth()
                joined = await client.join("s", after={"epoch": epoch, "offset": 3, "id": before[2]["id"]})
                assert joined["recovered"]
                replay = await client.until("replay_buffer")
                assert replay["payload"]["messages"] == before[3:5]

    run(work)


def test_questions_go_to_the_clients_and_the_first_answer_counts() -> None:
    async def work() -> None:
        async with MemoryStore() as store, serving(store=store) as bridge, raw(bridge) as one, raw(bridge) as two:
            await one.auth()
            await two.auth()
            async with Session.open("s", store=store) as session:
                asking = asyncio.create_task(session.approve("Deploy?", expires=60))
                await one.join("s")
                question = await one.until("question")
                await two.join("s", history="pending")
                state = await two.until("session_state")
                assert state["payload"]["turn"] == "requires_action"
                assert state["payload"]["pending_questions"][0]["prompt"] == "Deploy?"
                id_ = question["payload"]["question_id"]
                assert (await one.ask("answer", {"question_id": id_, "value": True}, "ack"))["type"] == "ack"
                assert await asking
                closed = await two.until("question_closed")
                assert closed["payload"] == {"question_id": id_, "outcome": "accepted", "by": "Ada"}
                late = await two.ask("answer", {"question_id": id_, "value": False}, "ack")
                assert late["payload"]["code"] == "SESS_ALREADY_ANSWERED"
                assert late["payload"]["details"]["by"] == "Ada"

    run(work)


def test_B66_B67_an_observer_sends_nothing_and_cannot_ask_for_more() -> None:
    async def work() -> None:
        tokens = Tokens(
            ada=TokenHolder(token_id="a", kind="device", name="Ada"),
            bob=TokenHolder(token_id="b", kind="device", name="Bob", role="observer"),
        )
        async with serving(tokens=tokens) as bridge, raw(bridge) as ada, raw(bridge) as bob:
            await ada.auth("ada")
            await ada.create("s")
            await bob.auth("bob")
            assert (await bob.join("s", role="controller"))["role"] == "observer"
            assert (await bob.say("hello"))["code"] == "AUTH_FORBIDDEN"
            assert (await bob.ask("session_create", {"session_id": "t"}, "session_joined"))["payload"]["code"] == (
                "AUTH_FORBIDDEN"
            )

    run(work)


def test_B50_a_session_of_somebody_else_does_not_exist() -> None:
    async def work() -> None:
        tokens = Tokens(
            ada=TokenHolder(token_id="a", kind="device", name="Ada"),
            bob=TokenHolder(token_id="b", kind="device", name="Bob", sessions=frozenset({"mine"})),
        )
        async with serving(tokens=tokens) as bridge, raw(bridge) as ada, raw(bridge) as bob:
            await ada.auth("ada")
            await ada.create("s")
            await bob.auth("bob")
            answers = [await bob.join(name) for name in ("s", "nothing")]
            assert [each["code"] for each in answers] == ["SESS_NOT_FOUND", "SESS_NOT_FOUND"]
            assert {key for each in answers for key in each} == set(answers[0])

    run(work)


def test_B31_a_newer_connection_of_a_client_takes_over_and_stays() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as older, raw(bridge) as newer:
            await older.auth(client_id="phone")
            await older.create("s")
            await newer.auth(client_id="phone")
            await newer.join("s")
            assert await older.close_code() == 4507
            assert (await newer.say("still here"))["status"] == "stored"
            assert len(bridge.hub.sessions["s"].clients) == 1

    run(work)


def test_B49_a_revoked_token_closes_its_connections() -> None:
    async def work() -> None:
        tokens = Tokens(ada=TokenHolder(token_id="a", kind="device", name="Ada"))
        async with serving(tokens=tokens) as bridge, raw(bridge) as client:
            await client.auth("ada")
            await client.create("s")
            tokens.revoke("ada")
            assert await client.close_code() == 4509

    run(work)


def test_B51_an_older_client_asks_for_messages_by_time() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as client:
            await client.ask("auth", {"token": "token"}, "connection_ack")
            await client.ask("session_start", {"session_id": "s"}, "session_ready")
            for number in range(3):
                await client.ask("message", {"text": f"message {number}"}, "ack")
            while offsets(client.received) != [1, 2, 3]:
                await client.next()
            second = [m for m in client.received if m["type"] == "user_message"][1]
            replay = await client.ask("request_replay", {"since": second["timestamp"]}, "replay_buffer")
            assert offsets([replay])[-2:] == [2, 3]
            everything = await client.ask("request_replay", {}, "replay_buffer")
            assert offsets([everything]) == [1, 2, 3]
            assert everything["payload"]["complete"] is True
            late = await client.ask("request_replay", {"since": "2099-01-01T00:00:00Z"}, "replay_buffer")
            assert (late["payload"]["messages"], late["payload"]["complete"]) == ([], False)

    run(work)


def test_a_server_that_stops_tells_its_clients_to_come_back() -> None:
    async def work() -> None:
        async with serving() as bridge:
            client = raw(bridge)
            socket = await client.__aenter__()
            await socket.auth()
        assert await socket.close_code() == 4000
        await client.__aexit__(None, None, None)

    run(work)


def test_the_http_side_and_the_page_are_on_the_same_port() -> None:
    async def work() -> None:
        tokens = Tokens(
            ada=TokenHolder(token_id="a", kind="device", name="Ada"),
            hook=TokenHolder(token_id="h", kind="hook", name="hooks"),
        )
        async with (
            serving(tokens=tokens) as bridge,
            raw(bridge) as client,
            httpx.AsyncClient(base_url=bridge.url) as http,
        ):
            await client.auth("ada")
            await client.create("s")
            event = {
                "event": "Stop",
                "session_id": "s",
                "timestamp": stamp(time.time()),
                "payload": {"reason": "error"},
            }
            posted = await http.post("/hooks/event", json=event, headers={"authorization": "Bearer hook"})
            assert posted.json()["received"] is True
            seen = await client.until("claude_event")
            assert (seen["payload"]["event"], seen["offset"]) == ("Stop", 1)
            found = await http.get("/sessions/nope", headers={"authorization": "Bearer ada"})
            assert (found.status_code, found.json()["code"]) == (404, "SESS_NOT_FOUND")
            assert "text/html" in (await http.get("/")).headers["content-type"]

    run(work)


def test_errors_are_counted_by_the_side_that_caused_them() -> None:
    async def work() -> None:
        counted = list[tuple[str, str, str | None]]()

        def count(metric: ErrorMetric) -> None:
            counted.append((metric.source, metric.code, metric.user_agent))

        async with (
            serving(reports=ErrorReports(count), limits=limits(grace=0.05)) as bridge,
            raw(bridge, user_agent_header="phone/1") as client,
        ):
            await client.auth()
            await client.create("s")
            await client.socket.send("{")
            assert (await client.until("error"))["payload"]["code"] == "PROTO_INVALID_MESSAGE"
            await client.join("s", after={"epoch": "another", "offset": 1})
            client.socket.transport.abort()
            store = bridge.hub.store
            while (record := await store.session("s")).state.value != "closed":
                await store.changed("s", record.top, LIMIT)
        assert counted == [
            ("client", "PROTO_INVALID_MESSAGE", "phone/1"),
            ("client", "CONN_RECONNECT_EXHAUSTED", "phone/1"),
            ("client", "CONN_WEBSOCKET_CLOSED", None),
        ]

    run(work)
