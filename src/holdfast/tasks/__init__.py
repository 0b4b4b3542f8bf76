"""Tasks that end well: performed by agents or functions, within limits, checked, split where they are too large.

from holdfast.tasks import Task, TaskSystem, by_section

system       `TaskSystem`: performs tasks, and makes something of their failures; `document`: with the verbs of document 003
task         the task and its result; `execution`: one performance of it by its `performer`, within `limits` and depth (`place`)
parts/       a task in parts; context/: what a task should know; output/: the form of its answer; director: proposals and judgements
reports      events, and the `state` of open tasks; `progress`: rounds in which nothing changes
workflows/   programs of the workflow language on a session; stages/: machines of stages. Both run by `run_in_session`

A task ends complete or failed, with everything it had. The room may import sessions, tools, providers and runtime, and no agent.
"""

from __future__ import annotations

from holdfast.events import TaskState
from holdfast.tasks.context.index import ContextIndex, Match, Matches
from holdfast.tasks.director import DirectorLoop, Iteration
from holdfast.tasks.output.format import XmlOutput
from holdfast.tasks.parts.decomposition import Decomposition, by_items, by_model, by_section
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
