"""What the tests of the frameworks share: their real models in front of the fault provider, without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import anthropic
import httpx2
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from pydantic import Field

from holdfast.testing import FaultProvider

ANSWER = "You said: hello"


@contextmanager
def in_memory(script: str = "") -> Iterator[FaultProvider]:
    """A provider that nobody listens for."""
    yield FaultProvider(script)


class InMemory(ChatAnthropic):
    """LangChain's model, which makes its HTTP clients itself, with another wire below them."""

    provider: Any = Field(exclude=True)

    @cached_property
    def _client(self) -> anthropic.Client:
        http = httpx2.Client(transport=self.provider.transport())
        return anthropic.Client(**self._client_params, http_client=http)

    @cached_property
    def _async_client(self) -> anthropic.AsyncClient:
        http = httpx2.AsyncClient(transport=self.provider.transport())
        return anthropic.AsyncClient(**self._client_params, http_client=http)


def claude(provider: FaultProvider, **options: Any) -> ChatAnthropic:
    return InMemory(
        **{
            "model_name": "claude-haiku-4-5",
            "api_key": "test",
            "base_url": "http://provider.test",
            "provider": provider,
            **options,
        }
    )


def gpt(provider: FaultProvider, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        **{
            "model": "gpt-5",
            "api_key": "test",
            "base_url": "http://provider.test/v1",
            "http_async_client": httpx2.AsyncClient(transport=provider.transport()),
            "http_client": httpx2.Client(transport=provider.transport()),
            **options,
        }
    )


def with_tools(steps: str) -> str:
    """A script whose good answers call the first tool on offer."""
    return f'replies = "tools"\n[[rules]]\nsteps = "{steps}"\n'
