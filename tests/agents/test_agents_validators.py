"""Validators of an agent's work: what passes, what is corrected, what is rejected, and the events of each check."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest
from agents_kit import World

from holdfast import HoldfastError, InvalidError, tool
from holdfast.agents import Hooks, Validator
from holdfast.events import Correction, HookEvent, Retry, SuppressedError, write_document
from holdfast.faults import Fault
from holdfast.sinks import HookBadge, HookBoard, watch_hooks
from holdfast.testing.provider import Turn
from holdfast.testing.provider.replies import ToolCall

WRITE = Turn(calls=(ToolCall("write_text", {"path": "a.py", "text": "x=1"}),))


def written_by(world: World, *validators: Validator, **more: Any) -> tuple[Any, list[str]]:
    """What an agent answers that writes a file, and what its tool was given."""
    given: list[str] = []

    @tool(effect="idempotent")
    def write_text(path: str, text: str) -> str:
        given.append(text)
        return f"wrote {path}"

    agent = world.agent(write_text, hooks=Hooks(validators=validators))
    return world.run(agent.run("write it", **more)), given


def whats(world: World) -> list[tuple[str, str]]:
    return [(event.validator, event.what) for event in world.of(HookEvent)]


def test_a_validator_that_is_content_lets_the_call_pass():
    world = World(WRITE, "done")
    reply, given = written_by(world, Validator(name="style", check=lambda checked: None, on="PreToolUse"))
    assert (reply.text, given) == ("done", ["x=1"])
    assert whats(world) == [("style", "pending"), ("style", "triggered"), ("style", "passed")]
    passed = world.of(HookEvent)[-1]
    assert (passed.hook, passed.path, passed.exit_code) == ("PreToolUse", "a.py", 0)
    assert passed.call


def test_a_correction_before_the_call_is_what_the_tool_gets():
    def spaced(checked):
        before = checked.call.arguments
        return Correction(before=before, after={**before, "text": "x = 1"})

    world = World(WRITE, "done")
    _, given = written_by(world, Validator(name="format", check=spaced, on="PreToolUse"))
    assert given == ["x = 1"]
    corrected = world.of(HookEvent)[-1]
    assert (corrected.what, corrected.exit_code, corrected.correction.after["text"]) == ("corrected", 2, "x = 1")
    assert write_document(corrected)["type"] == "hook_corrected"


def test_a_correction_that_is_no_call_is_an_error_of_the_validator_and_the_call_is_made_as_it_was():
    world = World(WRITE, "done")
    bad = Validator(name="bad", check=lambda checked: Correction(before=1, after=2), on="PreToolUse")
    _, given = written_by(world, bad)
    assert given == ["x=1"]
    assert whats(world)[-1] == ("bad", "error")


def test_a_rejected_call_is_not_made_and_the_model_gets_the_reason():
    world = World(WRITE, "sorry")
    never = Validator(name="never", check=lambda checked: "a.py is read-only", on="PreToolUse")
    after = Validator(name="after", check=lambda checked: None, on="PreToolUse")
    reply, given = written_by(world, never, after)
    assert (reply.text, given) == ("sorry", [])
    assert "a.py is read-only" in json.dumps(world.sent[1])
    assert whats(world)[2:] == [("never", "triggered"), ("never", "failed"), ("after", "skipped")]


def test_a_result_is_corrected_or_rejected_and_the_model_learns_that_the_call_was_made():
    world = World(WRITE, "done")
    written_by(world, Validator(name="shout", check=lambda c: Correction(before=c.content, after=c.content.upper())))
    assert "WROTE A.PY" in json.dumps(world.sent[1])
    world = World(WRITE, "done")
    written_by(world, Validator(name="lint", check=lambda c: "line 1 is wrong", tools=frozenset({"write_text"})))
    told = json.dumps(world.sent[1])
    assert "line 1 is wrong" in told
    assert "wrote a.py" in told


def test_a_validator_of_other_tools_is_not_asked():
    world = World(WRITE, "done")
    written_by(world, Validator(name="lint", check=lambda c: "wrong", tools=frozenset({"read_file"})))
    assert whats(world) == []


def test_a_rejected_answer_is_asked_for_again_and_then_ends_the_run():
    world = World("no", "no", "yes")
    agent = world.agent(
        hooks=Hooks(validators=[Validator(name="yes", check=lambda c: c.content == "yes" or "say yes", on="Stop")])
    )
    assert world.run(agent.run("?")).text == "yes"
    assert "say yes" in json.dumps(world.sent[1])
    world = World("no")
    agent = world.agent(hooks=Hooks(validators=[Validator(name="yes", check=lambda c: "say yes", on="Stop")]))
    with pytest.raises(HoldfastError) as raised:
        world.run(agent.run("?"))
    assert raised.value.fault.code == "PROVIDER_OUTPUT_INVALID"
    assert world.received == 3


def test_a_validator_that_raises_rejects_nothing():
    world = World(WRITE, "done")
    _, given = written_by(world, Validator(name="broken", check=lambda c: 1 / 0, on="PreToolUse"))
    assert given == ["x=1"]
    error = world.of(HookEvent)[-1]
    assert (error.what, error.exit_code, error.message) == ("error", 1, "ZeroDivisionError: division by zero")
    (ignored,) = world.of(SuppressedError)
    assert ignored.reason == "the validator broken raised"


@pytest.mark.parametrize("on", ["PreToolUse", "PostToolUse", "Stop"])
@pytest.mark.parametrize("verdict", [False, "", 0, {}])
def test_what_is_no_verdict_rejects_and_is_reported(on, verdict):
    world = World(WRITE, "done")
    slip = Validator(name="slip", check=lambda checked: verdict, on=on)
    if on == "Stop":
        with pytest.raises(HoldfastError, match="rejected by slip"):
            written_by(world, slip)
    else:
        _, given = written_by(world, slip)
        assert given == ([] if on == "PreToolUse" else ["x=1"])
        (result,) = world.sent[-1]["messages"][-1]["content"]
        assert result["is_error"]
        assert "rejected by slip" in result["content"]
    assert ("slip", "failed") in whats(world)
    (reported,) = world.of(SuppressedError)
    assert reported.reason == "the validator slip (what it checked is rejected) raised"


def test_a_call_of_a_session_that_is_run_again_is_corrected_again_and_not_made_again(tmp_path):
    store, asked = f"sqlite:{tmp_path}/s.db", []

    def spaced(checked):
        asked.append(1)
        return Correction(before=checked.call.arguments, after={**checked.call.arguments, "text": "x = 1"})

    def once() -> list[str]:
        world, given = World(WRITE, "done"), []

        @tool(effect="unsafe")
        def write_text(path: str, text: str) -> str:
            given.append(text)
            return "ok"

        agent = world.agent(write_text, hooks=Hooks(validators=[Validator(name="f", check=spaced, on="PreToolUse")]))

        async def main():
            async with world.session(store) as session:
                return await agent.run("write it", session=session)

        world.run(main())
        return given

    assert [once(), once()] == [["x = 1"], []]


PROGRAM = """
import json, sys
checked = json.load(sys.stdin)
text = checked["call"]["arguments"]["text"]
if text == "x=1":
    print(json.dumps({**checked["call"]["arguments"], "text": "x = 1"}))
    sys.exit(2)
