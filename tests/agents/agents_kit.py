"""An agent over the real Anthropic or OpenAI SDK and the fault provider in memory, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import msgspec
import openai

from holdfast import Agent, Policy, Runtime, Session
from holdfast.policies.circuit import PROVIDER
from holdfast.providers import Offers, Part, Reply, Request
from holdfast.providers.anthropic import anthropic_model
from holdfast.providers.openai import openai_model
from holdfast.providers.xai import xai_model
from holdfast.testing import Capture, FaultProvider, Midpoint, VirtualClock, run
from holdfast.testing.provider.script import Script, read_script

__all__ = ["Scripted", "World"]


class Scripted:
    """A model of an application's own, which gives these replies in turn; an exception is raised."""

    name = "own/scripted"

    def __init__(self, *replies: Any, offers: Offers = Offers()) -> None:  # noqa: B008 - it never changes
        self.offers = offers
        self.requests: list[Request] = []
        self._replies = list(replies)

    async def exchange(self, request: Request) -> Reply:
        self.requests.append(request)
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, Reply) else Reply(text=str(reply))

    @asynccontextmanager
    async def stream(self, request: Request, *, after_first: str = "raise") -> AsyncIterator[AsyncIterator[Part]]:
        async def parts() -> AsyncIterator[Part]:
            reply = await self.exchange(request)
            for word in reply.text.split(" "):
                yield word
            yield reply

        yield parts()


class World:
    """A runtime in virtual time, its events, a provider that plays turns and fails on script, and agents over it."""

    def __init__(self, *replies: Any, faults: str = "", **more: Any) -> None:
        self.runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
        self.runtime.configure(Policy(profile="stud", circuit=PROVIDER), {})
        self.heard = Capture()
        self.runtime.on(self.heard)
        script: Any = read_script(faults) if faults else Script()
        if replies:
            script = msgspec.structs.replace(script, replies=tuple(replies))
        self.provider = FaultProvider(script, clock=self.runtime.clock, **more)

    def model(self, name: str = "claude-haiku-4-5", *, key: str = "k", **more: Any) -> Any:
        http = httpx2.AsyncClient(transport=self.provider.transport())
        if name.startswith("claude"):
            claude = anthropic.AsyncAnthropic(base_url="http://provider.test", api_key=key, http_client=http)
            return anthropic_model(name, claude, runtime=self.runtime, **more)
        client = openai.AsyncOpenAI(base_url="http://provider.test/v1", api_key=key, http_client=http)
        make = xai_model if name.startswith("grok") else openai_model
        return make(name, client, runtime=self.runtime, **more)

    def agent(self, *tools: Any, name: str = "coder", model: Any = None, **more: Any) -> Agent:
        return Agent(name, model or self.model(), list(tools), runtime=self.runtime, **more)

    def session(self, store: Any, name: str = "s", **more: Any) -> Session:
        # In mode `ask` a person would have to allow each unsafe call.
        return Session.open(name, store=store, runtime=self.runtime, **{"mode": "yolo", **more})

    def run(self, coroutine: Any) -> Any:
        return run(coroutine, clock=self.runtime.clock)

    @property
    def received(self) -> int:
        return self.provider.counters.received

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [request.document for request in self.provider.requests]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.heard.events if isinstance(event, kind)]
