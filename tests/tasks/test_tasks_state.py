"""The states of a task: which may follow which, and how a task comes into each of them."""

from __future__ import annotations

import asyncio
from itertools import pairwise, product

import pytest

from holdfast import Fault, HoldfastError, InvalidError, Runtime, Session, Task
from holdfast.documents.task import TaskSystem
from holdfast.events import TaskState, TaskStateChange
from holdfast.sessions import Answer
from holdfast.stores import MemoryStore
from holdfast.tasks import NEXT_STATES, Status, TaskResult, by_section
from holdfast.tasks.state import changed
from holdfast.testing import Capture, VirtualClock

CREATED, READY, ACTIVE, BLOCKED, COMPLETED, FAILED = TaskState
BOOK = "# The sea\nIt is deep.\n\n# The moon\nIt pulls.\n"
LOOKS = TaskResult(status=Status.CONTINUATION, notes={"subtask_request": {"type": "atomic", "description": "look"}})
"""Performs the subtask "look", and is then asked again."""
ALLOWED = {
    (CREATED, ACTIVE),
    (CREATED, READY),
    (READY, ACTIVE),
    (ACTIVE, BLOCKED),
    (ACTIVE, COMPLETED),
    (ACTIVE, FAILED),
    (BLOCKED, ACTIVE),
    (BLOCKED, FAILED),
    (FAILED, CREATED),
}


class Watched:
    """A task system, and what it reports about the states of its tasks."""

    def __init__(self, perform, **options):
        self.runtime = Runtime(clock=VirtualClock())
        self.capture = Capture()
        self.tasks = TaskSystem(perform, runtime=self.runtime, **options)

    async def run(self, task, **options):
        with self.runtime.on(self.capture):
            return await self.tasks.execute_task(task, **options)

    @property
    def changes(self):
        return [event for event in self.capture.events if isinstance(event, TaskStateChange)]

    def states(self, name):
        """Return every state of a task, in order."""
        changes = [event for event in self.changes if event.operation == name]
        assert all(one.to == other.from_ for one, other in pairwise(changes))
        return [changes[0].from_, *(event.to for event in changes)] if changes else []


@pytest.mark.parametrize(("before", "after"), list(product(TaskState, TaskState)))
def test_N4_5_only_the_valid_transitions_are_possible(before, after):
    if (before, after) in ALLOWED:
        assert changed(before, after) is after
        return
    with pytest.raises(InvalidError) as caught:
        changed(before, after)
    assert f"after {before}" in str(caught.value)
    assert after in str(caught.value)
    assert all(state in str(caught.value) for state in NEXT_STATES[before])


async def test_N4_5_a_task_is_created_active_and_completed_or_failed():
    watched = Watched(lambda _: "it")
    await watched.run(Task("say it", name="speech"))
    assert watched.states("speech") == [CREATED, ACTIVE, COMPLETED]
    watched = Watched(lambda _: 1 / 0)
    await watched.run(Task("say it", name="speech"))
    assert watched.states("speech") == [CREATED, ACTIVE, FAILED]
    assert watched.tasks.open_tasks == ()


async def test_N4_5_a_task_that_is_split_is_blocked_while_its_parts_wait_for_their_turn_and_are_performed():
    seen = []

    async def perform(assignment):
        await asyncio.sleep(0)
        if "sea" in assignment.prompt:
            seen.append({task.name: task.state for task in watched.tasks.open_tasks})
        return assignment.prompt

    watched = Watched(perform, decomposer=by_section, concurrency=1)
    result = await watched.run(Task("Repeat: {doc}", inputs={"doc": BOOK}, context=12, name="book"))
    assert result.fault is None
    assert watched.states("book") == [CREATED, ACTIVE, BLOCKED, ACTIVE, COMPLETED]
    assert watched.states("book (part 2)") == [CREATED, READY, ACTIVE, COMPLETED]
    assert seen == [{"book": BLOCKED, "book (part 1)": ACTIVE, "book (part 2)": READY}]
    assert watched.tasks.open_tasks == ()


