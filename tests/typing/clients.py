"""Clients that recover keep their types; transports fit both libraries. Checked, never run."""

from __future__ import annotations

from typing import assert_type

import httpx
import httpx2
from anthropic import Anthropic, AsyncAnthropic, AsyncStream, Stream
from anthropic.types import Message, RawMessageStreamEvent
from openai import AsyncOpenAI, OpenAI

from holdfast import BATCH, Runtime
from holdfast.anthropic import recovering
from holdfast.httpx import AsyncRecoveringTransport, RecoveringTransport
from holdfast.openai import recovering as recovering_openai

claude = recovering(Anthropic(), Anthropic(api_key="b"), policy=BATCH, name="claude", weights=(2, 1), runtime=Runtime())
assert_type(claude, Anthropic)
assert_type(recovering(AsyncAnthropic()), AsyncAnthropic)
assert_type(recovering_openai(OpenAI()), OpenAI)
assert_type(recovering_openai(AsyncOpenAI()), AsyncOpenAI)

# The SDK's overloads survive.
assert_type(claude.messages.create(model="m", max_tokens=1, messages=[]), Message)
assert_type(claude.messages.create(model="m", max_tokens=1, messages=[], stream=True), Stream[RawMessageStreamEvent])


async def overloads_survive_in_tasks() -> None:
    events = await recovering(AsyncAnthropic()).messages.create(model="m", max_tokens=1, messages=[], stream=True)
    assert_type(events, AsyncStream[RawMessageStreamEvent])


httpx.Client(transport=RecoveringTransport(httpx.HTTPTransport()))
httpx2.Client(transport=RecoveringTransport(httpx2.HTTPTransport()))
httpx.AsyncClient(transport=AsyncRecoveringTransport(httpx.AsyncHTTPTransport()))
httpx2.AsyncClient(transport=AsyncRecoveringTransport(httpx2.AsyncHTTPTransport()))

recovering(OpenAI())  # type: ignore[type-var]
