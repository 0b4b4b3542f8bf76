"""Turns an event into an audit record: its class, its correlation, and its facts without secrets and content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events
from holdfast.events.tracker import facts_of
from holdfast.faults import Fault
from holdfast.stores.records import NewAudit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.events import Event
    from holdfast.faults import Redactor
    from holdfast.stores.records import AuditClass

__all__ = ["CLASSES", "audit_of"]

_BY_CLASS: Mapping[AuditClass, tuple[type[Event], ...]] = {
    "Fault": (
        events.Failed,
        events.OperatorAsked,
        events.SubtaskFailed,
        events.TaskHalted,
        events.MCPServerDisconnected,
        events.SharedStateLost,
    ),
    "Retry": (events.Retry, events.RetryDenied, events.TaskOutputRejected, events.MCPReconnectAttempt),
    "Recovery": (
        events.Repaired,
        events.StreamResumed,
        events.Recovered,
        events.TaskDecomposed,
        events.MCPServerReconnected,
        events.SharedStateBack,
    ),
    "Fallback": (events.Fallback, events.AgentFallback, events.Degraded, events.UserNotified),
    "Turn": (events.TaskStarted, events.TaskFinished, events.SessionTurnStart, events.SessionTurnEnd),
    "Circuit": (events.CircuitStateChange,),
    "Cancellation": (events.Cancelled,),
    "Command": (events.Commanded,),
    "Budget": (events.BudgetWarning,),
    "Actor": (
        events.MailboxPressure,
        events.MessageDropped,
        events.ActorResumed,
        events.ChildStarted,
        events.ChildExited,
        events.ChildRestarting,
        events.ChildStopped,
        events.ChildLeaked,
        events.GaveUp,
    ),
    "SuppressedError": (events.SuppressedError,),
    "SessionLifecycle": (events.SessionActive, events.SessionPersisted, events.SessionResumed, events.SessionClosed),
    "Integrity": (events.StepNotReplayed,),
    "StageExecution": (events.StagePreFired, events.StagePostFired),
    "ToolInvocation": (events.HookEvent,),
    "ProviderExchange": (events.AttemptEnded, events.Observed),
}
CLASSES: Mapping[type[Event], AuditClass] = {kind: name for name, kinds in _BY_CLASS.items() for kind in kinds}
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
    elif isinstance(event, events.CircuitStateChange) and event.reason is not None:
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
    if isinstance(event, events.AttemptEnded | events.Observed) and event.operation.startswith("tool:"):
        return "ToolInvocation"
    return CLASSES[type(event)]
