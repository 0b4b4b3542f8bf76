"""Command-line agents: limits end the whole process tree, failures are classified, and a run that was cut goes on, never twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from command_kit import NOW, PYTHON, finish, no_process_left

from holdfast import (
    Budget,
    CircuitOpenError,
    CommandAgent,
    InvalidError,
    Ok,
    OutcomeUnknownError,
    Policy,
    Runtime,
    Session,
)
from holdfast.agents import (
    CommandError,
    CommandTimeoutError,
    Done,
    ParkedError,
    Retrying,
    Text,
    ToolCalled,
    ToolReturned,
)
from holdfast.agents.command import DEFAULT_POLICY
from holdfast.stores.memory import MemoryStore
from holdfast.testing import VirtualClock, forget_targets
from holdfast.testing import run as run_virtual
from holdfast.views import response

PROGRAM = str(Path(__file__).with_name("scripted_program.py"))
ID = "7f3c0000-0000-4000-8000-000000000001"


def line(**found) -> list:
    return ["out", json.dumps(found)]


def init() -> list:
    return line(type="system", subtype="init", session_id=ID, model="claude-x")


def said(text: str) -> list:
    content = [{"type": "text", "text": text}]
    return line(type="assistant", session_id=ID, message={"id": f"m-{text}", "content": content})


def called(name: str = "Bash", **arguments) -> list:
    content = [{"type": "tool_use", "id": "t-1", "name": name, "input": arguments}]
    return line(type="assistant", session_id=ID, message={"id": "m-call", "content": content})


def returned(content: str = "done") -> list:
    block = {"type": "tool_result", "tool_use_id": "t-1", "content": content}
    return line(type="user", session_id=ID, message={"content": [block]})


def result(text: str = "Hello.", **more) -> list:
    usage = {"input_tokens": 10, "output_tokens": 2}
    facts = {"subtype": "success", "is_error": False, "num_turns": 1, "total_cost_usd": 0.25, "usage": usage}
    return line(type="result", session_id=ID, **{**facts, "result": text, **more})


def overloaded() -> list:
    text = "API Error: 529 Overloaded. This is a server-side issue"
    return result(text, is_error=True, api_error_status=529, terminal_reason="api_error", total_cost_usd=0.5)


GOOD = [init(), said("Hello."), result()]


class Program:
    """A scripted program and what it was started with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def script(self, *runs: list, form: str = "claude", **options) -> CommandAgent:
        (self.folder / "runs.json").write_text(json.dumps(runs))
        options = {"policy": NOW, "name": "coder", "grace": 1.0, "runtime": Runtime(), **options}
        return CommandAgent([*PYTHON, PROGRAM, str(self.folder)], form=form, **options)

    @property
    def starts(self) -> list[dict]:
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob("start-*.json"))]

    @property
    def effects(self) -> list[str]:
        file = self.folder / "effects"
        return file.read_text().split() if file.exists() else []


@pytest.fixture(autouse=True)
def _no_process_left(monkeypatch: pytest.MonkeyPatch):
    with no_process_left(monkeypatch):
        yield


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def failure(agent: CommandAgent, **options) -> CommandError:
    with pytest.raises(CommandError) as raised:
        finish(agent.run("say hello", **options))
    return raised.value


async def gathered(agent: CommandAgent, **options) -> list:
    async with agent.stream("say hello", **options) as parts:
        return [part async for part in parts]


# --- the plain case ---


def test_a_run_returns_the_answer_with_its_cost_and_the_programs_own_id(program: Program):
    agent = program.script([init(), called(command="ls"), returned(), said("Hello."), result()])
    reply = finish(agent.run("say hello"))
    assert (reply.text, reply.turns, reply.tool_calls, reply.usd) == ("Hello.", 1, 1, 0.25)
    assert (reply.session, reply.agent, reply.model) == (ID, "coder", "claude-x")
    assert reply.usage is not None
    assert (reply.usage.input, reply.usage.output) == (10, 2)


def test_the_prompt_is_written_to_stdin_and_is_not_in_the_list_of_processes(program: Program):
    finish(program.script(GOOD).run("a secret plan"))
    (start,) = program.starts
    assert (start["prompt"], start["argv"]) == ("a secret plan", [])


