"""Answers of the wrong form: the model is asked again at once, with its own answer in the request and with what was wrong."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from agents_kit import World

from holdfast import tool
from holdfast.agents import ToolCalls
from holdfast.providers import Request, ToolCall, User
from holdfast.stores import MemoryStore
from holdfast.testing.provider import Turn
from holdfast.testing.provider.replies import ToolCall as Call
from holdfast.tools import Toolbox

MODELS = pytest.mark.parametrize("model", ["claude-haiku-4-5", "gpt-5-mini", "grok-4"])
HOW = pytest.mark.parametrize("how", ["whole", "streamed", "in a session"])


class Sum(msgspec.Struct):
    value: int


class Adder:
    def __init__(self) -> None:
        self.added: list[tuple[int, int]] = []

        @tool(effect="unsafe")
        async def add(a: int = 0, b: int = 0) -> int:
            """Add two numbers."""
            self.added.append((a, b))
            return a + b

        self.tool = add


async def answer(world: World, agent: Any, how: str) -> Any:
    return await asked(world, agent, how, "2 + 3?")


async def asked(world: World, agent: Any, how: str, prompt: str) -> Any:
    if how == "in a session":
        async with world.session(MemoryStore(clock=world.runtime.clock)) as session:
            return await agent.run(prompt, session=session)
    if how == "streamed":
        async with agent.stream(prompt) as parts:
            return [part async for part in parts][-1].reply
    return await agent.run(prompt)


def plain(text: str) -> str:
    """Without what JSON within JSON adds."""
    return text.replace("\\", "").replace(" ", "")


@MODELS
@HOW
@pytest.mark.parametrize("broken", ['{"a": 2, ', "[2, 3]", "nonsense"])
def test_XA3_a_call_that_is_no_json_is_asked_for_again_at_once_with_the_call_in_the_request(
    model: str, how: str, broken: str
):
    world, adder = (
        World(Turn(tool="add", arguments=broken), Turn(tool="add", arguments={"a": 2, "b": 3}), "5."),
        Adder(),
    )
    reply = world.run(answer(world, world.agent(adder.tool, model=world.model(model)), how))
    assert (reply.text, reply.turns, adder.added) == ("5.", 3, [(2, 3)])
    assert world.received == 3
    first, second = (json.dumps(sent) for sent in world.sent[:2])
    assert first != second
    assert "invalid_json" in second
    assert plain(broken) in plain(second)
    assert "not a JSON object" in second


@MODELS
@HOW
def test_XA3_a_text_that_is_no_json_is_asked_for_again_at_once_with_the_text_in_the_request(model: str, how: str):
    world = World("It is five.", '{"value": 5}')
    reply = world.run(answer(world, world.agent(output=Sum, model=world.model(model)), how))
    assert (reply.data, reply.turns, world.received) == (Sum(5), 2, 2)
    second = json.dumps(world.sent[1])
    assert "It is five." in second
    assert "it is not JSON" in second


def test_a_call_that_stays_broken_ends_the_run_after_the_bounded_number_of_requests():
    world, adder = World(Turn(tool="add", arguments='{"a": ')), Adder()
    ended = world.run(world.agent(adder.tool, model=world.model("gpt-5-mini"), reasks=2).outcome("2 + 3?"))
    assert ended.fault.code == "PROVIDER_OUTPUT_INVALID"
    assert "the arguments of add are not a JSON object" in ended.fault.message
    assert (world.received, adder.added) == (3, [])


def slips(number: int) -> list[Any]:
    """The script of a model that corrects so many slips, each with a good call after it."""
    turns: list[Any] = []
    for at in range(number):
        turns += [Turn(tool="add", arguments=f'{{"a": {at}'), Turn(tool="add", arguments={"a": at, "b": at})]
    return turns


@pytest.mark.parametrize("how", ["whole", "in a session"])
def test_XA3_slips_that_were_corrected_do_not_end_a_long_run(how: str):
    world, adder = World(*slips(6), '{"value": 5}'), Adder()
    agent = world.agent(adder.tool, output=Sum, model=world.model("gpt-5-mini"), reasks=1)
    reply = world.run(answer(world, agent, how))
    assert (reply.data, reply.turns) == (Sum(5), 13)
    assert adder.added == [(at, at) for at in range(6)]


def test_the_other_calls_of_the_answer_are_run():
    turn = Turn(calls=(Call("add", '{"a": '), Call("add", {"a": 2, "b": 3})))
    world, adder = World(turn, "5."), Adder()
    assert world.run(world.agent(adder.tool, model=world.model("gpt-5-mini")).run("2 + 3?")).text == "5."
    assert adder.added == [(2, 3)]


def test_a_call_with_a_mistake_is_run_by_nobody():
    world, adder = World(), Adder()
    call = ToolCall(id="1", name="add", arguments={}, mistake="the arguments of add are not a JSON object")
    (result,) = world.run(ToolCalls(Toolbox([adder.tool])).run([call]))
    assert (result.is_error, adder.added) == (True, [])
    assert result.fault is not None
    assert result.fault.code == "TOOL_INPUT_INVALID"


@pytest.mark.parametrize("model", ["gpt-5-mini", "grok-4"])
def test_a_model_without_an_agent_still_raises_for_such_a_call(model: str):
    world = World(Turn(tool="add", arguments='{"a": '))
    with pytest.raises(Exception, match="the arguments of add are not a JSON object"):
        world.run(world.model(model).exchange(Request(messages=(User(text="2 + 3?"),))))


@MODELS
@HOW
@pytest.mark.parametrize("said", ["\n\n", " "])
def test_empty_lines_before_a_tool_call_can_be_sent_back(model: str, how: str, said: str):
    adder = Adder()
    world = World(Turn(text=said, tool="add", arguments={"a": 2, "b": 3}), "It is 5.")
    agent = world.agent(adder.tool, model=world.model(model))
    reply = world.run(answer(world, agent, how))
    assert (reply.text, adder.added) == ("It is 5.", [(2, 3)])
    assert world.received == 2


@MODELS
@HOW
def test_a_prompt_with_half_a_character_is_sent_without_it(model: str, how: str):
    world = World("Fine.")
    agent = world.agent(model=world.model(model))
    assert world.run(asked(world, agent, how, "read \udcff.txt")).text == "Fine."
    assert "read \ufffd.txt" in json.dumps(world.sent, ensure_ascii=False)
