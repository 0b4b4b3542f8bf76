"""What becomes of a session when nobody is connected to it any more: nothing that was said is lost, and no place stays taken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from bridge_kit import LIMIT, Raw, Tokens, limits, raw, serving

from holdfast.bridge.access.identity import TokenHolder
from holdfast.bridge.server import Bridge
from holdfast.bridge.sessions.turn import Turn
from holdfast.stores import Commit, MemoryStore, SessionState, Store

_HOOK = {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Bash"}


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * LIMIT):
            await work()

    asyncio.run(limited())


async def echo(turn: Turn) -> str:
    return f"you said {turn.text}"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def joined(client: Raw, session: str = "s") -> None:
    await client.auth()
    await client.create(session)


async def let_go(bridge: Bridge) -> None:
    """Wait until no session is in use, and all that follows from it is done."""
    await until(lambda: not bridge.hub.sessions and not bridge.hub._tasks)


async def state(bridge: Bridge, session: str = "s") -> SessionState:
    return (await bridge.hub.store.session(session)).state


def test_B29_a_session_of_hooks_that_somebody_looked_at_takes_further_hooks() -> None:
    async def work() -> None:
        known = Tokens(
            token=TokenHolder(token_id="t", kind="device", name="Ada"),
            hook=TokenHolder(token_id="h", kind="hook", name="H"),
        )
        async with (
            serving(echo, tokens=known, limits=limits(grace=0.02)) as bridge,
            httpx.AsyncClient(base_url=bridge.url, headers={"authorization": "Bearer hook"}) as http,
        ):
            assert (await http.post("/hooks/event", json=_HOOK)).status_code == 200
            async with raw(bridge) as client:
                await client.auth()
                await client.join("s")
            await let_go(bridge)
            assert (await http.post("/hooks/event", json=_HOOK)).status_code == 200

    run(work)


def test_B29_a_message_that_no_agent_has_answered_keeps_its_session() -> None:
    async def work() -> None:
        async with serving(None, limits=limits(grace=0.02)) as bridge:
            async with raw(bridge) as client:
                await joined(client)
                assert (await client.say("do it"))["status"] == "stored"
            await let_go(bridge)
            assert await state(bridge) is not SessionState.CLOSED

    run(work)


class SlowStore:
    """A store in which the messages of users wait until `go` is set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.go = asyncio.Event()
        self.waits = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commit: Commit) -> Any:
        if any(entry.type == "message" for entry in commit.entries):
            self.waits.set()
            await self.go.wait()
        return await self._store.commit(commit)


async def answer(client: Raw) -> str:
    return str((await client.until("stream_chunk"))["payload"]["text"])


def test_S0_19_a_message_makes_a_paused_session_active_again_and_is_answered() -> None:
    async def work() -> None:
        async with serving(echo) as bridge, raw(bridge) as client, raw(bridge) as other:
            await joined(client)
            await client.say("one")
            assert await answer(client) == "you said one"
            assert (await client.ask("session_pause", {}, "ack"))["type"] == "ack"
            assert await state(bridge) is SessionState.PAUSED
            assert (await client.say("two"))["status"] == "stored"
            assert await answer(client) == "you said two"
            await client.ask("session_pause", {}, "ack")
            await other.auth(client_id="other")
            await other.join("s", history="none")
            await other.say("three")
            assert await answer(other) == "you said three"

    run(work)


def test_S0_19_a_message_that_comes_while_a_session_is_being_paused_is_answered() -> None:
    async def work() -> None:
        go = asyncio.Event()

        async def agent(turn: Turn) -> str:
            await go.wait()
            return await echo(turn)

        async with serving(agent) as bridge, raw(bridge) as client, raw(bridge) as other:
            await joined(client)
            await client.say("one")
            await client.until("session_event")
            await other.auth(client_id="other")
            await other.join("s", history="none")
            await client.send("session_pause", {})
            runner = bridge.hub.sessions["s"].runner
            assert runner is not None
            await asyncio.wait_for(runner._leaving.wait(), LIMIT)
            assert (await other.say("two"))["status"] == "stored"
            go.set()
            assert [await answer(other), await answer(other)] == ["you said one", "you said two"]

    run(work)