def test_a_program_that_takes_its_prompt_as_an_argument_gets_it_there_once(program: Program):
    (program.folder / "runs.json").write_text(json.dumps([[["out", "Hello."]]]))
    agent = CommandAgent([*PYTHON, PROGRAM, str(program.folder), "--ask", "{prompt}"], form="plain")
    assert finish(agent.run("say hello")).text == "Hello."
    (start,) = program.starts
    assert (start["prompt"], start["argv"]) == ("", ["--ask", "say hello"])


def test_a_stream_yields_typed_parts_and_ends_with_done(program: Program):
    agent = program.script(
        [init(), said("I look."), called(command="ls"), returned("a.py"), said("Done."), result("Done.")]
    )
    parts = finish(gathered(agent))
    assert parts[:-1] == [
        Text(text="I look."),
        ToolCalled(id="t-1", name="Bash", arguments={"command": "ls"}),
        ToolReturned(id="t-1", name="Bash", content="a.py"),
        Text(text="Done."),
    ]
    assert isinstance(parts[-1], Done)
    assert parts[-1].reply.text == "Done."


def test_leaving_a_stream_ends_the_program_with_its_children(program: Program):
    agent = program.script([["child"], init(), said("Hello."), ["hang"]])

    async def main():
        async with agent.stream("say hello") as parts:
            async for part in parts:
                return part
        return None

    assert finish(main()) == Text(text="Hello.")


def test_a_slow_reader_gets_every_part_and_the_program_is_not_called_silent(program: Program):
    agent = program.script([init(), *(said(f"word {number}") for number in range(500)), result("end")], idle=5)

    async def main():
        seen = 0
        async with agent.stream("say hello") as parts:
            async for _ in parts:
                seen += 1
                await asyncio.sleep(0)
        return seen

    assert finish(main()) == 501


def test_outcome_returns_a_failure_as_a_value(program: Program):
    agent = program.script([["err", "Error: Invalid API key"], ["exit", 1]])
    outcome = finish(agent.outcome("say hello"))
    assert not outcome.ok
    assert outcome.fault.code == "AUTH_FAILED"
    assert isinstance(outcome.error, CommandError)
    assert isinstance(finish(program.script(GOOD).outcome("again")), Ok)


# --- limits (G19, S4-18) ---


def virtual(agent_of, **options) -> tuple[CommandError, float]:
    clock = VirtualClock()

    async def main():
        began = clock.monotonic()
        with pytest.raises(CommandError) as raised:
            await agent_of(runtime=Runtime(clock=clock), **options).run("say hello")
        return raised.value, clock.monotonic() - began

    return run_virtual(main(), clock=clock)


def test_G19_a_program_that_never_prints_is_dead_after_the_start_limit():
    error, took = virtual(lambda **given: CommandAgent(["sleep", "600"], form="claude", resume=None, **given), start=30)
    assert isinstance(error, TimeoutError)
    assert (error.fault.code, error.fault.context["limit"]) == ("PROVIDER_STREAM_STALLED", "start")
    # It did nothing that anybody saw, so it was tried once more after about two seconds.
    assert 61 <= took < 67
    assert "printed nothing for 30 s after its start" in error.fault.message


def test_G19_a_program_that_goes_silent_is_dead_with_its_whole_tree_and_its_words_are_kept(program: Program):
    agent = program.script([["child"], init(), called(command="make"), said("It bui"), ["hang"]], idle=0.6, resume=None)
    error = failure(agent)
    assert isinstance(error, CommandTimeoutError)
    assert error.fault.context["limit"] == "idle"
    assert error.fault.partial is not None
    assert error.fault.partial.payload["text"] == "It bui"
    # It had called a tool and cannot be resumed: it is not started a second time.
    assert len(program.starts) == 1
    assert (error.fault.maybe_executed, error.fault.retryable) == (True, False)


@pytest.mark.parametrize(
    ("lines", "text", "calls"),
    [
        ([], "", 0),
        ([said("I look.")], "I look.", 0),
        ([said("I look."), called(command="ls")], "I look.", 1),
        ([said("I look."), called(command="ls"), said("It bui")], "I look.\nIt bui", 1),
    ],
)
def test_what_is_kept_of_a_cut_run_has_all_text_under_the_names_of_agent(program: Program, lines, text, calls):
    error = failure(program.script([init(), *lines, ["hang"]], idle=0.6, resume=None, policy=NOW.replace(attempts=1)))
    assert error.fault.partial is not None
    assert (error.fault.partial.payload["text"], error.fault.partial.payload["tool_calls"]) == (text, calls)