if text == "bad":
    print("it is bad", file=sys.stderr)
    sys.exit(2)
sys.exit(0 if text == "good" else 1)
"""


@pytest.mark.parametrize(
    ("text", "what", "given"),
    [("x=1", "corrected", ["x = 1"]), ("bad", "failed", []), ("good", "passed", ["good"]), ("odd", "error", ["odd"])],
)
def test_a_program_is_a_validator_by_its_exit_code(text, what, given):
    checker = Validator.command("checker", [sys.executable, "-c", PROGRAM], on="PreToolUse")
    world, received = World(Turn(calls=(ToolCall("write_text", {"path": "a.py", "text": text}),)), "done"), []

    @tool(effect="idempotent")
    def write_text(path: str, text: str) -> str:
        received.append(text)
        return "ok"

    # In real time: a program takes as long as it takes.
    asyncio.run(world.agent(write_text, hooks=Hooks(validators=[checker])).run("write it"))
    assert (world.of(HookEvent)[-1].what, received) == (what, given)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"name": " "}, "validator.name"),
        ({"check": "x"}, "validator.check"),
        ({"on": "Start"}, "validator.on"),
        ({"tools": "bash"}, "validator.tools"),
    ],
)
def test_wrong_options_are_named(options, path):
    with pytest.raises(InvalidError, match=path.replace(".", r"\.")):
        Validator(**{"name": "a", "check": lambda checked: None, **options})


def test_hooks_take_only_validators():
    with pytest.raises(InvalidError, match=r"hooks\.validators"):
        Hooks(validators=[lambda checked: None])


# --- the board ---


def hook(what: str, at: float = 0.0, validator: str = "style", call: str = "c1") -> HookEvent:
    return HookEvent(at=at, what=what, hook="PostToolUse", validator=validator, call=call)


def test_each_state_has_its_badge():
    board = HookBoard()
    badges = [
        board.apply(hook(what)).badge.value
        for what in ("pending", "triggered", "passed", "corrected", "failed", "skipped")
    ]
    assert badges == ["pending", "validating", "passed", "corrected", "failed", "skipped"]
    assert board.badges == {("c1", "style"): HookBadge.SKIPPED}


def test_toasts_stay_2_s_5_s_or_until_they_are_closed():
    board = HookBoard()
    toasts = [board.apply(hook(what, at)).toast for at, what in enumerate(("passed", "corrected", "failed"))]
    assert [(toast.seconds, toast.hidden) for toast in toasts] == [(2.0, True), (5.0, False), (None, False)]
    assert board.apply(hook("triggered")).toast is None


def test_corrections_that_follow_each_other_share_a_toast():
    board = HookBoard()
    texts = [board.apply(hook("corrected", at)).toast.text for at in (0.0, 0.4, 0.9, 5.0)]
    assert texts == ["style corrected", "2 corrections", "3 corrections", "style corrected"]


def test_the_history_keeps_the_last_hundred_with_the_recovery_events_as_indicators():
    world, seen = World(), []
    with watch_hooks(seen.append, world.runtime):
        retry = Retry(at=0.0, attempt=1, max_attempts=3, delay=1.0, fault=Fault.of("CONN_RESET"))
        world.runtime.bus.emit(retry)
        for number in range(120):
            world.runtime.bus.emit(hook("passed", number, call=str(number)))
    assert (seen[0].event, seen[0].badge) == (retry, None)
    board = HookBoard()
    for change in seen:
        board.apply(change.event)
    assert len(board.history) == len(board.badges) == 100
    assert board.history[0].call == "20"
    with pytest.raises(InvalidError, match="watch_hooks"):
        watch_hooks("x", world.runtime)