def test_B29_a_message_over_http_is_answered_although_the_grace_ends_while_it_is_stored() -> None:
    async def work() -> None:
        async with MemoryStore() as memory:
            store: Any = SlowStore(memory)
            token = {"authorization": "Bearer token"}
            async with (
                serving(echo, store=store, limits=limits(grace=0.02)) as bridge,
                httpx.AsyncClient(base_url=bridge.url, headers=token) as http,
            ):
                async with raw(bridge) as client:
                    await joined(client)
                    sent = asyncio.create_task(
                        http.post("/sessions/s/events", json={"type": "message", "content": "hi"})
                    )
                    await asyncio.wait_for(store.waits.wait(), LIMIT)
                await until(lambda: not bridge.hub.connections)
                await asyncio.sleep(0.06)
                store.go.set()
                assert (await sent).status_code == 202
                await let_go(bridge)
                said = [entry.type for entry in await memory.read("s", after=0)]
                assert "stream_end" in said
                assert await state(bridge) is SessionState.PAUSED

    run(work)


def test_B30_who_comes_back_and_leaves_again_has_the_whole_grace_again() -> None:
    async def work() -> None:
        go = asyncio.Event()

        async def agent(turn: Turn) -> None:
            await go.wait()

        async with serving(agent, limits=limits(grace=0.3, on_grace_expiry="close")) as bridge:
            async with raw(bridge) as client:
                await joined(client)
                await client.say("work")
            live = bridge.hub.sessions["s"]
            await until(lambda: live.is_ending)
            async with raw(bridge) as client:
                await client.auth()
                await client.join("s")
            await until(lambda: "s" in bridge.hub._graces)
            go.set()
            await until(lambda: not live.is_ending)
            assert bridge.hub.sessions["s"] is live
            await let_go(bridge)
            assert await state(bridge) is SessionState.CLOSED

    run(work)


def test_what_is_only_asked_about_takes_no_place() -> None:
    async def work() -> None:
        async with serving(echo, limits=limits(grace=0.02)) as bridge, raw(bridge) as client:
            await joined(client)
            await client.ask("session_close", {}, "ack")
            await client.ask("session_leave", {"session_id": "s"}, "ack")
            await bridge.hub.create("t")
            await let_go(bridge)
            assert (await client.join("s"))["code"] == "SESS_CLOSED"
            again = await client.ask("session_start", {"session_id": "s"}, "session_ready")
            assert again["payload"]["code"] == "SESS_CLOSED"
            assert (await client.ask("session_snapshot", {"session_id": "s"}, "snapshot"))["type"] == "snapshot"
            assert not bridge.hub.sessions
            await bridge.hub.create("u")
            assert (await client.ask("session_resume", {"session_id": "u"}, "session_joined"))["payload"]["code"] == (
                "SESS_NOT_RESUMABLE"
            )
            await let_go(bridge)

    run(work)


def test_a_session_that_was_left_as_it_was_makes_room_for_another() -> None:
    async def work() -> None:
        settings = limits(grace=0.02, max_sessions=1, on_grace_expiry="detach")
        async with serving(echo, limits=settings) as bridge:
            async with raw(bridge) as client:
                await joined(client)
                await client.say("one")
                assert await answer(client) == "you said one"
            hub = bridge.hub
            await until(lambda: not hub._graces and not hub._tasks)
            assert await state(bridge) is SessionState.ACTIVE
            async with raw(bridge) as client:
                await joined(client, "t")
                assert set(hub.sessions) == {"t"}
                assert await state(bridge) is SessionState.PAUSED
                refused = await client.join("s")
                assert refused["code"] == "CONN_LIMIT"

    run(work)


def test_a_session_that_was_removed_and_made_again_begins_anew_for_everybody() -> None:
    async def work() -> None:
        async with serving(echo) as bridge, raw(bridge) as client, raw(bridge) as other:
            await joined(client)
            await client.say("old")
            assert await answer(client) == "you said old"
            await client.ask("session_close", {}, "ack")
            await bridge.hub.store.remove("s")
            await other.auth(client_id="other")
            assert (await other.create("s"))["top_offset"] == 0
            assert (await client.until("gap"))["payload"]["reason"] == "reset"
            await other.say("new")
            assert await answer(other) == "you said new"

    run(work)


def test_a_client_that_does_not_read_neither_delays_a_stop_nor_keeps_agents_from_ending() -> None:
    async def work() -> None:
        settings = limits(stop_timeout=0.8, send_timeout=30.0)
        async with MemoryStore() as store, serving(echo, store=store, limits=settings) as bridge:
            async with raw(bridge) as client:
                await joined(client)
                await client.say("hello")
                assert await answer(client) == "you said hello"
                (connection,) = bridge.hub.sessions["s"].clients
                # As while a frame is sent that the client does not read.
                await connection._sending.acquire()
                stopping = asyncio.create_task(bridge.hub.stop())
                async with asyncio.timeout(0.7):
                    await stopping
                    assert await client.close_code() == 1006
            assert await state(bridge) is SessionState.PAUSED

    run(work)
