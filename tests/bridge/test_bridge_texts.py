"""Every text that a client may send has a limit, and what the server says of itself stays small."""

# ruff: noqa: SIM117 - the bridge and its clients are told apart more easily in blocks of their own
from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from bridge_kit import limits, raw, serving
from test_bridge_agents import Model

from holdfast import Agent, tool
from holdfast.agents import FunctionAgent
from holdfast.bridge import Client, Notification, ToolReturned
from holdfast.bridge.sessions.frames import fitting
from holdfast.faults import HoldfastError
from holdfast.providers.messages import Reply, ToolCall
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions import Session
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.stores import Commit, MemoryStore, NewSession
from holdfast.wire.messages import FROM_CLIENT
from holdfast.wire.server import ServerLimits


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def texts_without_limit(kind: Any, path: str) -> list[str]:
    """Return the places of a payload where a text or a list of any length may stand."""
    if get_origin(kind) is Annotated:
        bare, *metas = get_args(kind)
        has_limit = any(isinstance(meta, msgspec.Meta) and meta.max_length is not None for meta in metas)
        return [] if has_limit and bare is str else texts_without_limit(bare, path)
    if kind is str:
        return [path]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        return [each for name, hint in hints.items() for each in texts_without_limit(hint, f"{path}.{name}")]
    return [
        each
        for part in get_args(kind)
        if isinstance(part, type) or get_args(part)
        for each in texts_without_limit(part, path)
    ]


@pytest.mark.parametrize("type_", sorted(FROM_CLIENT))
def test_XB3_every_text_of_a_message_has_a_limit(type_):
    assert texts_without_limit(FROM_CLIENT[type_], type_) == []


def test_XB3_a_title_that_is_too_long_is_a_violation_and_no_session_is_made():
    async def scenario():
        async with serving() as bridge, raw(bridge) as client:
            await client.auth()
            answer = await client.ask("session_create", {"session_id": "s", "title": "t" * 201}, "session_joined")
            assert answer["payload"]["code"] == "PROTO_INVALID_MESSAGE"
            assert [each["field"] for each in answer["payload"]["violations"]] == ["payload.title"]
            assert (await client.ask("session_list", {}, "sessions"))["payload"]["sessions"] == []
            async with Client(bridge.ws_url, token="token") as other:
                with pytest.raises(HoldfastError, match=r"title"):
                    async with other.create("s", title="t" * 990_000):
                        pass

    run(scenario())


async def make(store, number: int, **fields: Any) -> None:
    manifest = Manifest(session_id=f"s-{number:04}", store_id=store.id, **fields)
    await store.commit(Commit(session=manifest.session_id, create=NewSession(manifest=encode_manifest(manifest))))


def test_XB3_sessions_with_long_texts_from_elsewhere_keep_nobody_out():
    async def scenario():
        async with MemoryStore() as store:
            for number in range(60):
                await make(
                    store, number, title="t" * 990_000, project_root="/" + "d" * 100_000, agent_type="a" * 10_000
                )
            async with serving(store=store) as bridge, raw(bridge) as client:
                acked = await client.auth()
                assert len(json.dumps(acked)) < 40_000
                first = acked["payload"]["active_sessions"][0]
                assert first["title"] == "t" * 200
                assert first["cut"] == ["agent", "title", "working_directory"]
                listed = (await client.ask("session_list", {}, "sessions"))["payload"]["sessions"]
                assert len(listed) == 60
                async with Client(bridge.ws_url, token="token") as other:
                    assert len(await other.sessions()) == 60

    run(scenario())


def test_XB3_a_list_of_sessions_that_is_too_long_for_a_message_says_that_there_are_more():
    async def scenario():
        settings = limits(connection=ServerLimits(max_frame=20_000))
        async with MemoryStore() as store:
            for number in range(200):
                await make(store, number, title="t" * 200)
            async with serving(store=store, limits=settings) as bridge, raw(bridge) as client:
                await client.auth()
                found, after = [], ""
                while True:
                    answer = await client.ask("session_list", {"after": after}, "sessions")
                    assert len(json.dumps(answer)) < 25_000
                    found += [each["session_id"] for each in answer["payload"]["sessions"]]
                    after = answer["payload"].get("next", "")
                    if not after:
                        break
                assert found == [f"s-{number:04}" for number in range(200)]
                async with Client(bridge.ws_url, token="token") as other:
                    assert len(await other.sessions()) == 200

    run(scenario())


def test_B8_a_type_of_300_characters_is_a_violation():
    async def scenario():
        async with serving() as bridge, raw(bridge) as client:
            await client.auth()
            id_ = await client.send("x" * 300)
            answer = await client.until("error")
            assert (answer["id"], answer["payload"]["code"]) == (id_, "PROTO_INVALID_MESSAGE")
            assert answer["payload"]["violations"][0]["field"] == "type"

    run(scenario())


# --- long texts, whole ---


def test_XB8_long_answers_and_messages_come_whole():
    answer = " ".join(f"word-{number}" for number in range(30_000))

    async def scenario():
        async def agent(turn):
            return answer

        async with serving(agent) as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            question = "q" * 300_000
            await client.say(question)
            assert await client.said() == answer
            chunks = [each["payload"]["text"] for each in client.received if each["type"] == "stream_chunk"]
            assert max(map(len, chunks)) <= 32_768
            (said,) = [each["payload"]["content"] for each in client.received if each["type"] == "user_message"]
            assert said == question

    run(scenario())


