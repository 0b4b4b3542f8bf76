"""Document 003, the error pattern of a task system: its names, in Python's spelling.

from holdfast.documents.task import Task, TaskSystem

result = await TaskSystem(agent).execute_task(Task("Summarise {doc}", inputs={"doc": text}))

The handlers of the sample are yours: functions of a task and its fault, in `TaskSystem(…, handlers={…})` under these words.

    handle_resource_exhaustion     "resource": without one, the `decomposer` splits the task
    handle_context_failure         "context"; `TaskSystem.recover_from_context_failure` looks things up in another way
    handle_subtask_failure         "subtask": without one, `change` words the request more simply
    handle_output_format_failure   "format": without one, the model is asked again, as `Task.reasks` says
    handle_general_failure         "general"

The document's verbs are methods of the `TaskSystem` of this module: `TaskSystem.execute_task`, `TaskSystem.execute_s_expression` and
`TaskSystem.recover_from_context_failure`. That of `holdfast` has `run` and `outcome` alone.
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
    XmlOutput,
)
from holdfast.tasks.director import Iteration
from holdfast.tasks.document import DocumentTaskSystem as TaskSystem
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
