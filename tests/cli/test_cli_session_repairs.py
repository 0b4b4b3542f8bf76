"""`holdfast sessions show|resume|resolve|retry|abandon|fork`: a person finds out what happened, and repairs it."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sqlite3
from contextlib import closing

import pytest
from cli_runs import KEY, holdfast

from holdfast import Agent, Policy, Runtime, recover, tool
from holdfast.faults import OutcomeUnknownError
from holdfast.providers import Offers, Reply, Request, ToolCall
from holdfast.runtime.runtime import use_runtime
from holdfast.sessions import Session
from holdfast.stores import SqliteStore, verify_store

DEPLOYED: list[str] = []


@tool(effect="unsafe")
async def deploy(plan: str) -> int:
    DEPLOYED.append(plan)
    raise TimeoutError("read timed out")


@tool(effect="unsafe")
async def pay(amount: int) -> int:
    return amount


@tool(effect="idempotent")
async def plan(goal: str) -> dict[str, str]:
    return {"goal": goal, "api_key": KEY}


async def work(store, *, cut: bool = True) -> None:
    async with Session.open("release", store=store) as session:
        await session.step(plan, "version 2")
        async with session.turn("first", key="first"):
            await session.step(pay, 3)
        async with session.turn("ship it"):
            await session.step(pay, 4)
            if cut:
                await session.step(deploy, "version 2")


async def ship(store) -> int:
    """Go on with the turn that was cut off."""
    async with Session.open("release", store=store) as session, session.turn("ship it"):
        await session.step(pay, 4)
        return await session.step(deploy, "version 2")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "work.db"
    DEPLOYED.clear()

    async def fill() -> None:
        async with SqliteStore(path) as store:
            with pytest.raises(TimeoutError):
                await work(store)

    asyncio.run(fill())
    return str(path)


def verb(path, *arguments, **more):
    return holdfast("sessions", *arguments, "--store", path, **more)


def document(path, *arguments):
    result = verb(path, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def again(path, work=work, **options):
    async def main():
        async with SqliteStore(path) as store:
            return await work(store, **options)

    return asyncio.run(main())


def test_FU8_show_tells_the_story(path):
    text = verb(path, "show", "release").stdout
    assert re.search(r"done +plan ", text)
    assert re.search(r"turn 1  ok .* input: first", text)
    assert re.search(r"turn 2  in flight .* input: ship it", text)
    assert re.search(r"done +pay\(4\) .* 1 +4", text)
    assert re.search(r'unknown +deploy\("version 2"\) .*SYS_TIMEOUT: read timed out', text)
    assert KEY not in text
    assert KEY not in verb(path, "show", "release", "--json").stdout


def test_FU8_show_says_what_to_do_next_in_commands_that_work(path):
    found = document(path, "show", "release")
    lines = [line for action in found["next"] for line in action["commands"]]
    assert [shlex.split(line)[2] for line in lines] == ["resolve", "resolve", "abandon"]
    happened = shlex.split(lines[0])[1:]
    happened[happened.index("JSON")] = "7"
    result = holdfast(*happened)
    assert result.exit_code == 0, result.stderr
    after = document(path, "show", "release")
    assert after["unknown_steps"] == []
    (step,) = [step for step in after["history"]["turns"][1]["steps"] if step["call"].startswith("deploy")]
    assert (step["state"], step["result"], step["resolved"]) == ("done", "7", True)


def test_FU8_resolved_as_happened_the_program_gets_the_result_and_does_not_repeat(path):
    assert verb(path, "resolve", "release", "2/deploy", "--happened", "--result", "7").exit_code == 0

    assert again(path, ship) == 7
    assert DEPLOYED == ["version 2"]


def test_FU8_resolved_as_not_happened_it_runs_again(path):
    assert document(path, "resolve", "rel", "2/deploy", "--not-happened")["happened"] is False
    with pytest.raises(TimeoutError):
        again(path, ship)
    assert DEPLOYED == ["version 2"] * 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "neither"),
        (["--happened", "--not-happened"], "both"),
        (["--happened", "--result", "yes"], "such as 7 or '\"yes\"'"),
        (["--not-happened", "--result", "7"], "only with --happened"),
    ],
)
def test_FU8_resolve_rejects_what_is_not_one_answer(path, flags, says):
    result = verb(path, "resolve", "release", "2/deploy", *flags)
    assert result.exit_code == 2
    assert says in result.stderr
    assert document(path, "show", "release")["unknown_steps"] != []


def test_FU8_the_first_one_who_resolves_counts_and_the_second_learns_who_it_was(path):
    resolve = (path, "resolve", "release", "2/deploy")
    assert verb(*resolve, "--happened", "--result", "7", "--by", "ann").exit_code == 0
    assert verb(*resolve, "--happened", "--result", "7").exit_code == 0  # the same again
    second = verb(*resolve, "--not-happened", "--by", "bob")
    assert second.exit_code != 0
    assert "resolved as happened, with the result 7, by ann at 20" in " ".join(second.stderr.split())
    assert "resolved by ann: 7" in verb(path, "show", "release").stdout
    assert again(path, ship) == 7


def test_FU8_resolve_of_a_step_that_is_known_names_those_that_are_not(path):
    result = verb(path, "resolve", "release", "pay", "--happened")
    assert result.exit_code == 2
    assert "release/2/deploy@" in result.stderr


def test_FU8_abandon_gives_the_turn_up_and_the_doubt_stays(path):
    asked = verb(path, "abandon", "release")
    assert asked.exit_code == 7
    assert "Give up turn 2" in asked.stderr
    assert "It has done pay(4): unless it has a key, a program that makes it once more does that again." in asked.stderr
    assert document(path, "abandon", "release", "--yes")["turn"] == 2
    found = document(path, "show", "release")
    assert (found["turn_in_flight"], found["history"]["turns"][1]["outcome"]) == (False, "abandoned")
    # Nobody has found out yet whether it was deployed.
    assert len(found["unknown_steps"]) == 1
    with pytest.raises(OutcomeUnknownError):
        again(path)
    assert DEPLOYED == ["version 2"]
    assert verb(path, "abandon", "release", "--yes").exit_code == 0
    assert "which has none" in verb(path, "abandon", "release", "--yes").stderr


def test_FU8_retry_lets_a_failed_turn_begin_anew(path):
    # It paid in that turn already, and may have deployed: neither happens twice.
    said = verb(path, "retry", "release")
    assert said.exit_code == 0
    assert "turn 2 of release begins anew when its program runs" in said.stderr
    assert re.search("stay done: release/2/pay@[0-9a-f]+, release/2/deploy@[0-9a-f]+$", said.stderr.strip())
    assert document(path, "show", "release")["unknown_steps"] != []
    assert verb(path, "resolve", "release", "2/deploy", "--not-happened").exit_code == 0
    assert [key.partition("@")[0] for key in document(path, "retry", "release")["kept"]] == ["release/2/pay"]

    async def goes_on(store) -> int:
        async with Session.open("release", store=store) as session, session.turn("ship it") as turn:
            assert await session.step(pay, 4) == 4
            return turn.number

    assert again(path, goes_on) == 2
    assert verb(path, "retry", "release").exit_code == 2


def test_FU8_retry_runs_the_other_steps_of_the_turn_again(tmp_path):
    done: list[int] = []

    @tool(effect="idempotent")
    async def fetch(n: int) -> int:
        done.append(n)
        return n

    async def turn(store, *, fail: bool) -> None:
        async with Session.open("s", store=store) as session, session.turn("go"):
            await session.step(fetch, 1)
            if fail:
                raise ValueError("the program is wrong")

    path = str(tmp_path / "s.db")
    with pytest.raises(ValueError, match="wrong"):
        again(path, turn, fail=True)
    assert document(path, "retry", "s")["kept"] == []
    (step,) = document(path, "show", "s")["history"]["turns"][0]["steps"]
    assert step["state"] == "forgotten"
    again(path, turn, fail=False)
    assert done == [1, 1]
    (step,) = document(path, "show", "s")["history"]["turns"][0]["steps"]
    assert (step["state"], step["runs"]) == ("done", 2)


def test_FU8_a_fork_at_an_earlier_turn_has_the_context_of_then(tmp_path):
    async def turns(store, session: str, count: int) -> dict:
        async with Session.open(session, store=store) as open_:
            for number in range(count):
                async with open_.turn(number):
                    open_.context["turns"] = open_.context.get("turns", 0) + 1
            return dict(open_.context)

    path = str(tmp_path / "s.db")
    assert again(path, turns, session="s", count=3) == {"turns": 3}
    assert verb(path, "fork", "s", "copy", "--turn", "3").exit_code == 0
    assert again(path, turns, session="copy", count=0) == {"turns": 2}
    assert verb(path, "fork", "s", "all").exit_code == 0
    assert again(path, turns, session="all", count=1) == {"turns": 4}


def test_FU8_the_offsets_of_show_are_places_to_fork_at(path):
    first, second = document(path, "show", "release")["history"]["turns"]
    assert (first["first"] < first["steps"][0]["offset"] < first["last"] < second["first"], second["last"]) == (
        True,
        None,
    )
    assert verb(path, "fork", "release", "before", "--at", str(second["first"] - 1)).exit_code == 0
    assert [turn["outcome"] for turn in document(path, "show", "before")["history"]["turns"]] == ["ok"]
    assert verb(path, "fork", "release", "paid", "--at", str(second["steps"][0]["offset"])).exit_code == 0
    (_, turn) = document(path, "show", "paid")["history"]["turns"]
    assert [step["call"] for step in turn["steps"]] == ["pay(4)"]


def test_FU8_fork_begins_a_new_session_with_the_work_of_another(path):
    assert document(path, "fork", "release", "second", "--turn", "2")["from"] == "release"
    found = document(path, "show", "second")
    assert [turn["number"] for turn in found["history"]["turns"]] == [1]
    assert found["unknown_steps"] == []
    assert found["can_resume"]

    async def goes_on(store):
        async with Session.open("second", store=store, strict=True) as session:
            kept = await session.step(plan, "version 2")
            async with session.turn("another way") as turn:
                return kept["goal"], turn.number, (await verify_store(store)).sound

    assert again(path, goes_on) == ("version 2", 2, True)
    # The original is as it was.
    assert len(document(path, "show", "release")["unknown_steps"]) == 1


def test_FU8_a_fork_of_everything_has_the_doubt_too_and_a_closed_session_can_be_forked(path):
    assert verb(path, "close", "release", "--yes").exit_code == 0
    (action,) = document(path, "show", "release")["next"]
    assert holdfast(*shlex.split(action["commands"][0])[1:]).exit_code == 0
    found = document(path, "show", "release-2")
    assert found["state"] == "paused"
    assert len(found["unknown_steps"]) == 1
    taken = verb(path, "fork", "release", "release-2")
    assert taken.exit_code != 0
    assert "exists already" in taken.stderr


def test_FU8_fork_rejects_places_that_the_log_has_not(path):
    assert verb(path, "fork", "release", "x", "--at", "9999").exit_code == 2
    assert verb(path, "fork", "release", "x", "--turn", "9").exit_code == 2
    assert verb(path, "fork", "release", "x", "--turn", "1", "--at", "1").exit_code == 2
    assert verb(path, "fork", "release", "not a name").exit_code == 2
    assert verb(path, "show", "x").exit_code == 3


def test_FU8_an_unknown_session_gets_the_names_that_are_near(path):
    result = verb(path, "show", "realease")
    assert result.exit_code == 3
    assert "Did you mean release?" in result.stderr


def test_FU8_show_counts_the_retries_inside_a_step(tmp_path):
    left = [2]

    @recover("flaky", Policy(attempts=4))
    async def flaky() -> int:
        if left[0]:
            left[0] -= 1
            raise ConnectionError("connection reset by peer")
        return 1

    async def main():
        async with SqliteStore(tmp_path / "s.db") as store, Session.open("s", store=store) as session:
            await session.step(flaky)

    with use_runtime(Runtime(waits=False)):
        asyncio.run(main())
    (step,) = document(str(tmp_path / "s.db"), "show", "s")["history"]["outside"]
    assert (step["state"], step["runs"], step["retries"]) == ("done", 1, 2)


def test_FU8_show_of_a_compacted_log_still_knows_the_steps_outside_of_turns(path):
    assert verb(path, "resolve", "release", "2/deploy", "--happened", "--result", "7").exit_code == 0
    again(path, ship)
    assert verb(path, "prune", "--entries", "0", "--yes").exit_code == 0
    found = document(path, "show", "release")
    assert found["history"]["oldest"] > 1
    assert [step["call"] for step in found["history"]["outside"]] == ["plan"]
    assert "was dropped" in verb(path, "show", "release").stdout
    assert verb(path, "fork", "release", "copy").exit_code == 0
    assert [step["call"] for step in document(path, "show", "copy")["history"]["outside"]] == ["plan"]


def test_FU8_a_damaged_log_is_a_typed_error(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE entry SET body = '{}' WHERE type = 'turn_started'")
        connection.commit()
    result = verb(path, "show", "release")
    assert result.exit_code == 1
    assert "SESS_MANIFEST_DRIFT" in result.stderr


def test_FU8_a_session_that_somebody_works_in_is_left_alone(path):
    async def main():
        async with SqliteStore(path) as store, Session.open("release", store=store):
            results = [await asyncio.to_thread(verb, path, name, "release", "--yes") for name in ("abandon", "retry")]
            seen = await asyncio.to_thread(document, path, "show", "release")
            # To resolve a step needs no lease: the program may be waiting for it.
            found = await asyncio.to_thread(verb, path, "resolve", "release", "2/deploy", "--happened")
            return results, seen, found

    results, seen, found = asyncio.run(main())
    assert "is owned by" in results[0].stderr
    assert results[1].exit_code == 2
    assert "works in it" in seen["next"][-1]["what"]
    assert found.exit_code == 0


@pytest.mark.parametrize("flags", [("--not-happened",), ("--happened", "--result", "7")])
def test_a_call_whose_model_was_told_that_it_is_unknown_is_not_promised_to_run_again(tmp_path, flags):
    """The run of the agent has ended: what a person finds out now reaches the model only in a new prompt."""
    path = str(tmp_path / "agent.db")
    asked = Reply(calls=(ToolCall(id="1", name="deploy", arguments={"plan": "version 2"}),), stop="tools")

    async def main(store) -> None:
        async with Session.open("release", store=store, mode="yolo") as session:
            reply = await Agent("shipper", Model(asked, Reply(text="Please check.")), [deploy]).run(
                "ship", session=session
            )
            assert reply.text == "Please check."

    again(path, main)
    (key,) = document(path, "show", "release")["unknown_steps"]
    shown = verb(path, "show", "release").stdout
    assert "it runs again" not in " ".join(shown.split())
    assert "Say in a new prompt what you found out" in " ".join(shown.split())
    resolved = verb(path, "resolve", "release", key.removeprefix("release/"), *flags)
    assert resolved.exit_code == 0
    said = " ".join(resolved.stderr.split())
    assert "runs again" not in said.replace("It does not run again", "")
    assert "the agent's model knows that the outcome is unknown, and has answered since" in said
    assert "now start the program" not in said


class Model:
    """Gives these replies in turn."""

    name, offers = "own/model", Offers()

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)

    async def exchange(self, request: Request) -> Reply:
        return self.replies.pop(0)

    def stream(self, request: Request, *, after_first: str = "raise"):
        raise NotImplementedError