def test_XB8_what_looks_like_a_secret_in_a_long_text_is_masked_wherever_it_stands():
    # Long texts come in parts, and a secret at the end of a part must not be cut in two.
    answer = ("x" * 32_750 + " ghp_abcdefghij1234567890ABCDEF ") * 4

    async def scenario():
        async def agent(turn):
            return answer

        async with serving(agent) as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            await client.say("go")
            said = await client.said()
            assert "ghp_" not in said
            assert said.count("[redacted]") == 4

    run(scenario())


def test_XB8_a_tool_result_that_is_cut_says_so_in_a_field():
    @tool(effect="read")
    async def read() -> str:
        return "r" * 60_000

    async def scenario():
        helper = FunctionAgent("helper", answer)
        calls = (
            ToolCall(id="c", name="helper", arguments={"prompt": "go"}),
            ToolCall(id="d", name="read", arguments={}),
        )
        model = Model(Reply(calls=calls, stop="tools"), Reply(text="done"))
        results = {}
        async with serving(Agent("reader", model, [read, helper])) as bridge:
            async with Client(bridge.ws_url, token="token") as client, client.create("s") as session:
                await session.send("go")
                async for message in session:
                    if isinstance(message, ToolReturned):
                        results[message.tool] = (len(message.content), message.cut)
                    if len(results) == 2:
                        break
        assert results == {"read": (60_000, 0), "helper": (262_144, 300_000 - 262_144)}

    async def answer(prompt: str) -> str:
        return "r" * 300_000

    run(scenario())


@pytest.mark.parametrize(
    ("replies", "reason"),
    [([Reply(text="half an ans", stop="length")], "length"), ([Reply(text="not", stop="other")], "error"), ([Reply(text="all")], "stop")],
)  # fmt: skip
def test_XB8_the_end_of_an_answer_says_whether_it_is_whole(replies, reason):
    async def scenario():
        async with serving(Agent("writer", Model(*replies), max_output=100)) as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            await client.say("go")
            assert (await client.until("stream_end"))["payload"]["finish_reason"] == reason

    run(scenario())


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        ("notification", {"notification_id": "n", "notification_type": "x", "title": "t" * 20_000_000}),
        ("tool_call", {"tool_call_id": "c", "tool": "put", "params": {"text": "é" * 9_000_000, "n": 1}}),
        ("tool_call", {"tool_call_id": "c", "tool": "put", "params": {str(number): "x" * 200 for number in range(100_000)}}),
        ("tool_result", {"tool_call_id": "c", "tool": "put", "success": False, "error": {"rows": ["r" * 60] * 400_000}}),
        ("claude_event", {"event": "PostToolUse", "data": {"result": [["y" * 100] * 1_000] * 200}}),
    ],
)  # fmt: skip
def test_XB2_one_long_message_keeps_nobody_out_of_a_session(type_, payload):
    """A client that cannot read one message of a log connects again for ever, and never sees what follows."""

    async def scenario():
        async with serving() as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            live = await bridge.hub.live("s")
            await live.publish(
                (type_, payload), ("notification", {"notification_id": "e", "notification_type": "end", "title": ""})
            )
            shown = (await client.until(type_))["payload"]
            assert shown["cut"]
            assert len(json.dumps(shown, ensure_ascii=False).encode()) < 5 * 2**20
            async with Client(bridge.ws_url, token="token") as other, other.join("s") as session:
                async for message in session:
                    if isinstance(message, Notification) and message.kind == "end":
                        break

    run(scenario())


def test_XB2_a_long_question_keeps_nobody_out_and_is_not_approved_unseen():
    async def scenario():
        async with serving() as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")

            async def ask():
                details = {"tool": "put", "arguments": json.dumps({"text": "x" * 20_000_000})}
                async with Session.open("s", store=bridge.hub.store) as session:
                    await session.approval("Run it?", details=details, call="c-1")

            asked = asyncio.create_task(ask())
            shown = (await client.until("approval_required"))["payload"]
            assert (shown["cut"], len(shown["params"]["text"])) == (True, 262_144)
            async with raw(bridge) as other:
                await other.auth()
                await other.join("s")
                (again,) = (await other.until("session_state"))["payload"]["pending_approvals"]
                assert again["cut"]
                assert again["arguments_hash"] == shown["arguments_hash"]
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    run(scenario())


@pytest.mark.parametrize("before", [262_000, 262_143, 270_000, 270_330])
def test_XB2_no_half_of_a_secret_is_left_where_a_long_text_is_cut(before):
    secret = "ghp_abcdefghij1234567890ABCDEF"
    # What stands before it is masked too, and makes the text shorter.
    text = (f"{secret} " * 300 + "x" * 300_000)[: before - 1] + f" {secret} " + "y" * 5_000_000
    shown = fitting({"title": text}, process_redactor().uncut())
    assert shown["cut"]
    assert "ghp_" not in shown["title"]
    assert len(shown["title"]) > 200_000
