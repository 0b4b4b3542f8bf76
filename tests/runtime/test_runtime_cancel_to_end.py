"""`cancel_to_end`: end a task of one's own, and lose neither its failure nor a cancellation of the caller."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.runtime.shield import cancel_to_end
from holdfast.testing import run


def test_S2_10_a_task_that_is_cancelled_has_ended_and_raises_nothing():
    ended = []

    async def work():
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            ended.append(True)

    async def main():
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        await cancel_to_end(task)

    run(main())
    assert ended == [True]


def test_S2_10_the_failure_of_a_task_is_raised():
    async def work():
        try:
            await asyncio.sleep(100)
        finally:
            raise ValueError("while it ended")

    async def main():
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        await cancel_to_end(task)

    with pytest.raises(ValueError, match="while it ended"):
        run(main())


def test_S2_10_a_caller_that_is_cancelled_meanwhile_is_cancelled():
    went_on = []

    async def work():
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(10)

    async def caller():
        task = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        await cancel_to_end(task)
        went_on.append(True)

    async def main():
        task = asyncio.ensure_future(caller())
        await asyncio.sleep(5)
        task.cancel()
        await asyncio.wait((task,))
        return task.cancelled()

    assert run(main())
    assert went_on == []
