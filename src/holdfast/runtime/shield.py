"""Finish work even if its caller is cancelled, because half of it would be worse than none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["run_to_end", "wait_to_end"]

T = TypeVar("T")


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run the work to its end. A caller that is cancelled is released at once, and the work goes on without it."""
    return await asyncio.shield(asyncio.get_running_loop().create_task(work))


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
