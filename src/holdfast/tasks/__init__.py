"""Tasks that end well: performed by agents or functions, within limits, checked, split where they are too large.

from holdfast.tasks import Task, TaskSystem, by_section
"""

from __future__ import annotations

from holdfast.events import TaskState
from holdfast.tasks.context_index import ContextIndex, Match, Matches
from holdfast.tasks.decomposition import Decomposition, by_items, by_model, by_section
from holdfast.tasks.director import DirectorLoop, Iteration
from holdfast.tasks.output_format import XmlOutput
from holdfast.tasks.performer import Assignment
from holdfast.tasks.state import NEXT_STATES, OpenTask
from holdfast.tasks.system import TaskSystem, simplified
from holdfast.tasks.task import ContextUse, DataUsage, Status, Task, TaskError, TaskResult
from holdfast.tasks.workflows.function import WorkflowFunction, workflow

__all__ = [
    "NEXT_STATES",
    "Assignment",
    "ContextIndex",
    "ContextUse",
    "DataUsage",
    "Decomposition",
    "DirectorLoop",
    "Iteration",
    "Match",
    "Matches",
    "OpenTask",
    "Status",
    "Task",
    "TaskError",
    "TaskResult",
    "TaskState",
    "TaskSystem",
    "WorkflowFunction",
    "XmlOutput",
    "by_items",
    "by_model",
    "by_section",
    "simplified",
    "workflow",
]
