"""Agents that are killed: ours and one of LangGraph, with the same tools, the same model and the same conversation.

The tools write down in a file what really happened in the world. The file survives a kill of the process.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import anthropic
import anyio._backends._asyncio  # noqa: F401 - imported before the fork, as what follows
import httpcore2  # noqa: F401
import httpx2
import msgspec

import holdfast.classify.classifier
import holdfast.config.settings  # noqa: F401
from holdfast import NOT_HAPPENED, Agent, Happened, Session, Verdict, tool
from holdfast.providers.anthropic import anthropic_model
from holdfast.stores import SqliteStore
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.testing.provider import Script, ToolCall, Turn

REQUEST, RESPONSE, BEFORE_EFFECT, AFTER_EFFECT = "request", "response", "before the effect", "after the effect"
PROMPT = "Pay all invoices."
ANSWER = "All invoices are paid."
CONVERSATION = Script(
    replies=(
        Turn(tool="look_up", arguments={"number": 1}),
        Turn(text="Two are open.", calls=(ToolCall("pay", {"number": 1}), ToolCall("pay", {"number": 2}))),
        Turn(calls=(ToolCall("look_up", {"number": 3}), ToolCall("pay", {"number": 3}))),
        Turn(tool="pay", arguments={"number": 4}),
        ANSWER,
    )
)
ANSWERS = 5
PAYMENTS = {f"pay {number}": 1 for number in range(1, 5)}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    world: str
    url: str
    point: str | None = None
    nth: int = 1
    after: float | None = None


class World:
    """What really happened."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def do(self, what: str) -> None:
        FAILPOINTS.reach(BEFORE_EFFECT)
        self._write(what)
        FAILPOINTS.reach(AFTER_EFFECT)

    def answer(self, text: str) -> None:
        self._write(f"answer {text}")

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def payments(self) -> Counter[str]:
        return Counter(line for line in self.lines() if line.startswith("pay "))

    def _write(self, line: str) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, f"{line}\n".encode())
        os.close(file)


def client_of(plan: Plan) -> anthropic.AsyncAnthropic:
    """A real client. Its requests and their answers are points."""

    async def asked(_: Any) -> None:
        FAILPOINTS.reach(REQUEST)

    async def answered(_: Any) -> None:
        FAILPOINTS.reach(RESPONSE)

    http = httpx2.AsyncClient(event_hooks={"request": [asked], "response": [answered]}, trust_env=False, verify=False)
    return anthropic.AsyncAnthropic(base_url=plan.url, api_key="test", max_retries=0, http_client=http)


async def ours(plan: Plan) -> None:
    """Begin a run of our agent, or go on with it."""
    world = World(plan.world)

    def is_paid(_: str, number: int) -> Verdict:
        # The accounts know whether a payment happened whose caller died.
        return Happened(f"{number} paid") if world.payments()[f"pay {number}"] else NOT_HAPPENED

    @tool(effect="unsafe", verify=is_paid)
    async def pay(number: int) -> str:
        """Pay an invoice."""
        world.do(f"pay {number}")
        return f"{number} paid"

    @tool(effect="read")
    async def look_up(number: int) -> str:
        """Look an invoice up."""
        world.do(f"look up {number}")
        return f"{number} is open"

    async with client_of(plan) as client, SqliteStore(plan.store) as store:
        agent = Agent("cashier", anthropic_model("claude-haiku-4-5", client), [look_up, pay])
        async with Session.open("invoices", store=store, mode="yolo") as session:
            reply = await agent.run(PROMPT, session=session)
    world.answer(reply.text)


async def langgraph(plan: Plan) -> None:
    """Do the same with LangGraph and its SQLite checkpointer, as its documentation shows."""
    # Here, because the tests of our agent do not need them, and they take seconds.
    from langchain.agents import create_agent  # noqa: PLC0415
    from langchain_anthropic import ChatAnthropic  # noqa: PLC0415
    from langchain_core.tools import tool as langchain_tool  # noqa: PLC0415
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # noqa: PLC0415

    world = World(plan.world)

    @langchain_tool
    async def pay(number: int) -> str:
        """Pay an invoice."""
        world.do(f"pay {number}")
        return f"{number} paid"

    @langchain_tool
    async def look_up(number: int) -> str:
        """Look an invoice up."""
        world.do(f"look up {number}")
        return f"{number} is open"

    class Model(ChatAnthropic):
        @property
        def _async_client(self) -> Any:
            return client_of(plan)

    async with AsyncSqliteSaver.from_conn_string(plan.store) as saver:
        model = Model(
            model_name="claude-haiku-4-5",
            api_key="test",
            max_tokens_to_sample=1000,
            timeout=30,
            stop=None,
            max_retries=0,
        )  # type: ignore[arg-type]
        agent: Any = create_agent(model, [look_up, pay], checkpointer=saver)
        thread = {"configurable": {"thread_id": "invoices"}}
        known = await agent.aget_state(thread)
        state = await agent.ainvoke(None if known.values else {"messages": [("user", PROMPT)]}, thread)
    world.answer(state["messages"][-1].text)
