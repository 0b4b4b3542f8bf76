"""The three adapters over the real SDKs and the fault provider in memory."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import openai

from holdfast import Policy, Runtime
from holdfast.policies.circuit import PROVIDER
from holdfast.providers import RecoveringModel, Request, ToolSpec, User
from holdfast.providers.anthropic import anthropic_model
from holdfast.providers.openai import openai_model
from holdfast.providers.xai import xai_model
from holdfast.testing import Capture, FaultProvider, Midpoint, VirtualClock, run

__all__ = ["KINDS", "TOOL", "World", "question", "turns"]

MODELS = {"anthropic": "claude-haiku-4-5", "openai": "gpt-5-mini", "xai": "grok-4"}
KINDS = tuple(MODELS)
TOOL = ToolSpec(
    name="weather",
    description="the weather of a place",
    parameters={"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)


def question(text: str = "hello", **more: Any) -> Request:
    return Request(messages=(User(text=text),), **more)


def turns(*replies: Any, steps: str = "") -> str:
    """A script in TOML with these turns."""
    written = ", ".join(repr(reply) if isinstance(reply, str) else _call(*reply) for reply in replies)
    rules = f'\n[[rules]]\nsteps = "{steps}"' if steps else ""
    return f"replies = [{written}]{rules}"


def _call(tool: str, arguments: str) -> str:
    return f"{{ tool = '{tool}', arguments = {arguments} }}"


class World:
    """A runtime in virtual time, its events, and models behind a provider that fails on script."""

    def __init__(self, script: Any = "", **options: Any) -> None:
        self.runtime = Runtime(clock=VirtualClock(), rng=Midpoint(), **options)
        self.runtime.configure(
            Policy(profile="stud", circuit=PROVIDER), {}
        )  # so that a test can count attempts and seconds
        self.heard = Capture()
        self.runtime.on(self.heard)
        self.provider = FaultProvider(script, clock=self.runtime.clock)

    def model(self, kind: str, *, key: str = "k", name: str | None = None, **more: Any) -> RecoveringModel:
        http = httpx2.AsyncClient(transport=self.provider.transport())
        model = name or MODELS[kind]
        if kind == "anthropic":
            # Two retries of the SDK's own: the adapter must switch them off.
            claude = anthropic.AsyncAnthropic(base_url="http://provider.test", api_key=key, http_client=http)
            return anthropic_model(model, claude, runtime=self.runtime, **more)
        client = openai.AsyncOpenAI(base_url="http://provider.test/v1", api_key=key, http_client=http)
        make = openai_model if kind == "openai" else xai_model
        return make(model, client, runtime=self.runtime, **more)

    def run(self, coroutine: Any) -> Any:
        return run(coroutine, clock=self.runtime.clock)

    def exchange(self, model: Any, request: Request) -> Any:
        return self.run(model.exchange(request))

    def stream(self, model: Any, request: Request, **more: Any) -> list[Any]:
        async def read() -> list[Any]:
            async with model.stream(request, **more) as parts:
                return [part async for part in parts]

        return self.run(read())

    @property
    def received(self) -> int:
        return self.provider.counters.received

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [request.document for request in self.provider.requests]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.heard.events if isinstance(event, kind)]
