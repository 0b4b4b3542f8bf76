"""Leaks: tasks that ignore their cancellation. Each is reported and left behind.

Invariant: a task that was left behind blocks neither its caller nor the end of `asyncio.run`, and its late answer is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_module
from holdfast.runtime.operation import reports
from holdfast.runtime.operation.answers import throw_away_async

if TYPE_CHECKING:
    import asyncio

    from holdfast.runtime.operation.operation import Operation
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = ["leave_behind"]


def leave_behind(op: Operation, task: asyncio.Task[Any]) -> None:
    """Report a task that ignores its cancellation, and let it run without anybody waiting for it."""
    reports.leaked(op, "ignored its cancellation and was left running")
    # An event loop refers to its tasks weakly, so a task that nobody holds could vanish midway.
    leaked = op.plan.runtime.leaked_tasks
    leaked.add(task)
    # `asyncio.run` waits for every registered task when it ends. It would wait for this one for ever.
    asyncio.tasks._unregister_task(task)  # noqa: SLF001 - documented for authors of task classes
    task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - the leak was reported already

    def ended(task: asyncio.Task[Any]) -> None:
        leaked.discard(task)
        # Reading the exception marks it as seen; asyncio logs an exception that nobody reads.
        if not task.cancelled() and task.exception() is None:
            closing = asyncio.ensure_future(throw_away_async(op, task.result()))
            leaked.add(closing)
            closing.add_done_callback(leaked.discard)

    task.add_done_callback(ended)
