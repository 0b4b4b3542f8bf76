"""`holdfast attach` as a real process at a bridge on a loopback port, with a pipe and at a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from cli_runs import SCRIPT, environment, holdfast

sys.path.insert(0, str(Path(__file__).parents[1] / "bridge"))
from bridge_kit import LIMIT, Model, limits, serving

from holdfast import Agent, tool
from holdfast.agents import Hooks, Validator
from holdfast.bridge import Client
from holdfast.bridge.access.tls import TlsFiles
from holdfast.cli.bridge.attach import _UNREAD_S
from holdfast.providers import Reply, ToolCall
from holdfast.sessions import Session
from holdfast.stores import MemoryStore


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 4 * LIMIT))


async def attached(url: str, *arguments: str, given: bytes = b"", **env: str) -> tuple[int, str, str]:
    """Run the command with a pipe; return its exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        SCRIPT,
        "attach",
        *arguments,
        "--url",
        url,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**({"BRIDGE_TOKEN": "token"} | env)),
    )
    out, err = await process.communicate(given)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def echo(turn: Any) -> None:
    await turn.say(f"You said: {turn.text}\x1b[2J")


def test_N1_10_of_a_call_that_is_looked_at_only_what_was_wrong_is_a_line() -> None:
    def style(checked: Any) -> Any:
        return "not like this" if checked.call.arguments["text"] == "bad" else None

    @tool(effect="idempotent")
    def write_text(text: str) -> str:
        return "written"

    async def work() -> None:
        calls = tuple(ToolCall(id=text, name="write_text", arguments={"text": text}) for text in ("good", "bad"))
        hooks = Hooks(validators=[Validator(name="style", check=style, on="PreToolUse")])
        agent = Agent("writer", Model(Reply(calls=calls), Reply(text="Done.")), [write_text], hooks=hooks)
        async with serving(agent) as bridge:
            code, out, err = await attached(bridge.ws_url, "s", "--create", given=b"write\n")
            assert (code, out) == (0, "Done.\n")
            (line,) = [line for line in err.splitlines() if "validator style" in line]
            assert "failed" in line

    run(work)


def test_a_line_of_a_pipe_is_sent_and_the_answer_is_all_that_stdout_has() -> None:
    async def work() -> None:
        async with serving(echo) as bridge:
            code, out, err = await attached(bridge.ws_url, "s", "--create", given=b"fix the tests\n")
            # What an agent says cannot move the cursor.
            assert (code, out) == (0, "You said: fix the tests\N{REPLACEMENT CHARACTER}[2J\n")
            assert "> fix the tests" in err
            assert "connected to" in err
            code, out, err = await attached(bridge.ws_url, "s", "--history", "full", "--json")
            messages = [json.loads(line) for line in out.splitlines()]
            assert [each["text"] for each in messages if each["type"] == "UserText"] == ["fix the tests"]
            assert [each["type"] for each in messages].count("Text") == 1

    run(work)


def test_a_pipe_with_several_lines_waits_for_the_answer_to_the_last_one() -> None:
    async def work() -> None:
        async with serving(echo) as bridge:
            given = "".join(f"{number}\n" for number in range(1, 13)).encode()
            code, out, _ = await attached(bridge.ws_url, "s", "--create", given=given)
            assert code == 0
            assert [line.removesuffix("\N{REPLACEMENT CHARACTER}[2J") for line in out.splitlines()] == [
                f"You said: {number}" for number in range(1, 13)
            ]

    run(work)


def test_a_pipe_whose_turn_failed_ends_with_1() -> None:
    async def fails(turn: Any) -> None:
        raise LookupError(turn.text)

    async def work() -> None:
        async with serving(fails) as bridge:
            code, out, _ = await attached(bridge.ws_url, "s", "--create", given=b"fix the tests\n")
            assert (code, out) == (1, "")
            # The failure of an earlier turn is not that of a later pipe.
            code, _, _ = await attached(bridge.ws_url, "s", "--history", "full")
            assert code == 0

    run(work)