API_ERROR = 'API Error: 401 {"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}} · Please run /login'


def synthetic(text: str) -> list:
    message = {"id": "m-error", "model": "<synthetic>", "content": [{"type": "text", "text": text}]}
    return line(type="assistant", session_id=ID, is_api_error_message=True, message=message)


def again(status: int, word: str) -> list:
    facts = {"attempt": 1, "max_retries": 10, "retry_delay_ms": 500, "error_status": status, "error": word}
    return line(type="system", subtype="api_retry", session_id=ID, **facts)


@pytest.mark.parametrize(
    ("form", "acts"),
    [
        ("claude", [["out", API_ERROR]]),
        ("claude", [["err", API_ERROR]]),
        ("claude", [init(), synthetic(API_ERROR)]),
        ("claude", [init(), synthetic("Invalid API key · Please run /login")]),
        ("claude", [init(), again(401, "authentication_failed")]),
        ("claude", [init(), ["out", "Failed to authenticate. API Error: 401 Invalid authentication credentials"]]),
        ("plain", [["out", API_ERROR]]),
        ("plain", [["out", "Invalid API key · Please run /login"]]),
    ],
)
def test_XA11_a_program_that_printed_that_its_key_is_wrong_and_then_hung_has_a_wrong_key(program: Program, form, acts):
    error = failure(program.script([*acts, ["hang"]], form=form, idle=0.6, start=5))
    assert error.fault.code.startswith("AUTH_")
    assert len(program.starts) == 1


@pytest.mark.parametrize(
    ("form", "acts"),
    [
        ("claude", [init(), said("The server answers 401 Unauthorized: invalid API key.")]),
        ("claude", [init(), again(529, "overloaded")]),
        ("plain", [["out", "The server answers 401 Unauthorized: invalid API key."]]),
    ],
)
def test_a_program_that_only_speaks_of_it_was_stopped_by_its_limit(program: Program, form, acts):
    error = failure(program.script([*acts, ["hang"]], form=form, idle=0.6, start=5, policy=NOW.replace(attempts=1)))
    assert error.fault.code == "PROVIDER_STREAM_STALLED"


def test_an_overload_after_a_tool_call_says_why_the_program_is_not_started_again(program: Program):
    failed = line(type="error", message="Overloaded", status=529)
    call = line(type="tool-call", id="1", name="pay", arguments={})
    error = failure(program.script([call, failed], form="plain", policy=NOW))
    assert (error.fault.code, error.fault.retryable) == ("PROVIDER_OVERLOADED", False)
    assert "it is not started again: it made 1 tool call, and its conversation cannot be resumed" in str(error)
    assert len(program.starts) == 1


def test_S4_18_the_idle_limit_is_a_stream_timeout_in_the_response_view(program: Program):
    agent = program.script([init(), ["hang"]], idle=0.4, resume=None, policy=NOW.replace(attempts=1))
    error = failure(agent)
    shown = response.write(error.fault, literal=True)["error"]
    assert (shown["type"], shown["code"], shown["retryable"]) == ("transient", "STREAM_TIMEOUT", True)
    assert shown["message"] == "Stream exceeded timeout of 400ms"
    assert shown["context"]["durationMs"] >= 400


def test_G19_the_limit_for_everything_holds_over_all_attempts(program: Program):
    agent = program.script([init(), ["hang"]], total=1.2, idle=0.3, policy=NOW.replace(attempts=99))
    began = time.monotonic()
    error = failure(agent)
    assert error.fault.context["limit"] == "timeout"
    assert error.fault.retryable is False
    assert time.monotonic() - began < 5


def test_the_deadline_of_a_budget_ends_the_program_and_keeps_its_words():
    agent = CommandAgent(["bash", "-c", "echo half; sleep 600"], form="plain")

    async def main():
        with Budget(seconds=2):
            await agent.run("say hello")

    with pytest.raises(CommandTimeoutError) as raised:
        finish(main())
    fault = raised.value.fault
    assert (fault.code, fault.context["limit"]) == ("SYS_DEADLINE_EXCEEDED", "deadline")
    assert fault.partial is not None
    assert fault.partial.payload["text"] == "half"


