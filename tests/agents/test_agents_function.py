"""`FunctionAgent`: any callable as an agent, durable in a session."""

from __future__ import annotations

import functools
import threading

import pytest

from holdfast import Err, HoldfastError, InvalidError, Ok, tool
from holdfast.agents import AgentReply, Done, FunctionAgent, Text
from holdfast.sessions import Session
from holdfast.stores import MemoryStore
from holdfast.testing import run


async def later(prompt: str) -> str:
    return f"later: {prompt}"


class Object:
    async def __call__(self, prompt: str) -> AgentReply:
        return AgentReply(text=f"object: {prompt}", usd=0.5)


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (later, "later: hi"),
        (lambda prompt: f"plain: {prompt}", "plain: hi"),
        (lambda prompt: later(prompt.strip()), "later: hi"),
        (functools.partial(lambda mark, prompt: f"{mark} {prompt}", "partial:"), "partial: hi"),
        (Object(), "object: hi"),
        (str.upper, "HI"),
    ],
)
def test_any_callable_is_an_agent(fn, text):
    reply = run(FunctionAgent("a", fn).run("hi"))
    assert (reply.text, reply.agent) == (text, "a")


def test_a_plain_function_does_not_block_the_event_loop():
    threads = []
    run(FunctionAgent("a", lambda _: threads.append(threading.get_ident()) or "ok").run("hi"))
    assert threads != [threading.get_ident()]


@pytest.mark.parametrize("value", [None, 5, b"bytes", ["text"]])
def test_anything_else_than_a_text_or_a_reply_is_a_mistake(value):
    with pytest.raises(InvalidError, match="what agent a returns: expected a text or an AgentReply"):
        run(FunctionAgent("a", lambda _: value).run("hi"))


def test_wrong_options():
    async def parts(prompt: str):
        yield prompt

    with pytest.raises(InvalidError, match=r"agent\.name"):
        FunctionAgent(" ", str)
    with pytest.raises(InvalidError, match="agent a: expected a function of the prompt"):
        FunctionAgent("a", "text")
    with pytest.raises(InvalidError, match="generator function"):
        FunctionAgent("a", parts)


def test_outcome_and_stream():
    async def work():
        good, bad = FunctionAgent("a", str.upper), FunctionAgent("b", lambda _: 1 / 0)
        async with good.stream("hi") as parts:
            streamed = [part async for part in parts]
        return await good.outcome("hi"), await bad.outcome("hi"), streamed

    ok, err, streamed = run(work())
    assert isinstance(ok, Ok)
    assert ok.value.text == "HI"
    assert isinstance(err, Err)
    assert isinstance(err.error, ZeroDivisionError)
    assert streamed == [Text(text="HI"), Done(reply=AgentReply(text="HI", agent="a"))]


def test_in_a_session_it_is_called_once_per_prompt_also_by_the_next_process():
    store = MemoryStore()
    called = []

    async def work() -> list[AgentReply]:
        # Two lambdas have one name: the agents' names keep their steps apart.
        one = FunctionAgent(
            "one", lambda prompt: called.append("one") or AgentReply(text=prompt, data={"n": [1, 2]}, usd=0.25)
        )
        two = FunctionAgent("two", lambda prompt: called.append("two") or f"two {prompt}")
        async with Session.open("s", store=store) as session:
            return [await agent.run("hi", session=session) for agent in (one, two)]

    first = run(work())
    assert run(work()) == first
    assert [reply.text for reply in first] == ["hi", "two hi"]
    assert first[0].data == {"n": [1, 2]}
    assert called == ["one", "two"]


def test_a_function_with_a_parameter_session_makes_its_own_steps():
    store = MemoryStore()
    made = []

    def make(n: int) -> int:
        made.append(n)
        return n

    async def fn(prompt: str, session: Session | None = None) -> str:
        if session is None:
            return "alone"
        return str([await session.step(make, n) for n in range(2)])

    async def work() -> str:
        async with Session.open("s", store=store) as session:
            return (await FunctionAgent("a", fn).run("hi", session=session)).text

    assert run(FunctionAgent("a", fn).run("hi")).text == "alone"
    assert [run(work()), run(work())] == ["[0, 1]"] * 2
    assert made == [0, 1]


@pytest.mark.parametrize("stored", [False, True])
def test_the_check_of_a_function_sees_what_it_returns(stored):
    seen = []

    @tool(effect="idempotent", check=lambda answer: seen.append(answer) or answer == "yes")
    async def echo(prompt: str) -> str:
        return prompt

    async def answer(prompt):
        if not stored:
            return await FunctionAgent("a", echo).run(prompt)
        async with Session.open("s", store=MemoryStore()) as session:
            return await FunctionAgent("a", echo).run(prompt, session=session)

    assert run(answer("yes")).text == "yes"
    with pytest.raises(HoldfastError, match="check rejects"):
        run(answer("no"))
    assert seen == ["yes", "no"]
