"""One empty answer does not end a run: the model is asked to go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents_kit import Scripted, World

from holdfast import Fault, HoldfastError, tool
from holdfast.providers import Reply
from holdfast.stores import MemoryStore
from holdfast.testing.provider import Turn

MODELS = pytest.mark.parametrize("model", ["claude-haiku-4-5", "gpt-5-mini", "grok-4"])
HOW = pytest.mark.parametrize("how", ["whole", "streamed", "in a session"])


async def answer(world: World, agent: Any, how: str) -> Any:
    if how == "in a session":
        async with world.session(MemoryStore(clock=world.runtime.clock)) as session:
            return await agent.run("Pay.", session=session)
    if how == "streamed":
        async with agent.stream("Pay.") as parts:
            return [part async for part in parts][-1].reply
    return await agent.run("Pay.")


class Till:
    def __init__(self) -> None:
        self.paid: list[int] = []

        @tool(effect="unsafe")
        async def pay(usd: int) -> str:
            """Pay."""
            self.paid.append(usd)
            return "paid"

        self.tool = pay


# An answer of no bytes of text.
EMPTY = "oversize;bytes=0"


@MODELS
@HOW
def test_XA7_an_empty_answer_after_a_tool_has_run_does_not_end_the_run(model: str, how: str):
    world, till = World(Turn(tool="pay", arguments={"usd": 5}), "Done.", faults=f"ok, {EMPTY}, ok"), Till()
    reply = world.run(answer(world, world.agent(till.tool, model=world.model(model)), how))
    assert (reply.text, reply.turns, till.paid) == ("Done.", 3, [5])
    assert world.received == 3
    assert "Your last answer was empty" in json.dumps(world.sent[-1])


@MODELS
@HOW
def test_XA7_an_empty_first_answer_does_not_end_the_run(model: str, how: str):
    world = World("Done.", faults=f"{EMPTY}, ok")
    reply = world.run(answer(world, world.agent(model=world.model(model)), how))
    assert (reply.text, reply.turns) == ("Done.", 2)


def test_a_model_that_stays_empty_ends_the_run_after_the_bounded_number_of_requests():
    world, till = World(Turn(tool="pay", arguments={"usd": 5}), ""), Till()
    ended = world.run(world.agent(till.tool).outcome("Pay."))
    assert ended.fault.code == "PROVIDER_EMPTY_RESPONSE"
    assert world.received == 4
    assert till.paid == [5]
    world = World("")
    assert world.run(world.agent(reasks=0).outcome("Pay.")).fault.code == "PROVIDER_EMPTY_RESPONSE"
    assert world.received == 1


def test_an_answer_without_any_part_counts_as_an_empty_one():
    empty = HoldfastError(Fault.of("PROVIDER_EMPTY_RESPONSE"))
    world, model = World(), Scripted(empty, Reply(text="Done."))
    assert world.run(world.agent(model=model).run("Pay.")).text == "Done."
    assert len(model.requests) == 2


def test_a_run_that_is_repeated_goes_the_same_way():
    world = World(Turn(tool="pay", arguments={"usd": 5}), "Done.", faults=f"ok, {EMPTY}, 401, ok")
    till, store = Till(), MemoryStore(clock=world.runtime.clock)

    async def once() -> Any:
        async with world.session(store) as session:
            return await world.agent(till.tool).outcome("Pay.", session=session)

    assert world.run(once()).fault.code == "AUTH_FAILED"
    assert world.run(once()).value.text == "Done."
    assert (world.received, till.paid) == (4, [5])
    assert world.sent[2] == world.sent[3]
