"""Agents on the bridge: their parts become messages, each message of a user is a turn, and nothing is answered twice."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from bridge_kit import LIMIT, Model, Raw, limits, offsets, raw, serving

from holdfast import Agent, Backoff, Policy, Runtime, tool
from holdfast.agents import CommandAgent, FunctionAgent
from holdfast.bridge import Client, Question, SessionEvent, State, ToolCalled
from holdfast.bridge.server import Bridge
from holdfast.bridge.sessions.turn import Turn
from holdfast.events import Failed
from holdfast.faults import Fault, HoldfastError
from holdfast.providers import Reply
from holdfast.providers.messages import ToolCall
from holdfast.runtime.recover import recover
from holdfast.sessions.log import Message, new_entry
from holdfast.stores import Commit, Entry, MemoryStore, SessionRecord, SqliteStore, Store


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * LIMIT):
            await work()

    asyncio.run(limited())


async def joined(client: Raw, **auth: Any) -> Raw:
    await client.auth(**auth)
    await client.create("s")
    return client


def test_a_function_answers_each_message_in_a_turn_of_its_own() -> None:
    async def agent(turn: Turn) -> str:
        await turn.say(f"working on {turn.text}")
        return f"{turn.text} is done"

    async def work() -> None:
        async with serving(agent) as bridge, raw(bridge) as client:
            await joined(client)
            ack = await client.say("the tests")
            assert ack["offset"] == 1
            assert [await client.said(), await client.said()] == ["working on the tests", "the tests is done"]
            await client.until("session_event")
            while client.received[-1]["payload"].get("event") != "turn_ended":
                await client.until("session_event")
            assert client.received[-1]["payload"] | {"turn": 1, "outcome": "ok"} == client.received[-1]["payload"]
            found = offsets(client.received)
            assert found == list(range(1, len(found) + 1))

    run(work)


def test_what_an_agent_yields_is_said() -> None:
    async def agent(turn: Turn) -> AsyncIterator[str]:
        yield "one"
        yield "two"

    async def work() -> None:
        async with serving(agent) as bridge, raw(bridge) as client:
            await joined(client)
            await client.say("count")
            assert [await client.said(), await client.said()] == ["one", "two"]

    run(work)


def test_B59_messages_that_wait_are_answered_in_order() -> None:
    async def work() -> None:
        go = asyncio.Event()

        async def agent(turn: Turn) -> str:
            await go.wait()
            return f"answer to {turn.text}"

        async with serving(agent) as bridge, raw(bridge) as client:
            await joined(client)
            for number in range(3):
                await client.say(str(number))
            go.set()
            assert [await client.said() for _ in range(3)] == [f"answer to {number}" for number in range(3)]

    run(work)


def test_N0_23_waiting_messages_are_answered_together_if_configured() -> None:
    async def work() -> None:
        go, begun = asyncio.Event(), asyncio.Event()

        async def agent(turn: Turn) -> str:
            begun.set()
            await go.wait()
            return turn.text

        async with serving(agent, limits=limits(coalesce=True)) as bridge, raw(bridge) as client:
            await joined(client)
            await client.say("0")
            await begun.wait()
            await client.say("1")
            await client.say("2")
            go.set()
            assert [await client.said(), await client.said()] == ["0", "1\n\n2"]

    run(work)


def test_an_agents_tools_and_approvals_become_messages() -> None:
    @tool(effect="unsafe")
    async def deploy(version: str) -> str:
        return f"{version} is live"

    async def work() -> None:
        call = ToolCall(id="call-1", name="deploy", arguments={"version": "4.2"})
        model = Model(Reply(calls=(call,), stop="tools"), Reply(text="Released."))
        agent = Agent("releaser", model, [deploy])
        async with serving(agent) as bridge, raw(bridge) as one, raw(bridge) as two:
            await joined(one)
            await two.auth()
            await two.join("s")
            await one.say("release 4.2")
            wanted = await one.until("approval_required")
            assert (wanted["payload"]["tool"], wanted["payload"]["params"]) == ("deploy", {"version": "4.2"})
            id_ = wanted["payload"]["tool_call_id"]
            answer = await two.ask("approval_response", {"tool_call_id": id_, "decision": "approved"}, "ack")
            assert answer["type"] == "ack"
            resolved = await one.until("approval_resolved")
            question = wanted["payload"]["question_id"]
            assert resolved["payload"] == {
                "tool_call_id": id_,
                "decision": "approved",
                "by": "Ada",
                "question_id": question,
            }
            result = await one.until("tool_result")
            assert result["payload"] == {
                "tool_call_id": id_,
                "tool": "deploy",
                "success": True,
                "content": "4.2 is live",
            }
            assert await one.said() == "Released."
            late = await one.ask("approval_response", {"tool_call_id": id_, "decision": "rejected"}, "ack")
            assert late["payload"]["code"] == "SESS_ALREADY_ANSWERED"

    run(work)


def test_N0_9_other_arguments_reject_the_call_and_the_next_call_is_asked_about_again() -> None:
    done = list[str]()

    @tool(effect="unsafe")
    async def deploy(version: str) -> str:
        done.append(version)
        return f"{version} is live"

    async def work() -> None:
        calls = [ToolCall(id=f"call-{n}", name="deploy", arguments={"version": n}) for n in ("4.2", "4.1")]
        model = Model(*(Reply(calls=(call,), stop="tools") for call in calls), Reply(text="Released."))
        async with serving(Agent("releaser", model, [deploy])) as bridge, raw(bridge) as client:
            await joined(client)
            await client.say("release 4.2")
            call = (await client.until("approval_required"))["payload"]["tool_call_id"]
            body = {"tool_call_id": call, "decision": "modified"}
            without = await client.ask("approval_response", body, "ack")
            assert "payload.modifications" in json.dumps(without["payload"])
            body |= {"modifications": {"version": "4.1"}, "reason": "4.2 is broken"}
            assert (await client.ask("approval_response", body, "ack"))["type"] == "ack"
            rejected = await client.until("approval_resolved")
            assert rejected["payload"]["decision"] == "rejected"
            again = (await client.until("approval_required"))["payload"]
            assert again["params"] == {"version": "4.1"}
            told = str(model.requests[-1]).replace("\\", "")
            assert "4.2 is broken" in told
            assert 'with these arguments instead: {"version":"4.1"}' in told
            assert done == []
            body = {"tool_call_id": again["tool_call_id"], "decision": "approved"}
            await client.ask("approval_response", body, "ack")
            assert await client.said() == "Released."
            assert done == ["4.1"]

    run(work)


def test_retries_are_shown_and_can_be_commanded() -> None:
    async def work() -> None:
        calls = list[int]()

        runtime = Runtime()

        @recover(
            "flaky", policy=Policy(attempts=3, backoff=Backoff(initial=600, cap=600), patience=None), runtime=runtime
        )
        async def flaky() -> str:
            calls.append(1)
            if len(calls) == 1:
                raise ConnectionResetError
            return "at last"

        async def agent(turn: Turn) -> str:
            return await flaky()

        async with serving(agent, runtime=runtime) as bridge, raw(bridge) as client:
            await joined(client)
            await client.say("go")
            shown = await client.until("recovery")
            assert (shown["payload"]["line"], shown["payload"]["can"]) == ("Retrying... (2/3)", ["retry_now", "cancel"])
            event = shown["payload"]["event"]
            assert (event["session"], event["turn"], event["type"]) == ("s", 1, "retry")
            command = {"run": shown["payload"]["run"], "command": "retry_now"}
            wrong = await client.ask("command", command | {"run": "another"}, "ack")
            assert wrong["payload"]["code"] == "SESS_NOT_FOUND"
            assert (await client.ask("command", command, "ack"))["type"] == "ack"
            assert await client.said() == "at last"
            commanded = next(m for m in client.received if m["type"] == "recovery" and m is not shown)
            assert commanded["payload"]["event"]["by"] == "Ada"
            late = await client.ask("command", command, "ack")
            assert late["payload"]["code"] == "SESS_NOT_FOUND"

    run(work)


def test_a_command_line_agent_answers() -> None:
    program = "import sys; print('echo: ' + sys.argv[1])"

    async def work() -> None:
        agent = CommandAgent([sys.executable, "-c", program, "{prompt}"])
        async with serving(agent) as bridge, raw(bridge) as client:
            await joined(client)
            await client.say("hello")
            assert (await client.said()).strip() == "echo: hello"

    run(work)


def test_a_failed_turn_is_said_and_the_next_message_is_answered() -> None:
    async def work() -> None:
        async def agent(turn: Turn) -> str:
            if turn.text == "break":
                raise ValueError("broken")
            return "fine"

        async with serving(agent) as bridge, raw(bridge) as client:
            await joined(client)
            await client.say("break")
            note = await client.until("notification")
            assert note["payload"]["notification_type"] == "agent_error"
            await client.say("work")
            assert await client.said() == "fine"
            await client.join("s")
            state = await client.until("session_state")
            assert state["payload"]["turn"] == "idle"

    run(work)


def test_stop_cancels_the_turn_and_the_session_goes_on() -> None:
    async def work() -> None:
        begun = asyncio.Event()

        async def agent(turn: Turn) -> str:
            if turn.text == "hang":
                begun.set()
                await asyncio.Event().wait()
            return "fine"

        async with serving(agent) as bridge, raw(bridge) as client:
            await joined(client)
            await client.say("hang")
            await begun.wait()
            assert (await client.ask("stop", {}, "ack"))["type"] == "ack"
            note = await client.until("notification")
            assert note["payload"]["notification_type"] == "turn_cancelled"
            await client.say("again")
            assert await client.said() == "fine"
            assert (await client.ask("stop", {}, "ack"))["payload"]["code"] == "SESS_ILLEGAL_TRANSITION"

    run(work)


def test_a_turn_goes_on_after_a_restart_and_nothing_is_said_twice(tmp_path: Path) -> None:
    done = list[str]()

    def agent_of(hangs: bool, reached: asyncio.Event) -> Any:
        async def agent(turn: Turn) -> str:
            await turn.say("one")
            await turn.session.step(note, "step")
            reached.set()
            if hangs:
                await asyncio.Event().wait()
            return "two"

        return agent

    async def note(what: str) -> None:
        done.append(what)

    async def work() -> None:
        async with SqliteStore(tmp_path / "work.db") as store:
            reached = asyncio.Event()
            async with serving(agent_of(hangs=True, reached=reached), store=store) as bridge, raw(bridge) as client:
                await joined(client)
                await client.say("count")
                await client.say("and this")
                await reached.wait()
            assert (await store.session("s")).state.value == "paused"
            async with (
                serving(agent_of(hangs=False, reached=reached), store=store) as bridge,
                raw(bridge) as client,
            ):
                await client.auth()
                await client.join("s", history="full")
                while [m["payload"].get("event") for m in _log(client)].count("turn_ended") < 2:
                    await client.next()
                texts = [m["payload"]["text"] for m in _log(client) if m["type"] == "stream_chunk"]
                assert texts == ["one", "two", "one", "two"]
                assert done == ["step", "step"]
                found = offsets(client.received)
                assert found == list(range(1, len(found) + 1))

    run(work)


def test_a_new_server_answers_what_an_earlier_one_left_although_nobody_joins(tmp_path: Path) -> None:
    async def work() -> None:
        async with SqliteStore(tmp_path / "work.db") as store:
            begun = asyncio.Event()

            async def agent(turn: Turn) -> str:
                if not begun.is_set():
                    begun.set()
                    await asyncio.Event().wait()
                return f"answer to {turn.text}"

            async with serving(agent, store=store) as bridge, raw(bridge) as client:
                await joined(client)
                await client.say("one")
                await begun.wait()
                await client.say("two")
            async with serving(agent, store=store, limits=limits(grace=0.2)):
                await _in_state(store, "active")
                await _in_state(store, "paused")
            bodies = [json.loads(bytes(entry.body)) for entry in await store.read("s") if entry.type == "stream_chunk"]
            assert [body["text"] for body in bodies] == ["answer to one", "answer to two"]

    run(work)


def test_an_answer_over_http_lets_an_agent_go_on_in_whose_session_nobody_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def agent(turn: Turn) -> str:
        return "deployed" if await turn.session.approve("Deploy?", expires=600) else "not deployed"

    async def work() -> None:
        async with SqliteStore(tmp_path / "work.db") as store:
            async with serving(agent, store=store) as bridge, raw(bridge) as client:
                await joined(client)
                await client.say("deploy")
                question = (await client.until("question"))["payload"]["question_id"]
            # The next server does not take up old sessions by itself.
            monkeypatch.setattr("holdfast.bridge.hub._RECENT_S", -1e9)
            async with serving(agent, store=store) as bridge, httpx.AsyncClient(base_url=bridge.url) as http:
                body = {"type": "answer", "question_id": question, "value": True}
                headers = {"authorization": "Bearer token"}
                answer = await http.post("/sessions/s/events", json=body, headers=headers)
                assert answer.status_code == 202, answer.text
                after = 0
                while not (texts := [e.body for e in await store.read("s") if e.type == "stream_chunk"]):
                    assert await store.changed("s", after, LIMIT), "the agent does not go on"
                    after = (await store.session("s")).top
            assert [json.loads(bytes(body))["text"] for body in texts] == ["deployed"]

    run(work)


def test_the_state_says_how_the_last_turn_ended_and_which_messages_are_stored() -> None:
    async def agent(turn: Turn) -> str:
        if turn.text == "fail":
            raise RuntimeError("no")
        if turn.text == "wait":
            await asyncio.Event().wait()
        return "done"

    async def state(bridge: Bridge, client: str) -> dict[str, Any]:
        async with raw(bridge) as other:
            await other.auth(client_id=client)
            await other.join("s")
            return dict((await other.until("session_state"))["payload"])

    async def work() -> None:
        async with serving(agent) as bridge, raw(bridge) as client:
            await client.auth(client_id="phone")
            await client.create("s", title="Release 42")
            ids = []
            for text, reason in (("work", "ok"), ("fail", "failed"), ("work", "ok"), ("wait", None)):
                ids.append((await client.say(text))["id"])
                if reason is None:
                    break
                while (await client.until("notification", "session_event"))["payload"].get("event") != "turn_ended":
                    pass
                now = await state(bridge, "laptop")
                assert now["stop_reason"].startswith(reason), now
                assert "unacked_client_ids" not in now
            now = await state(bridge, "phone")
            assert (now["turn"], now.get("stop_reason", "")) == ("running", "")
            assert now["unacked_client_ids"] == ids
            async with raw(bridge) as other:
                await other.auth()
                listed = await other.ask("session_list", {}, "sessions")
                assert [each["title"] for each in listed["payload"]["sessions"]] == ["Release 42"]

    run(work)


class Counting(MemoryStore):
    """A store that counts the entries that it has read for runners."""

    read_entries = 0

    async def read(self, session: str, **options: Any) -> list[Entry]:
        found = await super().read(session, **options)
        self.read_entries += len(found) * is_runner()
        return found


@pytest.mark.parametrize("waits", [False, True], ids=["answered", "waiting"])
def test_a_long_log_is_not_read_from_its_beginning(*, waits: bool) -> None:
    async def agent(turn: Turn) -> str:
        return f"answer to {turn.text}"

    async def work() -> None:
        async with Counting() as store:
            async with serving(agent, store=store) as bridge, raw(bridge) as client:
                await joined(client)
                await client.say("early")
                assert await client.said() == "answer to early"
                chunk = ("stream_chunk", {"stream_id": "a", "text": "x"})
                for _ in range(20):
                    await bridge.hub.sessions["s"].publish(*[chunk] * 500)
                # Its end separates what was published from the answer that follows.
                await bridge.hub.sessions["s"].publish(("stream_end", {"stream_id": "a"}))
                assert await client.said() == "x" * 10_000
                await client.say("late")
                assert await client.said() == "answer to late"
                await client.until("session_event")
            if waits:
                body = Message(content="while nobody was there", role="user", id="m", client="phone")
                await store.commit(Commit(session="s", entries=(new_entry(body, "m"),)))
            store.read_entries = 0
            async with serving(agent, store=store) as bridge, raw(bridge) as client:
                await client.auth()
                await client.join("s")
                await client.say("again")
                texts = list[str]()
                while "answer to again" not in texts:
                    await client.next()
                    late = await MemoryStore.read(store, "s", after=10_000)
                    texts = [json.loads(bytes(each.body))["text"] for each in late if each.type == "stream_chunk"]
            answered = [text for text in texts if text.startswith("answer")]
            assert answered == ["answer to late", *["answer to while nobody was there"] * waits, "answer to again"]
            assert store.read_entries < 2_500, store.read_entries

    run(work)


def _log(client: Raw) -> list[dict[str, Any]]:
    """Return the log's messages, as far as the client has them."""
    found: list[dict[str, Any]] = []
    for message in client.received:
        if message["type"] == "replay_buffer":
            found += message["payload"]["messages"]
        elif "offset" in message:
            found.append(message)
    return found


