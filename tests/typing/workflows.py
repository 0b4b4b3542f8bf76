"""Workflows in plain Python (API.md, job 9) as a type checker sees them. Never run."""

from __future__ import annotations

import asyncio
from typing import assert_type

from holdfast import Ok, Outcome, Session
from holdfast.sessions import run_due
from holdfast.tasks import WorkflowFunction, workflow


class Report:
    notes: list[str]


async def look_at(file: str) -> str:
    return file


def count(file: str, *, twice: bool = False) -> int:
    return len(file) * (2 if twice else 1)


@workflow
async def review(session: Session, pr: int, *, depth: int = 1) -> Report:
    first, size = await asyncio.gather(session.step(look_at, str(pr)), session.step(count, "a", twice=True))
    assert_type(first, str)
    assert_type(size, int)
    outcomes = await session.map(look_at, ["a", "b"], collect=True)
    assert_type(outcomes, list[Outcome[str]])
    assert_type([each.value for each in outcomes if isinstance(each, Ok)], list[str])
    later = session.retry_later(after=3600, attempts=depth, backoff=2, ask=True)
    assert_type(await later.step(look_at, first), str)
    assert_type(await later.step(count, first, twice=True), int)
    await later.step(look_at, 7)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    return Report()


@workflow(name="release")
async def release(session: Session, version: str) -> int:
    return len(version)


async def job() -> None:
    assert_type(review.name, str)
    assert_type(await review.run("review-12", 12), Report)
    async with Session.open("review-12") as session:
        assert_type(await review.run(session, 12, depth=2), Report)
        assert_type(await review(session, pr=12), Report)
        assert_type(await release.run(session, "4.2"), int)
        async for outcome in session.map(look_at, ["a"]):
            assert_type(outcome, Outcome[str])
        await review.run(session, "twelve")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await review.run(session)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        await review(session, 12, deep=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    async for run in run_due("sqlite:work.db", review, release):
        assert_type(run.program, str)


def named(one: WorkflowFunction[[str], int]) -> str:
    return one.name


named(release)
named(review)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
