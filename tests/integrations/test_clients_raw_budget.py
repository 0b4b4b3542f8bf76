"""Money budgets hold for responses that the caller reads: raw, streaming, read whole, in parts, by their headers only, or not at all."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic
from clients_kit import BLOCK, BLOCK_STOP, START, STOP, TURN, Body, Streaming, chunk, text
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI

import holdfast.anthropic
import holdfast.openai
from holdfast import Budget, BudgetError, Runtime, recover
from holdfast.policies.models.prices import Price, Prices
from holdfast.testing import VirtualClock, run

PRICES = Prices({
    "claude-test": Price(input=0, output=1_000_000),
    "gpt-test": Price(input=0, output=1_000_000),
})  # fmt: skip
"""A token of output costs a dollar."""

HI = [{"role": "user", "content": "hi"}]
LONGEST, USED = 10, 4
"""Dollars that are reserved for a call, and that it costs."""


class Service:
    """Answers in a body that comes while it is read, and counts what it bills."""

    def __init__(self, answer: Callable[[], httpx2.Response] | None = None) -> None:
        self.billed = 0
        self._answer = answer

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.billed += USED
        if self._answer is not None:
            return self._answer()
        name = f"answer-{self.billed}"
        if "messages" in request.url.path:
            usage = {"input_tokens": 1, "output_tokens": USED}
            body = {"id": name, "type": "message", "role": "assistant", "model": "claude-test", "usage": usage}
            body |= {"content": [], "stop_reason": "end_turn", "stop_sequence": None}
        elif "responses" in request.url.path:
            usage = {"input_tokens": 1, "output_tokens": USED, "input_tokens_details": {"cached_tokens": 0}}
            body = {"id": name, "object": "response", "status": "completed", "model": "gpt-test", "output": []}
            body |= {"usage": {**usage, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 5}}
        else:
            usage = {"prompt_tokens": 1, "completion_tokens": USED, "total_tokens": 1 + USED}
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}
            body = {"id": name, "object": "chat.completion", "created": 1, "model": "gpt-test", "choices": [choice]}
            body["usage"] = usage
        halves = json.dumps(body).encode()
        pieces = [halves[:30], halves[30:]]
        return httpx2.Response(200, headers={"content-type": "application/json"}, stream=Body(pieces, None))

    async def asynchronously(self, request: httpx2.Request) -> httpx2.Response:
        return self(request)


def resources(service: Any, *, is_async: bool) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The calls of recovering clients, each with its arguments."""
    on: Any = service.asynchronously if is_async else service
    http: Any = (httpx2.AsyncClient if is_async else httpx2.Client)(transport=httpx2.MockTransport(on))
    claude_of, gpt_of = (AsyncAnthropic, AsyncOpenAI) if is_async else (Anthropic, OpenAI)
    claude: Any = holdfast.anthropic.recovering(claude_of(api_key="k", http_client=http))
    gpt: Any = holdfast.openai.recovering(gpt_of(api_key="k", http_client=http))
    return {
        "messages": (claude.messages, {"model": "claude-test", "max_tokens": LONGEST, "messages": HI}),
        "chat": (gpt.chat.completions, {"model": "gpt-test", "max_tokens": LONGEST, "messages": HI}),
        "responses": (gpt.responses, {"model": "gpt-test", "max_output_tokens": LONGEST, "input": "hi"}),
    }


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def raw(of: Any, read: Callable[[Any], Any], **request: Any) -> None:
    await settled(read(await settled(of.with_raw_response.create(**request))))


async def streaming(of: Any, read: Callable[[Any], Any], **request: Any) -> None:
    manager = of.with_streaming_response.create(**request)
    if hasattr(manager, "__aenter__"):
        async with manager as response:
            await settled(read(response))
    else:
        with manager as response:
            read(response)


def lines(response: Any) -> Any:
    if not hasattr(type(response.iter_lines()), "__anext__"):
        return list(response.iter_lines())

    async def read() -> None:
        async for _ in response.iter_lines():
            pass

    return read()


KNOWN = {
    "raw, parsed": (raw, lambda response: response.parse()),
    "raw, text": (raw, lambda response: response.http_response.text),
    "raw, headers": (raw, lambda response: response.headers),
    "streaming, parsed": (streaming, lambda response: response.parse()),
    "streaming, json": (streaming, lambda response: response.json()),
    "streaming, lines": (streaming, lines),
}
UNKNOWN = {"streaming, headers": (streaming, lambda response: response.headers)}


