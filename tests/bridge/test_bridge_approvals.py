"""An approval reaches the call that was shown, and nothing else: one id joins question, call, result and error."""

# ruff: noqa: SIM117 - the bridge and its clients are told apart more easily in blocks of their own
from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

from bridge_kit import raw, serving
from test_bridge_agents import Model, joined

from holdfast import tool
from holdfast.agents import Agent
from holdfast.bridge import Client, Question, ToolCalled, ToolFailed, ToolReturned
from holdfast.providers.messages import Reply, ToolCall
from holdfast.sessions import Session
from holdfast.stores import MemoryStore


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def calling(name: str, **arguments) -> Reply:
    # Local servers give each first call the same id.
    return Reply(calls=(ToolCall(id="call_0", name=name, arguments=arguments),), stop="tools")


@asynccontextmanager
async def two_agents(done: list[str]):
    """Serve a turn in which two agents want to call a tool at the same time, with the same ids of their providers."""

    @tool(effect="unsafe")
    async def say_hello() -> str:
        done.append("say_hello")
        return "hello"

    @tool(effect="unsafe")
    async def wipe_disk() -> str:
        done.append("wipe_disk")
        raise OSError("the disk is not empty")

    async def agent(turn):
        greeter = Agent("greeter", Model(calling("say_hello"), Reply(text="greeted")), [say_hello])
        wiper = Agent("wiper", Model(calling("wipe_disk"), Reply(text="wiped")), [wipe_disk])
        said = await asyncio.gather(*(each.run(turn.text, session=turn.session) for each in (greeter, wiper)))
        return ", ".join(each.text for each in said)

    async with serving(agent) as bridge:
        yield bridge


def test_XB4_two_agents_in_one_turn_have_approvals_of_their_own():
    done = []

    async def scenario():
        async with two_agents(done) as bridge, raw(bridge) as client:
            await joined(client)
            await client.say("go")
            asked = [(await client.until("approval_required"))["payload"]]
            while asked[-1]["tool"] != "say_hello":
                # Questions are shown one after the other; the other agent's may come first.
                refusal = {"tool_call_id": asked[-1]["tool_call_id"], "decision": "rejected"}
                await client.ask("approval_response", refusal, "ack")
                asked.append((await client.until("approval_required"))["payload"])
            await client.ask(
                "approval_response", {"tool_call_id": asked[-1]["tool_call_id"], "decision": "approved"}, "ack"
            )
            if len(asked) == 1:
                asked.append((await client.until("approval_required"))["payload"])
                await client.ask(
                    "approval_response", {"tool_call_id": asked[-1]["tool_call_id"], "decision": "rejected"}, "ack"
                )
            await client.said()
        assert len({each["tool_call_id"] for each in asked}) == 2
        assert done == ["say_hello"]

    run(scenario())


def test_XB4_one_id_joins_question_call_result_and_error_in_every_turn():
    @tool(effect="unsafe")
    async def deploy(version: str) -> str:
        return f"{version} is live"

    async def scenario():
        replies = [calling("deploy", version="4.2"), Reply(text="a"), calling("deploy", version="bad"), Reply(text="b")]
        async with serving(Agent("releaser", Model(*replies), [deploy])) as bridge:
            async with Client(bridge.ws_url, token="token") as client, client.create("s") as session:
                seen = []
                for _ in range(2):
                    await session.send("go")
                    async for message in session:
                        match message:
                            case Question(id=id_, tool_call_id=call, arguments_hash=asked):
                                assert asked
                                seen.append(("question", call))
                                # The second call fails.
                                await session.answer(id_, len(seen) < 3)
                            case ToolCalled(id=call):
                                seen.append(("call", call))
                            case ToolReturned(id=call) | ToolFailed(id=call):
                                seen.append(("end", call))
                                break
        first, second = seen[:3], seen[3:]
        assert {kind for kind, _ in first} == {kind for kind, _ in second} == {"question", "call", "end"}
        (one,), (two,) = {call for _, call in first}, {call for _, call in second}
        assert one != two
        assert one.startswith("call_0")

    run(scenario())


