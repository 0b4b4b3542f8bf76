"""Decorated methods, class methods and static methods as a type checker sees them. Never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from holdfast import Changed, Fault, Outcome, recover


class Agent:
    @recover("claude")
    async def ask(self, question: str, *, times: int = 1) -> str:
        return question * times

    @ask.fallback
    async def ask_other(self, question: str, *, times: int = 1) -> str:
        return question * times

    @ask.degraded
    async def ask_less(self, fault: Fault, question: str, *, times: int = 1) -> str:
        return question * times + fault.code

    @ask.degraded
    def ask_nobody(self, fault: Fault, question: str, *, times: int = 1) -> str:
        return self.double(question) * times + fault.code

    @ask.degraded
    @staticmethod
    def ask_fault_first(fault: Fault, self: Agent, question: str, *, times: int = 1) -> str:
        return self.double(question) * times + fault.code

    @ask.repair("compact")
    async def ask_shorter(self, fault: Fault, question: str, *, times: int = 1) -> Changed | None:
        return Changed(question[:10], times=times) if fault.retryable else None

    @ask.repair("compact")
    @staticmethod
    def ask_shorter_fault_first(fault: Fault, self: Agent, question: str, *, times: int = 1) -> Changed:
        return Changed(self, question[:10])

    @ask.notify
    async def ask_somebody(self, fault: Fault) -> None: ...

    ask.notify(print)
    ask.cached(ttl=60, key=lambda self, question, *, times=1: question)

    @recover
    def count(self, text: str) -> int:
        return len(text)

    @count.degraded
    def count_less(self, fault: Fault, text: str) -> int:
        return len(fault.code + text)

    @count.repair("compact")
    def count_shorter(self, fault: Fault, text: str) -> Changed:
        return Changed(text[: self.count(fault.code)])

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


@Agent.count.degraded
def count_outside(agent: Agent, fault: Fault, text: str) -> int:
    return len(agent.double(text) + fault.code)


@Agent.count.degraded  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
def count_without_fault(agent: Agent, text: str) -> int:
    return len(agent.double(text))


@Agent.count.repair("compact")
def count_cut(agent: Agent, fault: Fault, text: str) -> Changed:
    return Changed(agent, text[1:] + fault.code)


@Agent.count.repair("compact")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
def count_cut_without_fault(agent: Agent, text: str) -> Changed:
    return Changed(agent, text[1:])


@Agent.count.notify  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
def count_tells(agent: Agent, text: str) -> None: ...


# A class is callable, so a function that takes a function must not be taken for a class method.


@recover("claude")
async def sends(send: Callable[[str], Coroutine[Any, Any, int]]) -> int:
    return await send("hi")


@recover("claude")
def shouts(shout: Callable[[str], str], text: str) -> str:
    return shout(text)


@recover
def shouts_bare(shout: Callable[..., str], text: str) -> str:
    return shout(text)


@recover("claude")
def of_anything(client: Any, text: str) -> str:
    return str(client) + text


@recover("claude")
def of_class(kind: type[Agent]) -> str:
    return kind.__name__


@sends.degraded
def sends_less(fault: Fault, send: Callable[[str], Coroutine[Any, Any, int]]) -> int:
    return len(fault.code + str(send))


async def functions_of_functions(send: Callable[[str], Coroutine[Any, Any, int]]) -> None:
    assert_type(await sends(send), int)
    assert_type(await sends(send=send), int)
    assert_type(await sends.outcome(send), Outcome[int])
    assert_type(shouts(str.upper, "hi"), str)
    assert_type(shouts_bare(str.upper, "hi"), str)
    assert_type(of_anything(5, "hi"), str)
    assert_type(of_class(Agent), str)
    shouts("hi", "hi")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    of_class(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
