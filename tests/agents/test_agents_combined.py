"""Runs, subagents, turns and restarts in one session: no answer, approval or result of one is taken for that of another."""

from __future__ import annotations

from typing import Any

import pytest
from agents_kit import Scripted, World

from holdfast import Agent, HoldfastError, Session, tool
from holdfast.agents import FunctionAgent
from holdfast.providers import Reply, ToolCall, ToolResult, User
from holdfast.sessions.questions.question import Answer
from holdfast.stores.memory import MemoryStore


class Stop(BaseException):
    """The process ends here."""


def calls(id_: str, name: str, **arguments: Any) -> Reply:
    return Reply(calls=(ToolCall(id=id_, name=name, arguments=arguments),), stop="tools")


class Bank:
    """Counts payments, and dies in one of them."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.dies_at = 0

    def _do(self, what: str) -> str:
        self.done.append(what)
        if len(self.done) == self.dies_at:
            raise Stop
        return f"receipt {len(self.done)}"

    @property
    def pay(self) -> Any:
        @tool(effect="unsafe", name="pay")
        async def pay(amount: int) -> str:
            """Pay."""
            return self._do(f"pay {amount}")

        return pay

    @property
    def refund(self) -> Any:
        @tool(effect="unsafe", name="refund")
        async def refund(order: str) -> str:
            """Refund."""
            return self._do(f"refund {order}")

        return refund


class Yes:
    """Approves everything, and remembers what it was asked."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    async def ask(self, question: Any) -> Answer:
        self.prompts.append(question.prompt)
        return Answer(True)


class PayingModel(Scripted):
    """Calls `pay` once, then repeats the result."""

    async def exchange(self, request: Any) -> Reply:
        self.requests.append(request)
        last = request.messages[-1]
        return calls("x", "pay", amount=5) if isinstance(last, User) else Reply(text=last.text)


def results(model: Scripted) -> list[str]:
    return [message.text for message in model.requests[-1].messages if isinstance(message, ToolResult)]


def test_N2_9_an_approval_is_for_one_call_of_one_run_also_after_a_restart() -> None:
    bank, store, world = Bank(), MemoryStore(), World()
    model = Scripted(calls("1", "pay", amount=5), "One.", calls("2", "pay", amount=5), "Two.")
    agent = Agent("payer", model, [bank.pay])

    async def start(person: Yes | None, *prompts: str) -> None:
        async with world.session(store, mode="ask") as session:
            if person is not None:
                session.attach(person)
            for prompt in prompts:
                await agent.run(prompt, session=session)

    first, second = Yes(), Yes()
    world.run(start(first, "pay Ann"))
    with pytest.raises(HoldfastError) as raised:
        world.run(start(None, "pay Ann", "pay Bob"))
    assert raised.value.fault.code == "SESS_NO_INTERACTOR"
    assert bank.done == ["pay 5"]
    world.run(start(second, "pay Ann", "pay Bob"))
    assert (len(first.prompts), len(second.prompts)) == (1, 1)
    assert bank.done == ["pay 5", "pay 5"]


@pytest.mark.parametrize("resolved", [False, True])
def test_G1_a_doubt_of_one_turn_is_not_the_result_of_another_tool_in_the_next(resolved: bool) -> None:
    bank, store, world = Bank(), MemoryStore(), World()
    bank.dies_at = 1
    model = Scripted(calls("1", "pay", amount=5), "Please check.", calls("2", "refund", order="A"), "Refunded.")
    agent = Agent("clerk", model, [bank.pay, bank.refund])

    async def turn(session: Session, name: str) -> str:
        async with session.turn(name):
            return (await agent.run("go on", session=session)).text

    async def start(*names: str) -> None:
        async with world.session(store, mode="yolo") as session:
            for name in names:
                await turn(session, name)
                if resolved and session.unknown:
                    await session.resolve(session.unknown[0], happened=True, result="paid with receipt 77")

    with pytest.raises(Stop):
        world.run(start("one"))
    world.run(start("one", "two"))
    assert bank.done == ["pay 5", "refund A"]
    assert results(model)[-1] == "receipt 2"


