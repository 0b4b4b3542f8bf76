"""An agent over a provider that is overloaded and cuts an answer. Every request and tool call is a step of the session."""

from __future__ import annotations

import asyncio

from anthropic import AsyncAnthropic

from holdfast import Agent, Session, tool
from holdfast.providers.anthropic import anthropic_model
from holdfast.testing import no_waiting, serve_in_thread

SCRIPT = """
replies = [{ tool = "weather", arguments = { city = "Oslo" } }, "Take an umbrella."]
rules = [{ steps = "529, ok, cut;after=3, ok" }]
"""


@tool(effect="read")
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"It rains in {city}."


async def main(url: str) -> None:
    async with AsyncAnthropic(base_url=url, api_key="any") as client:
        # With a key in the environment, Agent("guide", "claude-sonnet", [weather]) is enough.
        agent = Agent("guide", anthropic_model("claude-haiku-4-5", client), [weather], max_turns=10)
        async with Session.open("trip-42", store="memory:") as session:
            reply = await agent.run("Do I need an umbrella in Oslo?", session=session)
            usd = "an unknown price" if reply.usd is None else f"{reply.usd:.6f} US dollars"
            print(f"{reply.text} ({reply.turns} turns, {reply.tool_calls} tool call, {usd})")


with serve_in_thread(SCRIPT) as provider, no_waiting():
    asyncio.run(main(provider.url))
    assert provider.counters.received == 4  # two answers, one overload, one cut
