"""Tasks and stages (API.md, job 6) as a type checker sees them. Never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, assert_type

from holdfast import Agent, Err, Ok, Session, Stage, StageMachine, Task, TaskSystem, Workflow
from holdfast.tasks import Assignment, DirectorLoop, TaskResult, XmlOutput
from holdfast.tasks.stages import StageWork


@dataclass
class Summary:
    title: str


async def perform(assignment: Assignment) -> str:
    return assignment.prompt


async def job(session: Session) -> None:
    tasks = TaskSystem(Agent("writer", "claude-sonnet"))
    task = Task("Summarise {doc}", inputs={"doc": "…"}, output=Summary, turns=8)
    assert_type(task, Task[Summary])
    assert_type(await tasks.run(task, session=session), Summary)
    assert_type(await TaskSystem(perform).run(Task("How many?", output=int)), int)
    assert_type(await tasks.run(Task("a", output=list[str])), list[str])
    text: str = await tasks.run(Task("Say it"))
    assert_type(await tasks.run(Task("a", output="string[]")), Any)
    maybe: int | None = await tasks.run(Task("a", output=int | None))
    word: Literal["a", "b"] = await tasks.run(Task(f"{maybe}", output=Literal["a", "b"]))
    await tasks.run(Task(word, output=XmlOutput("report", ("title",))))
    assert_type(await tasks.run(Task("a", output={"type": "object"})), Any)
    assert_type(await tasks.run(DirectorLoop(director=Task(text), evaluator=Task("b"))), str)
    assert_type(await tasks.run(Workflow.load("review.sexp"), session=session), Any)
    match await tasks.outcome(task):
        case Ok(result):
            assert_type(result, TaskResult[Summary])
            assert_type(result.value, Summary | None)
        case Err(fault):
            assert_type(fault.message, str)
    await tasks.run(Task("a", output=Summary, turns="8"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await tasks.run("a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def review(work: StageWork) -> dict[str, str]:
    return {"title": work.prompt}


async def stages(session: Session) -> None:
    first = Stage("review", review, completion=Summary)
    second = Stage("end", review)
    assert_type(first, Stage[Summary])
    ended = await StageMachine([first, second]).run(session)
    assert_type(ended.result_of(first), Summary)
    assert_type(ended.result_of(second), Any)