async def test_N4_5_a_part_that_fails_is_created_again_with_another_request():
    def perform(assignment):
        if "moon" in assignment.prompt and "Briefly" not in assignment.prompt:
            raise HoldfastError(Fault.of("TASK_OUTPUT_INVALID"))
        return assignment.prompt

    watched = Watched(perform, decomposer=by_section, change=lambda task, _: task.with_(prompt="Briefly: {doc}"))
    await watched.run(Task("Repeat: {doc}", inputs={"doc": BOOK}, context=12, name="book"))
    assert watched.states("book (part 2)") == [CREATED, READY, ACTIVE, FAILED, CREATED, ACTIVE, COMPLETED]


async def test_N4_5_a_part_whose_turn_never_comes_stays_ready_and_leaves_the_list():
    async def perform(assignment):
        await asyncio.sleep(0)
        raise HoldfastError(Fault.of("TOOL_NOT_FOUND"))

    watched = Watched(perform, decomposer=by_section, concurrency=1, change=None)
    result = await watched.run(Task("Repeat: {doc}", inputs={"doc": BOOK}, context=12, name="book"))
    assert result.fault is not None
    assert watched.states("book (part 2)") == [CREATED, READY]
    assert watched.tasks.open_tasks == ()


async def test_N4_5_a_task_that_gets_nowhere_is_created_again_with_another_approach():
    watched = Watched(
        lambda assignment: "done" if "other" in assignment.prompt else "seen" if "look" in assignment.prompt else LOOKS,
        alternative=lambda task, _: task.with_(prompt="other way"),
    )
    result = await watched.run(Task("find it", name="search"))
    assert result.content == "done"
    states = watched.states("search")
    assert states[:4] == [CREATED, ACTIVE, BLOCKED, ACTIVE]
    assert states[-5:] == [ACTIVE, FAILED, CREATED, ACTIVE, COMPLETED]


async def test_N4_5_a_task_is_blocked_while_a_person_is_asked_and_goes_on_after_the_answer():
    seen = []

    class Person:
        name = "Ann"

        async def ask(self, question):
            seen.append([task.state for task in watched.tasks.open_tasks])
            return Answer(value=True)

    async def perform(assignment):
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(session.approve(f"May I? {number}")) for number in range(2)]
        seen.append([task.state for task in watched.tasks.open_tasks])
        return str([each.result() for each in asked])

    watched = Watched(perform)
    async with Session.open("s", store=MemoryStore(), interactors=[Person()]) as session:
        result = await watched.run(Task("ask", name="ask"), session=session)
    assert result.content == "[True, True]"
    assert seen == [[BLOCKED], [BLOCKED], [ACTIVE]]
    # Two questions at once are one wait.
    assert watched.states("ask") == [CREATED, ACTIVE, BLOCKED, ACTIVE, COMPLETED]


async def test_N4_5_a_task_that_is_cancelled_while_it_is_blocked_has_failed():
    waits = asyncio.Event()

    async def perform(assignment):
        if "look" in assignment.prompt:
            waits.set()
            await asyncio.Event().wait()
        return LOOKS

    watched = Watched(perform)
    running = asyncio.create_task(watched.run(Task("find it", name="search")))
    await waits.wait()
    first = watched.tasks.open_tasks[0]
    assert (first.name, first.state, first.depth) == ("search", BLOCKED, 0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert watched.states("search") == [CREATED, ACTIVE, BLOCKED, ACTIVE, FAILED]
    assert watched.tasks.open_tasks == ()


async def test_N4_5_what_a_task_leaves_behind_may_wait_after_its_end():
    release, left = asyncio.Event(), []

    class Person:
        name = "Ann"

        async def ask(self, question):
            await release.wait()
            return Answer(value=True)

    async def perform(assignment):
        left.append(asyncio.create_task(session.approve("later")))
        await asyncio.sleep(0.01)
        return "done"

    watched = Watched(perform)
    async with Session.open("s", store=MemoryStore(), interactors=[Person()]) as session:
        result = await watched.run(Task("ask", name="ask"), session=session)
        release.set()
        assert await left[0] is True
    assert result.content == "done"
    assert watched.states("ask") == [CREATED, ACTIVE, BLOCKED, ACTIVE, COMPLETED]
    assert watched.tasks.open_tasks == ()
