"""What tasks report: each start has one end, and everything that was made of a failure is an event with session, turn and step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Fault, HoldfastError, Runtime, Session, Task
from holdfast.documents.task import TaskSystem
from holdfast.events import (
    BudgetWarning,
    Cancelled,
    SubtaskFailed,
    TaskDecomposed,
    TaskFinished,
    TaskHalted,
    TaskOutputRejected,
    TaskStarted,
)
from holdfast.sinks.live import LiveState
from holdfast.sinks.logging import log_events
from holdfast.stores import MemoryStore
from holdfast.tasks import TaskResult, by_items, by_section
from holdfast.tasks.task import Status
from holdfast.testing import Capture, VirtualClock

KINDS = (TaskStarted, TaskOutputRejected, TaskDecomposed, SubtaskFailed, TaskHalted, TaskFinished, Cancelled)
BOOK = "# The sea\nIt is deep.\n\n# The moon\nIt pulls.\n"


class Watched:
    def __init__(self) -> None:
        self.runtime = Runtime(clock=VirtualClock())
        self.capture = Capture()

    async def run(self, task, perform, *, session=None, **options):
        with self.runtime.on(self.capture):
            return await TaskSystem(perform, runtime=self.runtime, **options).execute_task(task, session=session)

    @property
    def events(self) -> list[Any]:
        return [event for event in self.capture.events if isinstance(event, KINDS)]

    @property
    def kinds(self):
        return [type(event).__name__ for event in self.events]


async def test_a_task_that_ends_well_reports_its_start_and_its_end():
    watched = Watched()
    await watched.run(Task("say it", name="speech", agent=""), lambda _: "it")
    assert watched.kinds == ["TaskStarted", "TaskFinished"]
    start, end = watched.events
    assert start.operation == end.operation == "speech"
    assert start.run == end.run
    assert start.run
    assert end.fault is None


async def test_a_task_without_a_name_is_known_by_a_hash_and_never_by_its_prompt():
    watched = Watched()
    await watched.run(Task("my password is hunter2"), lambda _: "it")
    assert all(event.operation.startswith("task ") for event in watched.events)
    assert "hunter2" not in str(watched.events)


async def test_the_parts_of_a_task_without_a_name_are_known_by_its_hash_and_never_by_its_prompt(caplog):
    caplog.set_level("DEBUG", "holdfast")
    watched = Watched()
    log_events(watched.runtime)
    task = Task("hunter2 {items}", inputs={"items": [*range(8)]}, output=int)
    once = iter([True])

    def perform(assignment):
        if assignment.task.inputs == task.inputs:
            raise HoldfastError(Fault.of("TASK_TURNS_EXHAUSTED"))
        if next(once, False):
            raise HoldfastError(Fault.of("TASK_OUTPUT_INVALID"))
        return 1

    store = MemoryStore()
    async with Session.open("secret", store=store) as session:
        result = await watched.run(task, perform, session=session, decomposer=by_items, concurrency=1)
    assert result.value == 1
    name = watched.events[0].operation
    assert {event.operation for event in watched.capture.events if event.operation.startswith("task ")} == {
        name, f"{name} (part 1)", f"{name} (part 2)", f"{name} (merge)"
    }  # fmt: skip
    assert f"Retry: {name} (part 1)" in {event.operation for event in watched.events}
    audit = await store.audit("session:secret")
    assert audit
    for written in (watched.capture.events, caplog.text, audit):
        assert "hunter2" not in str(written)


async def test_the_events_of_a_subtask_that_fails_do_not_hold_its_prompt():
    watched = Watched()

    def perform(assignment):
        if assignment.task.prompt == "plan":
            request = {"type": "atomic", "description": "hunter2", "inputs": {"key": "hunter2"}}
            return TaskResult(status=Status.CONTINUATION, notes={"subtask_request": request})
        raise HoldfastError(Fault.of("AUTH_FAILED"))

    result = await watched.run(Task("plan"), perform)
    assert "hunter2" in result.fault.message
    assert watched.events[-1].fault.code == "TASK_SUBTASK_FAILED"
    assert "hunter2" not in str(watched.capture.events)


async def test_rejected_output_is_reported_with_the_number_of_the_answer():
    watched = Watched()
    await watched.run(Task("count", name="count", output=int, reasks=1), lambda _: "many")
    assert watched.kinds == ["TaskStarted", "TaskOutputRejected", "TaskOutputRejected", "TaskFinished"]
    assert [(event.number, event.max_reasks) for event in watched.events[1:3]] == [(1, 1), (2, 1)]
    assert watched.events[-1].fault.code == watched.events[1].fault.code


async def test_a_task_that_is_split_reports_its_parts_and_those_that_fail():
    watched = Watched()

    def perform(assignment):
        if "moon" in assignment.prompt and "simplified" not in assignment.prompt:
            raise HoldfastError(Fault.of("TASK_OUTPUT_INVALID", "no moon"))
        return "ok"

    task = Task("Shout:\n{doc}", inputs={"doc": BOOK}, context=10, name="book")
    simpler = lambda task, _fault: task.with_(prompt="simplified {doc}")  # noqa: E731
    result = await watched.run(task, perform, decomposer=by_section, change=simpler, concurrency=1)
    assert result.status is Status.COMPLETE
    decomposed = next(event for event in watched.events if isinstance(event, TaskDecomposed))
    assert (decomposed.operation, decomposed.parts, decomposed.depth) == ("book", 2, 1)
    assert decomposed.fault.code == "TASK_CONTEXT_EXHAUSTED"
    (failed,) = [event for event in watched.events if isinstance(event, SubtaskFailed)]
    assert (failed.depth, failed.again, failed.fault.code) == (1, True, "TASK_OUTPUT_INVALID")
    assert [event.depth for event in watched.events if isinstance(event, TaskStarted)] == [0, 1, 1, 1]


async def test_a_task_that_gets_nowhere_reports_that_it_is_halted():
    watched = Watched()

    def perform(assignment):
        if assignment.task.prompt == "another way":
            return "done"
        request = {"type": "atomic", "description": "look"}
        if assignment.task.prompt == "look":
            return "nothing"
        return TaskResult(content="same", status=Status.CONTINUATION, notes={"subtask_request": request})

    other = lambda _task, _fault: Task("another way")  # noqa: E731
    result = await watched.run(Task("work", name="work"), perform, alternative=other)
    assert result.content == "done"
    (halted,) = [event for event in watched.events if isinstance(event, TaskHalted)]
    assert (halted.operation, halted.again) == ("work", True)


async def test_a_task_that_is_cancelled_has_an_end():
    watched = Watched()

    async def forever(_):
        await asyncio.Event().wait()

    running = asyncio.ensure_future(watched.run(Task("wait", name="wait"), forever))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert watched.kinds == ["TaskStarted", "Cancelled"]


async def test_a_budget_warns_at_80_percent_of_the_turns_of_a_task():
    watched = Watched()
    answers = iter("abcdef")

    def perform(assignment):
        if assignment.task.prompt == "look":
            return next(answers)
        if len(assignment.results) == 2:
            return "done"
        request = {"type": "atomic", "description": "look", "inputs": {"n": len(assignment.results)}}
        return TaskResult(content=next(answers), status=Status.CONTINUATION, notes={"subtask_request": request})

    await watched.run(Task("work", turns=5), perform)
    (warning,) = [event for event in watched.capture.events if isinstance(event, BudgetWarning)]
    assert (warning.unit, warning.used, warning.limit) == ("turns", 4, 5)


async def test_events_of_a_task_name_the_session_turn_and_step_around_it():
    watched = Watched()
    async with Session.open("s", store=MemoryStore(), runtime=watched.runtime) as session, session.turn("go"):

        async def inner():
            result = await watched.run(Task("say it", name="speech"), lambda _: "it")
            return result.content

        await session.step(inner)
        await watched.run(Task("count", name="count"), lambda _: "1", session=session)
    inside, outside = watched.events[0], watched.events[2]
    assert (inside.session, inside.turn) == ("s", 1)
    assert "inner" in inside.step
    assert (outside.session, outside.turn, outside.step) == ("s", 1, "")


async def test_the_live_line_shows_what_a_task_does_about_a_failure_and_nothing_if_there_is_none():
    watched, state = Watched(), LiveState()
    await watched.run(Task("say it", name="speech"), lambda _: "it")
    await watched.run(Task("count", name="count", output=int, reasks=1), lambda _: "many")
    shown = [line.shown(0.0) for event in watched.events if (line := state.apply(event)) is not None]
    assert [line.partition(" · ")[0] for line in shown] == [
        "⟳ Output rejected (1/2)",
        "⟳ Output rejected (2/2)",
        "✖ task failed after 0.0s",
    ]
    assert state.lines == ()
