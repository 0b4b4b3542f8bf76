"""Turns an event into an audit record: its class, its correlation, and its facts without secrets and content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.events import (
    ActorResumed,
    AgentFallback,
    AttemptEnded,
    BudgetWarning,
    Cancelled,
    ChildExited,
    ChildLeaked,
    ChildRestarting,
    ChildStarted,
    ChildStopped,
    CircuitStateChange,
    Commanded,
    Degraded,
    Event,
    Failed,
    Fallback,
    GaveUp,
    HookEvent,
    MailboxPressure,
    MCPReconnectAttempt,
    MCPServerDisconnected,
    MCPServerReconnected,
    MessageDropped,
    Observed,
    OperatorAsked,
    Recovered,
    Repaired,
    Retry,
    RetryDenied,
    SessionActive,
    SessionClosed,
    SessionPersisted,
    SessionResumed,
    SessionTurnEnd,
    SessionTurnStart,
    SharedStateBack,
    SharedStateLost,
    StagePostFired,
    StagePreFired,
    StepNotReplayed,
    StreamResumed,
    SubtaskFailed,
    SuppressedError,
    TaskDecomposed,
    TaskFinished,
    TaskHalted,
    TaskOutputRejected,
    TaskStarted,
    UserNotified,
)
from holdfast.events.tracker import facts_of
from holdfast.faults import Fault
from holdfast.stores.records import NewAudit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Redactor
    from holdfast.stores.records import AuditClass

__all__ = ["CLASSES", "audit_of"]

CLASSES: Mapping[type[Event], AuditClass] = {
    Failed: "Fault",
    Retry: "Retry",
    RetryDenied: "Retry",
    Repaired: "Recovery",
    StreamResumed: "Recovery",
    Recovered: "Recovery",
    Fallback: "Fallback",
    AgentFallback: "Fallback",
    Degraded: "Fallback",
    UserNotified: "Fallback",
    OperatorAsked: "Fault",
    TaskStarted: "Turn",
    TaskOutputRejected: "Retry",
    TaskDecomposed: "Recovery",
    SubtaskFailed: "Fault",
    TaskHalted: "Fault",
    TaskFinished: "Turn",
    CircuitStateChange: "Circuit",
    Cancelled: "Cancellation",
    Commanded: "Command",
    BudgetWarning: "Budget",
    MailboxPressure: "Actor",
    MessageDropped: "Actor",
    ActorResumed: "Actor",
    ChildStarted: "Actor",
    ChildExited: "Actor",
    ChildRestarting: "Actor",
    ChildStopped: "Actor",
    ChildLeaked: "Actor",
    GaveUp: "Actor",
    MCPServerDisconnected: "Fault",
    MCPReconnectAttempt: "Retry",
    MCPServerReconnected: "Recovery",
    SharedStateLost: "Fault",
    SharedStateBack: "Recovery",
    SuppressedError: "SuppressedError",
    SessionTurnStart: "Turn",
    SessionTurnEnd: "Turn",
    SessionActive: "SessionLifecycle",
    SessionPersisted: "SessionLifecycle",
    SessionResumed: "SessionLifecycle",
    SessionClosed: "SessionLifecycle",
    StepNotReplayed: "Integrity",
    StagePreFired: "StageExecution",
    StagePostFired: "StageExecution",
    HookEvent: "ToolInvocation",
    AttemptEnded: "ProviderExchange",
    Observed: "ProviderExchange",
}
"""The class of each kind of event. A call to a tool is a ToolInvocation instead."""


def audit_of(event: Event, redactor: Redactor, *, otherwise: str = "", correlation: str = "") -> NewAudit:
    """Return the record of an event.

    It is correlated by its run, or by `otherwise` if it belongs to no run. With `correlation` its run is one of the facts.
    """
    facts = facts_of(event, redactor)
    # Keep the event's own time. The record's time is that of the commit, which may be much later.
    payload: dict[str, Any] = {"event": facts.pop("type"), "at": facts.pop("at")}
    fault = getattr(event, "fault", None)
    if isinstance(fault, Fault):
        # Auditors search by code and class, so these fields are at the top and not inside the fault.
        payload |= {"code": fault.code, "class": fault.entry.classed, "severity": fault.severity.value}
    elif isinstance(event, CircuitStateChange) and event.reason is not None:
        payload["code"] = event.reason
    if not correlation:
        facts.pop("run", None)
    facts.pop("v", None)
    return NewAudit(
        kind=_class_of(event),
        correlation=correlation or event.run or otherwise,
        payload=msgspec.json.encode({**payload, **facts}),
    )


def _class_of(event: Event) -> AuditClass:
    if isinstance(event, AttemptEnded | Observed) and event.operation.startswith("tool:"):
        return "ToolInvocation"
    return CLASSES[type(event)]
