"""A task that is too large for its context: it is split, one part fails and is asked for in simpler words, the results are merged.

python examples/too_large.py
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anthropic
import httpx2

from holdfast import Agent, Fault, HoldfastError, Task, TaskSystem
from holdfast.providers.anthropic import anthropic_model
from holdfast.tasks import Assignment, Decomposition, by_section, simplified
from holdfast.testing import FaultProvider

if TYPE_CHECKING:
    from holdfast.policies.budget import Left

TOWNS = {"Oslo": 3, "Bergen": 4, "Bodø": 5, "Moss": 6}
REPORT = "".join(f"# {town}\nOrders closed in {town}: {n}.\n\n" for town, n in TOWNS.items())


async def split(task: Task, fault: Fault, left: Left) -> Decomposition | None:
    print(f"{fault.message}: it is split")
    return await by_section(task, fault, left)


def simpler(task: Task, fault: Fault) -> Task | None:
    print(f"{task.title}: {fault.message}. Once more, in simpler words")
    return simplified(task, fault)


async def main() -> None:
    # The provider is overloaded once, then repeats what it is asked.
    provider = FaultProvider('rules = [{ steps = "529" }]')
    http = httpx2.AsyncClient(transport=provider.transport())
    async with anthropic.AsyncAnthropic(api_key="none", http_client=http) as client:
        agent = Agent("analyst", anthropic_model("claude-haiku-4-5", client))

        async def perform(assignment: Assignment) -> str:
            reply = await agent.run(assignment.prompt)
            if "Moss" in reply.text and "simplified" not in assignment.prompt:
                raise HoldfastError(Fault.of("TASK_OUTPUT_INVALID", "Nobody knows where Moss is"))
            return reply.text

        tasks = TaskSystem(perform, decomposer=split, change=simpler, concurrency=1)
        task = Task("Repeat these orders:\n{report}", inputs={"report": REPORT}, context=35, name="orders")
        result = await tasks.execute_task(task)
    print(f"{result.status}, {result.notes['decomposed']['parts']} parts:\n\n{result.content}")
    print(f"{provider.counters.received} requests reached the provider")


asyncio.run(main())