def test_a_pipe_whose_message_is_not_accepted_ends_with_1() -> None:
    async def work() -> None:
        async with serving(echo) as bridge:
            code, out, err = await attached(bridge.ws_url, "s", "--create", given=b"x" * 1_200_000)
            assert (code, out) == (1, "")
            assert "not accepted: PROTO_MESSAGE_TOO_LARGE" in err

    run(work)


def test_a_pipe_that_answers_a_question_waits_for_what_the_agent_says_then() -> None:
    async def asks(turn: Any) -> None:
        await turn.say("deployed" if await turn.approve("Deploy?") else "not deployed")
        if await turn.approve("Announce?"):
            raise LookupError(turn.text)

    async def work() -> None:
        async with serving(asks) as bridge:
            code, out, _ = await attached(bridge.ws_url, "s", "--create", given=b"deploy\n")
            assert (code, out) == (7, "")
            code, out, _ = await attached(bridge.ws_url, "s", "--history", "pending", given=b"y\n")
            assert (code, out) == (7, "deployed\n")
            code, out, _ = await attached(bridge.ws_url, "s", "--history", "none", given=b"y\n")
            assert code == 1

    run(work)


def test_a_pipe_does_not_wait_for_ever_for_the_answer_to_a_question() -> None:
    done: list[str] = []

    async def asks(turn: Any) -> None:
        done.append("deployed" if await turn.approve("Deploy?") else "not deployed")
        has_ended.set()

    has_ended = asyncio.Event()

    async def work() -> None:
        async with serving(asks) as bridge:
            code, out, err = await attached(bridge.ws_url, "my-s", "--create", given=b"deploy\n")
            # "A person must confirm or answer first", with the commands that do.
            assert (code, out) == (7, "")
            assert "the agent waits for an answer: Deploy?" in err
            assert re.search(r"holdfast sessions answer my-s \S+ --yes", err)
            assert "holdfast attach my-s" in err
            # The question still waits, and a line of another pipe answers it.
            code, _, _ = await attached(bridge.ws_url, "my-s", given=b"n too risky\n")
            await has_ended.wait()
            assert (code, done) == (0, ["not deployed"])

    run(work)


def test_a_line_of_a_pipe_answers_the_question_that_the_line_before_it_led_to() -> None:
    async def asks(turn: Any) -> None:
        await turn.say("deployed" if await turn.approve("Deploy?") else "not deployed")

    async def work() -> None:
        async with serving(asks) as bridge:
            code, out, _ = await attached(bridge.ws_url, "s", "--create", given=b"deploy\ny\n")
            assert (code, out) == (0, "deployed\n")

    run(work)


def test_XB2_a_message_that_is_too_large_is_not_accepted_and_a_kept_one_is_listed_and_discarded(tmp_path: Path) -> None:
    kept = tmp_path / "outbox.db"

    async def work() -> None:
        async with serving(echo) as bridge:
            offline = Client("ws://127.0.0.1:9/ws", token="token", outbox=kept, offline=True)
            async with offline, offline.create("s") as session:
                sent = asyncio.create_task(session.send("x" * 1_000_000))
                while not offline.pending:  # noqa: ASYNC110 - the outbox sets no event
                    await asyncio.sleep(0.01)
            await asyncio.gather(sent, return_exceptions=True)
            given = b"y" * 999_999 + b"\n/pending\n/discard 1\n/pending\nshort\n"
            code, out, err = await attached(bridge.ws_url, "s", "--create", "--outbox", str(kept), given=given)
            assert (code, "You said: short" in out) == (1, True)
            assert "not accepted: " in err
            assert "the server takes 1000000 at most" in err
            assert "discarded: xxx" in err
            assert "the bridge has stored everything" in err

    run(work)


