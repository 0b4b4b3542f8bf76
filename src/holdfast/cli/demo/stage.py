"""The stage: two providers that fail on script, and clients of the real SDKs that lead to them.

On loopback in real time; in memory in virtual time. Invariant: whatever the surroundings say about keys, addresses and
proxies, no request leaves this machine.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import httpx2
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from holdfast.cli.demo.storm import ANTHROPIC, OPENAI
from holdfast.testing import FaultProvider, serve_in_thread
from holdfast.testing.provider.script import Rule, Script

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.cli.demo.storm import Act
    from holdfast.clock import Clock

__all__ = ["Stage", "in_memory", "on_loopback"]

_NO_KEY = "demo"


class Stage:
    """The providers by name, and one client of each."""

    def __init__(self, servers: Mapping[str, FaultProvider], *, memory: bool) -> None:
        self.servers = servers
        self.claude = AsyncAnthropic(
            base_url="http://anthropic.test" if memory else servers[ANTHROPIC].url,
            api_key=_NO_KEY,
            max_retries=0,
            http_client=_http(servers[ANTHROPIC], memory=memory),
        )
        self.gpt = AsyncOpenAI(
            base_url="http://openai.test/v1" if memory else servers[OPENAI].openai_url,
            api_key=_NO_KEY,
            max_retries=0,
            http_client=_http(servers[OPENAI], memory=memory),
        )

    def set(self, act: Act) -> None:
        """Have the providers play this act, and count anew."""
        rules = tuple(Rule(steps=steps, models=(model,)) for model, steps in act.steps.items())
        for server in self.servers.values():
            server.set_script(Script(rules=rules))

    async def close(self) -> None:
        """Close the clients' connections."""
        await self.claude.close()
        await self.gpt.close()


@contextmanager
def on_loopback(clock: Clock) -> Iterator[dict[str, FaultProvider]]:
    """Serve both providers from threads for as long as the block runs."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(serve_in_thread(clock=clock)) for name in (ANTHROPIC, OPENAI)}


@contextmanager
def in_memory(clock: Clock) -> Iterator[dict[str, FaultProvider]]:
    """Give both providers without a socket."""
    yield {name: FaultProvider(clock=clock) for name in (ANTHROPIC, OPENAI)}


def _http(server: FaultProvider, *, memory: bool) -> httpx2.AsyncClient:
    transport = server.transport(httpx2) if memory else None
    return httpx2.AsyncClient(transport=transport, trust_env=False)
