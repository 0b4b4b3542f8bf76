"""Sinks read events and show them elsewhere: in logs, traces, metrics and alerts. They never decide.

    logging     `log_events`: a line when an operation recovered, a warning when it was given up
    structlog   `log_to_structlog`: the same facts as an event dict
    hooks       `watch_hooks`: what validators say, as badges, toasts and a history
    live        `watch_live`: the operations that recover now, as lines for terminals and pages
    otel        `trace_recoveries`: a span per operation, a child per attempt; conventions: attribute names
    prometheus  `count_events`, `count_errors`: counters and histograms with bounded labels
    metric      `ErrorMetric`, `measure_errors`: what metrics count of one error
    severity    `react_to_failures`: what the severity of a failure calls for
    alerts      `raise_alerts`: the log, a function and a webhook are notified when too much goes wrong
    audit       `audit_to`: an append-only, hash-chained trail in a store; audit_records: an event as a record

    reader      how a sink subscribes

Each function returns a subscription: `cancel` it, or use it as a context manager. If a sink raises, this is reported once, and
no call is affected. A name is loaded when it is first used, so no sink loads the library of another sink. Sinks may import stores,
runtime and what stands before those, and never each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.events.lines import Levels
    from holdfast.sinks.alerts import AlertSink, raise_alerts
    from holdfast.sinks.audit import AuditTrail, audit_to
    from holdfast.sinks.hooks import HookBadge, HookBoard, HookChange, HookToast, watch_hooks
    from holdfast.sinks.live import LiveLine, LiveState, watch_live
    from holdfast.sinks.logging import log_events
    from holdfast.sinks.metric import ErrorMetric, measure_errors
    from holdfast.sinks.otel import trace_recoveries
    from holdfast.sinks.prometheus import count_errors, count_events
    from holdfast.sinks.severity import react_to_failures
    from holdfast.sinks.structlog import log_to_structlog

__all__ = [
    "AlertSink",
    "AuditTrail",
    "ErrorMetric",
    "HookBadge",
    "HookBoard",
    "HookChange",
    "HookToast",
    "Levels",
    "LiveLine",
    "LiveState",
    "audit_to",
    "count_errors",
    "count_events",
    "log_events",
    "log_to_structlog",
    "measure_errors",
    "raise_alerts",
    "react_to_failures",
    "trace_recoveries",
    "watch_hooks",
    "watch_live",
]

_HOMES = {
    "AlertSink": "holdfast.sinks.alerts",
    "ErrorMetric": "holdfast.sinks.metric",
    "count_errors": "holdfast.sinks.prometheus",
    "measure_errors": "holdfast.sinks.metric",
    "raise_alerts": "holdfast.sinks.alerts",
    "react_to_failures": "holdfast.sinks.severity",
    "AuditTrail": "holdfast.sinks.audit",
    "audit_to": "holdfast.sinks.audit",
    "Levels": "holdfast.events.lines",
    "LiveLine": "holdfast.sinks.live",
    "LiveState": "holdfast.sinks.live",
    "count_events": "holdfast.sinks.prometheus",
    **dict.fromkeys(("HookBadge", "HookBoard", "HookChange", "HookToast", "watch_hooks"), "holdfast.sinks.hooks"),
    "log_events": "holdfast.sinks.logging",
    "log_to_structlog": "holdfast.sinks.structlog",
    "trace_recoveries": "holdfast.sinks.otel",
    "watch_live": "holdfast.sinks.live",
}

__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
