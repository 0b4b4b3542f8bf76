"""The time, money and tokens of a task: they are for everything that it starts.

Invariant: parts, decomposer, merge, subtasks, another request and second tries spend from the limits of the task that they are for.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from holdfast.faults import DeadlineError, Fault
from holdfast.policies.budget import Left
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.budgets.budget import Budget
from holdfast.tasks.task import Task, TaskError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from holdfast.runtime.runtime import Runtime

__all__ = ["in_time", "left_here", "limits_of"]

T = TypeVar("T")

_LATE_S = 0.05
"""Seconds after its time that something without a recovery is ended. Recoveries end in time, and know more about why."""


@contextmanager
def limits_of(task: Task, runtime: Runtime, *, inside_of: Task | None = None) -> Iterator[None]:
    """Limit what is started in this block. `inside_of`: a task whose limits are in force; the same ones are not set twice."""
    limits = {name: getattr(task, name) for name in ("seconds", "usd", "tokens")}
    is_limited = any(limit is not None for limit in limits.values())
    if not is_limited or (inside_of and limits == {name: getattr(inside_of, name) for name in limits}):
        yield
        return
    with Budget(**limits, runtime=runtime):
        try:
            yield
        except Exception as error:
            fault = runtime.fault_of(error)
            left = left_here().seconds
            if fault.code != DeadlineError.code or task.seconds is None or left is None or left > 0:
                raise
            raise TaskError(_late(fault, task.seconds)) from error


def left_here() -> Left:
    """Return what is left of the budgets around."""
    around = in_force(AMBIENT.get())
    return Left() if around is None or around.budget is None else around.budget.left()


async def in_time(work: Awaitable[T]) -> T:
    """Return the result of `work`. Raise `DeadlineError` when the time of a budget around is over."""
    left = left_here().seconds
    timeout = asyncio.timeout(None if left is None else left + _LATE_S)
    try:
        async with timeout:
            return await work
    except TimeoutError:
        if not timeout.expired():
            raise
        raise DeadlineError.because() from None


def _late(fault: Fault, seconds: float) -> Fault:
    """Return the fault of a task whose own time is over. That of a split task says more than the limit."""
    context = {**fault.context, "cause": fault.code, "timeout_s": seconds}
    message = fault.message if "split" in fault.context else None
    return Fault.of(
        "TASK_TIMEOUT", message, context=context, partial=fault.partial, maybe_executed=fault.maybe_executed
    )