def is_runner() -> bool:
    """Whether the runner of an agent is at work here."""
    task = asyncio.current_task()
    return task is not None and task.get_name().startswith("bridge: agent of")


class Late(SqliteStore):
    """A runner that has looked at the log has to wait until the test lets it open the session."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.looks, self.wanted, self.gate = 0, asyncio.Event(), asyncio.Event()

    async def session(self, session: str) -> SessionRecord:
        self.looks += is_runner()
        if is_runner() and self.looks == 2:
            self.wanted.set()
            await self.gate.wait()
        return await super().session(session)


def test_a_message_is_answered_once_although_two_servers_want_to(tmp_path: Path) -> None:
    """The second server gets the session when the first one has answered and left it."""
    answered = list[str]()

    async def first(turn: Turn) -> str:
        answered.append(f"first: {turn.text}")
        return "done"

    async def second(turn: Turn) -> str:
        answered.append(f"second: {turn.text}")
        return "done too"

    async def main() -> None:
        path = tmp_path / "s.db"
        async with (
            SqliteStore(path) as one,
            Late(path) as two,
            serving(first, store=one) as here,
            serving(second, store=two) as there,
            raw(here) as ada,
            raw(there) as bob,
        ):
            await joined(ada, client_id="ada")
            await bob.auth(client_id="bob")
            await bob.join("s")
            await ada.say("pay")
            assert await ada.said() == "done"
            await there.hub.sessions["s"].catch_up()
            await two.wanted.wait()
            await ada.ask("session_pause", {}, "ack")
            two.gate.set()
            await bob.say("and now?")
            while await bob.said() != "done too":
                pass

    run(main)
    assert answered == ["first: pay", "second: and now?"]


class Unreadable(MemoryStore):
    """The next read of an agent's runner fails."""

    failures: list[Exception] = []

    async def read(self, *args: Any, **options: Any) -> Any:
        if self.failures and is_runner():
            raise self.failures.pop()
        return await super().read(*args, **options)


