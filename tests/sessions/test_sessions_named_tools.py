"""Steps that call one of several tools by its name, or a whole agent: their effect is that of the tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from holdfast import NOT_HAPPENED, Agent, Happened, Ok, OutcomeUnknownError, Session, Verdict, call_key, tool
from holdfast.providers import Offers, Reply
from holdfast.providers import ToolCall as Call
from holdfast.stores import MemoryStore
from holdfast.tools import Answer, Toolbox


class Stop(BaseException):
    """The process ends here."""


class Bank:
    """It takes a payment, and the process ends before the step has its result, as often as `stops` says."""

    def __init__(self, stops: int = 1, *, finds: bool = False) -> None:
        self.paid: list[str] = []
        self.looked = 0
        self.stops = stops

        @tool(effect="unsafe", verify=self.find if finds else None)
        async def pay(to: str) -> str:
            self.paid.append(call_key())
            self.stop()
            return f"paid {to}"

        @tool(effect="read")
        async def look(to: str) -> str:
            self.looked += 1
            self.stop()
            return f"{to} is well"

        self.toolbox = Toolbox([pay, look])

    def stop(self) -> None:
        if self.stops:
            self.stops -= 1
            raise Stop

    def find(self, key: str, to: str) -> Verdict:
        return Happened(f"found {to}") if key in self.paid else NOT_HAPPENED


def starts(times: int, work: Any) -> list[Any]:
    """Start the program so often, and return how each start ended."""

    async def main() -> list[Any]:
        ended: list[Any] = []
        async with MemoryStore() as store:
            for _ in range(times):
                try:
                    async with Session.open("s", store=store, mode="yolo") as session:
                        ended.append(await work(session))
                except (Stop, OutcomeUnknownError) as error:
                    ended.append(type(error))
        return ended

    return asyncio.run(main())


@pytest.mark.parametrize("verb", ["call", "outcome", "answer"])
@pytest.mark.parametrize("given", ["names", "partial", "order"])
def test_an_unsafe_tool_that_is_called_by_its_name_is_not_repeated(verb: str, given: str) -> None:
    bank = Bank()
    method = getattr(bank.toolbox, verb)

    async def work(session: Session) -> Any:
        if given == "names":
            return await session.step(method, name="pay", arguments={"to": "ann"})
        if given == "partial":
            return await session.step(partial(method, "pay"), {"to": "ann"})
        return await session.step(method, "pay", '{"to": "ann"}')

    assert starts(3, work) == [Stop, OutcomeUnknownError, OutcomeUnknownError]
    assert len(bank.paid) == 1


@pytest.mark.parametrize("verb", ["call", "outcome", "answer"])
def test_another_tool_of_the_toolbox_is_repeated(verb: str) -> None:
    bank = Bank()
    results: dict[str, Any] = {
        "call": "ann is well",
        "outcome": Ok("ann is well"),
        "answer": Answer(content="ann is well", value="ann is well"),
    }

    async def work(session: Session) -> Any:
        return await session.step(getattr(bank.toolbox, verb), "look", {"to": "ann"})

    assert starts(3, work) == [Stop, results[verb], results[verb]]
    assert bank.looked == 2


def test_the_verify_of_the_tool_finds_out_what_became_of_the_call() -> None:
    bank = Bank(finds=True)

    async def work(session: Session) -> Any:
        return await session.step(bank.toolbox.call, name="pay", arguments={"to": "ann"})

    assert starts(3, work) == [Stop, "found ann", "found ann"]
    assert len(bank.paid) == 1


def test_several_calls_of_several_tools_are_steps_of_their_own() -> None:
    bank = Bank(stops=0)

    async def work(session: Session) -> list[Any]:
        call = bank.toolbox.call
        first = await session.step(call, "pay", {"to": "ann"})
        return [first, await session.step(call, "look", {"to": "ann"}), await session.step(call, "pay", {"to": "ben"})]

    assert starts(2, work) == [["paid ann", "ann is well", "paid ben"]] * 2
    assert (len(bank.paid), bank.looked) == (2, 1)


class Buyer:
    """A model that calls one tool in each conversation."""

    name, offers = "own/buyer", Offers()

    def __init__(self, tool: str = "pay", **arguments: str) -> None:
        self._call = Call(id="1", name=tool, arguments=arguments or {"to": "ann"})

    async def exchange(self, request: Any) -> Reply:
        return Reply(text="Done.") if len(request.messages) > 1 else Reply(calls=(self._call,))

    @asynccontextmanager
    async def stream(self, request: Any, *, after_first: str = "raise") -> AsyncIterator[AsyncIterator[Any]]:
        async def parts() -> AsyncIterator[Any]:
            yield await self.exchange(request)

        yield parts()


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_step_that_is_a_whole_run_of_an_agent_is_as_unsafe_as_its_tools(is_nested: bool) -> None:
    bank = Bank()
    agent = Agent("buyer", Buyer(), bank.toolbox)
    if is_nested:
        agent = Agent("boss", Buyer("buyer", prompt="Buy it."), [agent])

    async def work(session: Session) -> Any:
        return await session.step(agent.run, "Buy it.")

    assert starts(3, work) == [Stop, OutcomeUnknownError, OutcomeUnknownError]
    assert len(bank.paid) == 1


def test_a_step_that_is_a_run_of_an_agent_that_only_reads_is_repeated() -> None:
    bank = Bank()
    agent = Agent("looker", Buyer("look", to="ann"), [bank.toolbox["look"]])

    async def work(session: Session) -> Any:
        return (await session.step(agent.run, "Look.")).text

    assert starts(2, work) == [Stop, "Done."]


def test_the_reply_of_an_agent_is_stored() -> None:
    bank = Bank(stops=0)

    async def work(session: Session) -> Any:
        return await session.step(Agent("buyer", Buyer(), bank.toolbox).run, "Buy it.")

    first, second = starts(2, work)
    assert first == second
    assert (first.text, len(bank.paid)) == ("Done.", 1)
