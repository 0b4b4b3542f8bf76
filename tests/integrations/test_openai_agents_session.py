"""Conversations of the Agents SDK in our stores, with real runs against the fault provider."""

from __future__ import annotations

import asyncio
import json

import httpx2
import openai
import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, Session, SessionSettings
from openai import AsyncOpenAI

from holdfast.openai_agents import StoreSession
from holdfast.stores import open_store
from holdfast.testing import FaultProvider

QUIET = RunConfig(tracing_disabled=True)
CALL = {"type": "function_call", "call_id": "call_a", "name": "pay", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_a", "output": "paid"}
ASK = {"role": "user", "content": "Pay"}


def agent_on(provider, *tools):
    http = httpx2.AsyncClient(transport=provider.transport())
    client = AsyncOpenAI(api_key="k", base_url="http://provider.test/v1", max_retries=0, http_client=http)
    return Agent(name="Payer", tools=list(tools), model=OpenAIResponsesModel("gpt-5", client))


def test_a_conversation_goes_on_in_another_process(tmp_path):
    """The second run has only the file: the provider gets the whole conversation."""
    provider = FaultProvider()
    address = f"sqlite:{tmp_path / 'work.db'}"

    async def turn(text):
        async with open_store(address) as store:
            session = StoreSession("customer / 7", store)
            assert isinstance(session, Session)
            return (await Runner.run(agent_on(provider), text, session=session, run_config=QUIET)).final_output

    assert asyncio.run(turn("hello")) == "You said: hello"
    assert asyncio.run(turn("and now?")) == "You said: and now?"
    sent = json.loads(provider.requests[-1].body)["input"]
    assert [item.get("role") for item in sent] == ["user", "assistant", "user"]


def test_G1_a_run_that_was_cut_between_call_and_result_goes_on():
    """A process was killed in the tool. The next run is accepted, and the model reads that the call was interrupted."""
    provider = FaultProvider()

    async def main():
        async with open_store("memory:") as store:
            session = StoreSession("t", store)
            await session.add_items([ASK, CALL])  # what a killed process has left
            plain = [ASK, CALL, {"role": "user", "content": "and?"}]
            with pytest.raises(openai.BadRequestError, match="No tool output found"):
                await Runner.run(agent_on(provider), plain, run_config=QUIET)
            result = await Runner.run(agent_on(provider), "and?", session=session, run_config=QUIET)
            raw = await session._items()
            return result.final_output, raw

    said, raw = asyncio.run(main())
    sent = json.loads(provider.requests[-1].body)["input"]
    assert [item.get("type") for item in sent] == [None, "function_call", "function_call_output", None]
    assert json.loads(sent[2]["output"])["context"]["outcome"] == "interrupted"
    assert said == "You said: and?"
    assert OUTPUT["type"] not in [item.get("type") for item in raw], "a repair must not be stored"


def test_items_are_added_popped_limited_and_cleared():
    async def main():
        async with open_store("memory:") as store:
            session = StoreSession("t", store)
            assert await session.get_items() == []
            assert await session.pop_item() is None
            await session.add_items([ASK, CALL, OUTPUT])
            assert await session.get_items() == [ASK, CALL, OUTPUT]
            # The limit cuts between the call and its result. A result alone would be rejected.
            assert await session.get_items(limit=1) == []
            assert await session.get_items(limit=2) == [CALL, OUTPUT]
            limited = StoreSession("t", store, session_settings=SessionSettings(limit=2))
            assert await limited.get_items() == [CALL, OUTPUT]
            assert await session.pop_item() == OUTPUT
            await session.add_items([{**OUTPUT, "output": "later"}])
            assert (await session.get_items())[-1]["output"] == "later"
            await session.clear_session()
            assert await session.get_items() == []
            await session.add_items([ASK])
            assert await session.get_items() == [ASK]

    asyncio.run(main())