@pytest.mark.parametrize("error", [HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE")), OSError("the disk is gone")])
def test_an_agent_that_waits_outlives_a_store_that_cannot_be_read(error: Exception) -> None:
    async def agent(turn: Turn) -> str:
        return f"you said {turn.text}"

    async def main() -> None:
        async with Unreadable() as store, serving(agent, store=store) as bridge, raw(bridge) as client:
            await joined(client)
            store.failures = [error]
            await client.say("hello")
            assert (await client.until("notification"))["payload"]["notification_type"] == "agent_unavailable"
            assert await client.said() == "you said hello"
            # The session is open now, and the runner waits for the next message.
            store.failures = [error]
            await client.say("again")
            assert await client.said() == "you said again"
            assert not store.failures

    run(main)


def test_a_password_reaches_the_program_and_is_stored_nowhere() -> None:
    async def work() -> None:
        got = list[Any]()

        async def agent(turn: Turn) -> str:
            got.append(await turn.session.password("Password?"))
            return "thanks"

        async with MemoryStore() as store, serving(agent, store=store) as bridge, raw(bridge) as client:
            await joined(client)
            await client.say("log in")
            question = await client.until("question")
            assert question["payload"]["kind"] == "Auth.Password"
            id_ = question["payload"]["question_id"]
            await client.ask("answer", {"question_id": id_, "value": "correct horse"}, "ack")
            assert await client.said() == "thanks"
            assert got == ["correct horse"]
            stored = b"".join(bytes(entry.body) for entry in await store.read("s"))
            trail = b"".join(bytes(record.payload) for record in await store.audit("s"))
            assert b"correct horse" not in stored + trail
            assert all("correct horse" not in str(m) for m in client.received)

    run(work)


def test_B26_a_password_that_is_sent_again_because_its_ack_was_lost_is_acknowledged_again() -> None:
    async def work() -> None:
        got = list[Any]()

        async def agent(turn: Turn) -> str:
            got.append(await turn.session.password("Password?"))
            return "thanks"

        async with serving(agent) as bridge:
            async with raw(bridge) as client:
                await client.auth(client_id="phone")
                await client.create("s")
                await client.say("log in")
                question = (await client.until("question"))["payload"]["question_id"]
                given = {"question_id": question, "value": "correct horse"}
                id_ = await client.send("answer", given)
                await client.send("answer", given, id_=id_)
                for _ in range(2):
                    assert (await client.until("ack", "error"))["payload"]["results"][0]["status"] == "stored"
                assert await client.said() == "thanks"
            async with raw(bridge) as client:
                await client.auth(client_id="phone")
                await client.join("s")
                await client.send("answer", given, id_=id_)
                assert (await client.until("ack", "error"))["type"] == "ack"
                other = await client.ask("answer", given, "ack")
                assert other["payload"]["code"] == "SESS_ALREADY_ANSWERED"
            assert got == ["correct horse"]

    run(work)


def test_a_code_for_signing_in_is_shown_and_not_stored() -> None:
    async def work() -> None:
        async def agent(turn: Turn) -> str:
            yes = await turn.session.authenticate("Sign in", url="https://example.org/device", user_code="AB-12")
            return "in" if yes else "out"

        async with (
            MemoryStore() as store,
            serving(agent, store=store) as bridge,
            raw(bridge) as client,
            raw(bridge) as late,
        ):
            await joined(client)
            await client.say("log in")
            question = await client.until("question")
            while "user_code" not in question["payload"]:
                question = await client.until("question")
            assert "offset" not in question
            await late.auth()
            await late.join("s", history="pending")
            state = await late.until("session_state")
            assert state["payload"]["pending_questions"][0]["user_code"] == "AB-12"
            id_ = question["payload"]["question_id"]
            await late.ask("answer", {"question_id": id_, "value": True}, "ack")
            assert await client.said() == "in"
            assert b"AB-12" not in b"".join(bytes(entry.body) for entry in await store.read("s"))

    run(work)


def test_S0_19_pause_resume_and_close() -> None:
    async def work() -> None:
        async with serving(FunctionAgent("echo", lambda prompt: prompt)) as bridge, raw(bridge) as client:
            await joined(client)
            assert (await client.ask("session_resume", {"session_id": "s"}, "session_joined"))["payload"]["code"] == (
                "SESS_NOT_RESUMABLE"
            )
            await client.say("hello")
            assert await client.said() == "hello"
            assert (await client.ask("session_pause", {}, "ack"))["type"] == "ack"
            assert (await bridge.hub.store.session("s")).state.value == "paused"
            again = await client.ask("session_resume", {"session_id": "s"}, "session_joined")
            assert again["payload"]["state"] == "active"
            await client.say("and again")
            assert await client.said() == "and again"
            assert (await client.ask("session_end", {"reason": "completed"}, "ack"))["type"] == "ack"
            assert (await bridge.hub.store.session("s")).state.value == "closed"
            assert (await client.say("too late"))["code"] == "SESS_CLOSED"
            assert (await client.join("s"))["code"] == "SESS_CLOSED"

    run(work)


async def _in_state(store: Store, state: str) -> None:
    while (record := await store.session("s")).state.value != state:
        await store.changed("s", record.top, LIMIT)


def test_B29_B69_grace_begins_when_the_last_client_leaves() -> None:
    async def work() -> None:
        settings = limits(grace=0.05)
        async with serving(FunctionAgent("echo", lambda prompt: prompt), limits=settings) as bridge:
            async with raw(bridge) as one:
                await joined(one)
                await one.say("hello")
                assert await one.said() == "hello"
                async with raw(bridge) as two:
                    await two.auth()
                    await two.join("s")
                await one.until("presence")
                assert not bridge.hub._graces
            store = bridge.hub.store
            await _in_state(store, "paused")
            async with raw(bridge) as one:
                await one.auth()
                await one.join("s")
                await one.say("back")
                assert await one.said() == "back"

    run(work)


def test_B29_messages_that_wait_are_answered_before_the_session_is_paused() -> None:
    async def work() -> None:
        go = asyncio.Event()
        answered = list[str]()

        async def agent(turn: Turn) -> None:
            await go.wait()
            answered.append(turn.text)

        async with serving(agent, limits=limits(grace=0.02)) as bridge:
            async with raw(bridge) as client:
                await joined(client)
                for number in range(3):
                    await client.say(str(number))
                live = bridge.hub.sessions["s"]
                assert live.runner is not None
                runner = live.runner
            # The grace is over while the first turn still runs.
            await asyncio.wait_for(runner._leaving.wait(), LIMIT)
            go.set()
            await _in_state(bridge.hub.store, "paused")
            assert answered == ["0", "1", "2"]

    run(work)


def test_B29_a_session_in_which_nothing_was_done_is_closed_after_the_grace() -> None:
    async def work() -> None:
        async with serving(limits=limits(grace=0.05)) as bridge:
            async with raw(bridge) as client:
                await joined(client)
            await _in_state(bridge.hub.store, "closed")

    run(work)


def test_XB6_a_fatal_failure_ends_the_use_of_its_session_and_nothing_else() -> None:
    """The session is opened anew for its next message, and the others go on."""

    async def work() -> None:
        runtime, opened, go = Runtime(), set[int](), asyncio.Event()

        @recover("team", runtime=runtime)
        async def fail(code: Any) -> str:
            raise HoldfastError(Fault.of(code))

        async def agent(turn: Turn) -> str:
            if turn.session.id == "s":
                opened.add(id(turn.session))
            if turn.text == "wait":
                await go.wait()
                return "waited"
            return str(await fail(turn.text)) if turn.text.isupper() else turn.text

        async with serving(agent, runtime=runtime) as bridge, raw(bridge) as client, raw(bridge) as other:
            await joined(client)
            await other.auth()
            await other.create("other")
            await other.say("wait")
            await client.say("ACTOR_MAX_RESTARTS")
            await client.say("after it")
            assert await client.said() == "after it"
            assert len(opened) == 2
            go.set()
            assert await other.said() == "waited"
            runtime.bus.emit(Failed(at=0.0, fault=Fault.of("SYS_INTERNAL_ERROR"), exhausted=False))
            await client.say("still here")
            assert await client.said() == "still here"

    run(work)


@pytest.mark.parametrize("says", [False, True])
def test_half_a_character_loses_nothing_that_is_said(says: bool) -> None:
    """A stream of a provider may cut an emoji in two. Two halves are one again, and one alone is marked."""

    async def agent(turn: Turn) -> AsyncIterator[str]:
        if says:
            await turn.say("\ud83d\ude00 one \ud83d")
            await turn.notify("note \ude00", of="\ud83d")
        yield "\ud83d\ude00 two \ud83d"

    async def work() -> None:
        async with serving(agent) as bridge, raw(bridge) as client:
            await joined(client)
            await client.say("go")
            if says:
                assert await client.said() == "😀 one \ufffd"
                notice = (await client.until("notification"))["payload"]
                assert (notice["title"], notice["data"]) == ("note \ufffd", {"of": "\ufffd"})
            assert await client.said() == "😀 two \ufffd"
            await client.say("again")
            assert await client.said() == ("😀 one \ufffd" if says else "😀 two \ufffd")

    run(work)


def test_a_number_that_no_frame_may_have_keeps_no_call_from_its_approval() -> None:
    """Amounts in the smallest unit of a currency may have more than 64 bits. Clients read them as texts, and exactly those run."""
    paid = []
    wei = 10**21 + 1

    @tool(effect="unsafe")
    async def pay(wei: int) -> str:
        paid.append(wei)
        return "paid"

    calls = Reply(calls=(ToolCall(id="c", name="pay", arguments={"wei": wei}),))

    async def work() -> None:
        async with serving(Agent("payer", Model(calls, Reply(text="Done.")), [pay])) as bridge:
            async with Client(bridge.ws_url, token="token") as client, client.create("s") as session:
                await session.send("pay")
                seen = []
                async for message in session:
                    seen.append(message)
                    match message:
                        case Question():
                            assert message.params == {"wei": str(wei)}
                            assert message.id in {each.id for each in await asked(bridge.ws_url)}
                            await session.answer(message.id, True)
                        case SessionEvent(event="turn_ended"):
                            break
                assert {"wei": str(wei)} in [each.params for each in seen if isinstance(each, ToolCalled)]
            assert paid == [wei]

    async def asked(url: str) -> list[Question]:
        """Return what another client of the session is asked that joins now."""
        async with Client(url, token="token") as other, other.join("s", history="none") as session:
            async for message in session:
                if isinstance(message, State):
                    return list(message.questions)
        return []

    run(work)
