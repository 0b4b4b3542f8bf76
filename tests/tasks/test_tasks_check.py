"""A result that the `check` of a function rejects is a failure, whoever calls the function: a workflow, a stage or a task system."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import HoldfastError, OutcomeUnknownError, Policy, Session, Task, TaskError, TaskSystem, recover, tool
from holdfast.stores import MemoryStore
from holdfast.tasks.stages import Stage, StageError, StageMachine
from holdfast.tasks.workflows import Workflow

SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


def is_receipt(result: Any, *args: Any, **kwargs: Any) -> bool:
    SEEN.append(result)
    return bool(result == "receipt")


@tool(effect="idempotent", check=is_receipt)
async def good(*_: Any) -> str:
    return "receipt"


@tool(effect="idempotent", check=is_receipt)
def bad(*_: Any) -> str:
    return "nothing"


@tool(effect="unsafe", check=is_receipt)
async def unsafe(*_: Any) -> str:
    return "nothing"


async def run(what: Any, stored: bool) -> Any:
    if not stored:
        return await what.run()
    async with Session.open("s", store=MemoryStore()) as session:
        return await what.run(session)


@pytest.mark.parametrize("stored", [False, True])
async def test_the_check_of_a_task_sees_its_result(stored: bool) -> None:
    assert await run(Workflow("(good 5)", tasks={"good": good}), stored) == "receipt"
    assert await run(Workflow('(fallback (bad 5) "instead")', tasks={"bad": bad}), stored) == "instead"
    with pytest.raises(OutcomeUnknownError):
        await run(Workflow('(fallback (unsafe 5) "instead")', tasks={"unsafe": unsafe}), stored)
    assert SEEN == ["receipt", "nothing", "nothing"]


@pytest.mark.parametrize("stored", [False, True])
async def test_a_task_that_recovers_by_itself_is_checked_once(stored: bool) -> None:
    recovering = recover("bank", Policy(attempts=1))(good)
    assert await run(Workflow("(good 5)", tasks={"good": recovering}), stored) == "receipt"
    assert SEEN == ["receipt"]


@pytest.mark.parametrize("stored", [False, True])
async def test_the_check_of_the_act_of_a_stage_sees_its_result(stored: bool) -> None:
    assert (await run(StageMachine([Stage("a", good)]), stored)).value == "receipt"
    with pytest.raises(StageError):
        await run(StageMachine([Stage("a", bad)]), stored)
    assert SEEN[:2] == ["receipt", "nothing"]


@pytest.mark.parametrize("stored", [False, True])
async def test_the_check_of_a_performer_sees_its_answer(stored: bool) -> None:
    async def perform(performer: Any) -> str:
        system = TaskSystem(performer)
        if not stored:
            return await system.run(Task("pay"))
        async with Session.open("s", store=MemoryStore()) as session:
            return await system.run(Task("pay"), session=session)

    assert await perform(good) == "receipt"
    with pytest.raises((TaskError, HoldfastError)):
        await perform(unsafe)
    assert SEEN == ["receipt", "nothing"]
