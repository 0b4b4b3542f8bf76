"""What happened: one frozen record per fact, and its JSON. Logs, audit, metrics and pages only read them.

If you ignore a failure on purpose, do it with `holdfast.suppress`: it emits a `SuppressedError` with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader
from holdfast.events.records import (
    KINDS,
    VERSION,
    AgentFallback,
    AttemptEnded,
    AttemptStarted,
    BudgetWarning,
    Cancelled,
    ChildExited,
    ChildLeaked,
    ChildRestarting,
    ChildStarted,
    ChildStopped,
    CircuitState,
    CircuitStateChange,
    Command,
    Commanded,
    Degraded,
    Event,
    Failed,
    Fallback,
    GaveUp,
    MailboxPressure,
    MCPReconnectAttempt,
    MCPServerDisconnected,
    MCPServerReconnected,
    MessageDropped,
    OperatorAsked,
    Recovered,
    RecoveryEvent,
    Repaired,
    Retry,
    RetryDenied,
    SessionTurnEnd,
    SessionTurnStart,
    StagePostFired,
    StagePreFired,
    StreamResumed,
    SuppressedError,
    Unknown,
    UserNotified,
)

if TYPE_CHECKING:
    from holdfast.events.codec import decode, decode_lines, encode, encode_lines, schema, write_document

__all__ = [
    "KINDS",
    "VERSION",
    "AgentFallback",
    "AttemptEnded",
    "AttemptStarted",
    "BudgetWarning",
    "Cancelled",
    "ChildExited",
    "ChildLeaked",
    "ChildRestarting",
    "ChildStarted",
    "ChildStopped",
    "CircuitState",
    "CircuitStateChange",
    "Command",
    "Commanded",
    "Degraded",
    "Event",
    "Failed",
    "Fallback",
    "GaveUp",
    "MCPReconnectAttempt",
    "MCPServerDisconnected",
    "MCPServerReconnected",
    "MailboxPressure",
    "MessageDropped",
    "OperatorAsked",
    "Recovered",
    "RecoveryEvent",
    "Repaired",
    "Retry",
    "RetryDenied",
    "SessionTurnEnd",
    "SessionTurnStart",
    "StagePostFired",
    "StagePreFired",
    "StreamResumed",
    "SuppressedError",
    "Unknown",
    "UserNotified",
    "decode",
    "decode_lines",
    "encode",
    "encode_lines",
    "schema",
    "write_document",
]

# Every call needs the records. Only code that stores or sends them needs the JSON, which loads all views.
_CODEC = ("decode", "decode_lines", "encode", "encode_lines", "schema", "write_document")
__getattr__ = loader(__name__, globals(), dict.fromkeys(_CODEC, "holdfast.events.codec"))
