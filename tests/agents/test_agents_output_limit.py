"""Answers that reach the limit of their tokens: none of their calls runs, and a limit that nobody named is raised."""

from __future__ import annotations

from typing import Any

import pytest
from agents_kit import Scripted, World

from holdfast import Budget, Err, tool
from holdfast.agents import Done, Hooks, Retrying, Text, ToolCalled
from holdfast.providers import Reply, ToolCall
from holdfast.stores import MemoryStore
from holdfast.testing.provider import Turn
from holdfast.testing.provider.replies import ToolCall as Call

MODELS = pytest.mark.parametrize("model", ["claude-haiku-4-5", "gpt-5-mini", "grok-4"])
# Of the first one nothing is left but the name, of the second a half of the arguments, of the third all: only the limit tells.
LEFT = pytest.mark.parametrize("tokens", [10**9, 8192, 4097], ids=["head", "half", "nearly all"])
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Purge:
    def __init__(self) -> None:
        self.purged: list[str] = []

        @tool(effect="unsafe")
        async def purge(path: str = "/", older_than_days: int = 0) -> str:
            """Delete old files."""
            self.purged.append(f"{path} {older_than_days}")
            return "purged"

        self.tool = purge


def limits(world: World) -> list[int]:
    return [next(sent[name] for name in LIMITS if name in sent) for sent in world.sent]


def long(tokens: int) -> Turn:
    return Turn(tool="purge", arguments={"path": "/tmp/cache", "older_than_days": 30}, tokens=tokens)


async def answer(world: World, agent: Any, how: str) -> Any:
    """Let the agent work, and return the outcome."""
    if how == "in a session":
        async with world.session(MemoryStore(clock=world.runtime.clock)) as session:
            return await agent.outcome("Clean up.", session=session)
    if how == "streamed":
        try:
            async with agent.stream("Clean up.") as parts:
                return [part async for part in parts]
        except Exception as error:
            return Err(world.runtime.fault_of(error), error)
    return await agent.outcome("Clean up.")


@MODELS
@LEFT
@pytest.mark.parametrize("how", ["whole", "streamed", "in a session"])
def test_XA1_a_call_of_an_answer_that_reached_its_limit_is_never_run(model: str, tokens: int, how: str):
    world, files = World(long(tokens), "Done."), Purge()
    agent = world.agent(files.tool, model=world.model(model), max_output=4096)
    ended = world.run(answer(world, agent, how))
    assert files.purged == []
    assert ended.fault.code == "TASK_OUTPUT_EXHAUSTED"
    assert "4096" in ended.fault.message
    assert "max_output" in ended.fault.message
    # A limit that the application gave is kept.
    assert limits(world) == [4096]


@MODELS
@pytest.mark.parametrize("how", ["whole", "streamed", "in a session"])
def test_XA1_a_limit_that_nobody_named_is_raised_and_then_the_whole_call_runs(model: str, how: str):
    world, files = World(long(10_000), "Done."), Purge()
    agent = world.agent(files.tool, model=world.model(model))
    ended = world.run(answer(world, agent, how))
    assert files.purged == ["/tmp/cache 30"]
    assert limits(world) == [4096, 16384, 16384]
    first, second = world.sent[:2]
    assert first.get("messages") == second.get("messages")
    assert first.get("input") == second.get("input")
    assert isinstance(ended[-1], Done) if how == "streamed" else ended.value.text == "Done."


def test_XA1_the_limit_is_raised_twice_and_then_the_fault_names_it():
    world, files = World(long(10**9)), Purge()
    ended = world.run(answer(world, world.agent(files.tool), "whole"))
    assert files.purged == []
    assert limits(world) == [4096, 16384, 65536]
    assert ended.fault.code == "TASK_OUTPUT_EXHAUSTED"
    assert "65536" in ended.fault.message
    assert ended.fault.partial.payload["turns"] == 3


def test_a_provider_that_allows_no_higher_limit_ends_the_run_with_the_limit_that_was_reached():
    world, files = World(long(10**9), faults="ok, bad-request, ok"), Purge()
    ended = world.run(answer(world, world.agent(files.tool), "whole"))
    assert limits(world) == [4096, 16384]
    assert ended.fault.code == "TASK_OUTPUT_EXHAUSTED"
    assert "4096" in ended.fault.message
    assert "max_tokens: Input should be" in str(ended.error.__cause__)


def test_every_answer_that_was_cut_is_in_the_cost_of_the_run():
    world = World(Turn(text="a long poem", tokens=10_000))

    async def main() -> Any:
        with Budget(usd=5, runtime=world.runtime) as budget:
            return await world.agent().run("A poem."), budget.spend()

    reply, spend = world.run(main())
    assert (reply.text, reply.turns) == ("a long poem", 2)
    assert (spend.usd, spend.tokens) == (reply.usd, reply.usage.total)
    assert world.received == 2


def test_a_reader_of_a_stream_learns_that_a_cut_text_begins_anew():
    world = World(Turn(text="one two three four five six", tokens=8192))

    async def main() -> list[Any]:
        async with world.agent().stream("Count.") as parts:
            return [part async for part in parts]

    parts = world.run(main())
    at = next(at for at, part in enumerate(parts) if isinstance(part, Retrying))
    assert parts[at].restarts_text
    assert parts[at].fault.code == "TASK_OUTPUT_EXHAUSTED"
    texts = ["".join(part.text for part in some if isinstance(part, Text)) for some in (parts[:at], parts[at:])]
    assert texts == ["one two three", "one two three four five six"]


def test_a_run_that_is_repeated_raises_the_limit_without_asking_for_the_cut_answer_again():
    world, files = World(long(10_000), "Done.", faults="ok, 401, ok"), Purge()
    store = MemoryStore(clock=world.runtime.clock)

    async def once() -> Any:
        async with world.session(store) as session:
            return await world.agent(files.tool).outcome("Clean up.", session=session)

    assert world.run(once()).fault.code == "AUTH_FAILED"
    assert world.run(once()).ok
    assert limits(world) == [4096, 16384, 16384, 16384]
    assert files.purged == ["/tmp/cache 30"]


@pytest.mark.parametrize("stop", ["length", "refused", "other"])
def test_XA1_nor_does_a_call_of_an_application_s_own_model(stop: Any):
    world, files = World(), Purge()
    reply = Reply(text="I clean up.", calls=(ToolCall(id="1", name="purge", arguments={}),), stop=stop)
    seen: list[Any] = []

    agent = world.agent(files.tool, model=Scripted(reply), hooks=Hooks(observer=seen.append))
    assert not world.run(agent.outcome("Clean up.")).ok
    assert files.purged == []
    assert not any(isinstance(part, ToolCalled) for part in seen)


@MODELS
@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("fault", ["cut", "truncate", "reset"])
def test_XA1_a_stream_that_ends_after_the_head_of_a_call_runs_nothing(model: str, fault: str, after: int):
    turn = Turn(text="I do.", calls=(Call("purge", {"path": "/tmp/cache", "older_than_days": 30}),))
    world, files = World(turn, "Done.", faults=f"{fault};after={after}, ok"), Purge()
    world.run(answer(world, world.agent(files.tool, model=world.model(model)), "streamed"))
    assert files.purged == ["/tmp/cache 30"]
