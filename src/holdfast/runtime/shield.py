"""Seeing something through whose half would be worse than none, when its caller is cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["run_to_end", "wait_to_end"]

T = TypeVar("T")


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Do it to its end. A caller that is cancelled goes at once; the work goes on."""
    return await asyncio.shield(asyncio.get_running_loop().create_task(work))


async def wait_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Do it to its end, and have a caller that is cancelled wait for that. One that is cancelled twice goes at once."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait((task,))
        raise
