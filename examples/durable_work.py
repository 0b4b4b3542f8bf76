"""Durable work: the program runs twice. What the first run finished, the second takes from the store."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from holdfast import Session, tool
from holdfast.sessions import Answer, Question


async def make_plan(goal: str) -> str:
    print("  plans", goal)
    return f"{goal}, carefully"


@tool(effect="unsafe")  # killed in the middle: OutcomeUnknownError, and never a second time by itself
async def deploy(plan: str) -> str:
    print("  deploys", plan)
    return "deployed"


class Ada:
    async def ask(self, question: Question) -> Answer:
        print("  asks", question.prompt)
        return Answer(value=True)


async def program(store: Path) -> str:
    async with Session.open("release-42", store=store, interactors=[Ada()]) as session:
        plan = await session.step(make_plan, "release 42")
        approved = await session.approve(f"Deploy {plan}?", expires=3600)
        return await session.step(deploy, plan) if approved else "not deployed"


with tempfile.TemporaryDirectory() as folder:
    for run in ("first", "second"):
        print(run, "run:", asyncio.run(program(Path(folder, "work.db"))))
