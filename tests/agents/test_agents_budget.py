"""A budget of money around an agent: what it charges, and which models it lets through."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from agents_kit import Scripted, World

from holdfast import Budget, BudgetError, Err, fault_of, recover, tool
from holdfast.policies.models.prices import LIST_PRICES, Price
from holdfast.policies.models.usage import Usage
from holdfast.policies.target import Target
from holdfast.providers import Reply, Request
from holdfast.providers.model import RecoveringModel
from holdfast.providers.replies import reply
from holdfast.testing.provider import Turn


@tool(effect="read")
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"{city}: rain"


@tool(effect="read")
def population(city: str) -> int:
    """Tell how many people live there."""
    raise KeyError(city)


SCRIPT = (
    Turn(tool="weather", arguments={"city": "Oslo"}),
    Turn(tool="population", arguments={"city": "Oslo"}),
    "It rains.",
)


@pytest.mark.parametrize("in_session", [False, True])
def test_tools_cost_no_money_so_the_budget_has_spent_what_the_reply_says(in_session: bool):
    world = World(*SCRIPT)

    async def main() -> Any:
        agent = world.agent(weather, population)
        with Budget(usd=1, runtime=world.runtime) as budget:
            if not in_session:
                return await agent.run("Oslo?"), budget.spend()
            async with world.session("memory:") as session:
                return await agent.run("Oslo?", session=session), budget.spend()

    reply, spend = world.run(main())
    assert reply.usd
    assert spend.usd == reply.usd
    assert (spend.tokens, spend.unknown, spend.turns) == (reply.usage.total, 0, 3)


def test_an_estimate_counts_model_calls_and_no_tools():
    world = World(*SCRIPT)

    async def main() -> Any:
        with Budget(usd=1, estimate_usd=0.3, runtime=world.runtime) as budget:
            return await world.agent(weather, population).run("Oslo?"), budget.spend()

    reply, spend = world.run(main())
    assert spend.usd == reply.usd


def test_a_model_that_a_tool_calls_is_charged_once():
    world = World(Turn(tool="judge", arguments={"text": "a poem"}), "Good.")

    @tool(effect="read")
    async def judge(text: str) -> str:
        """Judge a text."""
        ask = recover("claude", runtime=world.runtime)
        return str((await ask.call(_judged, text))["model"])

    async def main() -> Any:
        with Budget(usd=1, runtime=world.runtime) as budget:
            return await world.agent(judge).run("Judge it."), budget.spend()

    reply, spend = world.run(main())
    inside = LIST_PRICES.cost("gpt-5", Usage(input=1000, output=100))
    assert spend.usd == pytest.approx(reply.usd + inside, abs=1e-9)
    assert spend.unknown == 0


async def _judged(text: str) -> dict[str, Any]:
    del text
    return {"model": "gpt-5", "usage": {"prompt_tokens": 1000, "completion_tokens": 100}}


# --- models without a price ---


@pytest.mark.parametrize("names", [("claude-nova-7",), ("claude-haiku-4-5", "claude-nova-7")], ids=["one", "a chain"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_model_without_a_price_gets_no_request_where_money_is_limited(names: tuple[str, ...], streamed: bool):
    world = World("Hello.")

    async def main() -> Any:
        agent = world.agent(weather, model=[world.model(name) for name in names])
        with Budget(usd=1, runtime=world.runtime), pytest.raises(BudgetError) as raised:
            if not streamed:
                await agent.run("Hello?")
            async with agent.stream("Hello?") as parts:
                async for _ in parts:
                    pass
        return raised.value

    error = world.run(main())
    assert world.received == 0
    assert "nobody knows the price of claude-nova-7" in str(error)
    assert "with_prices({'claude-nova-7': Price(input=…, output=…)})" in str(error)
    assert "estimate_usd=" in str(error)
    assert fault_of(error).code == "SYS_BUDGET_EXHAUSTED"


@pytest.mark.parametrize(
    "options",
    [
        {"usd": 1, "prices": LIST_PRICES.with_prices({"claude-nova-7": Price(input=1, output=1)})},
        {"usd": 1, "estimate_usd": 0.01},
        {"tokens": 10_000},
    ],
    ids=["a price", "an estimate", "no limit of money"],
)
def test_a_model_without_a_list_price_is_called_where_the_user_says_what_it_costs(options: dict[str, Any]):
    world = World("Hello.")

    async def main() -> Any:
        agent = world.agent(model=world.model("claude-nova-7"))
        with Budget(**options, runtime=world.runtime):
            return await agent.run("Hello?")

    assert world.run(main()).text == "Hello."


def test_a_model_of_the_application_without_a_price_gets_no_request_either():
    world = World()
    model = Scripted(Reply(text="Hello.", model="scripted", usage=Usage(input=1, output=1)))

    async def main() -> Any:
        with Budget(usd=1, runtime=world.runtime):
            return await world.agent(model=model).outcome("Hello?")

    ended = world.run(main())
    assert isinstance(ended, Err)
    assert isinstance(ended.error, BudgetError)
    assert model.requests == []


class Answers:
    """A protocol that gives these answers, one for each request."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    async def exchange(self, model: str, request: Request) -> Reply:
        usage = Usage(input=10, output=20)
        return reply(request, text=self.texts.pop(0), called=(), stop="end", usage=usage, model=model)


@pytest.mark.parametrize("how", ["plain", "in a budget", "in a session"])
def test_XA3_the_reply_counts_all_answers_that_were_paid_for(how: str):
    """Two answers are not JSON. They were paid for all the same."""
    world, wire = World(), Answers("no JSON", "no JSON either", '{"value": 1}')
    target = Target(provider="anthropic", model="claude-haiku-4-5")
    agent = world.agent(model=RecoveringModel(wire, target, runtime=world.runtime), output=dict[str, int])

    async def main() -> Any:
        if how == "in a session":
            async with world.session("memory:") as session:
                return await agent.run("Count.", session=session)
        with Budget(usd=1, runtime=world.runtime) if how == "in a budget" else nullcontext() as budget:
            reply = await agent.run("Count.")
        if budget is not None:
            assert (budget.spend().usd, budget.spend().tokens, budget.spend().unknown) == (reply.usd, 90, 0)
        return reply

    ended = world.run(main())
    assert wire.texts == []
    assert ended.data == {"value": 1}
    assert ended.usage == Usage(input=30, output=60)
    assert ended.usd == pytest.approx(3 * LIST_PRICES.cost("claude-haiku-4-5", Usage(input=10, output=20)))


def test_XR2_agents_with_a_model_of_the_application_s_own_do_not_exceed_their_budget():
    world = World()

    class Slow(Scripted):
        async def exchange(self, request: Any) -> Reply:
            await asyncio.sleep(1)
            return await super().exchange(request)

    model = Slow(Reply(text="Done.", usage=Usage(input=10, output=400), model="claude-haiku-4-5"))
    model.name = "own/claude-haiku-4-5"

    async def main() -> Any:
        with Budget(usd=0.02, runtime=world.runtime) as budget:
            agents = [world.agent(model=model, max_output=400).outcome("go") for _ in range(50)]
            return await asyncio.gather(*agents), budget.spend()

    ended, spend = world.run(main())
    assert spend.usd <= 0.02
    assert sum(isinstance(one, Err) for one in ended) == 50 - len(model.requests)
    assert len(model.requests) == 9
