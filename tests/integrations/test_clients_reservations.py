"""Money budgets around recovering clients hold: prices are reserved, streams report their usage or are charged what may have been generated."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic
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
from openai import AsyncOpenAI, OpenAI

import holdfast.anthropic
import holdfast.openai
from holdfast import Budget, BudgetError, recover
from holdfast.policies.models.prices import Price, Prices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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


async def slowly(pieces: tuple[Any, ...], *, waits: tuple[float, ...]) -> AsyncIterator[bytes]:
    for piece, each in zip(pieces, waits, strict=True):
        await asyncio.sleep(each)
        yield f"data: {json.dumps(piece)}\n\n".encode()
    yield b"data: [DONE]\n\n"


def pausing(waits: tuple[float, ...]) -> tuple[Any, AsyncOpenAI]:
    """A server of another kind than OpenAI's, which waits so long before each part of a stream, and a client of it."""
    runtime, _ = world()

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=slowly(SAID, waits=waits))

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    client = AsyncOpenAI(api_key="k", http_client=http, base_url="http://localhost:4000")
    return runtime, holdfast.openai.recovering(client, runtime=runtime)


@pytest.mark.parametrize(
    ("waits", "most"),
    [((0.01,) * 4, 2.0), ((0.26, 0.1, 0.1, 0.1), 40.0), ((0.1, 0.26, 0.1, 0.1), 40.0), ((0.1, 0.1, 0.1, 0.26), 40.0)],
)
def test_a_stream_without_usage_is_charged_what_may_have_been_thought_unseen(waits: tuple[float, ...], most: float):
    """Two tokens are shown. A model that is silent may think, and the provider bills what it thinks."""
    runtime, gpt = pausing(waits)

    async def read() -> Any:
        return [part async for part in await gpt.chat.completions.create(**ASK, stream=True)]

    with Budget(usd=100, prices=PRICES, runtime=runtime) as budget:
        in_time(runtime, read())
    assert (budget.spend().usd, budget.spend().unknown) == (most, 1)


def test_a_raw_stream_without_usage_is_charged_what_may_have_been_thought_unseen():
    runtime, gpt = pausing((0.1, 3.0, 0.1, 0.1))

    async def read() -> Any:
        ask = gpt.chat.completions.with_streaming_response.create(**{**ASK, "max_tokens": 900}, stream=True)
        async with ask as response:
            return [line async for line in response.iter_lines()]

    with Budget(usd=1000, prices=PRICES, runtime=runtime) as budget:
        in_time(runtime, read())
    assert 150 * 3 <= budget.spend().usd < 900


def test_an_answer_without_usage_is_charged_what_may_have_been_generated():
    runtime, _ = world()

    async def ask(**_: Any) -> str:
        await asyncio.sleep(0.2)
        return "four"

    with Budget(usd=100, prices=PRICES, runtime=runtime) as budget:
        in_time(runtime, recover("a", runtime=runtime).call(ask, **ASK))
    assert (budget.spend().usd, budget.spend().unknown) == (30.0, 1)


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


# --- calls that ask no model ---


class Account:
    """A service with free endpoints, and responses that run in the background."""

    def __init__(self, polls: int = 2) -> None:
        self.polls = polls

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path.endswith("/count_tokens"):
            return httpx2.Response(200, json={"input_tokens": 1000})
        if path.endswith("/models"):
            return httpx2.Response(200, json={"object": "list", "data": [], "has_more": False})
        if path.endswith("/moderations"):
            return httpx2.Response(200, json={"id": "modr", "model": "omni", "results": []})
        if path.endswith("/responses"):
            background = json.loads(request.content).get("background")
            return httpx2.Response(200, json=response("queued" if background else "completed"))
        self.polls -= 1
        return httpx2.Response(200, json=response("completed" if self.polls < 0 else "in_progress"))


def response(status: str) -> dict[str, Any]:
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 3, "output_tokens": 7, "total_tokens": 10, **details} if status == "completed" else None
    return {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": "gpt-test", "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage}  # fmt: skip


def gpt_on(account: Account, runtime: Any) -> Any:
    client = OpenAI(api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(account)))
    return holdfast.openai.recovering(client, runtime=runtime)


def test_calls_that_ask_no_model_cost_attempts_and_nothing_else():
    runtime, _ = world()
    client = Anthropic(api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(Account())))
    claude, gpt = holdfast.anthropic.recovering(client, runtime=runtime), gpt_on(Account(), runtime)
    with Budget(usd=5, prices=PRICES, runtime=runtime, estimate_usd=2) as budget:
        for _ in range(5):
            claude.messages.count_tokens(model="claude-test", messages=REQUEST["messages"])
            claude.models.list()
            gpt.models.list()
            # It has no price, and needs none.
            gpt.moderations.create(model="omni-moderation-latest", input="hi")
    spend = budget.spend()
    assert (spend.usd, spend.tokens, spend.unknown, spend.attempts) == (0.0, 0, 0, 20)