def test_what_cannot_work_is_told_in_one_line_with_an_exit_code() -> None:
    async def work() -> None:
        async with serving() as bridge:
            at = ("--url", bridge.ws_url)
            done = await asyncio.to_thread(holdfast, "attach", "nope", *at, env={"BRIDGE_TOKEN": "token"})
            assert (done.exit_code, done.stdout) == (3, "")
            assert "SESS_NOT_FOUND" in done.stderr
            assert "--create makes it" in done.stderr
            # An address without a path means that of the WebSocket, and not of the page.
            bare = ("--url", bridge.ws_url.removesuffix("/ws"), "--create")
            done = await asyncio.to_thread(holdfast, "attach", "my session", *bare, env={"BRIDGE_TOKEN": "token"})
            assert done.exit_code != 0
            assert "payload.session_id" in done.stderr
            assert "my session" in done.stderr
            done = await asyncio.to_thread(holdfast, "attach", "s", *at, env={"BRIDGE_TOKEN": "wrong"})
            assert done.exit_code != 0
            assert "AUTH_FAILED" in done.stderr

    run(work)
    done = holdfast("attach", "s", env={"BRIDGE_TOKEN": ""})
    assert done.exit_code == 2
    assert "holdfast tokens create" in done.stderr
    done = holdfast("attach", "s", "--url", "ws://example.com/ws", env={"BRIDGE_TOKEN": "token"})
    assert done.exit_code == 2
    assert "wss://" in done.stderr