async def spend(way: tuple[Any, Any], name: str, usd: float, *, is_async: bool) -> tuple[int, Any]:
    """Call until the budget ends; return what was billed, and what was counted."""
    service = Service()
    of, request = resources(service, is_async=is_async)[name]
    call, read = way
    with Budget(usd=usd, prices=PRICES) as budget, pytest.raises(BudgetError):
        for _ in range(100):
            await call(of, read, **request)
    return service.billed, budget.spend()


def run_plainly(main: Any, *, is_async: bool) -> Any:
    """Run it in an event loop, or without one: a blocking call in a loop cannot wait."""
    if is_async:
        return asyncio.run(main)
    try:
        main.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a blocking client waited for an event loop")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", ["messages", "chat", "responses"])
@pytest.mark.parametrize("way", KNOWN)
def test_AK8_a_budget_counts_what_a_response_reports_that_the_caller_reads(way, name, is_async):
    billed, spent = run_plainly(spend(KNOWN[way], name, 30, is_async=is_async), is_async=is_async)
    assert (billed, spent.usd, spent.unknown) == (24, 24.0, 0)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", ["messages", "chat", "responses"])
@pytest.mark.parametrize("way", UNKNOWN)
def test_AK8_a_response_that_nobody_reads_counts_as_much_as_was_reserved(way, name, is_async):
    billed, spent = run_plainly(spend(UNKNOWN[way], name, 30, is_async=is_async), is_async=is_async)
    assert billed <= spent.usd == 30
    assert spent.unknown == 3


def test_AK8_the_reservation_is_held_while_the_body_is_not_read():
    of, request = resources(Service(), is_async=False)["messages"]
    with Budget(usd=19, prices=PRICES) as budget:
        with of.with_streaming_response.create(**request) as response:
            # Who holds the answer cannot wait for its own money.
            with pytest.raises(BudgetError):
                of.create(**request)
            response.read()
        of.create(**request)
        assert budget.spend().usd == 2 * USED


def test_AK8_a_response_that_was_dropped_is_charged():
    of, request = resources(Service(), is_async=False)["messages"]
    with Budget(usd=50, prices=PRICES) as budget:
        manager = of.with_streaming_response.create(**request)
        response = manager.__enter__()
        assert budget.spend().usd == 0
        del manager, response
        gc.collect()
        assert budget.spend().usd == LONGEST


EVENTS = {
    "messages": (Streaming(START, BLOCK, text("hi"), BLOCK_STOP, {**TURN, "usage": {"output_tokens": USED}}, STOP), 0),
    "chat": (Streaming(chunk("four"), chunk(finish="stop")), 1),
}


@pytest.mark.parametrize("form", ["with_raw_response", "with_streaming_response"])
@pytest.mark.parametrize("name", EVENTS)
def test_AK8_a_raw_event_stream_is_charged_when_it_is_read(name, form):
    answer, unknown = EVENTS[name]
    of, request = resources(Service(answer), is_async=False)[name]
    with Budget(usd=100, prices=PRICES) as budget:
        made = getattr(of, form).create(**request, stream=True)
        response = made.__enter__() if hasattr(made, "__enter__") else made
        list(response.parse())
        spent = budget.spend()
    assert spent.unknown == unknown
    # Without a report, the tokens of the events count, up to the longest answer.
    assert spent.usd == (LONGEST if unknown else USED)


def test_AK8_a_function_around_a_raw_call_is_not_charged_for_its_answer_again():
    of, request = resources(Service(), is_async=False)["messages"]
    with Budget(usd=100, prices=PRICES) as budget:
        recover("around").call(lambda: of.with_raw_response.create(**request).parse())
        recover("around").call(lambda: json.loads(of.with_raw_response.create(**request).http_response.text))
        assert budget.spend().usd == 2 * USED


def test_AK8_langchains_model_on_a_recovering_client_is_counted():
    service = Service()
    gpt = resources(service, is_async=False)["chat"][0]
    model = ChatOpenAI(model="gpt-test", max_tokens=LONGEST, client=gpt, api_key="k")
    with Budget(usd=30, prices=PRICES) as budget, pytest.raises(BudgetError):
        for _ in range(100):
            model.invoke("hi")
    assert (service.billed, budget.spend().usd) == (24, 24.0)


def test_AK8_a_body_is_handed_on_as_it_comes_and_only_under_a_budget_watched(caplog):
    of, request = resources(Service(), is_async=False)["messages"]
    with caplog.at_level(logging.WARNING), of.with_streaming_response.create(**request) as response:
        assert "iter_bytes" not in vars(response.http_response)
        plain = list(response.iter_bytes())
    with Budget(usd=50, prices=PRICES), of.with_streaming_response.create(**request) as response:
        assert [len(part) for part in response.iter_bytes()] == [len(part) for part in plain]


