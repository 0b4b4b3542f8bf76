"""The jobs of the public surface (API.md: 1, 2 and the declared effect of 4) as a type checker sees them. Never run.

Lines that must not type-check carry an ignore for both checkers: mypy and basedpyright complain about one that is not
needed, so each of them is a test that the mistake is still found.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, assert_type

from anthropic import Anthropic, AsyncAnthropic, AsyncStream
from anthropic.types import Message, RawMessageStreamEvent
from openai import AsyncOpenAI, OpenAI, Stream
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from holdfast import (
    Budget,
    Category,
    Circuit,
    Err,
    Fault,
    InvalidError,
    Ok,
    Outcome,
    Partial,
    Policy,
    StreamCutError,
    Target,
    recover,
    tool,
)

claude = AsyncAnthropic()
gpt = AsyncOpenAI()
MODEL = "claude-sonnet-4-5"


# --- 1. a call with fallback ---


@recover("claude")
async def answer(q: str) -> str:
    m = await claude.messages.create(model=MODEL, max_tokens=500, messages=[{"role": "user", "content": q}])
    return "".join(b.text for b in m.content if b.type == "text")


@answer.fallback
async def by_openai(q: str) -> str:
    return (await gpt.responses.create(model="gpt-5", input=q)).output_text


@answer.fallback(when=["unavailable", "network", "CONN_RESET"])
async def in_an_outage(q: str) -> str:
    return q


@answer.fallback(when=("rate_limit", Category.NETWORK))
def by_category(q: str) -> str:
    return q


@answer.fallback(when=lambda latest, primary: latest.retryable and primary.retryable)
def by_condition(q: str) -> str:
    return q


@answer.fallback(when="rate_limit", name="plain")
def by_hand(q: str) -> str:
    return q


@answer.degraded
def sorry(fault: Fault, q: str) -> str:
    return f"{q}: {fault.for_user()}"


@answer.notify
def tell(fault: Fault) -> None:
    fault.for_user()


async def job_1() -> None:
    await assert_type(answer("hi"), Coroutine[Any, Any, str])
    assert_type(await answer("hi"), str)
    assert_type(await answer(q="hi"), str)
    assert_type(await by_openai("hi"), str)
    answer.cached(ttl=60, key=lambda q: q)
    match await answer.outcome("hi"):
        case Ok(value=text, via=via):
            assert_type(text, str)
            assert_type(via, str)
        case Err(fault=fault):
            assert_type(fault, Fault)
    await answer(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await answer()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@answer.fallback  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
async def of_the_wrong_type(q: str) -> int:
    return len(q)


@answer.fallback  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
async def with_the_wrong_arguments(q: int) -> str:
    return str(q)


@answer.degraded  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
def degraded_to_the_wrong_type(fault: Fault, q: str) -> int:
    return len(fault.code + q)


@recover(Target(provider="claude", model="opus"), Policy(attempts=5, circuit=Circuit(failures=3)))
def look_up(name: str, *, deep: bool = False) -> int:
    return len(name) + deep


@look_up.fallback
def by_guess(name: str, *, deep: bool = False) -> int:
    return len(name) - deep


@look_up.fallback  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def by_text(name: str, *, deep: bool = False) -> str:
    return f"{name}{deep}"


@look_up.fallback  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def later(name: str, *, deep: bool = False) -> int:
    return len(name) + deep


@recover
async def bare(n: int) -> float:
    return float(n)


def sync_job_1() -> None:
    assert_type(look_up("x", deep=True), int)
    assert_type(look_up.outcome("x"), Outcome[int])
    assert_type(look_up.steps(), tuple[str, ...])
    assert_type(recover("a").call(look_up, "x"), int)
    assert_type(recover("a").call(len, "text"), int)
    assert_type(recover("a").outcome(len, "text"), Outcome[int])
    recover("a").call(look_up, 5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    recover("a", policy=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    recover("a", effect="writes")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def a_function_that_gives_an_awaitable() -> None:
    assert_type(await bare(1), float)

    def gives() -> Coroutine[Any, Any, str]:
        return answer("hi")

    assert_type(await recover("a").call(gives), str)
    assert_type(await recover("a").call(functools.partial(answer, "hi")), str)


# --- overloads of the SDKs survive `.call` ---


async def overloads_survive(sync: Anthropic, plain: OpenAI) -> None:
    create = recover("claude").call
    whole = await create(claude.messages.create, model=MODEL, max_tokens=5, messages=[])
    assert_type(whole, Message)
    streamed = await create(claude.messages.create, model=MODEL, max_tokens=5, messages=[], stream=True)
    assert_type(streamed, AsyncStream[RawMessageStreamEvent])
    assert_type(create(sync.messages.create, model=MODEL, max_tokens=5, messages=[]), Message)
    assert_type(create(plain.chat.completions.create, model="gpt-5", messages=[]), ChatCompletion)
    chunks = create(plain.chat.completions.create, model="gpt-5", messages=[], stream=True)
    assert_type(chunks, Stream[ChatCompletionChunk])


# --- 2. a stream ---


async def tokens(q: str) -> AsyncIterator[str]:
    yield q


async def job_2() -> None:
    live = recover("claude").stream(tokens, first=20, idle=15)
    try:
        async with live("hi") as stream:
            async for t in stream:
                assert_type(t, str)
            assert_type(stream.partial, Partial)
    except StreamCutError as cut:
        assert_type(cut.fault.partial, Partial | None)
    live(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    recover("claude").stream(tokens, after_first="again")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


def words(text: str) -> Iterator[str]:
    yield from text.split()


def a_plain_stream() -> None:
    with recover("claude").stream(words, after_first="restart").fallback(words)("hi") as stream:
        for word in stream:
            assert_type(word, str)
        assert_type(stream.partial, Partial)
    recover("claude").stream(words, first=20)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def a_block() -> None:
    async for attempt in recover("claude"):
        async with attempt:
            assert_type(attempt.number, int)
    for attempt in recover("claude"):
        with attempt:
            assert_type(attempt.number, int)


# --- 4. a declared effect; a budget ---


@tool(effect="unsafe", timeout=60)
async def deploy(plan: str) -> int:
    return len(plan)


@tool(effect="dangerous")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def misdeclared() -> None: ...


async def job_4() -> None:
    assert_type(await deploy("x"), int)
    with Budget(seconds=120, usd=0.50) as budget:
        assert_type(await recover("tool:deploy").call(deploy, "x"), int)
        assert_type(budget.left().usd, float | None)
    try:
        Policy(attempts=0)
    except InvalidError as error:
        assert_type(error.fault, Fault)
