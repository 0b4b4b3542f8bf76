"""Two agents with one name in one session would share a conversation, a usage limit and stored answers: that is a typed error."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from agents_kit import Scripted, World

from holdfast import Agent, InvalidError, Session, tool
from holdfast.agents import CommandAgent, FunctionAgent
from holdfast.providers import Reply, ToolCall
from holdfast.stores.memory import MemoryStore


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "seen"


def agents() -> list[tuple[Any, Any]]:
    """Pairs of agents that differ and have one name."""
    program = [sys.executable, "-c", "print('hello')"]
    return [
        (Agent("coder", Scripted("a"), instructions="You code."), Agent("coder", Scripted("b"), instructions="You sing.")),
        (Agent("coder", Scripted("a")), Agent("coder", Scripted("b"), [look])),
        (Agent("coder", Scripted("a")), FunctionAgent("coder", lambda prompt: "b")),
        (FunctionAgent("coder", lambda prompt: "a"), FunctionAgent("coder", lambda prompt: "b")),
        (Agent("coder", Scripted("a")), CommandAgent(program, name="coder", form="plain")),
        (
            CommandAgent(program, name="coder", form="plain"),
            CommandAgent([sys.executable, "-c", "print('b')"], name="coder", form="plain"),
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("pair", range(len(agents())))
def test_two_agents_of_one_name_in_one_session_raise_instead_of_sharing_what_is_stored(pair: int):
    one, other = agents()[pair]

    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), mode="yolo") as session:
            await one.run("hello", session=session)
            with pytest.raises(InvalidError, match=r"agent\.name: expected a name of its own .*'coder' for two agents"):
                await other.run("hello", session=session)
            # It is the other one that is wrong.
            await one.run("and again", session=session)
        async with Session.open("t", store=MemoryStore(), mode="yolo") as session:
            await other.run("hello", session=session)

    asyncio.run(main())


def test_an_agent_that_is_made_again_is_the_same_agent_and_remembers():
    models = [Scripted("Hello Ann."), Scripted("You are Ann.")]
    store = MemoryStore()

    async def main() -> None:
        async with Session.open("s", store=store, mode="yolo") as session:
            kept = [Agent("coder", model, [look], instructions="You code.") for model in models]
            await kept[0].run("I am Ann.", session=session)
            await kept[1].run("Who am I?", session=session)

    asyncio.run(main())
    assert [message.text for message in models[1].requests[0].messages] == ["I am Ann.", "Hello Ann.", "Who am I?"]


def test_an_agent_that_is_not_in_use_any_more_leaves_its_name():
    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), mode="yolo") as session:
            for task in ("code", "sing"):
                await Agent("coder", Scripted("Done."), instructions=f"You {task}.").run(task, session=session)

    asyncio.run(main())


def test_an_agent_among_the_tools_with_the_name_of_another_agent_of_the_session_ends_the_run_typed():
    world = World()
    helper = Agent("coder", Scripted("helped"), instructions="You help.", runtime=world.runtime)
    call = Reply(calls=(ToolCall(id="1", name="coder", arguments={"prompt": "help"}),), stop="tools")
    parent = Agent("parent", Scripted(call, "Done."), [helper], runtime=world.runtime)
    coder = Agent("coder", Scripted("coded"), runtime=world.runtime)

    async def main() -> None:
        async with world.session(MemoryStore()) as session:
            await coder.run("code", session=session)
            with pytest.raises(InvalidError, match="two agents"):
                await parent.run("go", session=session)

    world.run(main())
