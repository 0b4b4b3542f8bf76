"""pydantic-ai against a failing provider: the real package, and a provider that fails on script.

No keys and no network: the provider is on this machine, its answers and failures are those of the real services, and
waiting is switched off.
"""

from __future__ import annotations

import asyncio
import sys

import httpx2
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast import Policy, StreamCutError
from holdfast.events import Event, Retry
from holdfast.pydantic_ai import FALLBACK_ON, RecoveringModel, recovering_tool
from holdfast.runtime.runtime import default_runtime
from holdfast.testing import FaultProvider, no_waiting

HOST = "http://provider.test"


def show(title: str) -> None:
    print(f"\n\033[1m{title}\033[0m" if sys.stdout.isatty() else f"\n{title}\n{'-' * len(title)}")


def claude(provider: FaultProvider) -> AnthropicModel:
    http = httpx2.AsyncClient(transport=provider.transport())
    return AnthropicModel(
        "claude-haiku-4-5", provider=AnthropicProvider(api_key="none", base_url=HOST, http_client=http)
    )


def gpt(provider: FaultProvider) -> OpenAIResponsesModel:
    http = httpx2.AsyncClient(transport=provider.transport())
    return OpenAIResponsesModel(
        "gpt-5", provider=OpenAIProvider(api_key="none", base_url=f"{HOST}/v1", http_client=http)
    )


async def an_agent() -> None:
    show("An agent against a failing provider. Its tool only reads, so it is retried after a failure")
    failures = [ConnectionResetError(104, "Connection reset by peer")]
    provider = FaultProvider('replies = "tools"\n[[rules]]\nsteps = "429;retry-after=7, ok, 529, ok"\n')
    agent = Agent(RecoveringModel(claude(provider)))

    @agent.tool_plain
    @recovering_tool(effect="read")
    async def weather(city: str) -> str:
        """The weather in a city."""
        if failures:
            raise failures.pop()
        return f"rain in {city}"

    print("  answer  ", (await agent.run("How is the weather?")).output)
    print("  provider", provider.counters)


async def an_outage() -> None:
    show("One provider is down: the other one answers")
    down, up = FaultProvider("529, loop"), FaultProvider()
    first = RecoveringModel(claude(down), policy=Policy(attempts=2))
    agent = Agent(FallbackModel(first, RecoveringModel(gpt(up)), fallback_on=FALLBACK_ON))
    print("  answer  ", (await agent.run("Are you there?")).output)
    print("  claude  ", down.counters)
    print("  gpt     ", up.counters)


async def streams() -> None:
    show("A stream that is cut before its first word starts again; one that is cut later raises with what arrived")
    provider = FaultProvider("cut;after=0, ok, cut;after=3")
    agent = Agent(RecoveringModel(claude(provider)))
    for _ in range(2):
        words: list[str] = []
        try:
            async with agent.run_stream("Tell me of the sea.") as result:
                async for text in result.stream_text(delta=True, debounce_by=None):
                    words.append(text)  # noqa: PERF401 - what arrived before a cut is shown
        except StreamCutError as cut:
            print("  cut     ", cut.fault.code, "after", "".join(words))
        else:
            print("  answer  ", "".join(words))
    print("  provider", provider.counters)


def print_event(event: Event) -> None:
    if isinstance(event, Retry):
        print("          ⟳", event.text, event.fault.code)


async def main() -> None:
    with default_runtime().on(print_event, Retry), no_waiting():
        await an_agent()
        await an_outage()
        await streams()


if __name__ == "__main__":
    asyncio.run(main())