def test_ws_to_a_port_that_speaks_tls_is_diagnosed_and_not_tried_for_ever(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create(["127.0.0.1"])

    async def work() -> None:
        settings = limits(tls_cert=files.cert, tls_key=files.key)
        async with serving(limits=settings) as bridge:
            at = ("--url", bridge.ws_url.replace("wss://", "ws://"))
            done = await asyncio.to_thread(holdfast, "attach", "s", *at, env={"BRIDGE_TOKEN": "token"})
            assert done.exit_code != 0
            assert "CONN_MISCONFIGURED" in done.stderr
            assert "speaks TLS: connect to wss://" in done.stderr

    run(work)


def test_a_question_is_answered_at_the_terminal() -> None:
    async def work() -> None:
        async with MemoryStore() as store, serving(store=store) as bridge, Session.open("s", store=store) as session:
            asked = asyncio.create_task(session.approve("Deploy?", expires=60))
            mine, theirs = pty.openpty()
            process = await asyncio.create_subprocess_exec(
                SCRIPT,
                "attach",
                "s",
                "--url",
                bridge.ws_url,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=environment(BRIDGE_TOKEN="token", TERM="dumb"),
            )
            os.close(theirs)
            await shows(mine, "? Deploy?", "[y/n]")
            # By then somebody can have read it.
            await asyncio.sleep(_UNREAD_S)
            os.write(mine, b"perhaps\n")
            await shows(mine, "answer with y or n")
            os.write(mine, b"n too risky\n")
            assert await asked is False
            await shows(mine, "answered: rejected")
            os.write(mine, b"/quit\n")
            assert await process.wait() == 0
            os.close(mine)

    run(work)


def test_what_was_typed_for_one_question_is_no_answer_to_the_next() -> None:
    """Somebody else answers the first one while a person types. Their line must not approve what they have not read."""

    async def work() -> None:
        async with MemoryStore() as store, serving(store=store) as bridge, Session.open("s", store=store) as session:
            first = asyncio.create_task(session.approve("Read?", expires=60))
            mine, theirs = pty.openpty()
            process = await asyncio.create_subprocess_exec(
                *(SCRIPT, "attach", "s", "--url", bridge.ws_url),
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=environment(BRIDGE_TOKEN="token", TERM="dumb"),
            )
            os.close(theirs)
            await shows(mine, "? Read?", "[y/n]")
            (question,) = session.pending
            await session.answer(question.id, False)
            assert await first is False
            second = asyncio.create_task(session.approve("Delete?", expires=60))
            await shows(mine, "? Delete?", "[y/n]")
            os.write(mine, b"y\n")
            await shows(mine, "typed before this question was shown")
            assert not second.done()
            await asyncio.sleep(_UNREAD_S)
            os.write(mine, b"n\n")
            assert await second is False
            # There is no question any more, and it was this person who answered: a line is a message at once.
            await shows(mine, "answered: rejected")
            os.write(mine, b"hello\n")
            live = await bridge.hub.live("s")
            while b"hello" not in b"".join(held.frame for held in live.held_since(None)[0]):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            os.write(mine, b"/quit\n")
            assert await process.wait() == 0
            os.close(mine)

    run(work)


def test_XB5_a_call_is_shown_as_it_runs_and_opened_before_it_is_approved() -> None:
    async def work() -> None:
        arguments = json.dumps({"command": "x" * 3000 + "; rm -rf / \u202egpj"}, ensure_ascii=False)
        details = {"tool": "bash", "arguments": arguments}
        async with MemoryStore() as store, serving(store=store) as bridge, Session.open("s", store=store) as session:
            asked = asyncio.create_task(session.approval("Run bash(…)?", details=details, expires=30, call="c"))
            _, _, first = await attached(bridge.ws_url, "s", given=b"y\no\n")
            was_open = not asked.done()
            await attached(bridge.ws_url, "s", given=b"o\ny\n")
            assert (await asked).outcome == "accepted"
        assert was_open
        assert first.index("o shows all") < first.index("; rm -rf / ⟨U+202E⟩gpj")

    run(work)


def test_XB5_a_call_that_cannot_be_shown_whole_is_not_approved() -> None:
    async def work() -> None:
        details = {"tool": "put", "arguments": json.dumps({"text": "x" * 5_000_000})}
        async with MemoryStore() as store, serving(store=store) as bridge, Session.open("s", store=store) as session:
            asked = asyncio.create_task(session.approval("Run put(…)?", details=details, expires=30, call="c"))
            _, _, shown = await attached(bridge.ws_url, "s", given=b"o\ny\nn too much\n")
            assert "nobody can say yes here" in shown
            assert (await asked).outcome == "rejected"

    run(work)


def test_XB9_a_question_that_is_too_old_to_be_replayed_is_asked_and_answered() -> None:
    async def work() -> None:
        bridge_ = serving(store=(store := MemoryStore()), limits=limits(ring_bytes=2_000))
        async with store, bridge_ as bridge, Session.open("s", store=store) as session:
            asked = asyncio.create_task(session.approve("Deploy?", expires=30))
            live = await bridge.hub.live("s")
            while not (await live.doing())[1]:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            note = {"notification_id": "n", "notification_type": "x", "title": "n" * 500}
            await live.publish(*[("notification", note)] * 10)
            _, _, shown = await attached(bridge.ws_url, "s", given=b"y\n")
            assert "? Deploy?" in shown
            assert await asked is True

    run(work)


def test_XB11_a_hook_line_names_its_tool() -> None:
    async def work() -> None:
        async with serving() as bridge:
            await bridge.hub.create("s")
            hooks = [{"event": "PreToolUse", "data": {"tool": "Bash"}}, {"event": "Stop", "data": {}}]
            await (await bridge.hub.live("s")).publish(*[("claude_event", each) for each in hooks])
            _, _, shown = await attached(bridge.ws_url, "s", given=b"/pending\n")
            assert "· PreToolUse Bash\n" in shown
            assert "· Stop\n" in shown

    run(work)


async def shows(terminal: int, *wanted: str) -> None:
    """Read the terminal until it has shown all of these."""
    shown = ""
    async with asyncio.timeout(LIMIT):
        while not all(each in shown for each in wanted):
            shown += (await asyncio.to_thread(os.read, terminal, 65_536)).decode("utf-8", "replace")
