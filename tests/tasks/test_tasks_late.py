"""When the time of a task is over: a performer without a recovery has 50 ms more, a recovery has none."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Budget, Runtime, recover
from holdfast.documents.task import TaskSystem
from holdfast.tasks import Status, Task
from holdfast.testing import VirtualClock, run

SECONDS = 0.5


def result_of(work):
    """Return how a task ends whose performer does this, and when it ended."""
    clock = VirtualClock()
    runtime = Runtime(clock=clock)

    async def perform(_):
        return await work(runtime)

    async def main():
        with Budget(seconds=SECONDS, runtime=runtime):
            return await TaskSystem(perform, change=None, runtime=runtime).execute_task(Task("Add"))

    return run(main(), clock=clock), clock.monotonic()


@pytest.mark.parametrize(("late", "status"), [(0.04, Status.COMPLETE), (0.06, Status.FAILED)])
def test_E15_an_answer_within_50_ms_after_its_time_is_kept(late, status):
    async def work(_):
        await asyncio.sleep(SECONDS + late)
        return "done"

    result, ended = result_of(work)
    assert result.status is status
    assert ended == pytest.approx(SECONDS + min(late, 0.05))


def test_a_call_of_a_recovery_ends_in_time():
    async def work(runtime):
        return await recover("slow", runtime=runtime).call(asyncio.sleep, 10)

    result, ended = result_of(work)
    assert result.status is Status.FAILED
    assert ended == pytest.approx(SECONDS)