def test_XB4_an_answer_to_other_arguments_than_the_question_has_is_rejected():
    async def scenario():
        async with MemoryStore() as store, serving(store=store) as bridge, Session.open("s", store=store) as session:
            details = {"tool": "bash", "arguments": '{"command":"ls"}'}
            asked = asyncio.create_task(session.approval("Run bash?", details=details, call="c-1", expires=60))
            async with raw(bridge) as client:
                await client.auth()
                await client.join("s")
                shown = (await client.until("approval_required", "session_state"))["payload"]
                if "pending_approvals" in shown:
                    (shown,) = shown["pending_approvals"]
                assert (shown["tool_call_id"], shown["params"]) == ("c-1", {"command": "ls"})
                wrong = {"tool_call_id": "c-1", "decision": "approved", "arguments_hash": "0" * 32}
                answer = await client.ask("approval_response", wrong, "ack")
                assert answer["payload"]["code"] == "SESS_INTERACTION_MISMATCH"
                wrong = {"tool_call_id": "c-2", "question_id": shown["question_id"], "decision": "approved"}
                answer = await client.ask("approval_response", wrong, "ack")
                assert answer["payload"]["code"] == "SESS_INTERACTION_MISMATCH"
                wrong = {"question_id": shown["question_id"], "value": True, "arguments_hash": "0" * 32}
                assert (await client.ask("answer", wrong, "ack"))["payload"]["code"] == "SESS_INTERACTION_MISMATCH"
                assert not asked.done()
                right = wrong | {"arguments_hash": shown["arguments_hash"]}
                assert (await client.ask("answer", right, "ack"))["type"] == "ack"
            assert (await asked).outcome == "accepted"

    run(scenario())


def test_XB4_an_id_that_several_open_questions_share_is_no_answer():
    async def scenario():
        async with MemoryStore() as store, serving(store=store) as bridge, Session.open("s", store=store) as session:

            async def ask(name: str):
                # As older versions stored them: the place in the run is not unique.
                details = {"tool": name, "arguments": "{}", "call": "1.0"}
                return await session.approval(f"Run {name}?", details=details, expires=60)

            asked = [asyncio.create_task(ask(name)) for name in ("say_hello", "wipe_disk")]
            async with raw(bridge) as client:
                await client.auth()
                await client.join("s")
                while len(bridge.hub.sessions["s"]._tool_calls) < 2:  # noqa: ASYNC110 - a question sets no event
                    await asyncio.sleep(0.01)
                answer = await client.ask("approval_response", {"tool_call_id": "1.0", "decision": "approved"}, "ack")
                assert answer["payload"]["code"] == "SESS_INTERACTION_MISMATCH"
                assert not any(each.done() for each in asked)
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    run(scenario())


def test_XB5_long_arguments_are_shown_whole_and_those_that_cannot_be_are_not_run():
    ran = []

    @tool(effect="unsafe")
    async def write(text: str) -> str:
        ran.append(len(text))
        return "written"

    async def scenario():
        replies = [calling("write", text="x" * 40_000), calling("write", text="y" * 600_000), Reply(text="done")]
        async with serving(Agent("writer", Model(*replies), [write])) as bridge, raw(bridge) as client:
            await joined(client)
            await client.say("go")
            shown = (await client.until("approval_required"))["payload"]
            assert shown["params"] == {"text": "x" * 40_000}
            assert "cut" not in shown
            # Whoever joins meanwhile sees the same.
            async with raw(bridge) as other:
                await other.auth()
                await other.join("s")
                (again,) = (await other.until("session_state"))["payload"]["pending_approvals"]
                assert again["params"] == shown["params"]
                assert again["arguments_hash"] == shown["arguments_hash"]
            await client.ask(
                "approval_response", {"tool_call_id": shown["tool_call_id"], "decision": "approved"}, "ack"
            )
            assert await client.said() == "done"
            failed = next(each["payload"] for each in client.received if each["type"] == "tool_error")
            assert failed["code"] == "TOOL_APPROVAL_DENIED"
        assert ran == [40_000]

    run(scenario())


def test_XB5_arguments_that_an_older_version_cut_say_so():
    async def scenario():
        async with MemoryStore() as store, serving(store=store) as bridge, Session.open("s", store=store) as session:
            details = {"tool": "bash", "arguments": '{"command":"ls … [8 bytes cut]', "call": "1.0"}
            asked = asyncio.create_task(session.approval("Run bash?", details=details, expires=60))
            async with raw(bridge) as client:
                await client.auth()
                await client.join("s")
                message = await client.until("approval_required", "session_state")
                found = message["payload"].get("pending_approvals", [message["payload"]])[0]
                assert found["cut"] is True
                assert json.dumps(found["params"])
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    run(scenario())
