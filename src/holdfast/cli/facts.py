"""What the verbs show of a code and of a fault: one list for people and for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.faults.surfaces import fill, spell_seconds

if TYPE_CHECKING:
    from holdfast.faults import Entry, Fault

__all__ = ["entry_document", "entry_facts", "fault_document", "fault_facts", "fault_headline"]


def entry_document(entry: Entry) -> dict[str, Any]:
    """Return a catalog entry as JSON values."""
    return {
        "code": entry.code,
        "message": fill(entry.message, {}),
        "user": entry.user,
        "suggestions": list(entry.suggestions),
        "aliases": list(entry.aliases),
        "layer": entry.layer.value,
        "kind": entry.kind.value,
        "severity": entry.severity.value,
        "retryable": entry.retryable,
        "schedule": entry.schedule.value,
        "next_actor": entry.next_actor.value,
        "scope": entry.scope.value,
        "http_status": entry.http_status,
        "close_code": entry.close_code,
        "exit_code": entry.exit_code,
        "category": entry.category.value,
        "class_code": entry.classed,
        "task": entry.task,
    }


def entry_facts(entry: Entry) -> list[tuple[str, str]]:
    """Return what `explain` shows above the page."""
    return [
        (
            "kind",
            f"{entry.kind.value}, {'retryable' if entry.retryable else 'not retried'} (schedule: {entry.schedule.value})",
        ),
        ("next", f"{entry.next_actor.value} must act"),
        ("scope", entry.scope.value),
        ("severity", entry.severity.value),
        ("layer", entry.layer.value),
        ("names", f"{entry.category.value} · {entry.classed} · {entry.task}"),
        ("status", f"HTTP {entry.http_status} · close {entry.close_code} · exit {entry.exit_code}"),
        ("aliases", ", ".join(entry.aliases)),
    ]


def fault_document(fault: Fault, record_id: str | int | None = None) -> dict[str, Any]:
    """Return a verdict as JSON values, in the order of the corpus tools."""
    return {
        "id": record_id,
        "code": fault.code,
        "category": fault.category.value,
        "retryable": fault.retryable,
        "retry_after_s": fault.retry_after,
        "scope": fault.scope.value,
        "rule": fault.rule,
    }


def fault_headline(fault: Fault) -> str:
    """Return the compact form: the code and what happened, on one line."""
    return f"{fault.code}  {' '.join(fault.message.split())[:200]}"


def fault_facts(fault: Fault) -> list[tuple[str, str]]:
    """Return what `classify` shows of one verdict."""
    return [
        ("category", fault.category.value),
        ("retryable", _retryable(fault)),
        ("scope", fault.scope.value),
        ("effect", "may have happened: check before sending again" if fault.maybe_executed else ""),
        ("next", f"{fault.next_actor.value} must act"),
        ("do", fault.entry.suggestions[0]),
        ("rule", fault.rule),
        ("help", f"holdfast explain {fault.code}"),
    ]


def _retryable(fault: Fault) -> str:
    wait = None if fault.retry_after is None else spell_seconds(fault.retry_after)
    if fault.retryable:
        return "yes" if wait is None else f"yes, after {wait} as the other side asked"
    return "no" if wait is None else f"no: the other side asked for {wait}"