def test_a_program_that_hangs_after_its_last_line_has_answered(program: Program, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.agents.command_run._EXIT_S", 0.2)
    assert finish(program.script([*GOOD, ["hang"]]).run("say hello")).text == "Hello."


def test_a_cancelled_run_leaves_no_process(program: Program):
    agent = program.script([["child"], init(), ["hang"]])

    async def main():
        task = asyncio.create_task(agent.run("say hello"))
        while not program.starts:  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    finish(main())


# --- failures (S4-6, S4-7, S4-19) ---


@pytest.mark.parametrize(
    ("stderr", "code", "type_", "word"),
    [
        ("network unreachable, giving up", "ACTOR_CLI_NETWORK", "transient", "CLAUDE_CLI_NETWORK"),
        ("request timeout", "ACTOR_CLI_NETWORK", "transient", "CLAUDE_CLI_NETWORK"),
        ("connect ECONNREFUSED 127.0.0.1:443", "ACTOR_CLI_NETWORK", "transient", "CLAUDE_CLI_NETWORK"),
        ("something odd", "ACTOR_CLI_ERROR", "permanent", "CLAUDE_CLI_ERROR"),
        ("", "ACTOR_CLI_ERROR", "permanent", "CLAUDE_CLI_ERROR"),
        # Beyond these words the classifier decides, and it knows more than the words.
        ("401 Unauthorized: invalid key (network gateway)", "AUTH_FAILED", "permanent", "AUTH_FAILED"),
    ],
)
def test_S4_19_stderr_decides_between_the_network_and_the_program(program: Program, stderr, code, type_, word):
    agent = program.script([["err", stderr], ["exit", 1]])
    fault = failure(agent).fault
    shown = response.write(fault)["error"]
    assert (fault.code, shown["type"], shown["code"]) == (code, type_, word)
    # One more attempt, and only for what may pass by itself.
    assert len(program.starts) == (2 if type_ == "transient" else 1)
    assert (fault.context["exit_code"], fault.context["agent"]) == (1, "coder")


def test_S4_10_the_default_is_one_retry_after_two_seconds_and_at_most_five():
    policy = CommandAgent(["claude"]).policy
    assert (policy.attempts, policy.backoff.initial, policy.backoff.factor, policy.backoff.cap) == (2, 2, 2, 5)
    assert policy.timeout is None


def test_a_policy_without_its_own_timeout_does_not_end_a_long_run():
    assert CommandAgent(["claude"], policy=Policy(attempts=3)).policy.timeout is None
    assert CommandAgent(["claude"], policy=Policy(timeout=20)).policy.timeout == 20


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (overloaded(), "PROVIDER_OVERLOADED"),
        (result("", subtype="error_max_turns", is_error=True), "TASK_TURNS_EXHAUSTED"),
        (result("", subtype="error_max_budget_usd", is_error=True), "SYS_BUDGET_EXHAUSTED"),
        (result("Invalid API key · Please run /login", is_error=True), "AUTH_FAILED"),
        (result("it is odd", is_error=True), "ACTOR_CLI_ERROR"),
        (result("", subtype="error_during_execution", is_error=True), "ACTOR_CLI_ERROR"),
        (result("   "), "PROVIDER_EMPTY_RESPONSE"),
        (["exit", 0], "PROVIDER_STREAM_CUT"),
        (["die"], "TOOL_KILLED"),
    ],
)
def test_every_bad_end_is_a_fault_and_never_an_answer(program: Program, last, code):
    fault = failure(program.script([init(), said("half"), last], policy=NOW.replace(attempts=1))).fault
    assert fault.code == code
    assert fault.context["session"] == ID
    assert fault.partial is not None
    assert fault.partial.payload["text"] == "half"


def test_a_program_that_is_not_installed_is_named_and_not_tried_again(program: Program):
    agent = CommandAgent(["no-such-agent-anywhere"], policy=NOW)
    error = failure(agent)
    assert (error.fault.code, error.fault.maybe_executed) == ("TOOL_COMMAND_NOT_FOUND", False)
    assert "no-such-agent-anywhere is not installed here" in str(error)


def test_a_usage_limit_says_when_it_ends(program: Program):
    ends = time.time() + 7200
    limit = line(type="rate_limit_event", rate_limit_info={"status": "rejected", "resetsAt": ends}, session_id=ID)
    agent = program.script([init(), limit, result("You've hit your session limit", is_error=True)])
    fault = failure(agent).fault
    assert fault.code == "PROVIDER_QUOTA_EXHAUSTED"
    assert fault.retry_after == pytest.approx(7200, abs=30)
    assert len(program.starts) == 1


