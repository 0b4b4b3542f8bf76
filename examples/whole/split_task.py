"""A task that is too large for its context: it is split, one part fails and is asked for in simpler words, the results are merged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anthropic
import httpx2
from count import Count

from holdfast import Agent, Fault, HoldfastError, Task, TaskSystem
from holdfast.events import AttemptStarted, Event
from holdfast.providers.anthropic import anthropic_model
from holdfast.runtime import default_runtime
from holdfast.tasks import Assignment, Decomposition, TaskResult, by_section, simplified
from holdfast.testing import FaultProvider

if TYPE_CHECKING:
    from holdfast.policies import Left

TOWNS = {"Oslo": 3, "Bergen": 4, "Bodø": 5, "Moss": 6}
REPORT = "".join(f"# {town}\nOrders closed in {town}: {n}.\n\n" for town, n in TOWNS.items())


async def split(task: Task, fault: Fault, left: Left) -> Decomposition | None:
    print(f"   {fault.message}: it is split")
    return await by_section(task, fault, left)


def simpler(task: Task, fault: Fault) -> Task | None:
    print(f"   {task.title}: {fault.message}. Once more, in simpler words")
    return simplified(task, fault)


async def perform(provider: FaultProvider) -> TaskResult:
    http = httpx2.AsyncClient(transport=provider.transport())
    async with anthropic.AsyncAnthropic(api_key="none", http_client=http) as client:
        agent = Agent("analyst", anthropic_model("claude-haiku-4-5", client))

        async def by_agent(assignment: Assignment) -> str:
            reply = await agent.run(assignment.prompt)
            if "Moss" in reply.text and "simplified" not in assignment.prompt:
                raise HoldfastError(Fault.of("TASK_OUTPUT_INVALID", "Nobody knows where Moss is"))
            return reply.text

        tasks = TaskSystem(by_agent, decomposer=split, change=simpler, concurrency=1)
        orders = Task("Repeat these orders:\n{report}", inputs={"report": REPORT}, context=35, name="orders")
        return (await tasks.outcome(orders)).unwrap()


def play() -> list[Count]:
    provider = FaultProvider('rules = [{ steps = "529" }]')  # it is overloaded once, then it repeats what it is asked
    attempts: list[Event] = []
    with default_runtime().on(attempts.append, AttemptStarted):
        result = asyncio.run(perform(provider))
    print(f"   {result.status}, {result.notes['decomposed']['parts']} parts are merged")
    merged = sum(f"Orders closed in {town}: {n}." in result.content for town, n in TOWNS.items())
    return [
        Count("task: attempts", len(attempts), provider.counters.received, "requests that the provider got"),
        Count("task: lines in the merged result", merged, len(TOWNS), "lines of the report"),
    ]
