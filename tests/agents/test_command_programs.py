"""The real Claude Code and Codex, driven by `CommandAgent` against the fault provider: answers, hangs, kills, storms, resumes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import real_programs

from holdfast import Backoff, CommandAgent, Policy, Session
from holdfast.agents import CommandError, CommandTimeoutError, Done, ToolCalled, ToolReturned
from holdfast.sessions import Answer, Question
from holdfast.stores.memory import MemoryStore
from holdfast.testing import forget_targets
from holdfast.testing.provider import FaultProvider, Script, Turn, serve_in_thread
from holdfast.testing.provider.script import Rule

pytestmark = pytest.mark.skipif(
    not real_programs.is_installed(), reason="the real Claude Code and Codex are not installed: scripts/have-agents"
)
both = pytest.mark.parametrize("name", ["claude", "codex"])
NOW = Policy(attempts=2, backoff=Backoff(initial=0, jitter=0.0), timeout=None, patience=None)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch):
    """A word in the environment of every process of a test. None of them may be left."""
    forget_targets()
    word = f"leak-check-{os.urandom(6).hex()}"
    monkeypatch.setenv("HOLDFAST_LEAK_CHECK", word)
    yield word
    assert [found for found in processes(word) if "read -r _" not in found[1]] == []


def processes(token: str) -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if token.encode() in (entry / "environ").read_bytes():
                    found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
            except OSError:
                continue
    return found


def agent_of(name: str, provider: FaultProvider, home: Path, **options) -> CommandAgent:
    make = real_programs.claude if name == "claude" else real_programs.codex
    return make(provider, home, *real_programs.MORE[name], **{"policy": NOW, "start": 60.0, **options})


def bodies(provider: FaultProvider) -> list[str]:
    return [bytes(request.body).decode() for request in provider.requests]


async def saved(home: Path, words: str) -> None:
    """Wait until a program has saved its conversation: it does so some time after its first request."""
    await until(lambda: any(words in file.read_text() for file in home.rglob("*.jsonl")))


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def received(provider: FaultProvider, count: int) -> None:
    await until(lambda: provider.counters.received >= count)


@both
def test_a_real_program_calls_a_tool_and_answers(name: str, tmp_path: Path, token: str):
    async def main(provider: FaultProvider):
        async with agent_of(name, provider, tmp_path).stream("say hello") as parts:
            return [part async for part in parts]

    with serve_in_thread(Script(replies=(real_programs.TOOL[name], "Done."))) as provider:
        call, result, *_, done = asyncio.run(main(provider))
        assert provider.counters.received == 2
    assert isinstance(call, ToolCalled)
    assert isinstance(result, ToolReturned)
    assert isinstance(done, Done)
    assert result.content.strip() == "hi"
    assert (done.reply.text, done.reply.tool_calls) == ("Done.", 1)
    assert done.reply.session
    assert done.reply.usage is not None


def test_G19_a_real_program_whose_provider_hangs_is_dead_after_the_idle_limit(tmp_path: Path, token: str):
    with serve_in_thread("hang*9") as provider:
        agent = agent_of("claude", provider, tmp_path, idle=2.0, policy=NOW.replace(attempts=1))
        with pytest.raises(CommandTimeoutError) as raised:
            asyncio.run(agent.run("say hello"))
        # On a machine that is busy the limit may pass before the first request, and before the program has named its session.
        assert provider.counters.received <= 1
    assert raised.value.fault.context["limit"] == "idle"
    assert raised.value.fault.context.get("session") or not provider.counters.received


def test_a_real_program_that_is_killed_goes_on_with_its_own_conversation(tmp_path: Path, token: str):
    async def main(provider: FaultProvider):
        task = asyncio.create_task(agent_of("claude", provider, tmp_path).run("remember the number 4711"))
        await received(provider, 1)
        await saved(tmp_path, "number 4711")
        for pid, command in processes(token):
            if "read -r _" not in command:
                os.kill(pid, signal.SIGKILL)
        return await task

    with serve_in_thread("hang") as provider:
        reply = asyncio.run(main(provider))
        _, second = bodies(provider)
    assert reply.text.startswith("You said: ")
    # The conversation of the killed run is in the second request: the prompt, and then that it was interrupted.
    assert second.count("remember the number 4711") == 2
    assert "interrupted" in second


# --- the Agent Client Protocol ---


class Person:
    """Answers every question in the same way, and keeps the questions."""

    def __init__(self, *, allows: bool) -> None:
        self._allows = allows
        self.questions: list[str] = []

    async def ask(self, question: Question) -> Answer:
        self.questions.append(question.prompt)
        return Answer(self._allows, "accepted" if self._allows else "rejected")


TOUCH = Turn(tool="Bash", arguments={"command": "touch made", "description": "make it"})


@pytest.mark.parametrize("allows", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_N2_9_a_real_program_of_the_protocol_asks_before_a_tool_call(allows: bool, tmp_path: Path, token: str):
    person = Person(allows=allows)

    async def main(provider: FaultProvider):
        agent = real_programs.claude_acp(provider, tmp_path, policy=NOW, start=60.0)
        async with Session.open("fix-42", store=MemoryStore(), mode="ask", interactors=[person]) as session:
            return await agent.outcome("say hello", session=session)

    with serve_in_thread(Script(replies=(TOUCH, "Done."))) as provider:
        outcome = asyncio.run(main(provider))
    (question,) = person.questions
    assert question.startswith("Run execute(")
    assert "touch made" in question
    assert (tmp_path / "work" / "made").exists() is allows
    if allows:
        assert (outcome.unwrap().text, outcome.unwrap().tool_calls) == ("Done.", 1)
    else:
        # This program ends its turn when a call is denied.
        assert outcome.fault.code == "TOOL_APPROVAL_DENIED"


@pytest.mark.soak
def test_a_real_program_of_the_protocol_that_was_killed_goes_on_with_its_conversation(tmp_path: Path, token: str):
    async def main(provider: FaultProvider):
        task = asyncio.create_task(
            real_programs.claude_acp(provider, tmp_path, policy=NOW, start=60.0).run("remember the number 4711")
        )
        await received(provider, 2)
        await saved(tmp_path, "number 4711")
        for pid, command in processes(token):
            if "read -r _" not in command:
                os.kill(pid, signal.SIGKILL)
        return await task

    # The conversation is saved after the first answer, so the second request is the one that hangs.
    with serve_in_thread(Script(rules=(Rule(steps="ok, hang"),), replies=(TOUCH, "Done."))) as provider:
        reply = asyncio.run(main(provider))
        last = bodies(provider)[-1]
    assert reply.text == "Done."
    assert last.count("remember the number 4711") >= 2
    assert "interrupted" in last


# --- long runs ---


@pytest.mark.soak
@pytest.mark.skipif("HOLDFAST_SOAK" not in os.environ, reason="a minute: make soak")
@both
@pytest.mark.parametrize("failures", [1, 3, 6])
def test_a_storm_of_529_ends_in_an_answer_or_in_the_providers_fault(
    name: str, failures: int, tmp_path: Path, token: str
):
    script = Script(rules=(Rule(steps=f"529*{failures}"),), replies=("Hello.",))
    with serve_in_thread(script) as provider:
        outcome = asyncio.run(agent_of(name, provider, tmp_path, policy=NOW.replace(attempts=4)).outcome("say hello"))
        # The programs make no retries of their own here, so each run is one request.
        assert provider.counters.received == min(failures + 1, 4)
    if failures < 4:
        assert outcome.unwrap().text == "Hello."
    else:
        assert (outcome.fault.code, len(outcome.attempts)) == ("PROVIDER_OVERLOADED", 4)


@pytest.mark.soak
@pytest.mark.skipif("HOLDFAST_SOAK" not in os.environ, reason="a minute: make soak")
@both
def test_a_denied_key_is_not_tried_again(name: str, tmp_path: Path, token: str):
    with serve_in_thread(Script(rules=(Rule(steps="401", loop=True),))) as provider:
        with pytest.raises(CommandError) as raised:
            asyncio.run(agent_of(name, provider, tmp_path).run("say hello"))
        assert provider.counters.received == 1
    assert raised.value.fault.code == "AUTH_FAILED"


@pytest.mark.soak
@pytest.mark.skipif("HOLDFAST_SOAK" not in os.environ, reason="a minute: make soak")
@both
@pytest.mark.parametrize("after", ["id", "request"])
def test_a_session_that_was_cut_resumes_the_programs_conversation(name: str, after: str, tmp_path: Path, token: str):
    """The owner is cancelled as soon as the id is stored, or in the first request; a second owner goes on."""

    async def owner(provider: FaultProvider, *, cut: bool):
        async with Session.open("fix-42", store=f"sqlite:{tmp_path}/work.db") as session:
            agent = agent_of(name, provider, tmp_path, if_lost="restart" if after == "id" else "raise")
            if not cut:
                return await agent.run("remember the number 4711", session=session)
            task = asyncio.create_task(agent.run("remember the number 4711", session=session))
            await _begun(tmp_path)
            if after == "request":
                await received(provider, 1)
                await saved(tmp_path, "number 4711")
            task.cancel()
            await asyncio.wait((task,))
            return None

    with serve_in_thread("hang" if after == "request" else "ok") as provider:
        asyncio.run(owner(provider, cut=True))
        reply = asyncio.run(owner(provider, cut=False))
        last = bodies(provider)[-1]
    assert reply.text.startswith("You said: ")
    assert last.count("remember the number 4711") == 2 or after == "id"
    assert "interrupted" in last


async def _begun(folder: Path) -> None:
    """Wait until the program's id is in the store."""
    await until(lambda: b'"session":"' in b"".join(file.read_bytes() for file in folder.glob("work.db*")))
