"""A task that is too large for its context is split at its headings, and its results are merged. Output has a checked form."""

from __future__ import annotations

import asyncio

from holdfast import Err, Ok, Task, TaskSystem
from holdfast.tasks import Assignment, by_section

BOOK = "# The sea\nIt is deep.\n\n# The moon\nIt pulls.\n\n# The land\nIt stays.\n"
wrong_answers = ["about forty"]


async def perform(assignment: Assignment) -> str:  # or an agent: TaskSystem(Agent("writer", "claude-sonnet"))
    if assignment.task.output is int:
        return wrong_answers.pop() if wrong_answers else "42"
    return str(assignment.task.inputs["doc"]).upper()


async def main() -> None:
    tasks = TaskSystem(perform, decomposer=by_section)
    match await tasks.outcome(Task("Shout this:\n{doc}", inputs={"doc": BOOK}, context=14)):
        case Ok(value=result):
            print(f"{result.status}, {result.notes['decomposed']['parts']} parts: {result.content.split()}")
        case Err(fault=fault):
            print(fault.code, fault.message)
    print("words:", await tasks.run(Task("How many words?", output=int, turns=3)))


asyncio.run(main())
