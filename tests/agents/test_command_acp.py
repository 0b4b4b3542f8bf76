"""Command-line agents that speak the Agent Client Protocol: limits, approvals, cuts and resumes, as for every other form.

Each case runs with a scripted program that uses only the standard library, and under `soak` with the same program written with the
official package, which checks our messages and takes a second to start. A few of those run always.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_kit import NOW, PYTHON, finish, no_process_left

from holdfast import Budget, CommandAgent, InvalidError, OutcomeUnknownError, Runtime, Session
from holdfast.agents import (
    Approval,
    Asking,
    CommandError,
    CommandTimeoutError,
    Done,
    Text,
    ToolCalled,
    ToolReturned,
)
from holdfast.agents.command_lines import AcpLines
from holdfast.faults import HoldfastError
from holdfast.sessions import Answer
from holdfast.stores.memory import MemoryStore

HERE = Path(__file__).parent
PROGRAMS = {
    "scripted": [*PYTHON, str(HERE / "acp_scripted.py")],
    "official": [sys.executable, str(HERE / "acp_official.py")],
}
ID = "sess-4711"
ASK = ["ask", "t-1", "Deploy 4.2", "execute", {"command": "make deploy"}]


class Program:
    """A scripted program and what became of it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.argv = [*PROGRAMS[kind], str(folder)]
        self.is_official = kind == "official"

    def script(self, *runs: list, given: dict | None = None, **options: Any) -> CommandAgent:
        (self.folder / "runs.json").write_text(json.dumps(runs))
        (self.folder / "options.json").write_text(json.dumps({"load": True, **(given or {})}))
        options = {"policy": NOW, "name": "coder", "grace": 1.0, "runtime": Runtime(), "cwd": self.folder, **options}
        return CommandAgent(self.argv, form="acp", **options)

    def lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    @property
    def prompts(self) -> list[str]:
        return [json.loads(line) for line in self.lines("prompts")]

    @property
    def pids(self) -> list[int]:
        return [json.loads(file.read_text())["pid"] for file in sorted(self.folder.glob("start-*.json"))]


@pytest.fixture(autouse=True)
def _no_process_left(monkeypatch: pytest.MonkeyPatch):
    with no_process_left(monkeypatch):
        yield


@pytest.fixture(params=["scripted", pytest.param("official", marks=pytest.mark.soak)])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    return Program(tmp_path, request.param)


@pytest.fixture
def scripted(tmp_path: Path) -> Program:
    """For acts that the official package does not allow: it reads on in a task of its own."""
    return Program(tmp_path, "scripted")


@pytest.fixture
def official(tmp_path: Path) -> Program:
    return Program(tmp_path, "official")


