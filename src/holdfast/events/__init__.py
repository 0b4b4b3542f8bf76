"""What happened: one frozen record per fact, and its JSON. Logs, audit, metrics and pages only read them.

If you ignore a failure on purpose, emit a `SuppressedError` with the reason.
"""

from __future__ import annotations

from holdfast.events.codec import decode, decode_lines, encode, encode_lines, schema, write_document
from holdfast.events.records import (
    KINDS,
    VERSION,
    AgentFallback,
    AttemptEnded,
    AttemptStarted,
    BudgetWarning,
    Cancelled,
    CircuitState,
    CircuitStateChange,
    Command,
    Commanded,
    Degraded,
    Event,
    Failed,
    Fallback,
    Recovered,
    RecoveryEvent,
    Repaired,
    Retry,
    RetryDenied,
    StreamResumed,
    SuppressedError,
    Unknown,
)

__all__ = [
    "KINDS",
    "VERSION",
    "AgentFallback",
    "AttemptEnded",
    "AttemptStarted",
    "BudgetWarning",
    "Cancelled",
    "CircuitState",
    "CircuitStateChange",
    "Command",
    "Commanded",
    "Degraded",
    "Event",
    "Failed",
    "Fallback",
    "Recovered",
    "RecoveryEvent",
    "Repaired",
    "Retry",
    "RetryDenied",
    "StreamResumed",
    "SuppressedError",
    "Unknown",
    "decode",
    "decode_lines",
    "encode",
    "encode_lines",
    "schema",
    "write_document",
]
