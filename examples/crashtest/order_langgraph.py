"""An agent of LangGraph that charges a card. Its SQLite checkpointer lets it go on after a crash.

    holdfast crashtest --fake-effects --script model.toml -- python order_langgraph.py

With `--holdfast` its two tools are durable steps. Nothing else changes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from payment_tools import charge, protected, send_receipt


async def main() -> None:
    async with (
        AsyncSqliteSaver.from_conn_string("graph.db") as saver,
        protected(by_holdfast="--holdfast" in sys.argv) as step,
    ):

        @tool("charge")
        async def charge_tool(order: str, cents: int) -> str:
            """Charge the customer's card."""
            return await step(charge, order, cents)

        @tool("send_receipt")
        async def receipt_tool(order: str) -> str:
            """Send the receipt."""
            return await step(send_receipt, order)

        model = ChatAnthropic(model_name="claude-sonnet-4-5", timeout=30, stop=None, max_retries=0)
        agent: Any = create_agent(model, [charge_tool, receipt_tool], checkpointer=saver)
        thread = {"configurable": {"thread_id": "order-42"}}
        known = await agent.aget_state(thread)
        # LangGraph's way to go on: no new input for a thread that has state.
        given = None if known.values else {"messages": [("user", "Order 42 costs 19.99. Settle it.")]}
        state = await agent.ainvoke(given, thread)
        print(state["messages"][-1].text)


asyncio.run(main())
