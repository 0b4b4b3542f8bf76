"""Document 001's own shape of the recovery events (S1-21): ClassifiedError for a fault, milliseconds for a delay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.events.records import AgentFallback, CircuitStateChange, Degraded, Failed, Fallback, Recovered, Retry
from holdfast.faults import REDACTOR, Redactor
from holdfast.views import category

if TYPE_CHECKING:
    from holdfast.events.records import RecoveryEvent

__all__ = ["write_document"]

_MS = 1000


def write_document(event: RecoveryEvent, *, redactor: Redactor = REDACTOR) -> dict[str, Any]:
    """Return the event as document 001 shows it; `maxAttempts` and `operationName` are N1-5's additions."""
    document: dict[str, Any] = redactor.value(_told(event))
    return document


def _told(event: RecoveryEvent) -> dict[str, Any]:
    match event:
        case Retry():
            return {
                "type": "retry",
                "attempt": event.attempt,
                "maxAttempts": event.max_attempts,
                "delay": event.delay * _MS,
                "error": category.write(event.fault),
                "operationName": event.operation,
            }
        case CircuitStateChange():
            return {
                "type": "circuit-state-change",
                "circuit": event.circuit,
                "from": event.from_.value,
                "to": event.to.value,
            }
        case Fallback():
            return {"type": "fallback", "from": event.from_, "to": event.to}
        case AgentFallback():
            return {"type": "agent-fallback", "from": event.from_, "to": event.to}
        case Degraded():
            return {"type": "degraded", "reason": event.reason}
        case Recovered():
            return {"type": "recovered", "after": event.after * _MS, "attempts": event.attempts}
        case Failed():
            return {"type": "failed", "error": category.write(event.fault), "exhausted": event.exhausted}