@pytest.mark.parametrize(("functions", "workers", "usd"), [(2, 1, 14), (4, 2, 26), (20, 3, 107), (20, 3, 500)])
def test_AK12_a_function_that_hands_its_request_to_workers_neither_waits_for_them_nor_pays_twice(
    functions, workers, usd
):
    clock = VirtualClock()
    runtime = Runtime(clock=clock)
    sent = 0

    async def serve(request: httpx2.Request) -> httpx2.Response:
        nonlocal sent
        sent += 1
        name, usage = f"answer-{sent}", {"input_tokens": 1, "output_tokens": USED}
        await asyncio.sleep(2)
        body = {"id": name, "type": "message", "role": "assistant", "model": "claude-test", "usage": usage}
        return httpx2.Response(200, json={**body, "content": [], "stop_reason": "end_turn", "stop_sequence": None})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(serve))
    claude = holdfast.anthropic.recovering(AsyncAnthropic(api_key="k", http_client=http), runtime=runtime)

    async def main() -> tuple[list[Any], Budget]:
        requests: asyncio.Queue[Any] = asyncio.Queue()

        async def work() -> None:
            while True:
                future, request = await requests.get()
                future.set_result(await claude.messages.create(**request))

        @recover("via-queue", runtime=runtime)
        async def ask(**request: Any) -> Any:
            future = asyncio.get_running_loop().create_future()
            await requests.put((future, request))
            return await future

        with Budget(usd=usd, prices=PRICES, runtime=runtime) as budget:
            tasks = [asyncio.create_task(work()) for _ in range(workers)]
            request = {"model": "claude-test", "max_tokens": LONGEST, "messages": HI}
            answers = await asyncio.gather(*(ask(**request) for _ in range(functions)))
        for task in tasks:
            task.cancel()
        return answers, budget

    answers, budget = run(main(), clock=clock)
    assert (len(answers), sent, budget.spend().usd) == (functions, functions, float(USED * functions))
    assert clock.monotonic() <= 2 * functions


TIERED = Prices({
    "claude-test": Price(input=0, output=1_000_000, tiers={"fast": 6}),
    "gpt-test": Price(input=0, output=1_000_000, tiers={"priority": 2, "flex": 0.5}),
})  # fmt: skip


def in_tier(name: str, asked: dict[str, Any], reported: dict[str, Any], usage: dict[str, Any]) -> tuple[int, Any]:
    """Make two calls in a tier under a budget for sixty dollars; return the requests, and what was counted."""
    made = 0

    def serve(request: httpx2.Request) -> httpx2.Response:
        nonlocal made
        made += 1
        plain = json.loads(Service()(request).read())
        return httpx2.Response(200, json={**plain, **reported, "usage": {**plain["usage"], **usage}})

    of, request = resources(serve, is_async=False)[name]
    with Budget(usd=60, prices=TIERED) as budget:
        for _ in range(2):
            of.create(**{**request, **asked})
        return made, budget.spend()


def test_AK16_a_dearer_tier_is_counted_at_its_price(caplog):
    made, spent = in_tier("messages", {"extra_body": {"speed": "fast"}, "max_tokens": 5}, {}, {"speed": "fast"})
    assert (made, spent.usd, spent.unknown) == (2, 6 * 2 * USED, 0)
    made, spent = in_tier("chat", {"service_tier": "priority"}, {"service_tier": "priority"}, {})
    assert (made, spent.usd, spent.unknown) == (2, 2 * 2 * USED, 0)
    made, spent = in_tier("chat", {"service_tier": "flex"}, {"service_tier": "flex"}, {})
    assert (made, spent.usd, spent.unknown) == (2, USED, 0)
    made, spent = in_tier("chat", {"service_tier": "auto"}, {"service_tier": "default"}, {})
    assert (made, spent.usd, spent.unknown) == (2, 2 * USED, 0)
    assert not caplog.messages


def test_AK16_a_tier_without_a_price_counts_as_unknown_and_is_warned_of_once(caplog):
    made, spent = in_tier("messages", {}, {}, {"service_tier": "priority"})
    assert (made, spent.usd, spent.unknown) == (2, 2 * USED, 2)
    assert ["tier 'priority'" in message for message in caplog.messages] == [True]


def test_AK16_the_tier_that_a_request_asks_for_is_reserved():
    of, request = resources(Service(), is_async=False)["messages"]
    with Budget(usd=59, prices=TIERED), pytest.raises(BudgetError, match=r"\$60"):
        of.create(**request, extra_body={"speed": "fast"})
