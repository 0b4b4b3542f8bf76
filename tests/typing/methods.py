"""Decorated methods, class methods and static methods as a type checker sees them. Never run."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from holdfast import Outcome, recover


class Agent:
    @recover("claude")
    async def ask(self, question: str, *, times: int = 1) -> str:
        return question * times

    @ask.fallback
    async def ask_other(self, question: str, *, times: int = 1) -> str:
        return question * times

    @recover
    def count(self, text: str) -> int:
        return len(text)

    @classmethod
    @recover("claude")
    def make(cls, name: str) -> int:
        return len(name)

    @recover("claude")
    @classmethod
    async def make_later(cls, name: str) -> int:
        return len(name)

    @recover
    @classmethod
    def build(cls, name: str) -> int:
        return len(name)

    @recover
    @classmethod
    async def build_later(cls, name: str) -> int:
        return len(name)

    @recover
    @staticmethod
    def double(text: str) -> str:
        return text * 2

    @recover("claude")
    @staticmethod
    def cut(first: str, at: int) -> str:
        return first[at:]

    @staticmethod
    @recover("claude")
    def join(first: str, second: str) -> str:
        return first + second


async def methods(agent: Agent) -> None:
    await assert_type(agent.ask("hi", times=2), Coroutine[Any, Any, str])
    assert_type(await agent.ask.outcome("hi"), Outcome[str])
    assert_type(await Agent.ask(agent, "hi"), str)
    assert_type(agent.ask.steps(), tuple[str, ...])
    assert_type(agent.count("hi"), int)
    assert_type(agent.count.outcome("hi"), Outcome[int])
    assert_type(Agent.count.outcome(agent, "hi"), Outcome[int])
    agent.count(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    agent.count.outcome()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await agent.ask()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def class_methods(agent: Agent) -> None:
    assert_type(await Agent.make_later("x"), int)
    assert_type(await Agent.make_later.outcome("x"), Outcome[int])
    assert_type(await agent.make_later.outcome("x"), Outcome[int])
    assert_type(await Agent.build_later("x"), int)
    assert_type(await agent.build_later.outcome("x"), Outcome[int])
    assert_type(Agent.build("x"), int)
    assert_type(agent.build.outcome("x"), Outcome[int])
    Agent.build()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(Agent.make("x"), int)
    assert_type(agent.make("x"), int)


def static_methods(agent: Agent) -> None:
    assert_type(Agent.join("a", "b"), str)
    assert_type(Agent.double("a"), str)
    assert_type(agent.double("a"), str)
    assert_type(agent.join("a", "b"), str)
    assert_type(agent.join.outcome("a", "b"), Outcome[str])
    assert_type(agent.cut("a", 1), str)
    assert_type(Agent.cut("a", 1), str)
    assert_type(Agent.cut.outcome("a", 1), Outcome[str])
    Agent.cut("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


class Heir(Agent):
    pass


async def inherited(heir: Heir) -> None:
    assert_type(await heir.ask.outcome("hi"), Outcome[str])
    assert_type(await Heir.make_later("x"), int)
