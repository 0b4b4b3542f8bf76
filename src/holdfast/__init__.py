"""Holdfast: when an AI agent's call fails, it decides what to do next, does it, and shows you why.

    from holdfast import recover

    @recover("claude")                      # retries by kind of failure, their end, a circuit
    async def answer(question: str) -> str: ...

    @answer.fallback
    async def by_openai(question: str) -> str: ...

`fault_of(error)` classifies any failure. `Session` saves work, so that it survives a crash of the process. `Supervisor` restarts
actors and coroutines that fail. SDK clients recover with `holdfast.anthropic.recovering` and `holdfast.openai.recovering`.

A name is imported when it is first used, so `import holdfast` is cheap.
"""

from __future__ import annotations

from holdfast._lazy import loader
from holdfast._version import __version__

# Type checkers assume that a variable of this name is true. It is not imported from `typing`, because that import would
# take most of the time of `import holdfast`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.actors.actor import Actor
    from holdfast.actors.child import Child
    from holdfast.actors.errors import GaveUpError
    from holdfast.actors.ref import Ref
    from holdfast.actors.supervisor import Supervisor
    from holdfast.agents.agent import Agent
    from holdfast.agents.command import CommandAgent
    from holdfast.bridge.client.client import Client as Client
    from holdfast.faults import (
        CODES,
        Attempt,
        BudgetError,
        Category,
        CircuitOpenError,
        Code,
        DeadlineError,
        Err,
        Fault,
        HoldfastError,
        InvalidError,
        ItemError,
        Kind,
        Layer,
        NextActor,
        Ok,
        Outcome,
        OutcomeUnknownError,
        Partial,
        Scope,
        Severity,
        StreamCutError,
    )
    from holdfast.policies import BATCH, INTERACTIVE, PATIENT, Backoff, Circuit, Hedge, Policy, Quota, Tries
    from holdfast.policies.repair import Changed
    from holdfast.policies.target import Target
    from holdfast.runtime.budgets.budget import Budget
    from holdfast.runtime.fault_of import fault_of
    from holdfast.runtime.lineage import request
    from holdfast.runtime.operation.recovery_warnings import RecoveryWarning
    from holdfast.runtime.recover import recover
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.suppress import suppress
    from holdfast.runtime.tool import CANNOT_TELL, NOT_HAPPENED, Happened, Verdict, call_key, tool
    from holdfast.sessions.session import Session
    from holdfast.tasks.stages.machine import StageMachine
    from holdfast.tasks.stages.stage import Stage
    from holdfast.tasks.system import TaskSystem
    from holdfast.tasks.task import Task, TaskError
    from holdfast.tasks.workflows.workflow import Workflow

# Without `Client`, which needs an extra: `from holdfast import *` must work without any. `from holdfast import Client` works too.
__all__ = [
    "BATCH",
    "CANNOT_TELL",
    "CODES",
    "INTERACTIVE",
    "NOT_HAPPENED",
    "PATIENT",
    "Actor",
    "Agent",
    "Attempt",
    "Backoff",
    "Budget",
    "BudgetError",
    "Category",
    "Changed",
    "Child",
    "Circuit",
    "CircuitOpenError",
    "Code",
    "CommandAgent",
    "DeadlineError",
    "Err",
    "Fault",
    "GaveUpError",
    "Happened",
    "Hedge",
    "HoldfastError",
    "InvalidError",
    "ItemError",
    "Kind",
    "Layer",
    "NextActor",
    "Ok",
    "Outcome",
    "OutcomeUnknownError",
    "Partial",
    "Policy",
    "Quota",
    "RecoveryWarning",
    "Ref",
    "Runtime",
    "Scope",
    "Session",
    "Severity",
    "Stage",
    "StageMachine",
    "StreamCutError",
    "Supervisor",
    "Target",
    "Task",
    "TaskError",
    "TaskSystem",
    "Tries",
    "Verdict",
    "Workflow",
    "__version__",
    "call_key",
    "fault_of",
    "recover",
    "request",
    "suppress",
    "tool",
]

_HOMES = (
    dict.fromkeys(__all__, "holdfast.faults")
    | dict.fromkeys(
        ("BATCH", "INTERACTIVE", "PATIENT", "Backoff", "Circuit", "Hedge", "Policy", "Quota", "Tries"),
        "holdfast.policies",
    )
    | {
        "Actor": "holdfast.actors.actor",
        "Agent": "holdfast.agents.agent",
        "Child": "holdfast.actors.child",
        "Client": "holdfast.bridge.client.client",
        "GaveUpError": "holdfast.actors.errors",
        "Ref": "holdfast.actors.ref",
        "Supervisor": "holdfast.actors.supervisor",
        "CommandAgent": "holdfast.agents.command",
        "Budget": "holdfast.runtime.budgets.budget",
        "Changed": "holdfast.policies.repair",
        "RecoveryWarning": "holdfast.runtime.operation.recovery_warnings",
        "Runtime": "holdfast.runtime.runtime",
        "Session": "holdfast.sessions.session",
        "Target": "holdfast.policies.target",
        "Stage": "holdfast.tasks.stages.stage",
        "StageMachine": "holdfast.tasks.stages.machine",
        "Task": "holdfast.tasks.task",
        "TaskError": "holdfast.tasks.task",
        "TaskSystem": "holdfast.tasks.system",
        "CANNOT_TELL": "holdfast.runtime.tool",
        "Happened": "holdfast.runtime.tool",
        "NOT_HAPPENED": "holdfast.runtime.tool",
        "Verdict": "holdfast.runtime.tool",
        "Workflow": "holdfast.tasks.workflows.workflow",
        "call_key": "holdfast.runtime.tool",
        "fault_of": "holdfast.runtime.fault_of",
        "recover": "holdfast.runtime.recover",
        "request": "holdfast.runtime.lineage",
        "suppress": "holdfast.runtime.suppress",
        "tool": "holdfast.runtime.tool",
    }
)

__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_HOMES})
