"""Leaks: tasks that ignore their cancellation. Each is reported and left behind.

Invariant: a task that was left behind blocks neither its caller nor the end of `asyncio.run`, and its late answer is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_module
from holdfast.events import SuppressedError
from holdfast.runtime.answers import throw_away_async

if TYPE_CHECKING:
    import asyncio
    import logging

    from holdfast.runtime.operation import Operation
else:
    asyncio = lazy_module("asyncio", globals())
    logging = lazy_module("logging", globals())

__all__ = ["CANCEL_GRACE_S", "leave_behind"]

CANCEL_GRACE_S = 1.0
"""Seconds that a cancelled call has to end, for example to close its connection."""


def leave_behind(op: Operation, task: asyncio.Task[Any]) -> None:
    """Report a task that ignores its cancellation, and let it run without anybody waiting for it."""
    _report(op, "ignored its cancellation and was left running")
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


def _report(op: Operation, what: str) -> None:
    cause = f"{op.plan.name or 'a call'} {what}"
    logging.getLogger("holdfast").warning("leaked: %s", cause)
    runtime = op.plan.runtime
    runtime.bus.emit(
        SuppressedError(at=runtime.clock.wall(), run=op.run, operation=op.plan.name, reason="leaked", cause=cause)
    )
