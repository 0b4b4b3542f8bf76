"""Money budgets around recovering clients hold: prices are reserved, streams report their usage or are charged what was seen."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic
from clients_kit import (
    BLOCK,
    LIMITED,
    REQUEST,
    START,
    Streaming,
    Wire,
    anthropic_on,
    async_openai_on,
    chunk,
    in_time,
    openai_on,
    text,
    world,
)

import holdfast.anthropic
import holdfast.openai
from holdfast import Budget, BudgetError
from holdfast.policies.models.prices import Price, Prices

PRICES = Prices({
    "claude-test": Price(input=0, output=1_000_000),
    "gpt-test": Price(input=0, output=1_000_000),
})  # fmt: skip
"""A token of output costs a dollar."""

ASK: dict[str, Any] = {"model": "gpt-test", "max_tokens": 40, "messages": [{"role": "user", "content": "hi"}]}
USAGE: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "gpt-test",
    "choices": [],
    "usage": {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10},
}
SAID = (chunk(role="assistant", content=""), chunk("four"), chunk("more"), chunk(finish="stop"))


def test_XR2_parallel_calls_of_a_client_do_not_exceed_the_budget():
    runtime, _ = world()
    sent = 0

    async def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal sent
        sent += 1
        await asyncio.sleep(1)
        usage = {"input_tokens": 1, "output_tokens": 10}
        body = {"id": "m", "type": "message", "role": "assistant", "model": "claude-test", "usage": usage}
        return httpx2.Response(200, json={**body, "content": [], "stop_reason": "end_turn", "stop_sequence": None})

    client = AsyncAnthropic(api_key="k", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(answer)))
    claude = holdfast.anthropic.recovering(client, runtime=runtime)

    async def main() -> Any:
        with Budget(usd=55, prices=PRICES, runtime=runtime) as budget:
            calls = (claude.messages.create(**REQUEST) for _ in range(50))
            return await asyncio.gather(*calls, return_exceptions=True), budget

    results, budget = in_time(runtime, main())
    assert (sent, budget.spend().usd) == (5, 50.0)
    assert sum(isinstance(result, BudgetError) for result in results) == 45


def test_XR2_a_call_that_does_not_fit_says_its_price_and_is_not_sent():
    wire, (runtime, _) = Wire(LIMITED), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    with Budget(usd=5, prices=PRICES, runtime=runtime), pytest.raises(BudgetError, match=r"\$10.*\$5.*max_tokens"):
        claude.messages.create(**REQUEST)
    assert wire.requests == []


def asked(wire: Wire) -> list[Any]:
    return [json.loads(request.content).get("stream_options") for request in wire.requests]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_XR2_a_stream_of_openai_is_asked_for_its_usage_and_the_caller_does_not_see_that(is_async):
    wire, (runtime, _) = Wire(Streaming(*SAID, USAGE)), world()
    on = async_openai_on if is_async else openai_on
    gpt = holdfast.openai.recovering(on(wire), runtime=runtime)

    async def read() -> Any:
        return [part async for part in await gpt.chat.completions.create(**ASK, stream=True)]

    with Budget(usd=100, prices=PRICES, runtime=runtime) as budget:
        seen = in_time(runtime, read()) if is_async else list(gpt.chat.completions.create(**ASK, stream=True))
    assert asked(wire) == [{"include_usage": True}]
    assert (len(seen), budget.spend().usd, budget.spend().unknown) == (len(SAID), 7.0, 0)


def test_XR2_who_asks_for_the_usage_itself_gets_it():
    wire, (runtime, _) = Wire(Streaming(*SAID, USAGE)), world()
    gpt = holdfast.openai.recovering(openai_on(wire), runtime=runtime)
    with Budget(usd=100, prices=PRICES, runtime=runtime):
        seen = list(gpt.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert len(seen) == len(SAID) + 1


def test_XR2_nobody_is_asked_without_a_budget_of_money_or_tokens():
    wire, (runtime, _) = Wire(Streaming(*SAID)), world()
    gpt = holdfast.openai.recovering(openai_on(wire), runtime=runtime)
    list(gpt.chat.completions.create(**ASK, stream=True))
    with Budget(attempts=9, runtime=runtime):
        list(gpt.chat.completions.create(**ASK, stream=True))
    assert asked(wire) == [None, None]


def test_XR2_a_raw_response_is_the_callers_own():
    wire, (runtime, _) = Wire(Streaming(*SAID)), world()
    gpt = holdfast.openai.recovering(openai_on(wire), runtime=runtime)
    with Budget(usd=100, prices=PRICES, runtime=runtime):
        gpt.chat.completions.with_raw_response.create(**ASK, stream=True)
    assert asked(wire) == [None]


def test_XR2_another_server_is_not_asked_and_its_text_is_counted():
    wire, (runtime, _) = Wire(Streaming(*SAID)), world()
    gpt = holdfast.openai.recovering(openai_on(wire, base_url="http://localhost:4000"), runtime=runtime)
    with Budget(usd=100, prices=PRICES, runtime=runtime) as budget:
        list(gpt.chat.completions.create(**ASK, stream=True))
    assert asked(wire) == [None]
    assert (budget.spend().usd, budget.spend().unknown) == (2.0, 1)


def test_XR2_many_streams_without_usage_reach_the_limit():
    wire, (runtime, _) = Wire(Streaming(*SAID)), world()
    gpt = holdfast.openai.recovering(openai_on(wire, base_url="http://localhost:4000"), runtime=runtime)

    def read() -> None:
        for _ in range(300):
            list(gpt.chat.completions.create(**ASK, stream=True))

    with Budget(usd=60, prices=PRICES, runtime=runtime) as budget, pytest.raises(BudgetError):
        read()
    assert budget.spend().usd <= 60
    assert len(wire.requests) == 11


def test_XR2_a_stream_that_is_left_is_charged_its_input_and_what_was_seen():
    prices = Prices({"claude-test": Price(input=1_000_000, output=1_000_000)})
    wire, (runtime, _) = Wire(Streaming(START, BLOCK, text("four" * 4), text("more"))), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    with Budget(usd=100, prices=prices, runtime=runtime) as budget:
        with claude.messages.create(**REQUEST, stream=True) as stream:
            for event in stream:
                if event.type == "content_block_delta":
                    break
        # One token of input, as the stream reported it, and four of output, as far as it was read.
        assert (budget.spend().usd, budget.spend().unknown) == (5.0, 1)
        assert budget.left().usd == 95.0


def test_XR2_what_the_service_rejects_costs_nothing():
    wire, (runtime, _) = Wire(LIMITED), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    with Budget(usd=100, prices=PRICES, runtime=runtime) as budget, pytest.raises(Exception, match="Slow down"):
        claude.messages.create(**REQUEST)
    assert (budget.spend().usd, budget.spend().unknown, budget.left().usd) == (0.0, 0, 100.0)
