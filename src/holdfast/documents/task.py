"""Document 003, the error pattern of a task system: its names, in Python's spelling.

from holdfast.documents.task import Task, TaskSystem

result = await TaskSystem(agent).execute_task(Task("Summarise {doc}", inputs={"doc": text}))
"""

from __future__ import annotations

from holdfast.tasks import (
    ContextIndex,
    ContextUse,
    Decomposition,
    DirectorLoop,
    Task,
    TaskError,
    TaskResult,
    TaskSystem,
    XmlOutput,
)
from holdfast.tasks.director import Iteration
from holdfast.tasks.performer import Assignment
from holdfast.views.task import Handler, dispatch
from holdfast.views.task import Reason as TaskFailureReason
from holdfast.views.task import Status as TaskStatus
from holdfast.views.task import dispatch as handle_task_error
from holdfast.views.task import read as read_task_error
from holdfast.views.task import write as task_error_of

__all__ = [
    "Assignment",
    "ContextIndex",
    "ContextUse",
    "Decomposition",
    "DirectorLoop",
    "Handler",
    "Iteration",
    "Task",
    "TaskError",
    "TaskFailureReason",
    "TaskResult",
    "TaskStatus",
    "TaskSystem",
    "XmlOutput",
    "dispatch",
    "handle_task_error",
    "read_task_error",
    "task_error_of",
]
