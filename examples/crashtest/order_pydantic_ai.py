"""An agent of pydantic-ai that charges a card. It saves its messages when a run ends, as the framework's documentation shows.

    holdfast crashtest --fake-effects --script model.toml -- python order_pydantic_ai.py

With `--holdfast` its two tools are durable steps. Nothing else changes.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from payment_tools import charge, protected, send_receipt
from pydantic_ai import Agent, ModelMessagesTypeAdapter, TextPart

SAVED = Path("messages.json")


async def answer() -> str:
    async with protected(by_holdfast="--holdfast" in sys.argv) as step:
        agent = Agent("anthropic:claude-sonnet-4-5")

        @agent.tool_plain(name="charge")
        async def charge_tool(order: str, cents: int) -> str:
            """Charge the customer's card."""
            return await step(charge, order, cents)

        @agent.tool_plain(name="send_receipt")
        async def receipt_tool(order: str) -> str:
            """Send the receipt."""
            return await step(send_receipt, order)

        result = await agent.run("Order 42 costs 19.99. Settle it.")
    save(result.all_messages_json())
    return result.output


def save(messages: bytes) -> None:
    SAVED.write_bytes(messages)


def saved() -> str:
    last = ModelMessagesTypeAdapter.validate_json(SAVED.read_bytes())[-1]
    return "".join(part.content for part in last.parts if isinstance(part, TextPart))


print(saved() if SAVED.exists() else asyncio.run(answer()))
