"""Fallbacks, repairs, notifications and caches beside methods: they get `self` first, as every method does (S1-16, C15)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Changed, Fault, HoldfastError, InvalidError, Ok, Policy, Runtime, recover
from holdfast.events import Repaired, SuppressedError
from holdfast.runtime.runtime import use_runtime
from holdfast.testing import run

ONCE = Policy(attempts=1)
CODE = "PROVIDER_CONTEXT_OVERFLOW"


@pytest.fixture
def events():
    seen: list[Any] = []
    runtime = Runtime(waits=False)
    runtime.on(seen.append)
    with use_runtime(runtime):
        yield seen


def fits(limit: int, question: str) -> str:
    """Answer what is at most `limit` characters long; the rest fails."""
    if len(question) > limit:
        raise HoldfastError(Fault.of(CODE))
    return question


class Agent:
    """Each method has room for as many characters as its object or class says."""

    limit = 4

    def __init__(self, limit: int = 4) -> None:
        self.limit = limit
        self.notified: list[Any] = []

    @recover("claude")
    def ask(self, question: str, *, style: str = "") -> str:
        return fits(self.limit, question + style)

    @ask.repair("compact")
    def ask_shorter(self, fault: Fault, question: str, *, style: str = "") -> Changed:
        assert fault.code == CODE
        return Changed(question[: self.limit])

    @recover("claude")
    async def ask_later(self, question: str) -> str:
        return fits(self.limit, question)

    @ask_later.repair("compact")
    async def ask_later_shorter(self, fault: Fault, question: str) -> Changed:
        await asyncio.sleep(0)
        return Changed(self, question[: self.limit])

    @recover("claude")
    @classmethod
    def ask_class(cls, question: str) -> str:
        return fits(cls.limit, question)

    @recover("claude")
    @classmethod
    async def ask_class_later(cls, question: str) -> str:
        return fits(cls.limit, question)

    @recover("claude")
    @staticmethod
    def ask_static(question: str) -> str:
        return fits(4, question)

    @ask_static.repair("compact")
    @staticmethod
    def ask_static_shorter(fault: Fault, question: str) -> Changed:
        return Changed(question[:4])

    @recover("claude")
    def ask_first(self, question: str) -> str:
        return fits(self.limit, question)

    @ask_first.repair("compact")
    @staticmethod
    def fault_comes_first(fault: Fault, self: Agent, question: str) -> Changed:
        return Changed(self, question[: self.limit])

    @recover("claude", ONCE)
    def fall(self, question: str) -> str:
        raise ConnectionResetError

    @fall.fallback
    def fall_here(self, question: str) -> str:
        return f"{question} within {self.limit}"

    @recover("claude", ONCE)
    def page(self, question: str) -> str:
        raise ConnectionResetError

    @page.notify
    def page_someone(self, fault: Fault) -> None:
        self.notified.append(fault.code)

    @recover("claude", ONCE)
    async def page_later(self, question: str) -> str:
        raise ConnectionResetError

    @page_later.notify
    async def page_someone_later(self, fault: Fault) -> None:
        self.notified.append(fault.code)


@Agent.ask_class.repair("compact")  # pyright: ignore[reportCallIssue, reportArgumentType] - it sees the bound one
def ask_class_shorter(cls: type[Agent], fault: Fault, question: str) -> Changed:
    return Changed(question=question[: cls.limit])


@Agent.ask_class_later.repair("compact")  # pyright: ignore[reportCallIssue, reportArgumentType] - it sees the bound one
async def ask_class_later_shorter(cls: type[Agent], fault: Fault, question: str) -> Changed:
    return Changed(question[: cls.limit])


class Heir(Agent):
    limit = 2


def test_C15_the_repair_of_a_method_gets_self_then_the_fault(events):
    agent = Agent()
    assert agent.ask("abcdefgh") == "abcd"
    assert agent.ask(question="abcdefgh", style="!") == "abcd"
    assert Agent.ask(agent, "abcdefgh") == "abcd"
    assert agent.ask.outcome("abcdefgh") == Ok("abcd", attempts=agent.ask.outcome("abcdefgh").attempts)
    assert Agent(6).ask("abcdefgh") == "abcdef"
    assert {event.action for event in events if isinstance(event, Repaired)} == {"ask_shorter"}
    assert [event for event in events if isinstance(event, SuppressedError)] == []


def test_C15_an_async_repair_of_a_method_may_name_self_in_the_change_too(events):
    assert asyncio.run(Agent(3).ask_later("abcdefgh")) == "abc"


def test_C15_the_repair_of_a_class_method_gets_the_class(events):
    assert Agent.ask_class("abcdefgh") == Agent().ask_class("abcdefgh") == "abcd"
    assert Heir.ask_class("abcdefgh") == "ab"
    assert asyncio.run(Heir.ask_class_later("abcdefgh")) == "ab"


def test_C15_the_repair_of_a_static_method_gets_no_self(events):
    assert Agent.ask_static("abcdefgh") == Agent().ask_static("abcdefgh") == "abcd"


def test_C15_a_repair_whose_first_parameter_is_the_fault_gets_it_first(events):
    assert Agent(3).ask_first("abcdefgh") == "abc"


def test_C15_a_change_of_a_method_that_changes_nothing_is_not_sent(events):
    class Stubborn:
        asked = 0

        @recover("claude")
        def ask(self, question: str) -> str:
            self.asked += 1
            return fits(1, question)

        @ask.repair("compact", times=5)
        def same(self, fault: Fault, question: str) -> Changed:
            return Changed(question)

    stubborn = Stubborn()
    with pytest.raises(HoldfastError):
        stubborn.ask("abc")
    assert stubborn.asked == 1


def test_S1_16_the_fallback_of_a_method_gets_self(events):
    assert Agent().fall("hi") == "hi within 4"


def test_S1_31_a_notification_beside_a_method_may_take_self(events):
    agent = Agent()
    with pytest.raises(ConnectionResetError):
        agent.page("hi")
    with pytest.raises(ConnectionResetError):
        asyncio.run(agent.page_later("hi"))
    assert agent.notified == ["SYS_FALLBACKS_EXHAUSTED"] * 2


def test_S1_31_a_notification_of_the_fault_alone_still_gets_the_fault_alone(events):
    codes: list[str] = []

    class Pager:
        @recover("claude", ONCE)
        def ask(self) -> str:
            raise ConnectionResetError

        ask.notify(lambda fault: codes.append(fault.code))

    with pytest.raises(ConnectionResetError):
        Pager().ask()
    assert codes == ["SYS_FALLBACKS_EXHAUSTED"]


def test_S2_10_the_cache_of_a_method_has_a_key_made_from_self_and_the_arguments():
    class Agent:
        def __init__(self, name: str) -> None:
            self.name = name
            self.is_up = True

        @recover("claude", ONCE)
        async def ask(self, question: str) -> str:
            if self.is_up:
                return f"{self.name}: {question}"
            raise ConnectionResetError

        ask.cached(ttl=60, key=lambda self, question: f"{self.name}/{question}")

    async def main() -> None:
        ada, bob = Agent("Ada"), Agent("Bob")
        await ada.ask("hi")
        ada.is_up = bob.is_up = False
        assert await ada.ask("hi") == "Ada: hi"
        with pytest.raises(ConnectionResetError):
            await bob.ask("hi")

    run(main())


def method(self: Any, question: str, *, deep: bool = False) -> str:
    return question


method.__qualname__ = "Agent.ask"


@pytest.mark.parametrize(
    ("add", "expected"),
    [
        (lambda ask: ask.cached(ttl=60), "key=, a function of the call's arguments, because one of them is the object"),
        (lambda ask: ask.cached(ttl=60, key=lambda question: question), "(self, question, deep)"),
        (lambda ask: ask.fallback(lambda question: question), "(self, question, deep)"),
        (lambda ask: ask.repair("compact")(lambda fault, question: None), "(fault, self, question, deep)"),
        (lambda ask: ask.repair("compact")(lambda self, question, fault: None), "(self, fault, question, deep)"),
        (lambda ask: ask.repair("compact")(lambda self, question: None), "(self, fault, question, deep)"),
        (lambda ask: ask.notify(lambda: None), "(self, fault)"),
        (lambda ask: ask.notify(lambda self, question, fault: None), "(self, fault)"),
        (lambda ask: ask.notify(lambda fault, self: None), "(self, fault)"),
    ],
)
def test_R71_a_step_of_a_method_whose_parameters_cannot_fit_is_rejected_when_it_is_added(add, expected):
    with pytest.raises(InvalidError) as failed:
        add(recover("claude")(method))
    assert expected in str(failed.value)
    assert "of Agent.ask" in str(failed.value)


def function(question: str, style: str = "short") -> str:
    return question


@pytest.mark.parametrize(
    ("add", "fits"),
    [
        (lambda ask: ask.fallback(lambda question, style: ""), True),
        (lambda ask: ask.fallback(lambda question: ""), True),
        (lambda ask: ask.fallback(lambda *, question: ""), True),  # every call may name its arguments
        (lambda ask: ask.fallback(lambda *args, **kwargs: ""), True),
        (lambda ask: ask.fallback(lambda: ""), False),
        (lambda ask: ask.fallback(lambda question, style, more: ""), False),
        (lambda ask: ask.degraded(lambda fault, *, question: ""), True),
        (lambda ask: ask.notify(print), True),
        (lambda ask: ask.notify(lambda self, fault: None), False),
        (lambda ask: ask.cached(ttl=60, key=lambda question, style="": question), True),
        (lambda ask: ask.cached(ttl=60, key=lambda: ""), False),
        (lambda ask: ask.repair("compact")(lambda fault, **kwargs: None), True),
        (lambda ask: ask.repair("compact")(lambda question: None), False),
    ],
)
def test_R71_a_step_of_a_function_is_rejected_only_if_no_call_could_fit(add, fits):
    ask = recover("claude")(function)
    if fits:
        add(ask)
        return
    with pytest.raises(InvalidError, match="a function with the parameters"):
        add(ask)
