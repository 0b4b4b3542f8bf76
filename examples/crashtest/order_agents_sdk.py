"""An agent of the OpenAI Agents SDK that charges a card. Its SQLiteSession keeps the conversation.

    holdfast crashtest --fake-effects --script model.toml -- python order_agents_sdk.py

With `--holdfast` its two tools are durable steps. Nothing else changes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, SQLiteSession, function_tool
from openai import AsyncOpenAI
from payment_tools import charge, protected, send_receipt


async def main() -> None:
    async with AsyncOpenAI(max_retries=0) as client, protected(by_holdfast="--holdfast" in sys.argv) as step:

        @function_tool(name_override="charge", failure_error_function=None)
        async def charge_tool(order: str, cents: int) -> str:
            """Charge the customer's card."""
            return await step(charge, order, cents)

        @function_tool(name_override="send_receipt", failure_error_function=None)
        async def receipt_tool(order: str) -> str:
            """Send the receipt."""
            return await step(send_receipt, order)

        model = OpenAIChatCompletionsModel("gpt-5", client)
        agent = Agent(name="Cashier", model=model, tools=[charge_tool, receipt_tool])
        session = SQLiteSession("order-42", "conversation.db")
        known = await session.get_items()
        # The SDK takes new input only: what is in the session goes before it.
        given: Any = [] if known else "Order 42 costs 19.99. Settle it."
        result = await Runner.run(agent, given, session=session, run_config=RunConfig(tracing_disabled=True))
        print(result.final_output)


asyncio.run(main())