@pytest.mark.parametrize("dies_at", [0, 2])
def test_G10_equal_calls_of_a_subagent_have_their_own_results_after_a_restart(dies_at: int) -> None:
    bank, store, world = Bank(), MemoryStore(), World()
    bank.dies_at = dies_at
    boss = Scripted(calls("1", "payer", prompt="pay 5"), calls("2", "payer", prompt="pay 5"), "Both paid.")
    sub = PayingModel("")

    async def start() -> None:
        async with world.session(store, mode="yolo") as session:
            await Agent("boss", boss, [Agent("payer", sub, [bank.pay])]).run("pay twice", session=session)

    if dies_at:
        with pytest.raises(Stop):
            world.run(start())
        bank.dies_at = 0
    world.run(start())
    assert bank.done == ["pay 5", "pay 5"]
    first, second = results(boss)
    assert first == "receipt 1"
    assert "TOOL_OUTCOME_UNKNOWN" in second if dies_at else second == "receipt 2"


def test_G10_equal_calls_of_a_function_agent_are_made_each() -> None:
    store, world, made = MemoryStore(), World(), []

    async def work(prompt: str) -> str:
        made.append(prompt)
        return f"work {len(made)}"

    boss = Scripted(
        calls("1", "worker", prompt="next"), calls("2", "worker", prompt="next"), RuntimeError("down"), "End."
    )
    agent = Agent("boss", boss, [FunctionAgent("worker", work)])

    async def start() -> None:
        async with world.session(store, mode="yolo") as session:
            await agent.run("go", session=session)

    with pytest.raises(RuntimeError):
        world.run(start())
    world.run(start())
    assert made == ["next", "next"]
    assert results(boss) == ["work 1", "work 2"]


def test_G1_an_unsafe_call_in_doubt_is_not_run_again_because_the_model_repeats_it() -> None:
    bank, store, world = Bank(), MemoryStore(), World()
    bank.dies_at = 1
    model = Scripted(calls("1", "pay", amount=5), calls("2", "pay", amount=5), calls("3", "pay", amount=6), "End.")
    agent = Agent("payer", model, [bank.pay])

    async def start() -> None:
        async with world.session(store, mode="yolo") as session:
            await agent.run("go", session=session)

    with pytest.raises(Stop):
        world.run(start())
    world.run(start())
    assert bank.done == ["pay 5", "pay 6"]
    first, second, third = results(model)
    assert "TOOL_OUTCOME_UNKNOWN" in first
    assert "TOOL_OUTCOME_UNKNOWN" in second
    assert third == "receipt 2"


@pytest.mark.parametrize("change", ["removed", "schema"])
def test_G1_a_tool_that_changed_since_its_call_began_leaves_the_doubt(change: str) -> None:
    bank, store, world = Bank(), MemoryStore(), World()
    bank.dies_at = 1
    model = Scripted(calls("1", "pay", amount=5), "Please check.")

    @tool(effect="unsafe", name="pay")
    async def other(order: str) -> str:
        """Pay an order."""
        return order

    async def start(*tools: Any) -> tuple[str, ...]:
        async with world.session(store, mode="yolo") as session:
            await Agent("payer", model, tools).run("go", session=session)
            return session.unknown

    with pytest.raises(Stop):
        world.run(start(bank.pay))
    unknown = world.run(start(*([other] if change == "schema" else [])))
    assert len(unknown) == 1
    assert "TOOL_OUTCOME_UNKNOWN" in results(model)[0]


def test_G10_a_question_of_a_subagent_ends_the_run_and_its_answer_goes_on() -> None:
    bank, store, world = Bank(), MemoryStore(), World()
    boss = Scripted(calls("1", "payer", prompt="pay 5"), "Paid.")
    agent = Agent("boss", boss, [Agent("payer", PayingModel(""), [bank.pay])])

    async def start(*people: Yes) -> str:
        async with world.session(store, mode="ask") as session:
            for person in people:
                session.attach(person)
            return (await agent.run("go", session=session)).text

    with pytest.raises(HoldfastError) as raised:
        world.run(start())
    assert raised.value.fault.code == "SESS_NO_INTERACTOR"
    assert world.run(start(Yes())) == "Paid."
    assert bank.done == ["pay 5"]
    assert len(boss.requests) == 2