def test_G7_a_usage_limit_parks_the_run_and_it_goes_on_with_the_same_conversation(program: Program):
    ends = time.time() + 7200
    limit = line(type="rate_limit_event", rate_limit_info={"status": "rejected", "resetsAt": ends}, session_id=ID)
    runtime = Runtime()
    agent = program.script(
        [init(), limit, result("You've hit your session limit", is_error=True)], GOOD, runtime=runtime
    )
    store = MemoryStore()

    async def run() -> str:
        async with Session.open("fix-42", store=store, runtime=runtime) as session:
            return (await agent.run("say hello", session=session)).text

    with pytest.raises(CommandError) as parked:
        finish(run())
    assert parked.value.fault.code == "PROVIDER_QUOTA_EXHAUSTED"
    assert parked.value.fault.context["parked_until"] == pytest.approx(ends, abs=30)
    with pytest.raises(ParkedError) as early:
        finish(run())
    assert early.value.until == parked.value.fault.context["parked_until"]
    assert len(program.starts) == 1, "before the time the program is not started"

    async def lift() -> None:
        async with Session.open("fix-42", store=store, runtime=runtime) as session:
            await session.parked.unpark("coder", by="ann")

    finish(lift())
    forget_targets()
    assert finish(run()) == "Hello."
    assert program.starts[1]["argv"] == ["--resume", ID]


# --- retries and the programs' own conversations ---


def test_S4_10_an_overloaded_provider_is_retried_by_resuming_the_same_conversation(program: Program):
    agent = program.script([init(), called(), said("Half"), overloaded(), ["exit", 1]], GOOD)
    parts = finish(gathered(agent))
    _, second = program.starts
    assert second["argv"] == ["--resume", ID]
    assert second["prompt"].endswith("The task:\n\nsay hello")
    retrying = next(part for part in parts if isinstance(part, Retrying))
    assert (retrying.fault.code, retrying.attempt, retrying.restarts_text) == ("PROVIDER_OVERLOADED", 1, True)
    # The failed run was not free.
    assert parts[-1].reply.usd == pytest.approx(0.75)


def test_a_program_that_was_killed_goes_on_with_its_conversation(program: Program):
    agent = program.script([init(), ["touch", "a"], called(), ["die"]], [init(), ["touch", "b"], result()])
    assert finish(agent.run("say hello")).text == "Hello."
    assert program.effects == ["a", "b"]
    assert program.starts[1]["argv"] == ["--resume", ID]


LOST = result("", subtype="error_during_execution", is_error=True, errors=["No conversation found with session ID: x"])


def test_a_program_that_was_seen_to_do_nothing_and_lost_its_conversation_begins_anew(program: Program):
    agent = program.script([init(), ["die"]], [LOST, ["exit", 1]], GOOD)
    assert finish(agent.run("say hello")).text == "Hello."
    assert [start["argv"] for start in program.starts] == [[], ["--resume", ID], []]
    assert "interrupted" in program.starts[2]["prompt"]


def test_a_program_that_worked_and_lost_its_conversation_is_not_begun_anew(program: Program):
    runs = ([init(), called(), ["die"]], [LOST, ["exit", 1]], GOOD)
    with pytest.raises(OutcomeUnknownError) as raised:
        finish(program.script(*runs).run("say hello"))
    assert raised.value.fault.context["session"] == ID
    assert 'if_lost="restart"' in str(raised.value)
    assert len(program.starts) == 2


def test_who_allows_it_gets_a_lost_conversation_begun_anew(program: Program):
    runs = ([init(), called(), ["die"]], [LOST, ["exit", 1]], GOOD)
    assert finish(program.script(*runs, if_lost="restart").run("say hello")).text == "Hello."


def test_a_program_that_may_have_worked_and_cannot_resume_is_never_started_twice(program: Program):
    agent = program.script(
        [["out", "I pay now"], ["touch", "paid"], ["err", "network down"], ["exit", 1]], form="plain"
    )
    fault = failure(agent).fault
    assert (fault.code, fault.maybe_executed, fault.retryable) == ("ACTOR_CLI_NETWORK", True, False)
    assert program.effects == ["paid"]
    assert fault.partial is not None
    assert fault.partial.payload["text"] == "I pay now"


def test_the_users_own_arguments_resume_a_program_of_their_own(program: Program):
    runs = ([line(type="session", id="s-9"), ["die"]], [["out", "Hello."]])
    agent = program.script(*runs, form="plain", resume=["--go-on", "{session}"])
    assert finish(agent.run("say hello")).text == "Hello."
    assert program.starts[1]["argv"] == ["--go-on", "s-9"]


