"""Document 004's messages: a command-line agent returns Responses with duration, cost and session, and streams events."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast import INTERACTIVE, Backoff, CommandAgent, Policy, Runtime
from holdfast.actors.messages import Message, MessageSupervisor
from holdfast.agents import ClaudeActor, CommandActor
from holdfast.testing import forget_targets

ONCE = Policy(attempts=1, timeout=None)
RESULT = json.dumps({"type": "result", "text": "Hello.", "usd": 0.5, "turns": 1})
SESSION = json.dumps({"type": "session", "id": "s-1"})


@pytest.fixture(autouse=True)
def _fresh():
    forget_targets()


def actor(script: str, **options) -> CommandActor:
    return CommandActor("claude", CommandAgent(["bash", "-c", script], form="plain", **{"policy": ONCE, **options}))


def prompt(payload: object = "say hello", type_: str = "prompt") -> Message:
    return Message(id="m-1", type=type_, payload=payload)


def test_S4_6_a_response_has_the_reply_and_its_duration_cost_and_session():
    response = asyncio.run(actor(f"echo '{SESSION}'; echo '{RESULT}'").send(prompt({"prompt": "say hello"})))
    assert response["success"] is True
    assert response["data"]["text"] == "Hello."
    metadata = response["metadata"]
    assert (metadata["costUsd"], metadata["sessionId"]) == (0.5, "s-1")
    assert metadata["durationMs"] >= 0


@pytest.mark.parametrize(
    ("stderr", "type_", "code", "retryable"),
    [
        ("connect ECONNREFUSED", "transient", "CLAUDE_CLI_NETWORK", True),
        ("it is odd", "permanent", "CLAUDE_CLI_ERROR", False),
    ],
)
def test_S4_19_a_failed_response_has_document_004s_codes(stderr, type_, code, retryable):
    response = asyncio.run(actor(f"echo '{SESSION}'; echo '{stderr}' >&2; exit 1", resume=["{session}"]).send(prompt()))
    error = response["error"]
    assert (response["success"], error["type"], error["code"], error["retryable"]) == (False, type_, code, retryable)
    assert stderr in error["message"]
    assert response["metadata"]["sessionId"] == "s-1"


def test_S4_10_a_lost_network_is_tried_twice_in_all(tmp_path):
    agent = actor(
        f"echo x >> {tmp_path}/starts; echo network >&2; exit 1",
        policy=ONCE.replace(attempts=2, backoff=Backoff(initial=0)),
    )
    response = asyncio.run(agent.send(prompt()))
    assert response["error"]["message"].startswith("Failed after 2 attempts: ")
    assert (tmp_path / "starts").read_text() == "x\nx\n"


def test_S4_18_a_silent_stream_ends_with_a_stream_timeout_event():
    async def main():
        async with actor("echo half; sleep 600", idle=0.4).stream(prompt()) as events:
            return [event async for event in events]

    text, last = asyncio.run(main())
    assert (text["type"], text["data"]) == ("text", {"text": "half"})
    assert last["type"] == "error"
    assert last["timestamp"] > 0
    error = last["data"]["error"]
    assert (error["type"], error["code"], error["message"]) == (
        "transient",
        "STREAM_TIMEOUT",
        "Stream exceeded timeout of 400ms",
    )
    assert error["context"]["durationMs"] >= 400
    # It printed something, and its conversation cannot be resumed: the work may be half done.
    assert not error["retryable"]


def test_S4_18_a_limit_that_ends_the_wait_for_another_start_is_a_stream_timeout_with_its_duration(tmp_path):
    async def main():
        policy = ONCE.replace(attempts=2, backoff=Backoff(initial=0.15, jitter=0.0))
        claude = actor(f"echo x >> {tmp_path}/starts; echo network >&2; exit 1", policy=policy, total=0.1)
        async with claude.stream(prompt()) as events:
            return [event async for event in events]

    error = asyncio.run(main())[-1]["data"]["error"]
    assert (error["code"], error["retryable"]) == ("STREAM_TIMEOUT", True)
    assert error["context"]["durationMs"] >= 100
    assert (tmp_path / "starts").read_text() == "x\n"


def test_a_claude_actor_follows_what_is_configured_and_keeps_its_limits(tmp_path):
    runtime = Runtime(waits=False)
    runtime.configure(INTERACTIVE, {"agent:claude-1": ONCE})
    script = tmp_path / "claude"
    script.write_text(f"echo x >> {tmp_path}/starts; echo network >&2; exit 1")
    claude = ClaudeActor("claude-1", command=["bash", str(script)], runtime=runtime)
    response = asyncio.run(claude.send(prompt()))
    assert response["error"]["code"] == "CLAUDE_CLI_NETWORK"
    assert (tmp_path / "starts").read_text() == "x\n"
    other = ClaudeActor("claude-1", runtime=Runtime(profile="spec016"))
    for each in (claude, other):
        assert (each._agent.total(is_stream=False), each._streaming.total(is_stream=True)) == (120, 300)


def test_a_stream_that_ends_well_ends_with_the_response():
    async def main():
        async with actor(f"echo '{RESULT}'").stream(prompt()) as events:
            return [event async for event in events]

    (last,) = asyncio.run(main())
    assert (last["type"], last["data"]["response"]["data"]["text"]) == ("result", "Hello.")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (prompt(""), "INVALID_MESSAGE"),
        (prompt(7), "INVALID_MESSAGE"),
        (prompt(type_="dance"), "UNKNOWN_MESSAGE_TYPE"),
        ("hello", "INVALID_MESSAGE"),
    ],
)
def test_S4_17_a_wrong_message_is_a_response_and_starts_nothing(message, code, tmp_path):
    async def main():
        claude = actor(f"touch {tmp_path}/started; echo hi")
        async with claude.stream(message) as events:
            (event,) = [event async for event in events]
        return await claude.send(message), event

    response, event = asyncio.run(main())
    assert (response["error"]["type"], response["error"]["code"]) == ("validation", code)
    assert event["data"]["error"]["code"] == code
    assert not (tmp_path / "started").exists()


def test_a_supervisor_sends_to_a_command_line_agent():
    async def main():
        async with MessageSupervisor() as supervisor:
            await supervisor.supervise(lambda: actor(f"echo '{RESULT}'"))
            return await supervisor.send("claude", prompt())

    assert asyncio.run(main())["data"]["text"] == "Hello."