def test_a_background_response_is_charged_once_however_often_it_is_read():
    runtime, _ = world()
    gpt = gpt_on(Account(), runtime)
    with Budget(usd=40, prices=PRICES, runtime=runtime) as budget:
        made = gpt.responses.create(model="gpt-test", input="hi", background=True, max_output_tokens=40)
        # Its whole price is charged until it is known, so a budget that is spent by it must let it be read.
        assert (budget.spend().usd, budget.spend().unknown) == (40.0, 1)
        for _ in range(6):
            made = gpt.responses.retrieve(made.id)
        assert (made.status, budget.spend().usd, budget.spend().tokens, budget.spend().unknown) == ("completed", 7.0, 10, 0)  # fmt: skip


def test_a_response_that_was_charged_before_is_read_for_nothing():
    runtime, _ = world()
    gpt = gpt_on(Account(polls=0), runtime)
    with Budget(usd=100, prices=PRICES, runtime=runtime) as budget:
        gpt.responses.create(model="gpt-test", input="hi", max_output_tokens=40)
        gpt.responses.retrieve("resp_1")
        with Budget(usd=50, prices=PRICES, runtime=runtime) as inner:
            gpt.responses.retrieve("resp_1")
        gpt.responses.create(model="gpt-test", input="hi", max_output_tokens=40)
    assert (budget.spend().usd, inner.spend().usd) == (14.0, 0.0)


def test_a_response_that_somebody_else_made_is_charged_once():
    runtime, _ = world()
    gpt = gpt_on(Account(polls=0), runtime)
    with Budget(usd=100, prices=PRICES, runtime=runtime) as budget:
        for _ in range(3):
            gpt.responses.retrieve("resp_1")
    assert budget.spend().usd == 7.0


# --- batches, searches, caches ---

BATCH = {"id": "b", "type": "message_batch", "processing_status": "in_progress", "created_at": "2025-01-01T00:00:00Z", "expires_at": "2025-01-01T00:00:00Z", "request_counts": {"processing": 1, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}}  # fmt: skip


def claude_with(answer: dict[str, Any], runtime: Any, sent: list[Any]) -> Any:
    def respond(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, json=answer)

    client = Anthropic(api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(respond)))
    return holdfast.anthropic.recovering(client, runtime=runtime)


@pytest.mark.parametrize("usd", [14, 15])
def test_a_batch_is_rejected_or_charged_when_it_is_made(usd: float):
    (runtime, _), sent = world(), []
    claude = claude_with(BATCH, runtime, sent)
    requests = [
        {"custom_id": str(number), "params": REQUEST} for number in range(3)
    ]  # 10 dollars each, half of it in a batch
    with Budget(usd=usd, prices=PRICES, runtime=runtime) as budget:
        if usd == 14:
            with pytest.raises(BudgetError, match=r"\$15"):
                claude.messages.batches.create(requests=requests)
            with pytest.raises(BudgetError, match=r"\$15"):
                claude.beta.messages.batches.create(requests=requests)
            assert (sent, budget.spend().usd) == ([], 0.0)
        else:
            made = claude.messages.batches.create(requests=requests)
            claude.messages.batches.retrieve(made.id)
            assert (len(sent), budget.spend().usd, budget.spend().unknown) == (2, 15.0, 1)


def test_a_batch_whose_price_nobody_knows_is_not_made():
    (runtime, _), sent = world(), []
    claude = claude_with(BATCH, runtime, sent)
    gpt = gpt_on(Account(), runtime)
    unknown = [{"custom_id": "1", "params": {**REQUEST, "model": "never-heard-of"}}]
    with Budget(usd=100, prices=PRICES, runtime=runtime):
        with pytest.raises(BudgetError, match="never-heard-of"):
            claude.messages.batches.create(requests=unknown)
        with pytest.raises(BudgetError, match="estimate_usd"):
            gpt.batches.create(input_file_id="f", endpoint="/v1/responses", completion_window="24h")
    with Budget(usd=100, estimate_usd=20, prices=PRICES, runtime=runtime) as budget:
        claude.messages.batches.create(requests=unknown)
    assert (len(sent), budget.spend().usd) == (1, 20.0)


def test_web_searches_are_reserved_and_charged():
    (runtime, _), sent = world(), []
    usage = {
        "input_tokens": 0,
        "output_tokens": 0,
        "server_tool_use": {"web_search_requests": 4, "web_fetch_requests": 0},
    }
    body = {"id": "m", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "content": []}
    claude = claude_with({**body, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}, runtime, sent)
    tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]
    ask = {"model": "claude-haiku-4-5", "max_tokens": 1, "messages": REQUEST["messages"], "tools": tools}
    with Budget(usd=0.1, runtime=runtime) as budget:
        claude.messages.create(**ask)
        assert budget.spend().usd == 0.04
        claude.messages.create(**ask)
        with pytest.raises(BudgetError):
            claude.messages.create(**ask)
    assert len(sent) == 2
