"""Finish work even if its caller is cancelled, because half of it would be worse than none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.faults import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["cancel_to_end", "ignore_ours", "run_to_end", "shielded", "wait_to_end"]

T = TypeVar("T")


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run the work to its end. A caller that is cancelled is released at once, and the work goes on without it."""
    return await shielded(asyncio.get_running_loop().create_task(work))


async def shielded(task: asyncio.Task[T]) -> T:
    """Wait for a task that goes on if the caller is cancelled. Then nobody gets its failure: asyncio prints it unless it is ours."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            task.add_done_callback(ignore_ours)
        raise


def ignore_ours(task: asyncio.Future[Any]) -> None:
    """Let asyncio print the failure of work for which nobody waits any more, unless it is ours."""
    # A failure of ours was recorded where it happened: the session that lost its lease knows it, and so does its caller.
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, (HoldfastError, asyncio.CancelledError)):
        context = {"message": "Task exception was never retrieved", "exception": error, "future": task}
        task.get_loop().call_exception_handler(context)


async def cancel_to_end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended. Raises its failure. A cancellation of the caller is raised, and not taken for the task's."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()


async def wait_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run the work to its end. A cancelled caller still waits for it. A second cancellation releases the caller at once."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # The cancellation may have come from the work itself, which is then over.
        if not task.done():
            await asyncio.wait((task,))
        raise