class Person:
    """Answers each question with the next answer, and keeps the questions."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.questions: list[Any] = []

    async def ask(self, question: Any) -> Answer:
        self.questions.append(question)
        yes = self.answers.pop(0)
        return Answer(yes, "accepted" if yes else "rejected")


async def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def in_session(agent: CommandAgent, store: Any, *people: Person, mode: str = "ask", **options: Any) -> Any:
    async with Session.open("fix-42", store=store, mode=mode, interactors=people, **options) as session:
        return await agent.run("say hello", session=session)


def failure(agent: CommandAgent) -> CommandError:
    with pytest.raises(CommandError) as raised:
        finish(agent.run("say hello"))
    return raised.value


# --- the plain case ---


def plain_run(program: Program) -> None:
    call = ["call", "t-1", "Read a.py", "read", {"path": "a.py"}]
    usage = {"totalTokens": 12, "inputTokens": 10, "outputTokens": 2}
    agent = program.script(
        [["say", "I look."], call, ["say", "Hel"], ["say", "lo."], ["cost", 0.25], ["end", "end_turn", usage]]
    )

    async def main() -> list:
        async with agent.stream("say hello") as parts:
            return [part async for part in parts]

    *parts, done = finish(main())
    assert parts == [
        Text(text="I look."),
        ToolCalled(id="t-1", name="Read a.py", arguments={"path": "a.py"}),
        ToolReturned(id="t-1", name="Read a.py", content="done"),
        Text(text="Hel"),
        Text(text="lo."),
    ]
    assert isinstance(done, Done)
    reply = done.reply
    assert (reply.text, reply.session, reply.tool_calls, reply.turns, reply.usd) == ("Hello.", ID, 1, 1, 0.25)
    assert reply.usage is not None
    assert (reply.usage.input, reply.usage.output) == (10, 2)
    assert program.prompts == ["say hello"]
    assert (program.folder / ID).read_text() == str(program.folder), "the program works in the agent's directory"


def test_a_run_speaks_the_protocol_and_returns_the_answer(program: Program):
    plain_run(program)


def test_a_program_of_the_official_package_asks_is_answered_and_resumed(official: Program):
    """One conversation with the official package that always runs: approved, denied, killed, loaded."""
    again = ["ask", "t-2", "Delete", "delete", {"path": "b"}]
    agent = official.script([ASK, again, ["die"]], [["say", "Hello."]])
    person = Person(True, False)
    reply = finish(in_session(agent, MemoryStore(), person))
    assert reply.text == "Hello."
    assert official.lines("outcomes") == ["yes", "no"]
    assert official.lines("effects") == ["t-1"]
    assert official.lines("opened") == ["new", "load"]


# --- approvals ---


def test_N2_9_a_call_that_the_program_asks_about_runs_if_a_person_allows_exactly_that(program: Program):
    person = Person(True)
    reply = finish(in_session(program.script([ASK, ["say", "Deployed."]]), MemoryStore(), person))
    assert (reply.text, program.lines("effects"), program.lines("outcomes")) == ("Deployed.", ["t-1"], ["yes"])
    (question,) = person.questions
    assert "Run execute(" in question.prompt
    assert "make deploy" in question.prompt
    assert "Deploy 4.2" in question.prompt


def test_N2_9_a_call_that_a_person_denies_does_not_run_and_the_turn_goes_on(program: Program):
    reply = finish(in_session(program.script([ASK, ["say", "Not deployed."]]), MemoryStore(), Person(False)))
    assert (reply.text, program.lines("effects"), program.lines("outcomes")) == ("Not deployed.", [], ["no"])


def test_a_program_that_ends_its_turn_because_a_call_was_denied_has_not_answered(program: Program):
    with pytest.raises(CommandError) as raised:
        finish(in_session(program.script([["say", "I try."], ASK]), MemoryStore(), Person(False)))
    fault = raised.value.fault
    assert (fault.code, fault.retryable, len(program.pids)) == ("TOOL_APPROVAL_DENIED", False, 1)
    assert "The call (execute) was not allowed, and the program ended its turn without an answer" in str(raised.value)


@pytest.mark.parametrize(
    ("mode", "options", "agent", "outcome"),
    [
        ("yolo", {}, {}, "yes"),
        ("allowlist", {"allowed_tools": ["execute"]}, {}, "yes"),
        ("allowlist", {"allowed_tools": ["read"]}, {}, "no"),
        ("yolo", {}, {"approval": Approval(mode="yolo", envelope=frozenset({"read"}))}, "no"),
        ("ask", {}, {"grant": lambda call: "approve" if call.name == "execute" else None}, "yes"),
        ("yolo", {}, {"grant": lambda call: "deny"}, "no"),
    ],
)
def test_N2_19_envelope_grant_and_mode_decide_without_a_person(program: Program, mode, options, agent, outcome):
    made = program.script([ASK, ["say", "Hello."]], **agent)
    finish(in_session(made, MemoryStore(), mode=mode, **options))
    assert program.lines("outcomes") == [outcome]


def test_without_a_session_nobody_can_be_asked_and_every_call_runs(program: Program):
    finish(program.script([ASK, ["say", "Hello."]]).run("say hello"))
    assert program.lines("outcomes") == ["yes"]


ALWAYS = {"options": [{"optionId": "always", "name": "Always", "kind": "allow_always"}]}


@pytest.mark.parametrize(("mode", "outcome"), [("ask", "cancelled"), ("yolo", "always")])
def test_a_permission_that_holds_for_later_calls_is_given_only_if_nobody_decides_about_single_calls(
    program: Program, mode, outcome
):
    finish(in_session(program.script([ASK, ["say", "Hello."]], given=ALWAYS), MemoryStore(), Person(True), mode=mode))
    assert program.lines("outcomes") == [outcome]


def test_N2_9_one_answer_counts_for_one_call(program: Program):
    person = Person(True, False)
    finish(in_session(program.script([ASK, ASK, ["say", "Hello."]]), MemoryStore(), person))
    assert program.lines("outcomes") == ["yes", "no"]


def test_N2_9_a_question_without_anybody_ends_the_run_and_its_answer_counts_when_the_program_asks_again(
    program: Program,
):
    agent, store = program.script([["say", "I want to."], ASK, ["say", "Deployed."]]), MemoryStore()

    async def first() -> str:
        async with Session.open("fix-42", store=store, mode="ask") as session:
            with pytest.raises(HoldfastError) as raised:
                await agent.run("say hello", session=session)
            assert raised.value.fault.code == "SESS_NO_INTERACTOR"
            (question,) = session.pending
            await session.answer(question.id, approved=True)
            # In the same process, and in the same session.
            return (await agent.run("say hello", session=session)).text

    assert finish(first()) == "Deployed."
    assert program.lines("opened") == ["new", "load"]
    assert (program.lines("effects"), program.lines("outcomes")) == (["t-1"], ["cancelled", "yes"])


def test_N2_9_an_answer_that_was_used_is_not_used_again_after_a_cut(program: Program):
    """Approved, done, cut: the resumed program asks about the same call, and the person is asked again."""
    person = Person(True, False)
    finish(in_session(program.script([ASK, ["die"]], [ASK, ["say", "Hello."]]), MemoryStore(), person))
    assert program.lines("outcomes") == ["yes", "no"]
    assert len(person.questions) == 2


def test_the_time_in_which_a_person_thinks_is_no_time_of_the_program(program: Program):
    class Slow(Person):
        async def ask(self, question: Any) -> Answer:
            await asyncio.sleep(1.2)
            return await super().ask(question)

    agent = program.script([ASK, ["say", "Hello."]], idle=0.9, total=60 if program.is_official else 1.1)
    if program.is_official:
        agent = program.script([ASK, ["say", "Hello."]], start=30, idle=10, total=60)
    assert finish(in_session(agent, MemoryStore(), Slow(True))).text == "Hello."


def test_a_question_of_the_program_is_a_part_of_the_stream(program: Program):
    agent = program.script([ASK, ["say", "Hello."]])

    async def main() -> list:
        async with (
            Session.open("s", store=MemoryStore(), mode="ask", interactors=[Person(True)]) as session,
            agent.stream("say hello", session=session) as parts,
        ):
            return [part async for part in parts]

    parts = finish(main())
    assert [type(part) for part in parts] == [ToolCalled, Asking, ToolReturned, Text, Done]


# --- limits, cuts and cancellations ---


def test_G19_a_program_that_goes_silent_is_dead_after_the_idle_limit_and_its_words_are_kept(program: Program):
    idle = 5.0 if program.is_official else 0.6
    agent = program.script([["say", "It bui"], ["deaf"]], idle=idle, policy=NOW.replace(attempts=1))
    error = failure(agent)
    assert isinstance(error, CommandTimeoutError)
    assert (error.fault.code, error.fault.context["limit"]) == ("PROVIDER_STREAM_STALLED", "idle")
    assert error.fault.context["session"] == ID
    assert error.fault.partial is not None
    assert error.fault.partial.payload["text"] == "It bui"


def test_G19_a_program_that_does_not_speak_the_protocol_is_stopped_and_what_it_printed_is_kept():
    agent = CommandAgent(
        ["bash", "-c", "echo Usage: coder FILE; sleep 600"], form="acp", idle=0.5, policy=NOW.replace(attempts=1)
    )
    fault = failure(agent).fault
    assert fault.context["limit"] == "idle"
    assert fault.partial is not None
    assert fault.partial.payload["printed"] == "Usage: coder FILE"


FLOOD = "\n".join(
    json.dumps({"jsonrpc": "2.0", "id": f"f-{number}", "method": "fs/read_text_file", "params": {"path": "x" * 500}})
    for number in range(4_000)
)
"""More requests than fit into a pipe and what is held for a reader, and more answers than fit into a pipe."""


def test_a_program_that_asks_much_before_it_reads_any_answer_is_read_meanwhile(scripted: Program):
    agent = scripted.script([["raw", FLOOD], ["say", "Hello."]], total=15, policy=NOW.replace(attempts=1))
    assert finish(agent.run("say hello")).text == "Hello."


def test_G19_a_program_that_asks_much_and_reads_nothing_is_dead_after_the_idle_limit(scripted: Program):
    agent = scripted.script([["raw", FLOOD], ["say", "Hel"], ["deaf"]], idle=1.5, policy=NOW.replace(attempts=1))
    fault = failure(agent).fault
    assert (fault.code, fault.context["limit"]) == ("PROVIDER_STREAM_STALLED", "idle")
    assert fault.partial is not None
    assert fault.partial.payload["text"] == "Hel"


def test_a_program_that_asks_without_end_and_reads_nothing_is_stopped(
    scripted: Program, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("holdfast.agents.command_talk._UNREAD_BYTES", 200_000)
    monkeypatch.setattr("holdfast.agents.command_run._EXIT_S", 0.2)
    monkeypatch.setattr("holdfast.agents.command_talk._CANCEL_S", 0.2)
    agent = scripted.script([["say", "Hel"], ["raw", FLOOD], ["deaf"]], policy=NOW.replace(attempts=1))
    error = failure(agent)
    assert error.fault.code == "ACTOR_CLI_ERROR"
    assert "The program does not read its input" in str(error)
    assert error.fault.partial is not None
    assert error.fault.partial.payload["text"] == "Hel"


def test_a_program_killed_in_its_turn_goes_on_with_session_load_and_says_nothing_twice(program: Program):
    call = ["call", "t-1", "Edit", "edit", {}]
    agent = program.script([["say", "I work."], call, ["cost", 0.5], ["die"]], [["say", "Hello."], ["cost", 0.75]])
    reply = finish(agent.run("say hello"))
    # Neither the words nor the calls of the loaded conversation count for the second run.
    assert (reply.text, reply.tool_calls, reply.session) == ("Hello.", 0, ID)
    assert reply.usd == pytest.approx(0.75), "the program counts from the beginning of the conversation"
    assert program.lines("opened") == ["new", "load"]
    first, second = program.prompts
    assert first == "say hello"
    assert "interrupted" in second
    assert second.endswith("say hello")


def test_a_program_that_offers_only_session_resume_goes_on_with_that(program: Program):
    agent = program.script([["die"]], [["say", "Hello."]], given={"load": False, "resume": True})
    assert finish(agent.run("say hello")).text == "Hello."
    assert program.lines("opened") == ["new", "resume"]


def test_a_program_that_offers_nothing_and_worked_is_never_started_twice(program: Program):
    call = ["call", "t-1", "Edit", "edit", {}]
    error = failure(program.script([call, ["die"]], given={"load": False}))
    assert (error.fault.code, error.fault.maybe_executed, error.fault.retryable) == ("TOOL_KILLED", True, False)
    assert len(program.pids) == 1


def test_a_program_that_worked_and_lost_its_conversation_is_not_begun_anew(program: Program):
    agent = program.script([["call", "t-1", "Edit", "edit", {}], ["raw", "x"], ["die"]], [["say", "Hello."]])

    async def main() -> None:
        task = asyncio.create_task(agent.run("say hello"))
        await until(lambda: program.prompts)
        (program.folder / ID).unlink()
        with pytest.raises(OutcomeUnknownError):
            await task

    finish(main())
    assert len(program.prompts) == 1


OWNER = """
import asyncio, sys
from holdfast import CommandAgent, Session

