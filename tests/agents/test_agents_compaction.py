"""Conversations that were made shorter: what a repeated run needs, what a parallel run keeps, and summaries that fail."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from agents_kit import Scripted, World

from holdfast import Budget, BudgetError, Fault, HoldfastError, tool
from holdfast.agents import Compacted
from holdfast.events import SuppressedError
from holdfast.policies.models.usage import Usage
from holdfast.providers import Reply, ToolCall, User
from holdfast.stores.memory import MemoryStore

OVERFLOW = HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))
PROMPTS = ("one " + "x" * 500, "two " + "y" * 500, "three")


class Stop(BaseException):
    """The program is killed."""


@tool(effect="read")
async def look(x: int) -> str:
    """Look."""
    return f"saw {x}"


async def four_runs(world: World, store: MemoryStore, agent: Any, *, in_turns: bool, dies: bool = False) -> list[str]:
    texts = []
    async with world.session(store) as session:
        for prompt in (*PROMPTS, "four"):
            async with session.turn(prompt) if in_turns else nullcontext():
                if dies and prompt == "four":
                    raise Stop
                texts.append((await agent.run(prompt, session=session)).text)
    return texts


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("compact", ["drop", "summarise", lambda messages: messages[-1:]])
@pytest.mark.parametrize("later", ["drop", "summarise", None])
def test_a_run_that_was_compacted_is_repeated_from_what_is_stored(in_turns: bool, compact: Any, later: Any):
    world, store = World(), MemoryStore()
    summary = ["They said x and y."] if compact == "summarise" else []
    model = Scripted("a" * 400, "b" * 400, OVERFLOW, *summary, "c")
    with pytest.raises(Stop):
        world.run(four_runs(world, store, world.agent(model=model, compact=compact), in_turns=in_turns, dies=True))
    again = Scripted("d")
    texts = world.run(four_runs(world, store, world.agent(model=again, compact=later), in_turns=in_turns))
    assert texts == ["a" * 400, "b" * 400, "c", "d"]
    (last,) = again.requests
    # The next run continues the conversation that the model answered, with its answer.
    assert last.messages[: len(model.requests[-1].messages)] == model.requests[-1].messages
    assert [message.text for message in last.messages[-2:]] == ["c", "four"]


def test_a_run_replaces_only_the_runs_that_it_has_seen():
    class Model(Scripted):
        async def exchange(self, request: Any) -> Reply:
            self.requests.append(request)
            texts = [message.text for message in request.messages if isinstance(message, User)]
            if texts[-1] == "B":
                await asyncio.sleep(1)
                if not any("left out" in text for text in texts):
                    raise OVERFLOW
            return Reply(text=f"re {texts[-1][:1]}")

    world, model = World(), Model()
    agent = world.agent(model=model)

    async def main() -> None:
        async with world.session(MemoryStore()) as session:
            for prompt in "123":
                await agent.run(prompt + "x" * 300, session=session)
            await asyncio.gather(agent.run("A fact", session=session), agent.run("B", session=session))
            await agent.run("C", session=session)

    world.run(main())
    texts = [message.text for message in model.requests[-1].messages]
    assert {"A fact", "re A", "B", "re B"} < set(texts)
    assert not any(text.startswith("2") for text in texts)
    assert sum(text.startswith("1") for text in texts) == 1


def test_after_a_restart_a_run_sees_the_same_earlier_runs():
    class Model(Scripted):
        is_down = True

        async def exchange(self, request: Any) -> Reply:
            self.requests.append(request)
            if [message.text for message in request.messages if isinstance(message, User)][-1] == "A":
                return Reply(text="a")
            if isinstance(request.messages[-1], User):
                return Reply(calls=(ToolCall(id="1", name="look", arguments={"x": 1}),))
            await asyncio.sleep(1)
            if self.is_down:
                raise RuntimeError("down")
            return Reply(text="b")

    world, store, model = World(), MemoryStore(), Model()
    agent = world.agent(look, model=model)

    async def main() -> None:
        async with world.session(store) as session:
            await asyncio.gather(agent.run("A", session=session), agent.run("B", session=session))

    with pytest.raises(RuntimeError):
        world.run(main())
    failed, model.is_down = model.requests[-1], False
    world.run(main())
    assert model.requests[-1] == failed


@pytest.mark.parametrize(
    "summary",
    [
        Reply(text="I cannot help with that.", stop="refused"),
        Reply(text="They said", stop="length"),
        Reply(text="  "),
        RuntimeError("down"),
    ],
)
def test_a_summary_that_fails_is_not_used_and_is_reported(summary: Any):
    world, store = World(), MemoryStore()
    model = Scripted("a" * 400, "b" * 400, OVERFLOW, summary, "c")
    seen: list[Any] = []

    async def main(agent: Any) -> None:
        async with world.session(store) as session:
            for prompt in PROMPTS:
                async with agent.stream(prompt, session=session) as parts:
                    seen.extend([part async for part in parts if isinstance(part, Compacted)])

    world.run(main(world.agent(model=model, compact="summarise")))
    assert [part.fault is not None for part in seen] == [True]
    assert [event.reason for event in world.of(SuppressedError)] == [
        "messages of an agent's conversation were left out without a summary"
    ]
    texts = [message.text for message in model.requests[-1].messages]
    assert any("left out" in text for text in texts)
    assert not any("Summary of" in text for text in texts)
    # A repeated run asks for no other summary.
    world.run(main(world.agent(model=model, compact="summarise")))
    assert len(model.requests) == 5
    assert seen[0] == seen[1]


def test_a_summary_is_paid_for_and_counted_also_when_the_run_is_repeated():
    world, store = World(), MemoryStore()
    paid = Reply(text="In short.", usage=Usage(input=1000, output=10), model="claude-haiku-4-5")
    costs = Reply(text="c", usage=Usage(input=5, output=5), model="claude-haiku-4-5")
    free = [Reply(text=text * 400, usage=Usage(), model="claude-haiku-4-5") for text in "ab"]
    model = Scripted(*free, OVERFLOW, paid, costs)
    agent = world.agent(model=model, compact="summarise")

    async def main() -> Any:
        async with world.session(store) as session:
            with Budget(tokens=1_000_000, runtime=world.runtime) as budget:
                replies = [await agent.run(prompt, session=session) for prompt in PROMPTS]
                return replies[-1], budget.spend().tokens

    (first, tokens), (second, none) = world.run(main()), world.run(main())
    assert first.usage == second.usage == Usage(input=1005, output=15)
    assert first.turns == second.turns == 1
    assert (tokens, none) == (1020, 0)


def test_a_spent_budget_is_no_failed_summary():
    world = World()
    model = Scripted("a" * 400, "b" * 400, OVERFLOW, BudgetError.because(unit="usd", limit="1", used="1"), "c")
    agent = world.agent(model=model, compact="summarise")
    with pytest.raises(BudgetError):
        world.run(four_runs(world, MemoryStore(), agent, in_turns=False))
