"""The bridge between clients and agents (document 000): its names, in Python's spelling. Times are seconds.

    from holdfast.documents.bridge import Bridge, Client

    async with Bridge(agent).serving("127.0.0.1", 3000):
        async with Client("ws://127.0.0.1:3000/ws", token=token, reconnect="bridge") as client: ...

`BridgeConnection` is the client; `reconnect="linear"` makes it the document's `BridgeConnectionRecovery`. A `ProtocolMessage` is checked by
`read_message`, a hook event by `read_hook`; `resume_session` is `session_resume` on the wire, and `Session.open` in a program. The profile
`bridge` has the grace and the sizes. The server and the client need `holdfast[server]`; the other names do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader
from holdfast.faults import Layer, Severity
from holdfast.manager import CircuitHandle as CircuitBreaker
from holdfast.manager import create_circuit_breaker
from holdfast.policies.alerts import Alerts, Threshold
from holdfast.policies.circuit import BRIDGE as BRIDGE_CIRCUIT
from holdfast.policies.profiles import TOOL_TIMEOUTS
from holdfast.profiles import bridge
from holdfast.sessions import Session
from holdfast.sessions.transfer import PersistedCheckpoint, PersistedSession
from holdfast.sessions.transfer import load_persisted as load_sessions
from holdfast.sessions.transfer import save_persisted as save_sessions
from holdfast.sinks.alerts import raise_alerts
from holdfast.sinks.metric import ErrorMetric
from holdfast.sinks.severity import react_to_failures
from holdfast.stores import Checkpoint as SessionCheckpoint
from holdfast.stores import SessionState
from holdfast.views.wire import connection_error, error_reply, hook_reply, http_body, tool_error
from holdfast.wire.envelope import Envelope as BridgeMessage
from holdfast.wire.envelope import Envelope as ProtocolMessage
from holdfast.wire.envelope import Violation
from holdfast.wire.envelope import read as read_message
from holdfast.wire.phases import SEQUENCE_MAP
from holdfast.wire.phases import ConnectionPhase as ConnectionState
from holdfast.wire.phases import check_sequence as validate_sequence
from holdfast.wire.reconnect import BRIDGE as RECONNECT_DELAYS
from holdfast.wire.reconnect import CONNECT_TIMEOUT, LINEAR, Schedule
from holdfast.wire.replay import ReplayBuffer

if TYPE_CHECKING:
    from holdfast.bridge import Bridge, BridgeConnectionError, BridgeSettings, Client, ReconnectionExhaustedError
    from holdfast.bridge import BridgeConnectionError as BridgeConnectionException
    from holdfast.bridge import Client as BridgeConnection
    from holdfast.bridge.http.hooks import HookEvent, HookRules, read_hook

__all__ = [
    "BRIDGE_CIRCUIT",
    "CONNECT_TIMEOUT",
    "LINEAR",
    "RECONNECT_DELAYS",
    "SEQUENCE_MAP",
    "TOOL_TIMEOUTS",
    "Alerts",
    "Bridge",
    "BridgeConnection",
    "BridgeConnectionError",
    "BridgeConnectionException",
    "BridgeMessage",
    "BridgeSettings",
    "CircuitBreaker",
    "Client",
    "ConnectionState",
    "ErrorMetric",
    "HookEvent",
    "HookRules",
    "Layer",
    "PersistedCheckpoint",
    "PersistedSession",
    "ProtocolMessage",
    "ReconnectionExhaustedError",
    "ReplayBuffer",
    "Schedule",
    "Session",
    "SessionCheckpoint",
    "SessionState",
    "Severity",
    "Threshold",
    "Violation",
    "bridge",
    "connection_error",
    "create_circuit_breaker",
    "error_reply",
    "hook_reply",
    "http_body",
    "load_sessions",
    "raise_alerts",
    "react_to_failures",
    "read_hook",
    "read_message",
    "save_sessions",
    "tool_error",
    "validate_sequence",
]

__getattr__ = loader(
    __name__,
    globals(),
    {
        **dict.fromkeys(
            ("Bridge", "BridgeConnectionError", "BridgeSettings", "Client", "ReconnectionExhaustedError"),
            "holdfast.bridge",
        ),
        **dict.fromkeys(("HookEvent", "HookRules", "read_hook"), "holdfast.bridge.http.hooks"),
        "BridgeConnection": "holdfast.bridge:Client",
        "BridgeConnectionException": "holdfast.bridge:BridgeConnectionError",
    },
)