async def main():
    agent = CommandAgent(sys.argv[3:], form="acp", name="coder", cwd=sys.argv[1])
    async with Session.open("fix-42", store=sys.argv[2], lease=2) as session:
        await agent.run("say hello", session=session)

asyncio.run(main())
"""


def test_a_killed_owner_goes_on_with_the_programs_own_conversation(program: Program):
    store = f"sqlite:{program.folder / 'work.db'}"
    agent = program.script([["touch", "a"], ["hang"]], [["touch", "b"], ["say", "Hello."]])
    argv = [sys.executable, "-c", OWNER, str(program.folder), store, *program.argv]
    owner = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    end = time.monotonic() + 30
    try:
        while not program.lines("prompts"):
            assert time.monotonic() < end
            assert owner.poll() is None
            time.sleep(0.001)
        assert _has_id(program), "the id is stored before the prompt is sent"
        while not program.lines("effects"):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in program.pids):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert finish(in_session(agent, store)).text == "Hello."
    assert (program.lines("effects"), program.lines("opened")) == (["a", "b"], ["new", "load"])


def _has_id(program: Program) -> bool:
    return any(ID.encode() in file.read_bytes() for file in program.folder.glob("work.db*"))


def test_a_cancelled_run_cancels_the_turn_before_it_stops_the_program(program: Program):
    agent = program.script([["say", "I work."], ["hang"]])

    async def main() -> None:
        task = asyncio.create_task(agent.run("say hello"))
        await until(lambda: program.prompts)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    finish(main())
    assert program.lines("cancelled") == [ID]


def test_a_call_that_a_cancelled_program_asks_about_is_answered_so_that_it_can_end_its_turn(
    scripted: Program, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("holdfast.agents.command_talk._CANCEL_S", 15)
    agent = scripted.script([["say", "I work."], ["hang"], ASK], given={"asks_after_cancel": True})

    async def main() -> None:
        task = asyncio.create_task(agent.run("say hello"))
        await until(lambda: scripted.prompts)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    finish(main())
    assert (scripted.lines("cancelled"), scripted.lines("outcomes")) == ([ID], ["cancelled"])
    assert scripted.lines("effects") == []


def test_a_program_that_ignores_the_cancellation_is_stopped(program: Program, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.agents.command_talk._CANCEL_S", 0.2)
    agent = program.script([["deaf"]])

    async def main() -> None:
        task = asyncio.create_task(agent.run("say hello"))
        await until(lambda: program.prompts)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    finish(main())
    assert program.lines("cancelled") == []


def test_leaving_a_stream_while_a_person_is_asked_closes_the_question_and_the_program(program: Program):
    agent = program.script([ASK])

    class Away:
        async def ask(self, question: Any) -> Answer:
            await asyncio.Event().wait()
            raise AssertionError

    async def main() -> None:
        async with (
            Session.open("s", store=MemoryStore(), mode="ask", interactors=[Away()]) as session,
            agent.stream("say hello", session=session) as parts,
        ):
            async for part in parts:
                if isinstance(part, Asking):
                    break

    finish(main())
    assert program.lines("effects") == []
    assert program.lines("cancelled") in ([ID], [])


# --- bad ends and bad frames ---


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ([["end", "refusal"]], "PROVIDER_CONTENT_POLICY"),
        ([["end", "max_tokens"]], "TASK_OUTPUT_EXHAUSTED"),
        ([["end", "max_turn_requests"]], "TASK_TURNS_EXHAUSTED"),
        ([["end", "cancelled"]], "ACTOR_CLI_ERROR"),
        ([["fail", -32603, "API Error: 529 Overloaded. This is a server-side issue"]], "PROVIDER_OVERLOADED"),
        ([["fail", -32000, "Authentication required"]], "AUTH_FAILED"),
        ([["err", "connect ECONNREFUSED 127.0.0.1:443"], ["exit", 1]], "ACTOR_CLI_NETWORK"),
        ([["err", "something odd"], ["exit", 1]], "ACTOR_CLI_ERROR"),
        ([["exit", 0]], "PROVIDER_STREAM_CUT"),
        ([["die"]], "TOOL_KILLED"),
    ],
)
def test_every_bad_end_is_a_fault_with_what_arrived_and_never_an_answer(program: Program, last, code):
    fault = failure(program.script([["say", "half"], *last], policy=NOW.replace(attempts=1))).fault
    assert (fault.code, fault.context["session"]) == (code, ID)
    assert fault.partial is not None
    assert fault.partial.payload["text"] == "half"


def test_an_empty_turn_is_no_answer(program: Program):
    fault = failure(program.script([["end", "end_turn"]], policy=NOW.replace(attempts=1))).fault
    assert fault.code == "PROVIDER_EMPTY_RESPONSE"


def test_an_overload_is_retried_in_the_same_conversation(program: Program):
    agent = program.script([["fail", -32603, "529 Overloaded"]], [["say", "Hello."]])
    assert finish(agent.run("say hello")).text == "Hello."
    assert program.lines("opened") == ["new", "load"]


def test_a_program_that_nobody_has_signed_in_to_says_so(program: Program):
    fault = failure(program.script([], given={"auth": True})).fault
    assert (fault.code, len(program.pids)) == ("AUTH_FAILED", 1)


def test_a_program_of_another_version_of_the_protocol_is_named(program: Program):
    error = failure(program.script([], given={"version": 7}))
    assert error.fault.code == "PROTO_VERSION_INCOMPATIBLE"
    assert "The program speaks version 7 of the Agent Client Protocol, and we speak version 1" in str(error)


FRAMES = [
    "not JSON",
    "[1, 2]",
    "{}",
    '{"jsonrpc": "2.0"}',
    '{"jsonrpc": "2.0", "id": 99, "result": {}}',
    '{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "Parse error"}}',
    '{"jsonrpc": "2.0", "id": [], "result": {}}',
    '{"jsonrpc": "2.0", "method": "session/update"}',
    '{"jsonrpc": "2.0", "method": "session/update", "params": {"update": 7}}',
    '{"jsonrpc": "2.0", "method": "session/update", "params": {"update": {"sessionUpdate": "of_next_year", "x": 1}}}',
    '{"jsonrpc": "2.0", "method": "session/update", "params": {"update": {"sessionUpdate": "agent_message_chunk"}}}',
    '{"jsonrpc": "2.0", "method": "session/update", "params": {"update": {"sessionUpdate": "usage_update", "cost": []}}}',
    '{"jsonrpc": "2.0", "method": 5}',
    "[" * 100_000,
]


@pytest.mark.parametrize("frame", FRAMES, ids=[frame[:60] for frame in FRAMES])
def test_a_malformed_frame_never_ends_a_turn(frame: str):
    lines = opened()
    assert lines.read(frame) == []
    assert (lines.report.ended, lines.report.tool_calls, lines.outgoing) == (False, 0, [])


@pytest.mark.parametrize("odd", [["completed"], {"completed": 1}, 7, True, None], ids=str)
def test_a_tool_call_with_values_of_other_types_is_shown_and_the_turn_goes_on(odd: Any):
    lines = opened()
    update = {"sessionUpdate": "tool_call", "toolCallId": odd, "title": odd, "kind": odd, "status": odd, "content": odd}
    parts = lines.read(json.dumps({"method": "session/update", "params": {"sessionId": ID, "update": update}}))
    assert [type(part) for part in parts] == [ToolCalled]
    params = {"sessionId": ID, "toolCall": {"toolCallId": odd, "kind": odd}, "options": [{"kind": odd}, odd]}
    lines.read(json.dumps({"id": odd, "method": "session/request_permission", "params": params}))
    lines.answer(lines.asked[0], is_given=True)
    lines.read(json.dumps({"id": 3, "error": {"code": odd, "message": odd, "data": odd}}))
    assert lines.report.failure is not None


def test_a_conversation_that_cannot_be_loaded_for_an_odd_code_is_not_lost():
    lines = AcpLines()
    lines.begin("say hello", folder="/work", session=ID)
    lines.read('{"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}}')
    lines.read('{"id": 2, "error": {"code": [-32002], "message": "Not now"}}')
    assert (lines.report.ended, lines.report.is_lost) == (True, False)


def test_a_program_that_prints_between_its_frames_answers_nevertheless(program: Program):
    agent = program.script([["raw", "Debugger attached."], ["say", "Hello."], ["raw", '{"half": '], ["say", " Bye."]])
    assert finish(agent.run("say hello")).text == "Hello. Bye."


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"method": "fs/read_text_file", "params": {"path": "/etc/passwd"}}, -32601),
        ({"method": "terminal/create", "params": {"command": "rm"}}, -32601),
        ({"method": "session/request_permission", "params": {}}, -32602),
        ({"method": "session/request_permission", "params": {"toolCall": 7, "options": 7}}, -32602),
    ],
)
def test_a_request_that_is_not_ours_to_serve_is_answered_with_an_error(request_: dict, error: int):
    lines = opened()
    lines.read(json.dumps({"jsonrpc": "2.0", "id": "r-1", **request_}))
    (sent,) = [json.loads(one) for one in lines.outgoing]
    assert (sent["id"], sent["error"]["code"]) == ("r-1", error)


def opened() -> AcpLines:
    """The machine in the middle of a turn."""
    lines = AcpLines()
    lines.begin("say hello", folder="/work")
    lines.read('{"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1}}')
    lines.read(json.dumps({"jsonrpc": "2.0", "id": 2, "result": {"sessionId": ID}}))
    sent = [json.loads(one) for one in lines.outgoing]
    assert [one["method"] for one in sent] == ["initialize", "session/new", "session/prompt"]
    lines.outgoing.clear()
    return lines


def asked(lines: AcpLines, number: int = 7) -> None:
    options = [{"optionId": "yes", "kind": "allow_once"}]
    params = {"sessionId": ID, "toolCall": {"toolCallId": "t-1", "kind": "execute"}, "options": options}
    lines.read(json.dumps({"id": number, "method": "session/request_permission", "params": params}))


def update(what: str, /, session: str = ID, **found: Any) -> str:
    params = {"sessionId": session, "update": {"sessionUpdate": what, **found}}
    return json.dumps({"method": "session/update", "params": params})


def test_a_question_is_answered_once_also_if_the_turn_was_cancelled_before_or_meanwhile():
    lines = opened()
    asked(lines, 7)
    (open_one,) = lines.asked
    lines.cancel()
    lines.answer(open_one, is_given=True)
    asked(lines, 8)
    assert lines.asked == []
    _, *answers = [json.loads(one) for one in lines.outgoing]
    assert [(one["id"], one["result"]["outcome"]["outcome"]) for one in answers] == [(7, "cancelled"), (8, "cancelled")]
    assert lines.report.tool_calls == 0


def test_words_and_costs_of_another_conversation_are_not_ours_but_its_tool_calls_count_as_work():
    lines = opened()
    words = {"content": {"type": "text", "text": "Of another."}}
    assert lines.read(update("agent_message_chunk", session="other", **words)) == []
    assert lines.read(update("usage_update", session="other", cost={"amount": 5, "currency": "USD"})) == []
    lines.read(update("tool_call", session="other", toolCallId="t-9", status="pending"))
    assert (lines.report.text, lines.report.usd, lines.report.tool_calls) == ("", None, 1)


@pytest.mark.parametrize("is_replayed", [False, True])
def test_what_is_known_about_a_tool_call_is_forgotten_when_it_has_ended(is_replayed: bool):
    lines = AcpLines() if is_replayed else opened()
    if is_replayed:
        lines.begin("say hello", folder="/work", session=ID)
        lines.read('{"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}}')
    for number in range(50):
        given = {"toolCallId": f"t-{number}", "title": "Read", "rawInput": {"path": "x" * 1_000}}
        lines.read(update("tool_call", **given))
        lines.read(update("tool_call_update", toolCallId=f"t-{number}", status="completed"))
        # A word after the end changes nothing.
        lines.read(update("tool_call_update", toolCallId=f"t-{number}", status="completed"))
    assert lines.report.tool_calls == (0 if is_replayed else 50)
    assert lines._calls == {}


# --- options ---


@pytest.mark.parametrize(
    "argv",
    [
        ["gemini", "--acp"],
        ["gemini", "--experimental-acp"],
        ["opencode", "acp"],
        ["claude-code-acp"],
        ["npx", "codex-acp"],
    ],
)
def test_the_arguments_show_that_a_program_speaks_the_protocol(argv: list[str]):
    form = CommandAgent(argv).form
    assert form is not None
    assert form.name == "acp"


@pytest.mark.parametrize("argv", [["acp"], ["claude", "-p"], ["bash", "-c", "acp"], ["grep", "--no-acp"]])
def test_other_arguments_do_not(argv: list[str]):
    assert CommandAgent(argv).form is None


def test_a_program_of_the_protocol_takes_no_arguments_that_resume_it():
    with pytest.raises(InvalidError) as raised:
        CommandAgent(["coder"], form="acp", resume=["--resume", "{session}"])
    assert raised.value.fault.context["path"] == "command_agent.resume"


def test_a_budget_counts_what_the_program_says_it_cost(program: Program):
    agent = program.script([["cost", 0.5], ["fail", -32603, "529 Overloaded"]], [["cost", 0.75], ["say", "Hello."]])

    async def main() -> float:
        with Budget(usd=10) as budget:
            await agent.run("say hello")
            return budget.spend().usd

    assert finish(main()) == pytest.approx(0.75)


def test_the_cost_of_a_conversation_that_was_lost_is_not_taken_off_the_next_one(program: Program):
    """5 in a conversation that is lost, then 3 in a new one, which is cut and goes on to 4: 9 in all."""
    overloaded = ["fail", -32603, "529 Overloaded"]
    agent = program.script(
        [["cost", 5], ["forget"], overloaded],
        [],
        [["cost", 3], overloaded],
        [["cost", 4], ["say", "Hello."]],
        policy=NOW.replace(attempts=3),
    )

    async def main() -> tuple[float | None, float]:
        with Budget(usd=100) as budget:
            reply = await agent.run("say hello")
            return reply.usd, budget.spend().usd

    assert finish(main()) == (9, 9)
    assert program.lines("opened") == ["new", "new", "load"]
