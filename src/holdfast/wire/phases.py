"""The phases of a connection, and which messages a client may send in each.

    unauthenticated ─auth─▶ authenticated ─health_check─▶ healthy ─session_join─▶ joined
                                                  └▶ awaiting_ack ─acknowledge_warning─▶ healthy

Invariant: a message that is not in the set of the connection's phase is not executed. The reply names the phase and its set.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.faults import Fault


class ConnectionPhase(StrEnum):
    """How far a connection has come."""

    UNAUTHENTICATED = "unauthenticated"
    AUTHENTICATED = "authenticated"
    AWAITING_ACK = "awaiting_ack"
    """Authenticated over a public connection: nothing may be joined before the warning is acknowledged."""
    HEALTHY = "healthy"
    JOINED = "joined"


_ALWAYS = frozenset({"heartbeat_ping", "heartbeat_pong"})
_AUTHENTICATED = _ALWAYS | {"health_check", "session_list", "refresh_token", "notification_ack"}
_MAY_JOIN = frozenset({"session_create", "session_join", "session_start", "session_resume", "session_snapshot"})
_JOINED = frozenset({
    "ack",
    "answer",
    "approval_response",
    "command",
    "message",
    "request_replay",
    "session_close",
    "session_end",
    "session_leave",
    "session_message",
    "session_pause",
    "session_rename",
    "stop",
})  # fmt: skip

SEQUENCE_MAP: Final[dict[ConnectionPhase, frozenset[str]]] = {
    ConnectionPhase.UNAUTHENTICATED: _ALWAYS | {"auth"},
    ConnectionPhase.AUTHENTICATED: _AUTHENTICATED | _MAY_JOIN,
    ConnectionPhase.AWAITING_ACK: _AUTHENTICATED | {"acknowledge_warning"},
    ConnectionPhase.HEALTHY: _AUTHENTICATED | _MAY_JOIN | {"acknowledge_warning"},
    ConnectionPhase.JOINED: _AUTHENTICATED | _MAY_JOIN | _JOINED,
}
"""The messages that a client may send in each phase."""

CLIENT_MESSAGES: Final[frozenset[str]] = frozenset().union(*SEQUENCE_MAP.values())
"""Every message that a client may send in some phase."""


def check_sequence(received: str, phase: ConnectionPhase) -> Fault | None:
    """Return the fault for a message that is not allowed in this phase, or None if it is.

    >>> check_sequence("session_message", Phase.HEALTHY).code
    'PROTO_SEQUENCE_ERROR'
    """
    expected = SEQUENCE_MAP[phase]
    if received in expected:
        return None
    if received not in CLIENT_MESSAGES and phase is not ConnectionPhase.UNAUTHENTICATED:
        context = {"received": received, "supported": sorted(CLIENT_MESSAGES)}
        return Fault.of("PROTO_UNKNOWN_TYPE", context=context)
    context = {"expected": sorted(expected - _ALWAYS), "received": received, "phase": phase.value}
    return Fault.of("PROTO_SEQUENCE_ERROR", context=context)
