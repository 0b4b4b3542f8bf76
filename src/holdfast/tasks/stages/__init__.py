"""Stages: work in steps that are checked, retried and joined, run on a session so that it survives a crash of its process.

stage      `Stage`: what one stage does, and its limits
context    what the functions of a stage see: values that only Setup may change
act        Act: an agent or a function, within the limits of its stage
grants     permissions for one tool call each
run        one run: performs what the pure machines decide, each phase once
machine    `StageMachine`: the stages together
"""

from __future__ import annotations

from holdfast.tasks.stages.act import StageWork
from holdfast.tasks.stages.context import StageContext
from holdfast.tasks.stages.grants import Proposal
from holdfast.tasks.stages.machine import MachineEnded, StageError, StageMachine
from holdfast.tasks.stages.stage import Stage
from holdfast.workflow.stage_lifecycle import ActEnded, StageEnded
from holdfast.workflow.stage_plan import END, Go

__all__ = [
    "END",
    "ActEnded",
    "Go",
    "MachineEnded",
    "Proposal",
    "Stage",
    "StageContext",
    "StageEnded",
    "StageError",
    "StageMachine",
    "StageWork",
]
