"""`recovering(query)` of the Claude Agent SDK: each failure of Claude Code, with a program that stands for it, and with the real one."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("claude_agent_sdk", reason="NOT TESTED: claude-agent-sdk is not installed")

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKError,
    HookMatcher,
    ResultMessage,
    SystemMessage,
    query,
)

from holdfast import Backoff, Budget, Circuit, InvalidError, OutcomeUnknownError, Policy, Session, fault_of
from holdfast.agents import CommandError
from holdfast.claude_agent import QueryError, QueryTimeoutError, recovering
from holdfast.testing import forget_targets
from holdfast.testing.provider import Script, serve_in_thread
from holdfast.testing.provider.script import Rule

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))
import real_programs

PROGRAM = Path(__file__).with_name("scripted_claude.py")
NOW = Policy(attempts=2, backoff=Backoff(initial=0, jitter=0.0), timeout=None, patience=None, circuit=None)
ID = "11111111-1111-4111-8111-111111111111"
INIT = {
    "type": "system",
    "subtype": "init",
    "session_id": ID,
    "model": "claude-haiku-4-5",
    "claude_code_version": "2.1.300",
}
TOOL = {
    "type": "assistant",
    "session_id": ID,
    "message": {
        "id": "msg_1",
        "model": "claude-haiku-4-5",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "pay"}}],
    },
}
TEXT = {
    "type": "assistant",
    "session_id": ID,
    "message": {"id": "msg_2", "model": "claude-haiku-4-5", "content": [{"type": "text", "text": "Half of"}]},
}
RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "duration_ms": 5,
    "duration_api_ms": 4,
    "num_turns": 1,
    "session_id": ID,
    "total_cost_usd": 0.25,
    "usage": {"input_tokens": 10, "output_tokens": 5},
    "result": "Done.",
}


def failed(text: str, status: int | None = None, **more) -> dict:
    return {**RESULT, "is_error": True, "result": text, "api_error_status": status, **more}


OVERLOADED = failed("API Error: 529 Overloaded", 529)
LOST = ["err", f"No conversation found with session ID: {ID}"]


async def _hook(*_: object) -> dict:
    return {}


class Claude:
    """A scripted Claude Code in a folder."""

    def __init__(self, folder: Path, *runs: list) -> None:
        self.folder = folder
        self.path = folder / "claude"
        self.path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-S", str(PROGRAM), str(folder)])} "$@"\n')
        self.path.chmod(0o755)
        (folder / "runs.json").write_text(json.dumps(runs))

    def options(self, **more) -> ClaudeAgentOptions:
        # With a hook the SDK leaves the input of the program open, so a program that hangs sees at once that it is stopped.
        more.setdefault("hooks", {"Stop": [HookMatcher(hooks=[_hook])]})
        return ClaudeAgentOptions(cli_path=self.path, cwd=self.folder, **more)

    @property
    def starts(self) -> list[dict]:
        found = sorted(self.folder.glob("start-*.json"))
        return [json.loads(path.read_text()) for path in found]

    @property
    def resumed(self) -> list[str]:
        """The conversation that each start resumed; empty: a new one."""
        return [_after("--resume", start["argv"]) for start in self.starts]

    @property
    def effects(self) -> list[str]:
        path = self.folder / "effects"
        return path.read_text().split() if path.exists() else []


def _after(option: str, argv: list[str]) -> str:
    joined = next((part for part in argv if part.startswith(f"{option}=")), "")
    return argv[argv.index(option) + 1] if option in argv else joined.partition("=")[2]


@pytest.fixture(autouse=True)
def _fresh():
    forget_targets()


async def ask(claude: Claude, *, session: Session | None = None, given: ClaudeAgentOptions | None = None, **options):
    """Return the messages of a query, and how it failed."""
    messages: list = []
    made = recovering(query, **{"policy": NOW, **options})
    try:
        async for message in made(prompt="pay the bill", options=given or claude.options(), session=session):
            messages.append(message)  # noqa: PERF401 - those before a failure count too
    except Exception as error:
        return messages, error
    return messages, None


def kinds(messages: list) -> list[str]:
    return [type(message).__name__ for message in messages]


def test_messages_of_a_query_that_works_pass_unchanged(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, TOOL, TEXT, RESULT])

    async def plainly():
        return [message async for message in query(prompt="pay the bill", options=claude.options())]

    messages, error = asyncio.run(ask(claude))
    assert error is None
    assert messages == asyncio.run(plainly())
    assert kinds(messages) == ["SystemMessage", "AssistantMessage", "AssistantMessage", "ResultMessage"]
    assert claude.starts[0]["prompt"] == "pay the bill"


def test_a_query_that_failed_before_it_did_anything_is_made_again_as_it_was(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, OVERLOADED, ["exit", 1]], [INIT, RESULT])
    messages, error = asyncio.run(ask(claude))
    assert error is None
    # The failed result is not shown: the reader of the messages would take it for the end.
    assert [message.result for message in messages if isinstance(message, ResultMessage)] == ["Done."]
    assert claude.resumed == ["", ""]
    assert [start["prompt"] for start in claude.starts] == ["pay the bill"] * 2


@pytest.mark.parametrize("end", [[OVERLOADED, ["exit", 1]], [["die"]], [["err", "network is down"], ["exit", 1]]])
def test_a_query_that_called_a_tool_goes_on_with_its_conversation(end: list, tmp_path: Path):
    claude = Claude(tmp_path, [INIT, TOOL, ["effect", "paid"], *end], [INIT, RESULT])
    messages, error = asyncio.run(ask(claude))
    assert error is None
    assert messages[-1].result == "Done."
    assert claude.resumed == ["", ID]
    assert "do not do it a second time" in claude.starts[1]["prompt"]
    assert "pay the bill" in claude.starts[1]["prompt"]
    assert claude.effects == ["paid"]


def test_a_conversation_that_is_lost_after_a_tool_call_is_not_begun_anew(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, TOOL, ["effect", "paid"], ["die"]], [LOST, ["exit", 1]], [INIT, RESULT])
    messages, error = asyncio.run(ask(claude))
    assert isinstance(error, OutcomeUnknownError)
    assert 'recovering(…, if_lost="restart")' in str(error)
    assert kinds(messages) == ["SystemMessage", "AssistantMessage"]
    assert claude.resumed == ["", ID]


def test_a_lost_conversation_is_begun_anew_if_the_user_allows_it(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, TOOL, ["die"]], [LOST, ["exit", 1]], [INIT, RESULT])
    messages, error = asyncio.run(ask(claude, if_lost="restart"))
    assert error is None
    assert messages[-1].result == "Done."
    assert claude.resumed == ["", ID, ""]
    assert "Look first at what is already done" in claude.starts[2]["prompt"]


def test_an_id_that_the_user_has_chosen_is_resumed_and_not_given_twice(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, ["die"]], [INIT, RESULT])
    _, error = asyncio.run(ask(claude, given=claude.options(session_id=ID)))
    assert error is None
    assert claude.resumed == ["", ID]
    assert [_after("--session-id", start["argv"]) for start in claude.starts] == [ID, ""]


@pytest.mark.parametrize(
    ("acts", "code", "starts"),
    [
        ([INIT, OVERLOADED, ["exit", 1]], "PROVIDER_OVERLOADED", 2),
        ([INIT, failed("Invalid API key · Please run /login", 401), ["exit", 1]], "AUTH_FAILED", 1),
        ([INIT, failed("", subtype="error_max_turns", errors=["Reached 3 turns"]), ["exit", 1]], "TASK_TURNS_EXHAUSTED", 1),
        ([INIT, ["err", "connect ECONNREFUSED 127.0.0.1:9"], ["exit", 1]], "ACTOR_CLI_NETWORK", 2),
        ([INIT, ["err", "something odd"], ["exit", 3]], "ACTOR_CLI_ERROR", 1),
        ([INIT, ["die"]], "TOOL_KILLED", 2),
        ([INIT, TEXT, ["exit", 0]], "PROVIDER_STREAM_CUT", 2),
        ([INIT, {**RESULT, "result": "  "}], "PROVIDER_EMPTY_RESPONSE", 1),
        ([["refuse"]], "ACTOR_CLI_ERROR", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_each_failure_is_a_typed_error_with_what_there_was(acts: list, code: str, starts: int, tmp_path: Path):
    claude = Claude(tmp_path, acts)
    messages, error = asyncio.run(ask(claude))
    assert isinstance(error, QueryError)
    # Both kinds of `except` find it.
    assert isinstance(error, ClaudeSDKError)
    assert isinstance(error, CommandError)
    assert (error.fault.code, len(claude.starts)) == (code, starts)
    assert error.fault.maybe_executed is False
    assert error.fault.context["agent"] == "claude-agent"
    assert error.fault.partial is not None
    if TEXT in acts:
        assert error.fault.partial.payload["text"] == "Half of"
    results = [act for act in acts if isinstance(act, dict) and act["type"] == "result"]
    assert kinds(messages).count("ResultMessage") == len(results), "the last failed result is shown before the error"


def test_a_line_that_is_too_long_for_the_sdk_is_a_malformed_response(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, ["text", "{" + "x" * 5_000]])
    _, error = asyncio.run(ask(claude, given=claude.options(max_buffer_size=2_000)))
    assert isinstance(error, QueryError)
    assert error.fault.code == "PROVIDER_MALFORMED_RESPONSE"
    assert error.fault.context["session"] == ID


def test_a_program_that_is_not_there_is_not_tried_again(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, RESULT])
    claude.path.unlink()
    messages, error = asyncio.run(ask(claude))
    assert messages == []
    assert isinstance(error, QueryError)
    assert (error.fault.code, error.fault.maybe_executed) == ("TOOL_COMMAND_NOT_FOUND", False)


def test_a_query_that_says_nothing_is_stopped_and_its_program_is_dead(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, ["hang"]])
    _, error = asyncio.run(ask(claude, idle=1.0, policy=NOW.replace(attempts=1)))
    assert isinstance(error, QueryTimeoutError)
    assert isinstance(error, TimeoutError)
    assert error.fault.context["limit"] == "idle"
    assert not Path(f"/proc/{claude.starts[0]['pid']}").exists()


# A query that is cut while the SDK closes it leaves a stream of the SDK to the garbage collector, which warns.
@pytest.mark.filterwarnings("ignore:.*MemoryObjectReceiveStream:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_leaving_the_loop_ends_the_program(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, ["hang"]])

    async def main():
        messages = recovering(query, policy=NOW)(prompt="pay the bill", options=claude.options())
        async for message in messages:
            assert isinstance(message, SystemMessage)
            break
        await messages.aclose()

    asyncio.run(main())
    assert not Path(f"/proc/{claude.starts[0]['pid']}").exists()


# A query that is cut while the SDK closes it leaves a stream of the SDK to the garbage collector, which warns.
@pytest.mark.filterwarnings("ignore:.*MemoryObjectReceiveStream:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_cancelling_the_reader_ends_the_program_and_is_no_failure(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, TOOL, ["hang"]])

    async def main():
        seen = asyncio.Event()

        async def read():
            async for message in recovering(query, policy=NOW)(prompt="pay the bill", options=claude.options()):
                if isinstance(message, AssistantMessage):
                    seen.set()

        task = asyncio.create_task(read())
        await asyncio.wait_for(seen.wait(), 20)
        task.cancel()
        await asyncio.wait((task,))
        return task.cancelled()

    assert asyncio.run(main())
    assert len(claude.starts) == 1
    assert not Path(f"/proc/{claude.starts[0]['pid']}").exists()


def test_what_can_be_used_only_once_is_not_repeated(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, TOOL, OVERLOADED, ["exit", 1]])

    async def prompts():
        yield {"type": "user", "message": {"role": "user", "content": "pay the bill"}}

    async def main(session: Session | None):
        made = recovering(query, policy=NOW)
        return [message async for message in made(prompt=prompts(), options=claude.options(), session=session)]

    with pytest.raises(QueryError, match="only once") as raised:
        asyncio.run(main(None))
    assert (raised.value.fault.retryable, raised.value.fault.maybe_executed) == (False, True)
    assert len(claude.starts) == 1

    async def in_session():
        async with Session.open("bill-7", store=f"sqlite:{tmp_path}/work.db") as session:
            await main(session)

    with pytest.raises(InvalidError, match="a prompt that is not a text"):
        asyncio.run(in_session())


def test_the_users_own_function_still_reads_stderr(tmp_path: Path):
    claude, lines = Claude(tmp_path, [["err", "careful"], INIT, RESULT]), []
    _, error = asyncio.run(ask(claude, given=claude.options(stderr=lines.append)))
    assert error is None
    assert lines == ["careful"]


def test_a_budget_is_charged_with_what_claude_code_reports(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, OVERLOADED, ["exit", 1]], [INIT, RESULT])

    async def main():
        with Budget(usd=5.0) as budget:
            await ask(claude)
            return budget.spend().usd

    assert asyncio.run(main()) == pytest.approx(0.5)


# --- usage limits ---


def limit(ends: float) -> list:
    info = {"status": "rejected", "resetsAt": int(ends), "rateLimitType": "five_hour"}
    event = {"type": "rate_limit_event", "rate_limit_info": info, "uuid": ID, "session_id": ID}
    return [INIT, TOOL, event, failed("You've hit your limit · resets 3am", 429), ["exit", 1]]


def test_a_usage_limit_says_when_it_ends(tmp_path: Path):
    ends = time.time() + 3_600
    claude = Claude(tmp_path, limit(ends))
    _, error = asyncio.run(ask(claude))
    assert isinstance(error, QueryError)
    assert error.fault.retry_after == pytest.approx(3_600, abs=30)
    assert len(claude.starts) == 1


def test_a_usage_limit_parks_the_run_of_a_session(tmp_path: Path):
    claude = Claude(tmp_path, limit(time.time() + 3_600), [INIT, RESULT])

    async def main():
        async with Session.open("bill-7", store=f"sqlite:{tmp_path}/work.db") as session:
            return await ask(claude, session=session)

    _, first = asyncio.run(main())
    assert fault_of(first).context["parked_until"] > time.time()
    _, second = asyncio.run(main())
    assert type(second).__name__ == "ParkedError"
    assert len(claude.starts) == 1, "before the limit ends nothing is asked"


# --- sessions ---


def test_in_a_session_the_result_is_made_once(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, TOOL, ["effect", "paid"], RESULT])

    async def main():
        async with Session.open("bill-7", store=f"sqlite:{tmp_path}/work.db") as session:
            return await ask(claude, session=session)

    first, error = asyncio.run(main())
    assert error is None
    assert kinds(first) == ["SystemMessage", "AssistantMessage", "ResultMessage"]
    again, error = asyncio.run(main())
    assert error is None
    assert again == first[-1:]
    assert claude.effects == ["paid"]
    assert len(claude.starts) == 1


def has_id(folder: Path) -> bool:
    """Whether the id of the conversation is in the store."""
    return any(ID.encode() in file.read_bytes() for file in folder.glob("work.db*"))


def test_a_session_whose_process_was_cut_goes_on_with_the_conversation(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, TOOL, ["effect", "paid"], ["hang"]], [INIT, RESULT])

    async def main(*, cut: bool):
        async with Session.open("bill-7", store=f"sqlite:{tmp_path}/work.db") as session:
            task = asyncio.create_task(ask(claude, session=session))
            if not cut:
                return await task
            end = time.monotonic() + 20
            # The program works on while its id is stored. Cut before that, nobody could go on: the outcome would be unknown.
            while not (claude.effects and has_id(tmp_path)):
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait((task,))
            return None

    asyncio.run(main(cut=True))
    messages, error = asyncio.run(main(cut=False))
    assert error is None
    assert messages[-1].result == "Done."
    assert claude.resumed == ["", ID]
    assert claude.effects == ["paid"]


def test_in_a_session_all_work_is_in_the_conversation_whose_id_is_stored(tmp_path: Path):
    """A new conversation, whose id is stored nowhere, could call a tool and be forgotten."""
    claude = Claude(tmp_path, [INIT, OVERLOADED, ["exit", 1]], [INIT, RESULT])

    async def main():
        async with Session.open("bill-7", store=f"sqlite:{tmp_path}/work.db") as session:
            return await ask(claude, session=session)

    _, error = asyncio.run(main())
    assert error is None
    assert claude.resumed == ["", ID]


# --- bad options ---


@pytest.mark.parametrize(
    "options", [{"idle": -1}, {"if_lost": "never"}, {"on_limit": "later"}, {"name": ""}, {"query": 5}]
)
def test_wrong_options_are_found_at_once(options: dict):
    with pytest.raises(InvalidError):
        recovering(options.pop("query", query), **options)


def test_a_query_that_recovers_is_not_wrapped_twice():
    with pytest.raises(InvalidError, match="does not recover yet"):
        recovering(recovering(query))


def test_an_open_circuit_answers_without_a_program(tmp_path: Path):
    claude = Claude(tmp_path, [INIT, OVERLOADED, ["exit", 1]])
    policy = NOW.replace(attempts=1, circuit=Circuit(failures=1), wait_for_circuit=False)
    asyncio.run(ask(claude, policy=policy))
    _, error = asyncio.run(ask(claude, policy=policy))
    assert fault_of(error).code == "CIRCUIT_OPEN"
    assert len(claude.starts) == 1


# --- the real Claude Code ---


@pytest.mark.skipif(
    not real_programs.is_installed(), reason="the real Claude Code is not installed: scripts/have-agents"
)
def test_the_real_claude_code_calls_a_tool_meets_an_overload_and_goes_on(tmp_path: Path):
    (tmp_path / "work").mkdir()
    with serve_in_thread(
        Script(replies=(real_programs.TOOL["claude"], "Done."), rules=(Rule(steps="ok, 529, ok"),))
    ) as provider:
        options = ClaudeAgentOptions(
            cli_path=real_programs.folder() / "node_modules/.bin/claude",
            cwd=tmp_path / "work",
            allowed_tools=["Bash(echo *)"],
            extra_args={"bare": None},
            env={
                "HOME": str(tmp_path),
                **real_programs.NO_NETWORK,
                "ANTHROPIC_BASE_URL": provider.url,
                "ANTHROPIC_API_KEY": "test",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "CLAUDE_CODE_MAX_RETRIES": "0",
            },
        )

        async def main():
            made = recovering(query, policy=NOW)
            return [message async for message in made(prompt="say hello", options=options)]

        messages = asyncio.run(main())
        bodies = [bytes(request.body).decode() for request in provider.requests]
    assert messages[-1].result == "Done."
    assert messages[-1].session_id == messages[0].data["session_id"]
    # The third request is of the second program, and has the tool call of the first.
    assert len(bodies) == 3
    assert "interrupted" in bodies[2]
    assert "echo hi" in bodies[2]
