"""Twenty calls at once against a service that answers ten a second: all are answered, whatever they come through."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from agents import Agent as OpenAIAgent
from agents import OpenAIChatCompletionsModel, RunConfig, Runner
from clients_forms import CLAUDE, FORMS, GPT, MESSAGES, client_for, collect_async, recovering, text_of
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

import holdfast.langchain
import holdfast.openai_agents
from holdfast import Runtime, recover
from holdfast.pydantic_ai import RecoveringModel
from holdfast.testing import FaultProvider, Midpoint, VirtualClock, run

CALLS = 20
LIMIT = "requests=600;burst=10"
"""Ten a second, ten at once."""
TOLD = pytest.mark.parametrize("told", [True, False], ids=["with Retry-After", "without"])
BASE = "http://provider.test/v1"


def play(call_with, *, told):
    """Make the calls at once; return the answers and errors, and how many requests the service rejected."""
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    limit = LIMIT if told else f"{LIMIT};retry_after=no;headers=no"
    provider = FaultProvider(clock=runtime.clock, limits=[limit])
    call = call_with(provider, runtime)

    async def all_at_once():
        return await asyncio.gather(*(call() for _ in range(CALLS)), return_exceptions=True)

    return run(all_at_once(), clock=runtime.clock), runtime.clock.monotonic()


def http(provider):
    return httpx2.AsyncClient(transport=provider.transport())


def through_client(name):
    form = FORMS[name]

    def of(provider, runtime):
        client = recovering(form, client_for(form, provider.transport(), is_async=True), runtime=runtime)

        async def call():
            if not form.stream:
                return text_of(await form.begin(client))
            events = []
            await collect_async(form, client, events)
            return len(events)

        return call

    return of


def through_recover(provider, runtime):
    bare = client_for(FORMS["messages"], provider.transport(), is_async=True)

    @recover("claude", runtime=runtime)
    async def call():
        return text_of(await bare.messages.create(model=CLAUDE, max_tokens=9, messages=MESSAGES))

    return call


def through_pydantic_ai(provider, runtime):
    given = AnthropicProvider(api_key="test", base_url="http://provider.test", http_client=http(provider))
    agent = Agent(RecoveringModel(AnthropicModel(CLAUDE, provider=given), runtime=runtime))

    async def call():
        return (await agent.run("hello")).output

    return call


def through_langchain(provider, runtime):
    plain = ChatOpenAI(model=GPT, base_url=BASE, api_key="test", http_async_client=http(provider), max_retries=0)
    model = holdfast.langchain.recovering(plain, runtime=runtime)

    async def call():
        return (await model.ainvoke("hello")).content

    return call


def through_agents(provider, runtime):
    client = AsyncOpenAI(base_url=BASE, api_key="test", http_client=http(provider), max_retries=0)
    model = holdfast.openai_agents.recovering(OpenAIChatCompletionsModel(GPT, client), runtime=runtime)
    agent = OpenAIAgent(name="Helper", model=model)

    async def call():
        return (await Runner.run(agent, "hello", run_config=RunConfig(tracing_disabled=True))).final_output

    return call


CLIENTS = ["messages", "chat", "responses", "messages, streamed", "chat, streamed"]
OTHERS = {
    "recover": through_recover,
    "pydantic-ai": through_pydantic_ai,
    "LangChain": through_langchain,
    "Agents SDK": through_agents,
}


@TOLD
@pytest.mark.parametrize("name", CLIENTS)
def test_FI1_a_burst_through_a_recovering_client_is_answered(name, told):
    answers, seconds = play(through_client(name), told=told)
    assert [answer for answer in answers if isinstance(answer, BaseException)] == []
    assert seconds <= 60


@TOLD
@pytest.mark.parametrize("call_with", OTHERS.values(), ids=OTHERS)
def test_FI1_a_burst_through_anything_else_is_answered(call_with, told):
    answers, seconds = play(call_with, told=told)
    assert [answer for answer in answers if isinstance(answer, BaseException)] == []
    assert seconds <= 60
