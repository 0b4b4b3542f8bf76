"""What a task reports while it is performed: its events, and the state that it is in.

    with TaskReport(runtime, task, depth, board) as report:      # task-started … task-finished
        report.rejected(fault, 1)
        with report.blocked():                                   # active, blocked, active
            await subtask()

Invariant: whatever ends a task, its start is followed by one end. Names in events are names: a prompt is never in them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from holdfast.events import (
    Cancelled,
    SubtaskFailed,
    TaskDecomposed,
    TaskFinished,
    TaskHalted,
    TaskOutputRejected,
    TaskStarted,
    TaskState,
    TaskStateChange,
)
from holdfast.faults import Fault
from holdfast.runtime.ambient import new_run
from holdfast.tasks.state import OpenTask, changed
from holdfast.tasks.task import plain_fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from holdfast.runtime.runtime import Runtime
    from holdfast.tasks.task import Task

__all__ = ["TaskReport", "subtask_failed"]

_PROMPTS = frozenset({"subtask", "subtask_request", "subtask_error", "chain", "query", "words", "partial_context"})
"""Facts of a fault that may hold the prompt or the inputs of a task."""
_OVER = frozenset({TaskState.COMPLETED, TaskState.FAILED})


def _shown(fault: Fault) -> Fault:
    """Return the fault as events hold it: plain values, and nothing about the prompts and inputs of other tasks."""
    fault = plain_fault(fault)
    if _PROMPTS.isdisjoint(fault.context):
        return fault
    context = {name: value for name, value in fault.context.items() if name not in _PROMPTS}
    return msgspec.structs.replace(fault, message=Fault.of(fault.code, context=context).message, context=context)


class TaskReport:
    """The events of one task.

    board: the tasks that have not ended, by their run. The task is on it until it has ended, also while it waits for its turn.
    """

    def __init__(
        self,
        runtime: Runtime,
        task: Task,
        depth: int,
        board: dict[str, OpenTask],
        *,
        state: TaskState = TaskState.CREATED,
    ) -> None:
        self._runtime = runtime
        self._task = task
        self._depth = depth
        self._board = board
        self._name = task.label
        self._run = new_run()
        self._begun = 0.0
        self._state = state
        self._waits = 0
        """How many things it waits for."""

    def restarted(self, other: Task) -> TaskReport:
        """Return the report of the task's next try, which has another request. The task must have failed."""
        return TaskReport(self._runtime, other, self._depth, self._board, state=self._state)

    @contextmanager
    def in_line(self) -> Iterator[None]:
        """The task waits for its turn, and is performed inside. It leaves the board at the end, also if its turn did not come."""
        self._become(TaskState.READY)
        try:
            yield
        finally:
            self._board.pop(self._run, None)

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """The task waits for something, perhaps for several things at once. What it left behind may wait after its end."""
        self._waits += 1
        if self._state is TaskState.ACTIVE:
            self._become(TaskState.BLOCKED)
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits and self._state is TaskState.BLOCKED:
                self._become(TaskState.ACTIVE)

    def _become(self, state: TaskState) -> None:
        before, self._state = self._state, changed(self._state, state)
        if state in _OVER:
            self._board.pop(self._run, None)
        else:
            self._board[self._run] = OpenTask(
                name=self._name, state=state, since=self._at, depth=self._depth, agent=self._task.agent
            )
        if self._runtime.bus.wants(TaskStateChange):
            event = TaskStateChange(at=self._at, run=self._run, operation=self._name, from_=before, to=state)
            self._runtime.bus.emit(event)

    def __enter__(self) -> Self:
        self._begun = self._runtime.clock.monotonic()
        if self._runtime.bus.wants(TaskStarted):
            event = TaskStarted(
                at=self._at, run=self._run, operation=self._name, agent=self._task.agent, depth=self._depth
            )
            self._runtime.bus.emit(event)
        if self._state is TaskState.FAILED:
            self._become(TaskState.CREATED)
        self._become(TaskState.ACTIVE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._state is TaskState.BLOCKED:
            # What still waits was started by the task and not waited for.
            self._become(TaskState.ACTIVE)
        self._become(TaskState.COMPLETED if error is None else TaskState.FAILED)
        bus = self._runtime.bus
        if error is not None and not isinstance(error, Exception):
            bus.emit(Cancelled(at=self._at, run=self._run, operation=self._name, reason=type(error).__name__))
        elif bus.wants(TaskFinished):
            fault = None if error is None else _shown(self._runtime.fault_of(error))
            took = self._runtime.clock.monotonic() - self._begun
            bus.emit(TaskFinished(at=self._at, run=self._run, operation=self._name, took=took, fault=fault))

    def rejected(self, fault: Fault, number: int) -> None:
        """The answer does not have the form that it must have."""
        most = self._task.reasks
        event = TaskOutputRejected(
            at=self._at, run=self._run, operation=self._name, number=number, max_reasks=most, fault=_shown(fault)
        )
        self._runtime.bus.emit(event)

    def rematched(self, fault: Fault) -> None:
        """The task, which looks for context, failed and is performed once more."""
        event = SubtaskFailed(at=self._at, operation=self._name, depth=self._depth, fault=_shown(fault), again=True)
        self._runtime.bus.emit(event)

    def decomposed(self, parts: int, depth: int, fault: Fault) -> None:
        """The task was split."""
        event = TaskDecomposed(
            at=self._at, run=self._run, operation=self._name, parts=parts, depth=depth, fault=_shown(fault)
        )
        self._runtime.bus.emit(event)

    def halted(self, fault: Fault, *, again: bool) -> None:
        """The task gets nowhere. `again`: another approach is tried, from the start."""
        self._runtime.bus.emit(
            TaskHalted(at=self._at, run=self._run, operation=self._name, fault=_shown(fault), again=again)
        )
        if again:
            for state in (TaskState.FAILED, TaskState.CREATED, TaskState.ACTIVE):
                self._become(state)

    @property
    def _at(self) -> float:
        return self._runtime.clock.wall()


def subtask_failed(runtime: Runtime, task: Task, fault: Fault, *, depth: int, again: bool) -> None:
    """A subtask, or a part of a task that was split, failed."""
    runtime.bus.emit(
        SubtaskFailed(at=runtime.clock.wall(), operation=task.label, depth=depth, fault=_shown(fault), again=again)
    )
