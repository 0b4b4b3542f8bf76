"""Which state of a task may follow which, and the list of tasks that have not ended.

    created ─┬─────────▶ active ◀──▶ blocked
       ▲     └▶ ready ─▶   │            │
       │                   ├▶ completed │
       └──── restarted ── failed ◀──────┘

Invariant: a task is completed only from the active state, and only a failed task is created anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.events import TaskState
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NEXT_STATES", "OpenTask", "changed"]

NEXT_STATES: Mapping[TaskState, tuple[TaskState, ...]] = {
    TaskState.CREATED: (TaskState.ACTIVE, TaskState.READY),
    TaskState.READY: (TaskState.ACTIVE,),
    TaskState.ACTIVE: (TaskState.BLOCKED, TaskState.COMPLETED, TaskState.FAILED),
    TaskState.BLOCKED: (TaskState.ACTIVE, TaskState.FAILED),
    TaskState.COMPLETED: (),
    TaskState.FAILED: (TaskState.CREATED,),
}
"""The states that may follow each state."""


def changed(before: TaskState, after: TaskState) -> TaskState:
    """Return `after`. Raise `InvalidError` if it may not follow `before`."""
    if after not in NEXT_STATES[before]:
        expected = (
            f"{' or '.join(NEXT_STATES[before])} after {before}" if NEXT_STATES[before] else f"nothing after {before}"
        )
        raise InvalidError.saying("task.state", expected, str(after), "TASK_MODEL_INVALID")
    return after


class OpenTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that has not ended, as `TaskSystem.open_tasks` lists it."""

    name: str
    """Its name; a hash if it has none, because a prompt may hold what others must not read."""
    state: TaskState
    since: float
    """When it came into this state, in seconds since 1970."""
    depth: int = 0
    """How deep it is nested in other tasks."""
    agent: str = ""
    """Which of the system's agents performs it; empty: its default one."""
