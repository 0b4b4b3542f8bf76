"""What the loop of an agent adds to its model and its tools: a turn beside pydantic-ai and LangGraph, and a resume after 1,000 turns.

The model is a function in memory that answers at once, and the tool adds two numbers. So what is left is the loop itself. All
contenders run in this process, because `.venv` has the frameworks for their integrations; they take turns in rounds.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.rounds import beside, processor
from benchmarks.table import ratio, show, verdict
from holdfast import Agent, HoldfastError, Session, tool
from holdfast.faults import Fault
from holdfast.providers import Assistant, Offers, Reply, ToolCall
from holdfast.stores import MemoryStore, open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TURNS = 20
LONG = 1_000
TARGET = 1.0
"""Times the processor time of the faster framework, for a turn without a store."""
TARGET_RESUME_S = 1.0
NOTES = [
    f"a run is {TURNS} turns: {TURNS - 1} tool calls, one after the other, then the answer; the figures are per turn",
    "with a store, each answer and each result of a tool is stored before the run goes on (LangGraph: a checkpoint per step)",
    "ratio: of processor time to pydantic-ai's, round by round",
]


class Instant:
    """A model that calls a tool in each turn and then answers. Optionally its last request fails."""

    name = "own/instant"
    offers = Offers(streaming=False)

    def __init__(self, turns: int, *, fails: bool = False) -> None:
        self.turns, self.fails, self.requests = turns, fails, 0

    async def exchange(self, request: Any) -> Reply:
        self.requests += 1
        done = sum(isinstance(message, Assistant) for message in request.messages)
        if done < self.turns - 1:
            call = ToolCall(id=f"c{done}", name="add", arguments={"a": done, "b": 1})
            return Reply(calls=(call,), stop="tools", model="instant")
        if self.fails:
            raise HoldfastError(Fault.of("PROVIDER_BILLING"))
        return Reply(text="Done.", model="instant")

    def stream(self, request: Any, *, after_first: str = "raise") -> Any: ...


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def run(*, quick: bool) -> dict[str, Any]:
    return asyncio.run(_run(3 if quick else 9, 3 if quick else 8, LONG // 10 if quick else LONG))


async def _run(rounds: int, times: int, long: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        async with open_store(f"sqlite:{Path(folder) / 'turns.db'}") as disk:
            work = {
                "pydantic-ai": _pydantic_ai(),
                "LangGraph, create_agent": _langgraph(None),
                "Holdfast": _holdfast(None),
                "LangGraph, InMemorySaver": _langgraph("memory"),
                "Holdfast, MemoryStore": _holdfast(MemoryStore()),
                "Holdfast, SqliteStore": _holdfast(disk),
            }
            turns = await beside(work, rounds, times, per_call=TURNS)
        resumed = await _resumed(f"sqlite:{Path(folder) / 'long.db'}", long)
    best = min(turns[name]["cpu"] for name in ("pydantic-ai", "LangGraph, create_agent"))
    _show(turns, [*NOTES, verdict(turns["Holdfast"]["cpu"] / best, TARGET, "x the faster framework")])
    show(
        "A run that is resumed on SQLite",
        ["", "turns", "stored in, s", "resumed in, s", "processor, s", "requests"],
        [
            [
                "Holdfast",
                str(long),
                f"{resumed['stored']:.1f}",
                f"{resumed['resumed']:.2f}",
                f"{resumed['cpu']:.2f}",
                str(resumed["requests"]),
            ]
        ],
        [
            "resumed: from opening the session in the same process to the one request that was missing, whole run read again",
            verdict(resumed["cpu"], TARGET_RESUME_S, "s of processor time"),
        ],
    )
    return {"target": TARGET, "turns": turns, "resume": resumed}


# --- contenders: each returns a function that makes one run ---


def _holdfast(store: Any) -> Callable[[], Awaitable[Any]]:
    agent = Agent("bench", Instant(TURNS), [add], max_turns=TURNS)
    number = 0

    async def once() -> None:
        nonlocal number
        number += 1
        if store is None:
            assert (await agent.run("go")).turns == TURNS
            return
        async with Session.open(f"s{number}", store=store, mode="yolo") as session:
            assert (await agent.run("go", session=session)).turns == TURNS

    return once


def _pydantic_ai() -> Callable[[], Awaitable[Any]]:
    from pydantic_ai import Agent as Framework
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models import Model

    class Theirs(Model):
        # `FunctionModel` would count the tokens of each request, which is no work of the loop.
        model_name = system = "instant"

        async def request(self, messages: list[Any], *_: Any) -> ModelResponse:
            done = sum(isinstance(message, ModelResponse) for message in messages)
            if done < TURNS - 1:
                return ModelResponse(parts=[ToolCallPart("add", {"a": done, "b": 1}, tool_call_id=f"c{done}")])
            return ModelResponse(parts=[TextPart("Done.")])

    agent: Any = Framework(Theirs())

    @agent.tool_plain
    async def add(a: int, b: int) -> int:
        return a + b

    async def once() -> None:
        assert (await agent.run("go")).output == "Done."

    return once


def _langgraph(saver: str | None) -> Callable[[], Awaitable[Any]]:
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool as theirs
    from langgraph.checkpoint.memory import InMemorySaver

    class Model(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "instant"

        def bind_tools(self, tools: Any, **_: Any) -> Any:
            del tools
            return self

        def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
            done = sum(isinstance(message, AIMessage) for message in messages)
            calls = [{"name": "add", "args": {"a": done, "b": 1}, "id": f"c{done}"}] if done < TURNS - 1 else []
            message = AIMessage(content="" if calls else "Done.", tool_calls=calls)
            return ChatResult(generations=[ChatGeneration(message=message)])

        async def _agenerate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
            return self._generate(messages)

    @theirs
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    agent: Any = create_agent(Model(), [add], checkpointer=None if saver is None else InMemorySaver())
    number = 0

    async def once() -> None:
        nonlocal number
        number += 1
        config = {"configurable": {"thread_id": f"s{number}"}, "recursion_limit": 3 * TURNS}
        answer = await agent.ainvoke({"messages": [("user", "go")]}, config)
        assert answer["messages"][-1].content == "Done."

    return once


# --- measurements ---


async def _resumed(address: str, turns: int) -> dict[str, Any]:
    """Store a run whose last request fails, then run it again; return how long both took, and the requests of the second."""

    async def once(model: Instant) -> tuple[float, float]:
        agent = Agent("bench", model, [add], max_turns=turns)
        began, cpu = perf_counter(), processor()
        # The error leaves the session's block, as a crash would: the turn stays in flight.
        with suppress(HoldfastError):
            async with Session.open("long", store=address, mode="yolo") as session:
                await agent.run("go", session=session)
        return perf_counter() - began, processor() - cpu

    stored, _ = await once(Instant(turns, fails=True))
    model = Instant(turns)
    resumed, cpu = await once(model)
    return {"turns": turns, "stored": stored, "resumed": resumed, "cpu": cpu, "requests": model.requests}


def _show(figures: dict[str, Any], notes: list[str]) -> None:
    rows = [
        [name, f"{one['wall'] * 1e6:.0f}", f"{one['cpu'] * 1e6:.0f}", ratio(one["ratio"], 1.0)]
        for name, one in figures.items()
    ]
    show("A turn of an agent: one request and one tool call", ["", "time, µs", "processor, µs", "ratio"], rows, notes)
