"""A budget of money around recovering clients: a model whose price nobody knows is not called."""

from __future__ import annotations

import anthropic
import pytest
from clients_kit import REQUEST, Wire, anthropic_on, async_anthropic_on, in_time, message, openai_on, world

import holdfast.openai
from holdfast import Budget, BudgetError, recover
from holdfast.anthropic import recovering
from holdfast.genai_prices import with_genai_prices
from holdfast.policies.models.prices import LIST_PRICES, Price, Prices
from holdfast.policies.models.usage import Usage

PRICES = LIST_PRICES.with_prices({"claude-test": Price(input=2, output=8)})


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_FR26_a_model_without_a_price_is_not_called_where_money_is_limited(is_async):
    wire, (runtime, _) = Wire(message()), world()
    claude = recovering((async_anthropic_on if is_async else anthropic_on)(wire), runtime=runtime)

    async def ask():
        return await claude.messages.create(**REQUEST)

    with Budget(usd=1, runtime=runtime) as budget, pytest.raises(BudgetError, match="claude-test") as caught:
        in_time(runtime, ask()) if is_async else claude.messages.create(**REQUEST)
    assert wire.requests == []
    assert isinstance(caught.value, anthropic.APIError)
    assert "prices=LIST_PRICES.with_prices({'claude-test': Price(" in caught.value.fault.message
    assert budget.spend().attempts == 0


@pytest.mark.parametrize(
    "options", [{"prices": PRICES}, {"estimate_usd": 0.25}, {"prices": Prices({"*": Price(input=0, output=0)})}]
)
def test_FR26_a_declared_price_or_estimate_lets_it_through_and_counts(options):
    wire, (runtime, _) = Wire(message()), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    with Budget(usd=0.3, runtime=runtime, **options) as budget:
        claude.messages.create(**REQUEST)
        claude.messages.create(**REQUEST)
        if "estimate_usd" in options:
            assert budget.spend().usd == 0.5
            with pytest.raises(BudgetError, match="spent"):
                claude.messages.create(**REQUEST)
    assert len(wire.requests) == 2


@pytest.mark.parametrize("limits", [{"tokens": 100}, {"attempts": 9}, {"seconds": 60}])
def test_FR26_without_a_limit_of_money_the_price_does_not_matter(limits):
    wire, (runtime, _) = Wire(message()), world()
    with Budget(runtime=runtime, **limits):
        recovering(anthropic_on(wire), runtime=runtime).messages.create(**REQUEST)
    assert len(wire.requests) == 1


def test_FR26_a_limit_of_money_around_another_budget_counts_too():
    wire, (runtime, _) = Wire(message()), world()
    with (
        Budget(usd=1, runtime=runtime),
        Budget(tokens=100, runtime=runtime),
        pytest.raises(BudgetError, match="claude-test"),
    ):
        recovering(anthropic_on(wire), runtime=runtime).messages.create(**REQUEST)
    assert wire.requests == []


def test_FR26_a_function_that_calls_such_a_model_is_stopped_after_its_first_answer():
    """A recovery around any function learns the model from the answer."""
    runtime, _ = world()
    calls = []

    @recover("mine", runtime=runtime)
    def ask():
        calls.append(1)
        return {"model": "unheard-of", "usage": {"input_tokens": 5, "output_tokens": 5}}

    with Budget(usd=1, runtime=runtime):
        ask()
        with pytest.raises(BudgetError, match="unheard-of"):
            ask()
    assert len(calls) == 1
    ask()  # the next budget, or none, begins anew
    with Budget(usd=1, runtime=runtime):
        ask()


def test_FR26_an_answer_without_usage_blocks_nothing():
    runtime, _ = world()
    tool = recover("tool:clock", runtime=runtime)(lambda: "12:00")
    with Budget(usd=1, runtime=runtime):
        assert [tool() for _ in range(3)] == ["12:00"] * 3


def test_FR26_a_name_that_another_server_chose_is_judged_by_the_answer():
    """A deployment or a local server has names of its own; the answer names the model."""
    wire, (runtime, _) = Wire(message()), world()
    client = anthropic_on(wire, base_url="http://localhost:4000")
    with Budget(usd=1, runtime=runtime, prices=PRICES):
        for _ in range(2):
            recovering(client, runtime=runtime).messages.create(**{**REQUEST, "model": "our-deployment"})
    assert len(wire.requests) == 2


# --- the package genai-prices ---


def test_FR26_genai_prices_knows_many_more_models():
    prices = with_genai_prices()
    usage = Usage(input=1_000_000, output=0)
    for model in ("gemini-2.5-flash", "grok-4", "deepseek-chat", "openai/gpt-4o"):
        assert prices.knows(model)
        assert prices.cost(model, usage) > 0
    assert not prices.knows("unheard-of")
    assert prices.cost("unheard-of", usage) is None
    assert prices.cost(None, usage) is None
    assert prices.cost("gpt-5", None) is None


def test_FR26_own_prices_win_over_those_of_the_package():
    prices = with_genai_prices(Prices({"grok-4": Price(input=1, output=1)}))
    usage = Usage(input=1_000_000, output=0)
    assert prices.cost("grok-4", usage) == 1.0
    dearer = prices.with_prices({"gemini-2.5-flash": Price(input=7, output=7)})
    assert dearer.cost("gemini-2.5-flash", usage) == 7.0
    assert dearer.knows("deepseek-chat")


def test_FR26_cached_input_is_counted_once():
    prices = with_genai_prices(Prices())
    whole, cached = Usage(input=1_000_000), Usage(cached=1_000_000)
    assert 0 < prices.cost("gpt-4o", cached) < prices.cost("gpt-4o", whole)


def test_FR26_with_the_package_such_a_model_is_called_and_charged():
    runtime, _ = world()
    wire = Wire(message())
    gpt = holdfast.openai.recovering(openai_on(wire, base_url="https://api.x.ai/v1"), runtime=runtime)
    with Budget(usd=1, runtime=runtime), pytest.raises(BudgetError):
        gpt.chat.completions.create(model="grok-4", messages=[])
    with Budget(usd=1, runtime=runtime, prices=with_genai_prices()):
        gpt.chat.completions.create(model="grok-4", messages=[])
    assert len(wire.requests) == 1