def test_S0_27_five_failures_in_a_row_open_the_circuit_of_the_service(program: Program):
    agent = program.script(
        [["err", "odd"], ["err", "network down"], ["exit", 1]], policy=DEFAULT_POLICY.replace(attempts=1)
    )

    async def main():
        for _ in range(5):
            with pytest.raises(CommandError):
                await agent.run("say hello")
        with pytest.raises(CircuitOpenError):
            await agent.run("say hello")

    finish(main())
    assert len(program.starts) == 5


@pytest.mark.parametrize("form", ["plain", "claude"])
def test_a_prompt_that_the_program_rejects_locks_no_other_caller_out(form):
    last = 'echo \'{"type":"result","subtype":"success","is_error":false,"result":"fine","session_id":"s"}\''
    code = (
        f'read -r p; if [ "$p" = poison ]; then echo odd >&2; exit 1; fi; {last if form == "claude" else "echo fine"}'
    )
    agent = CommandAgent(["bash", "-c", code], form=form, name=f"shared-{form}")

    async def main() -> list[str]:
        for _ in range(7):
            with pytest.raises(CommandError):
                await agent.run("poison")
        return [(await agent.run("hello")).text for _ in range(3)]

    assert finish(main()) == ["fine", "fine", "fine"]


@pytest.mark.parametrize("names", [("", ""), ("sick", "well")])
def test_two_programs_of_one_interpreter_have_nothing_in_common(names):
    """A script that finds no network keeps no other script out."""
    sick, well = (
        CommandAgent(["bash", "-c", code], name=name or None, policy=DEFAULT_POLICY.replace(attempts=1))
        for code, name in zip(("echo network down >&2; exit 1", "echo fine"), names, strict=True)
    )

    async def main() -> str:
        for _ in range(6):
            with pytest.raises((CommandError, CircuitOpenError)):
                await sick.run("work")
        return (await well.run("hello")).text

    assert finish(main()) == "fine"


# --- sessions: a run is done once ---


def store(program: Program) -> str:
    return f"sqlite:{program.folder / 'work.db'}"


async def in_session(program: Program, agent: CommandAgent, prompt: str = "say hello"):
    async with Session.open("fix-42", store=store(program)) as session:
        return await agent.run(prompt, session=session)


def test_in_a_session_a_run_that_failed_goes_on_with_its_conversation_when_it_is_called_again(program: Program):
    agent = program.script([init(), called(), ["exit", 1]], GOOD, policy=NOW.replace(attempts=1))

    async def main() -> str:
        async with Session.open("s", store=MemoryStore()) as session:
            with pytest.raises(CommandError):
                await agent.run("fix it", session=session)
            return (await agent.run("fix it", session=session)).text

    assert asyncio.run(main()) == "Hello."
    assert [start["argv"] for start in program.starts] == [[], ["--resume", ID]]


def test_in_a_session_a_run_is_done_once_and_its_reply_is_the_same_after_a_restart(program: Program):
    agent = program.script([init(), called(), result()])
    first = finish(in_session(program, agent))
    assert finish(in_session(program, agent)) == first
    assert len(program.starts) == 1


def test_XD1_a_program_that_has_shown_no_work_is_started_again(program: Program):
    refused = [line(type="result", is_error=True, result="Invalid API key · Please run /login"), ["exit", 1]]
    agent = program.script(refused, GOOD, policy=NOW.replace(attempts=1))
    with pytest.raises(CommandError):
        finish(in_session(program, agent))
    assert finish(in_session(program, agent)).text == "Hello."


def test_a_stored_reply_is_not_paid_a_second_time(program: Program):
    agent = program.script(GOOD)
    finish(in_session(program, agent))

    async def main():
        with Budget(usd=10) as budget:
            await in_session(program, agent)
            return budget.spend()

    spend = finish(main())
    assert (spend.usd, spend.attempts) == (0, 0)


def test_a_budget_counts_what_the_program_says_it_cost(program: Program):
    agent = program.script([init(), called(), overloaded(), ["exit", 1]], GOOD)

    async def main():
        with Budget(usd=10, turns=10) as budget:
            await agent.run("say hello")
            return budget.spend()

    spend = finish(main())
    assert (spend.usd, spend.turns) == (pytest.approx(0.75), 2)


