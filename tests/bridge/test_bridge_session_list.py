"""What a list of sessions says: what each is called, what its agent does, and who waits. And how a session gets another title, and its end."""

# ruff: noqa: SIM117 - the bridge and its clients are told apart more easily in blocks of their own
from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime

import pytest
from bridge_kit import Tokens, raw, serving
from test_bridge_javascript import PAGE, run_node

from holdfast import Backoff, Policy, Runtime, recover
from holdfast.bridge import Client, Recovery, SessionEvent
from holdfast.bridge.access.identity import TokenHolder
from holdfast.faults import HoldfastError
from holdfast.stores import MemoryStore
from holdfast.stores.address import open_store


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


async def listed(client, **asked):
    answer = await client.ask("session_list", asked, "sessions")
    return {each["session_id"]: each for each in answer["payload"]["sessions"]}


def test_XB11_a_list_says_what_each_agent_does_and_who_waits():
    async def agent(turn):
        if turn.text == "ask":
            await turn.ask("Which branch?")
        await asyncio.Event().wait()

    async def scenario():
        async with MemoryStore() as store:
            async with serving(agent, store=store) as bridge, raw(bridge) as client:
                await client.auth()
                for name in ("asks", "idle", "works"):
                    await client.create(name)
                await bridge.hub.store.session("idle")
                await client.say("go", session_id="works")
                await client.say("ask", session_id="asks")
                await client.until("question")
                for found in (await listed(client), await listed(client, in_use=True)):
                    doing = {name: (each["turn"], each.get("questions", 0)) for name, each in found.items()}
                    assert doing == {"asks": ("requires_action", 1), "idle": ("idle", 0), "works": ("running", 0)}
                async with raw(bridge) as other:
                    # Who comes back learns it with the answer to `auth`.
                    active = (await other.auth())["payload"]["active_sessions"]
                    assert {each["session_id"]: each["turn"] for each in active}["asks"] == "requires_action"
            async with serving(store=store) as bridge, raw(bridge) as client:
                # A server that has not opened them does not know.
                await client.auth()
                assert await listed(client, in_use=True) == {}
                assert [each.get("turn") for each in (await listed(client)).values()] == [None] * 3

    run(scenario())


def test_XB11_what_is_in_use_is_listed_for_those_who_may_see_it():
    tokens = Tokens(
        token=TokenHolder(token_id="t-1", kind="device", name="Ada"),
        narrow=TokenHolder(token_id="t-2", kind="device", name="Bob", sessions=frozenset({"s-2"})),
    )

    async def scenario():
        async with serving(tokens=tokens) as bridge, raw(bridge) as client, raw(bridge) as narrow:
            await client.auth()
            for number in range(4):
                await client.create(f"s-{number}")
            assert list(await listed(client, in_use=True, after="s-1")) == ["s-2", "s-3"]
            await narrow.auth("narrow")
            assert list(await listed(narrow, in_use=True)) == ["s-2"]

    run(scenario())


def test_XB11_a_session_gets_another_title_for_everybody_and_for_good(tmp_path):
    async def scenario():
        async with open_store(f"sqlite:{tmp_path / 's.db'}") as store:
            async with serving(lambda_agent, store=store) as bridge:
                async with Client(bridge.ws_url, token="token") as client, client.create("s", title="One") as session:
                    async with raw(bridge) as other:
                        await other.auth()
                        await other.join("s")
                        await session.rename("Two")
                        event = await other.until("session_event")
                        assert (event["payload"]["event"], event["payload"]["title"], event["payload"]["by"]) == (
                            "session_renamed", "Two", "Ada",
                        )  # fmt: skip
                        for asked in ({}, {"in_use": True}):
                            assert (await listed(other, **asked))["s"]["title"] == "Two"
                    # A turn, which writes the session's row, keeps it; and the same title again is no news.
                    await session.send("hello")
                    await session.rename("Two")
                    async for message in session:
                        if isinstance(message, SessionEvent) and message.event == "turn_ended":
                            break
            async with serving(store=store) as bridge, raw(bridge) as client:
                await client.auth()
                assert (await listed(client))["s"]["title"] == "Two"
            records = [json.loads(bytes(each.payload)) for each in await store.audit("session:s")]
            assert [(each["title"], each["by"]) for each in records if "title" in each] == [("Two", "Ada")]

    async def lambda_agent(turn):
        return "Hi."

    run(scenario())


def test_XB11_a_title_is_given_by_those_who_may_and_within_its_limit():
    tokens = Tokens(
        token=TokenHolder(token_id="t-1", kind="device", name="Ada"),
        watcher=TokenHolder(token_id="t-2", kind="device", name="Bob", role="observer"),
    )

    async def scenario():
        async with serving(tokens=tokens) as bridge, raw(bridge) as client, raw(bridge) as watcher:
            await client.auth()
            early = await client.ask("session_rename", {"session_id": "s", "title": "x"}, "ack")
            assert early["payload"]["code"] == "PROTO_SEQUENCE_ERROR"
            await client.create("s")
            long = await client.ask("session_rename", {"title": "t" * 201}, "ack")
            assert [each["field"] for each in long["payload"]["violations"]] == ["payload.title"]
            await watcher.auth("watcher")
            await watcher.join("s")
            assert (await watcher.ask("session_rename", {"title": "x"}, "ack"))["payload"]["code"] == "AUTH_FORBIDDEN"
            await client.ask("session_close", {}, "ack")
            late = await client.ask("session_rename", {"title": "x"}, "ack")
            assert late["payload"]["code"] == "SESS_CLOSED"
            assert (await listed(client))["s"].get("title", "") == ""

    run(scenario())


def test_XB11_the_clients_close_a_session_for_good():
    async def scenario():
        async with serving() as bridge, Client(bridge.ws_url, token="token") as client:
            async with client.create("s") as session:
                await session.close()
                with pytest.raises(HoldfastError) as caught:
                    await session.close()
                assert caught.value.fault.code == "SESS_CLOSED"

    run(scenario())


def test_XB11_the_client_in_node_renames_lists_and_closes():
    program = f"""
        import {{ Client }} from "{PAGE / "holdfast.js"}";
        const client = new Client("ws://127.0.0.1:3000/ws", {{ token: "token" }});
        const session = client.join("s", {{ create: true }});
        await session.rename("Release 42");
        const [listed] = await client.sessionsInUse();
        await session.close();
        const [closed] = await client.sessions();
        console.log(JSON.stringify([listed.title, listed.turn, closed.title, closed.status]));
        client.close();
    """
    code, output = run_node("--input-type=module", "--eval", program)
    assert (code, output) == (0, '["Release 42","idle","Release 42","closed"]\n')


def test_XB11_a_retry_says_why_and_until_when_to_every_client():
    runtime = Runtime()

    @recover("flaky", policy=Policy(attempts=3, backoff=Backoff(initial=40, cap=40), patience=None), runtime=runtime)
    async def flaky() -> str:
        raise ConnectionResetError

    async def agent(turn):
        return await flaky()

    async def scenario():
        async with serving(agent, runtime=runtime) as bridge, Client(bridge.ws_url, token="token") as client:
            async with client.create("s") as session:
                await session.send("go")
                async for message in session:
                    if isinstance(message, Recovery):
                        assert message.reason == "The connection broke off. Trying again."
                        wait = datetime.fromisoformat(message.until).timestamp() - time.time()
                        assert 20 < wait < 70, "40 s and the jitter"
                        break
                await session.stop()

    run(scenario())
