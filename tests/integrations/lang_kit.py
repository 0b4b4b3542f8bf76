"""What the tests of the frameworks share: their real models, in front of the fault provider, on a socket or in memory."""

from __future__ import annotations

from typing import Any

import httpx2
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

from holdfast.testing import FaultProvider


def claude(provider: FaultProvider, **options: Any) -> ChatAnthropic:
    return ChatAnthropic(
        **{"model_name": "claude-haiku-4-5", "api_key": "test", "base_url": provider.url, **options}  # type: ignore[arg-type]
    )


def gpt(provider: FaultProvider, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(**{"model": "gpt-5", "api_key": "test", "base_url": provider.openai_url, **options})


def gpt_in_memory(provider: FaultProvider, **options: Any) -> ChatOpenAI:
    """A model without sockets, for virtual time."""
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
