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


# --- what stays in the session ---


def remembered(session: Any) -> list[str]:
    return [name.partition("/")[0] for name in session.context["holdfast.agents"]["coder"]]


def test_the_runs_that_a_shorter_conversation_stands_for_are_forgotten_after_its_turn():
    """Otherwise a conversation that is made shorter again and again grows in the store without an end."""
    world, store = World(), MemoryStore()
    model = Scripted("a" * 400, "b" * 400, OVERFLOW, "c", "d", "e")
    agent = world.agent(model=model)
    seen: list[list[str]] = []

    async def main() -> None:
        for prompt in (*PROMPTS, "four", "five"):
            async with world.session(store) as session:
                async with session.turn(prompt):
                    await agent.run(prompt, session=session)
                seen.append(remembered(session))

    world.run(main())
    # Another run of turn 3 may have seen the runs of turns 1 and 2, so they stay until turn 4.
    assert seen == [["1"], ["1", "2"], ["1", "2", "3"], ["3", "4"], ["3", "4", "5"]]
    shortened, last = model.requests[3].messages, model.requests[-1].messages
    assert last[: len(shortened)] == shortened
    assert [message.text for message in last[len(shortened) :]] == ["c", "four", "d", "five"]


def test_a_program_that_is_run_from_its_start_again_needs_nothing_that_was_forgotten():
    world, store = World(), MemoryStore()
    model = Scripted("a" * 400, "b" * 400, OVERFLOW, "c", "d", "e")

    async def main(agent: Any, *, dies: bool) -> list[str]:
        texts = []
        async with world.session(store) as session:
            for prompt in (*PROMPTS, "four", "five"):
                async with session.turn(prompt):
                    if dies and prompt == "five":
                        raise Stop
                    texts.append((await agent.run(prompt, session=session)).text)
        return texts

    with pytest.raises(Stop):
        world.run(main(world.agent(model=model), dies=True))
    again = Scripted("e")
    assert world.run(main(world.agent(model=again), dies=False)) == ["a" * 400, "b" * 400, "c", "d", "e"]
    (last,) = again.requests
    assert [message.text for message in last.messages[-4:]] == ["c", "four", "d", "five"]


def test_a_repeated_run_that_was_compacted_does_not_replace_itself_or_what_came_after_it():
    world, store = World(), MemoryStore()
    first = Scripted("a" * 400, "b" * 400, OVERFLOW, "c", "d")
    assert world.run(four_runs(world, store, world.agent(model=first), in_turns=False))[-1] == "d"
    model = Scripted("e")

    async def main() -> None:
        async with world.session(store) as session:
            agent = world.agent(model=model)
            for prompt in (*PROMPTS, "four", "five"):
                await agent.run(prompt, session=session)

    world.run(main())
    (last,) = model.requests
    assert [message.text for message in last.messages[-4:]] == ["c", "four", "d", "five"]


def test_a_run_of_the_same_turn_that_was_cut_finds_the_earlier_runs_that_it_had_seen():
    """The first run of the turn replaces them, the second one is remembered after it, and only then the third one goes on."""

    class Model(Scripted):
        is_down = True

        async def exchange(self, request: Any) -> Reply:
            self.requests.append(request)
            texts = [message.text for message in request.messages if isinstance(message, User)]
            if texts[-1] == "A" and not any("left out" in text for text in texts):
                raise OVERFLOW
            if texts[-1] == "C" and isinstance(request.messages[-1], User):
                return Reply(calls=(ToolCall(id="1", name="look", arguments={"x": 1}),))
            if texts[-1] == "C" and self.is_down:
                await asyncio.sleep(1)
                raise Stop
            return Reply(text=f"re {texts[-1][:1]}")

    world, store, model = World(), MemoryStore(), Model()
    agent = world.agent(look, model=model)

    async def main(*, restarted: bool) -> None:
        async with world.session(store) as session:
            for prompt in "123":
                async with session.turn(prompt):
                    await agent.run(prompt + "x" * 300, session=session)
            async with session.turn("go"):
                runs = [agent.run(prompt, session=session) for prompt in "ABC"]
                if restarted:
                    for run in runs:
                        await run
                else:
                    await asyncio.gather(*runs)

    with pytest.raises(Stop):
        world.run(main(restarted=False))
    failed, model.is_down = model.requests[-1], False
    world.run(main(restarted=True))
    assert model.requests[-1] == failed
    assert [message.text[0] for message in failed.messages if isinstance(message, User)] == ["1", "2", "3", "C"]


def test_a_turn_that_is_repeated_does_not_see_what_came_after_it():
    """A run that failed in a turn that ended well is made again when the program is run from its start. It sees what it saw then."""
    world, store = World(), MemoryStore()
    down = HoldfastError(Fault.of("PROVIDER_BILLING"))

    async def main(agent: Any, *, dies: bool) -> None:
        async with world.session(store) as session:
            for prompt in ("one", "two", "three"):
                async with session.turn(prompt):
                    if dies and prompt == "three":
                        raise Stop
                    with nullcontext() if prompt != "one" else pytest.raises(HoldfastError):
                        await agent.run(prompt, session=session)

    with pytest.raises(Stop):
        world.run(main(world.agent(model=Scripted(down, "2")), dies=True))
    again = Scripted(down, "3")
    world.run(main(world.agent(model=again), dies=False))
    assert [[message.text for message in request.messages] for request in again.requests] == [
        ["one"],
        ["two", "2", "three"],
    ]
