"""What a task reports while it is performed: its events.

    with TaskReport(runtime, task, depth) as report:      # task-started … task-finished
        report.rejected(fault, 1)

Invariant: whatever ends a task, its start is followed by one end. Names in events are names: a prompt is never in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.events import (
    Cancelled,
    SubtaskFailed,
    TaskDecomposed,
    TaskFinished,
    TaskHalted,
    TaskOutputRejected,
    TaskStarted,
)
from holdfast.runtime.ambient import new_run

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from holdfast.faults import Fault
    from holdfast.runtime.runtime import Runtime
    from holdfast.tasks.task import Task

__all__ = ["TaskReport", "subtask_failed"]

_DIGITS = 8


def _name(task: Task) -> str:
    """Return the name of a task in events. Its title may be the beginning of its prompt, so it is not used."""
    return task.name or f"task {task.signature[:_DIGITS]}"


class TaskReport:
    """The events of one task."""

    def __init__(self, runtime: Runtime, task: Task, depth: int) -> None:
        self._runtime = runtime
        self._task = task
        self._depth = depth
        self._name = _name(task)
        self._run = new_run()
        self._begun = 0.0

    def __enter__(self) -> Self:
        self._begun = self._runtime.clock.monotonic()
        if self._runtime.bus.wants(TaskStarted):
            event = TaskStarted(
                at=self._at, run=self._run, operation=self._name, agent=self._task.agent, depth=self._depth
            )
            self._runtime.bus.emit(event)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        bus = self._runtime.bus
        if error is not None and not isinstance(error, Exception):
            bus.emit(Cancelled(at=self._at, run=self._run, operation=self._name, reason=type(error).__name__))
        elif bus.wants(TaskFinished):
            fault = None if error is None else self._runtime.fault_of(error)
            took = self._runtime.clock.monotonic() - self._begun
            bus.emit(TaskFinished(at=self._at, run=self._run, operation=self._name, took=took, fault=fault))

    def rejected(self, fault: Fault, number: int) -> None:
        """The answer does not have the form that it must have."""
        most = self._task.reasks
        event = TaskOutputRejected(
            at=self._at, run=self._run, operation=self._name, number=number, max_reasks=most, fault=fault
        )
        self._runtime.bus.emit(event)

    def decomposed(self, parts: int, depth: int, fault: Fault) -> None:
        """The task was split."""
        event = TaskDecomposed(at=self._at, run=self._run, operation=self._name, parts=parts, depth=depth, fault=fault)
        self._runtime.bus.emit(event)

    def halted(self, fault: Fault, *, again: bool) -> None:
        """The task gets nowhere."""
        self._runtime.bus.emit(TaskHalted(at=self._at, run=self._run, operation=self._name, fault=fault, again=again))

    @property
    def _at(self) -> float:
        return self._runtime.clock.wall()


def subtask_failed(runtime: Runtime, task: Task, fault: Fault, *, depth: int, again: bool) -> None:
    """A subtask, or a part of a task that was split, failed."""
    runtime.bus.emit(
        SubtaskFailed(at=runtime.clock.wall(), operation=_name(task), depth=depth, fault=fault, again=again)
    )
