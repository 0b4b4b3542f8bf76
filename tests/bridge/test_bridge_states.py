"""What each operation does in each state of a session, and what a client is after it came back."""

from __future__ import annotations

import asyncio

import pytest
from bridge_kit import raw, serving

from holdfast.bridge.access.resume_tokens import ResumeTokens, role_of
from holdfast.stores import Commit, MemoryStore, SessionState


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


async def echo(turn):
    return turn.text


async def into(state: str, bridge, client) -> None:
    """Bring the session that the client is in to a state."""
    if state in ("active", "paused"):
        await client.say("hello")
        assert await client.said() == "hello"
    if state == "paused":
        assert (await client.ask("session_pause", {}, "ack"))["type"] == "ack"
    if state == "closed":
        await client.ask("session_close", {}, "ack")
    if state == "error":
        await bridge.hub.store.commit(Commit(session="s", state=SessionState.ERROR))
    assert (await bridge.hub.store.session("s")).state.value == state


@pytest.mark.parametrize(
    ("state", "operation", "expected"),
    [
        ("created", "session_message", "stored"),
        ("created", "session_pause", "SESS_ILLEGAL_TRANSITION"),
        ("created", "session_resume", "SESS_NOT_RESUMABLE"),
        ("created", "session_close", "stored"),
        ("active", "session_message", "stored"),
        ("active", "session_pause", "stored"),
        ("active", "session_resume", "SESS_NOT_RESUMABLE"),
        ("active", "session_close", "stored"),
        ("paused", "session_message", "stored"),
        ("paused", "session_pause", "stored"),
        ("paused", "session_resume", "joined"),
        ("paused", "session_close", "stored"),
        ("closed", "session_message", "SESS_CLOSED"),
        ("closed", "session_pause", "SESS_CLOSED"),
        ("closed", "session_resume", "SESS_CLOSED"),
        ("closed", "session_close", "SESS_CLOSED"),
        ("closed", "session_join", "SESS_CLOSED"),
        *((state, "session_join", "joined") for state in ("created", "active", "paused", "error")),
        *((state, "session_rename", "stored") for state in ("created", "active", "paused")),
        *((state, "session_rename", "SESS_CLOSED") for state in ("error", "closed")),
        *((state, "stop", "SESS_ILLEGAL_TRANSITION") for state in ("created", "active", "paused")),
        *((state, "stop", "SESS_CLOSED") for state in ("error", "closed")),
        *((state, "session_snapshot", "seen") for state in ("created", "active", "paused", "error", "closed")),
        # Nobody would ever answer it.
        ("error", "session_message", "SESS_CLOSED"),
        ("error", "session_pause", "SESS_ILLEGAL_TRANSITION"),
        ("error", "session_resume", "SESS_NOT_RESUMABLE"),
        ("error", "session_close", "SESS_ILLEGAL_TRANSITION"),
    ],
)
def test_B92_B93_B95_an_operation_in_a_state(state, operation, expected):
    async def scenario():
        async with serving(echo) as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            await into(state, bridge, client)
            texts = {"session_message": {"content": "x"}, "session_rename": {"title": "x"}}
            answer = await client.ask(
                operation, {"session_id": "s"} | texts.get(operation, {}), "ack", "session_joined", "snapshot"
            )
            if answer["type"] != "ack" and answer["type"] != "error":
                found = {"session_joined": "joined", "snapshot": "seen"}[answer["type"]]
            elif answer["type"] == "ack":
                (result,) = answer["payload"]["results"]
                found = result["status"] if result["status"] != "rejected" else result["error"]["code"]
            else:
                found = answer["payload"]["code"]
            assert found == expected
            # Whatever it was, the connection goes on.
            assert (await client.ask("heartbeat_ping", {}, "heartbeat_pong"))["type"] == "heartbeat_pong"

    run(scenario())


@pytest.mark.parametrize("restarts", [False, True])
def test_XB9_an_observer_comes_back_as_an_observer(restarts):
    async def scenario():
        async with MemoryStore() as store:
            async with serving(store=store) as bridge, raw(bridge) as client:
                await client.auth(client_id="phone")
                await client.create("s")
                joined = await client.ask("session_join", {"session_id": "s", "role": "observer"}, "session_joined")
                assert joined["payload"]["role"] == "observer"
                token = joined["payload"]["resume_token"]
                if not restarts:
                    assert await back(bridge, token) == "observer"
            if restarts:
                async with serving(store=store) as bridge:
                    assert await back(bridge, token) == "observer"
                    assert await back(bridge, "") == "controller"

    async def back(bridge, token: str) -> str:
        async with raw(bridge) as client:
            resume = [{"session_id": "s", "resume_token": token}]
            await client.auth(client_id="phone", resume=resume)
            role = (await client.until("session_joined"))["payload"]["role"]
            if role == "observer":
                answer = await client.ask("session_message", {"content": "x"}, "ack")
                assert answer["payload"]["code"] == "AUTH_FORBIDDEN"
            return role

    run(scenario())


def test_XB9_a_resume_token_says_what_its_client_joined_as():
    tokens = ResumeTokens(60.0)
    observer, controller = (tokens.issue("t", role, "s", role) for role in ("observer", "controller"))
    assert (role_of(observer), role_of(controller), role_of("")) == ("observer", "controller", "controller")
    assert tokens.check(observer, "t", "observer", "s", 0.0) == "ok"


def test_B4_a_message_out_of_sequence_after_auth_is_an_error_and_the_connection_goes_on():
    async def scenario():
        async with serving() as bridge, raw(bridge) as client:
            await client.auth()
            for _ in range(20):
                answer = await client.ask("session_message", {"content": "x"}, "ack")
                assert answer["payload"]["code"] == "PROTO_SEQUENCE_ERROR"
                answer = await client.ask("auth", {"token": "token"}, "connection_ack")
                assert answer["payload"]["code"] == "PROTO_SEQUENCE_ERROR"
            await client.create("s")
            assert (await client.say("hello"))["status"] == "stored"

    run(scenario())


@pytest.mark.parametrize("error", [LookupError("secret of the house"), RuntimeError("x"), KeyError("y")])
def test_XB9_an_exception_of_the_agent_is_no_failure_of_a_tool(error):
    async def agent(turn):
        raise error

    async def scenario():
        async with serving(agent) as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            await client.say("go")
            note = (await client.until("notification"))["payload"]
            assert note["notification_type"] == "agent_error"
            assert note["title"] == f"The agent failed with {type(error).__name__}. Its log has the details."

    run(scenario())
