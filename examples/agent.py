"""An agent over a provider that fails: the first answer is overloaded, the second is cut in the middle. No keys, no network.

python examples/agent.py
"""

from __future__ import annotations

import asyncio

import anthropic
import httpx2

from holdfast import Agent, tool
from holdfast.agents import Done, Retrying, Text, ToolReturned
from holdfast.providers.anthropic import anthropic_model
from holdfast.testing import FaultProvider

SCRIPT = """
replies = [{ tool = "weather", arguments = { city = "Oslo" } }, "Take an umbrella: it rains in Oslo."]
rules = [{ steps = "529, ok, cut;after=3, ok" }]
"""


@tool(effect="read")
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"It rains in {city}."


async def main() -> None:
    http = httpx2.AsyncClient(transport=FaultProvider(SCRIPT).transport())
    async with anthropic.AsyncAnthropic(api_key="none", http_client=http) as client:
        agent = Agent("guide", anthropic_model("claude-haiku-4-5", client), [weather])
        async with agent.stream("Do I need an umbrella in Oslo?") as parts:
            async for part in parts:
                match part:
                    case Text(text=text):
                        print(text, end="", flush=True)
                    case Retrying():
                        print(f"  [{part.fault.code}: {part.line}]")
                    case ToolReturned():
                        print(f"  [{part.name}: {part.content}]")
                    case Done(reply=reply):
                        print(f"\n  [{reply.turns} turns, {reply.tool_calls} call, {reply.usd:.6f} US dollars]")


asyncio.run(main())