OWNER = """
import asyncio, json, sys
from holdfast import CommandAgent, Session

async def main():
    agent = CommandAgent([sys.executable, "-S", "-E", sys.argv[1], sys.argv[2]], form=sys.argv[4], name="coder")
    async with Session.open("fix-42", store=sys.argv[3], lease=2) as session:
        reply = await agent.run("say hello", session=session)
        print(reply.text)

asyncio.run(main())
"""


def killed_owner(program: Program, form: str, when) -> None:
    """Run the agent in a process of its own, and kill that process with SIGKILL when the condition holds."""
    argv = [sys.executable, "-c", OWNER, PROGRAM, str(program.folder), store(program), form]
    owner = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    until = time.monotonic() + 15
    try:
        while not when():
            assert time.monotonic() < until
            assert owner.poll() is None
            time.sleep(0.01)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    # The guard ends the program of a dead owner.
    pids = [start["pid"] for start in program.starts]
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.01)


def _is_begun(program: Program):
    """Whether the id is in the store: the effect of the program comes after it in the script."""
    return lambda: bool(program.effects) and _has_id(program)


def _has_id(program: Program) -> bool:
    try:
        with closing(sqlite3.connect(f"file:{program.folder / 'work.db'}?mode=ro", uri=True)) as db:
            dump = "\n".join(db.iterdump())
    except sqlite3.Error:
        return False
    return ID in dump or ID.encode().hex() in dump.lower()


def test_a_killed_owner_goes_on_with_the_programs_own_conversation(program: Program):
    agent = program.script([init(), ["touch", "a"], called(), ["hang"]], [init(), ["touch", "b"], result()])
    killed_owner(program, "claude", _is_begun(program))
    assert finish(in_session(program, agent)).text == "Hello."
    assert program.effects == ["a", "b"]
    assert [start["argv"] for start in program.starts] == [[], ["--resume", ID]]


def test_a_killed_owner_whose_programs_conversation_is_lost_begins_nothing_anew(program: Program):
    agent = program.script([init(), ["touch", "a"], ["hang"]], [LOST, ["exit", 1]], GOOD)
    killed_owner(program, "claude", _is_begun(program))
    with pytest.raises(OutcomeUnknownError):
        finish(in_session(program, agent))
    assert program.effects == ["a"]


def test_a_killed_owner_of_a_program_without_an_id_leaves_the_outcome_unknown(program: Program):
    agent = program.script([["out", "working"], ["touch", "a"], ["hang"]], form="plain")
    killed_owner(program, "plain", lambda: bool(program.effects))
    with pytest.raises(OutcomeUnknownError):
        finish(in_session(program, agent))
    assert program.effects == ["a"]


# --- bad input ---


@pytest.mark.parametrize(
    ("given", "options", "path"),
    [
        ("claude -p", {}, "command_agent.command"),
        ([], {}, "command_agent.command"),
        ([1], {}, "command_agent.command"),
        (["claude"], {"idle": 0}, "command_agent.idle"),
        (["claude"], {"total": "long"}, "command_agent.total"),
        (["claude"], {"form": "xml"}, "command_agent.form"),
        (["claude"], {"resume": ["--resume"]}, "command_agent.resume"),
        (["claude"], {"resume": "--resume"}, "command_agent.resume"),
        (["claude"], {"name": ""}, "command_agent.name"),
        (["claude"], {"if_lost": "ignore"}, "command_agent.if_lost"),
        (["claude"], {"grace": -1}, "run.grace"),
    ],
)
def test_wrong_options_are_named(given, options, path):
    with pytest.raises(InvalidError) as raised:
        CommandAgent(given, **options)
    assert raised.value.fault.context["path"] == path


def test_an_empty_prompt_starts_nothing(program: Program):
    agent = program.script(GOOD)
    with pytest.raises(InvalidError):
        finish(agent.run("  "))
    assert program.starts == []


def test_keys_are_passed_on_only_to_the_program_whose_keys_they_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    claude = CommandAgent(["claude", "-p", "--output-format", "stream-json"])
    codex = CommandAgent(["codex", "exec", "--json"])
    seen = [
        {name for name in agent.command(("x",), None, None).env if name.endswith("_API_KEY")}
        for agent in (claude, codex)
    ]
    assert seen == [{"ANTHROPIC_API_KEY"}, {"OPENAI_API_KEY"}]
