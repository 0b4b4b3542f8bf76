"""One example of every message, for the reference page and the generated description. The tests read each of them.

Invariant: every type of `FROM_CLIENT` and of `FROM_SERVER` has its example here, and the example is valid.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.wire.messages import DURABLE, FROM_CLIENT, FROM_SERVER

__all__ = ["CLIENT_EXAMPLES", "SERVER_EXAMPLES", "example"]

_TIME: Final = "2026-11-15T01:02:03.004Z"
_ID: Final = "0b8a7f60-1c2d-4e3f-8a9b-0c1d2e3f4a5b"
_REQUEST: Final = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
_SESSION: Final = "release-42"
_EPOCH: Final = "k3JxQ0s7Vn2mTzYw"
_AFTER: Final = {"epoch": _EPOCH, "offset": 174, "id": _ID}
_HEARTBEAT: Final[dict[str, Any]] = {"offsets": {_SESSION: 174}}
_SESSION_ONLY: Final[dict[str, Any]] = {"session_id": _SESSION}
_GAP: Final[dict[str, Any]] = {
    "reason": "evicted",
    "requested": 12,
    "oldest_offset": 90,
    "top_offset": 174,
    "snapshot_offset": 160,
    "recoverable_via": ["snapshot", "events_api"],
}
_LIMITS: Final[dict[str, Any]] = {
    "max_frame": 1_000_000,
    "max_inflight": 32,
    "replay_bytes": 102_400,
    "replay_age_ms": 1_800_000,
    "grace_ms": 300_000,
}
_SUMMARY: Final[dict[str, Any]] = {
    "session_id": _SESSION,
    "status": "active",
    "agent": "coder",
    "title": "Release 42",
    "working_directory": "/srv/app",
}

CLIENT_EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "auth": {
        "token": "hf_device_…",
        "client_id": "adas-phone",
        "client_version": "1.4.0",
        "platform": "ios",
        "protocol": [1, 2],
        "resume": [{"session_id": _SESSION, "resume_token": "…", "after": _AFTER}],
    },
    "health_check": {"timestamp": _TIME, "client_nonce": "f81d4fae", "client_capabilities": ["approvals"]},
    "acknowledge_warning": {"warning_code": "DIRECT_PUBLIC_CONNECTION"},
    "heartbeat_ping": {},
    "heartbeat_pong": {},
    "refresh_token": {"token": "hf_device_…"},
    "session_list": {},
    "session_create": {
        "session_id": _SESSION,
        "agent": "coder",
        "title": "Release 42",
        "working_directory": "/srv/app",
    },
    "session_join": {
        "session_id": _SESSION,
        "role": "controller",
        "resume_token": "…",
        "after": _AFTER,
        "history": "tail",
    },
    "session_start": {"session_id": _SESSION, "resume": True},
    "session_resume": _SESSION_ONLY,
    "session_message": {"content": "fix the tests", "expires_at": "2026-11-15T01:12:03Z"},
    "message": {"text": "fix the tests"},
    "answer": {"question_id": "3f6e1d2c", "value": "staging", "outcome": "accepted"},
    "approval_response": {
        "tool_call_id": "tool-001",
        "decision": "modified",
        "modifications": {"command": "make deploy ENV=staging"},
        "reason": "not to production yet",
    },
    "request_replay": {"since_offset": 174, "epoch": _EPOCH},
    "ack": {"epoch": _EPOCH, "offset": 174},
    "notification_ack": {"notification_ids": ["n-17"]},
    "command": {"run": "5d1c", "command": "retry_now"},
    "session_end": {"reason": "completed"},
    "session_rename": {"title": "Release 42, second try"},
    "session_leave": {},
    "session_pause": {},
    "session_close": {},
    "session_snapshot": _SESSION_ONLY,
    "stop": {"turn": 4},
}
"""The payload of an example of every message from the client."""

SERVER_EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "connection_ack": {
        "connection_id": "c-9f2e",
        "protocol": 2,
        "server_version": "1.0.0",
        "server_time": _TIME,
        "heartbeat_interval_ms": 15_000,
        "limits": _LIMITS,
        "connection_mode": "secure_remote",
        "connection_mode_description": "Encrypted, over a private network",
        "bridge_url": "wss://host.example:8765/ws",
        "requires_health_verification": False,
        "supported_agents": ["coder"],
        "active_sessions": [_SUMMARY],
        "resumed": [_SESSION],
    },
    "connection_error": {
        "code": "CONN_TLS_HANDSHAKE_FAILED",
        "message": "TLS handshake failed",
        "details": {
            "reason": "CERTIFICATE_EXPIRED",
            "expiry": "2026-11-01T00:00:00Z",
            "suggested_action": "regenerate_certificates",
        },
        "recoverable": False,
    },
    "error": {
        "code": "PROTO_INVALID_MESSAGE",
        "message": "Message validation failed",
        "recoverable": False,
        "severity": "error",
        "violations": [
            {"field": "id", "constraint": "required"},
            {"field": "timestamp", "constraint": "iso8601", "received": "2026-03-20 14:32:00"},
        ],
    },
    "health_status": {
        "status": "warning",
        "connection_mode": "direct_public",
        "ready": False,
        "server_timestamp": _TIME,
        "warnings": ["DIRECT_PUBLIC_CONNECTION"],
        "warning_details": {"DIRECT_PUBLIC_CONNECTION": "Anyone on the internet can reach this address"},
        "checks": {"tls_valid": True, "clock_sync": True, "version_compatible": True, "token_permissions": True},
        "latency_ms": 12,
        "requires_acknowledgment": True,
    },
    "acknowledgment_accepted": {"warning_code": "DIRECT_PUBLIC_CONNECTION", "ready": True, "session_timeout": "8h"},
    "heartbeat_ping": _HEARTBEAT,
    "heartbeat_pong": _HEARTBEAT,
    "sessions": {"sessions": [_SUMMARY]},
    "session_joined": {
        "session_id": _SESSION,
        "state": "active",
        "role": "controller",
        "epoch": _EPOCH,
        "oldest_offset": 90,
        "top_offset": 180,
        "from_offset": 174,
        "was_recovering": True,
        "recovered": True,
        "resume_token": "…",
        "resume_expires_in_ms": 300_000,
        "clients": 2,
        "resume_status": "ok",
    },
    "session_ready": {
        "session_id": _SESSION,
        "agent": "coder",
        "working_directory": "/srv/app",
        "status": "ready",
    },
    "replay_buffer": {
        "session_id": _SESSION,
        "messages": [
            {
                "type": "stream_chunk",
                "id": "5f2b6c1a-7d3e-4f80-91a2-b3c4d5e6f708",
                "timestamp": _TIME,
                "payload": {"stream_id": "s-3", "text": "All tests pass."},
                "session_id": _SESSION,
                "epoch": _EPOCH,
                "offset": 175,
            }
        ],
        "from": 175,
        "to": 175,
        "more": False,
        "complete": True,
    },
    "session_state": {
        "session_id": _SESSION,
        "at_offset": 180,
        "state": "active",
        "turn": "requires_action",
        "turn_number": 4,
        "in_flight": True,
        "pending_questions": [{"question_id": "3f6e1d2c", "kind": "Ask", "prompt": "Deploy where?"}],
        "unacked_client_ids": [],
    },
    "gap": _GAP | {"session_id": _SESSION},
    "snapshot": {"session_id": _SESSION, "epoch": _EPOCH, "offset": 180, "state": {"state": "active", "turn": "idle"}},
    "ack": {
        "ids": [_REQUEST, _ID],
        "results": [
            {"id": _REQUEST, "status": "stored", "offset": 181},
            {"id": _ID, "status": "duplicate", "offset": 174},
        ],
    },
    "user_message": {"content": "fix the tests", "client_id": "adas-phone", "message_id": _REQUEST},
    "stream_start": {"stream_id": "s-3", "turn": 4, "model": "claude-sonnet"},
    "stream_chunk": {"stream_id": "s-3", "text": "All tests pass."},
    "stream_end": {
        "stream_id": "s-3",
        "finish_reason": "stop",
        "usage": {"input": 812, "output": 40, "cached": 0, "written": 0},
        "usd": 0.003,
    },
    "tool_call": {
        "tool_call_id": "tool-001",
        "tool": "bash",
        "params": {"command": "make test"},
        "description": "Run the tests",
        "turn": 4,
    },
    "tool_result": {
        "tool_call_id": "tool-001",
        "tool": "bash",
        "success": True,
        "content": "214 passed",
        "duration_ms": 8120,
    },
    "tool_error": {
        "tool_call_id": "tool-001",
        "tool": "bash",
        "code": "TOOL_EXECUTION_FAILED",
        "message": "Command exited with code 1",
        "retryable": True,
        "max_retries": 3,
        "details": {"exit_code": 1, "stderr": "1 failed", "stdout": "", "execution_time_ms": 8120},
    },
    "approval_required": {
        "tool_call_id": "tool-001",
        "tool": "bash",
        "params": {"command": "make deploy"},
        "description": "Deploy the release",
        "question_id": "3f6e1d2c",
        "risk_level": "high",
        "source": "agent_sdk",
        "expires_at": "2026-11-15T01:12:03Z",
    },
    "approval_resolved": {
        "tool_call_id": "tool-001",
        "question_id": "9b2c7a10",
        "decision": "approved",
        "by": "Ada's phone",
    },
    "question": {
        "question_id": "3f6e1d2c",
        "kind": "Select",
        "prompt": "Deploy where?",
        "choices": ["staging", "production"],
        "expires_at": "2026-11-15T01:12:03Z",
    },
    "question_closed": {"question_id": "3f6e1d2c", "outcome": "accepted", "by": "Ada's phone"},
    "recovery": {
        "event": {"type": "retry", "attempt": 1, "max_attempts": 3, "delay": 3.4, "session": _SESSION, "turn": 4},
        "line": "Retrying... (2/3)",
        "run": "5d1c",
        "can": ["retry_now", "fall_back", "cancel"],
    },
    "claude_event": {
        "event": "PostToolUse",
        "data": {"tool_name": "Bash", "tool_use_id": "toolu_01"},
        "event_id": "e-204",
    },
    "notification": {
        "notification_id": "n-17",
        "notification_type": "task_completed",
        "title": "The release is out",
        "body": "All tests pass.",
        "priority": "normal",
        "data": {"session_id": _SESSION},
    },
    "session_event": {"event": "turn_ended", "turn": 4, "outcome": "ok"},
    "presence": {"session_id": _SESSION, "clients": 2},
    "certificate_rotation_scheduled": {
        "new_fingerprint": "sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
        "effective_date": "2026-11-16T01:02:03Z",
    },
}
"""The payload of an example of every message from the server."""

_ABOUT_A_SESSION: Final = frozenset(
    {"ack", "answer", "approval_response", "command", "message", "request_replay", "session_message", "stop"}
)
_ANSWERS: Final = frozenset(
    {"heartbeat_pong", "sessions", "session_joined", "session_ready", "snapshot", "health_status"}
)


def example(type_: str, *, from_client: bool) -> dict[str, Any]:
    """Return a whole message of this type, as it is on the wire.

    >>> example("heartbeat_ping", from_client=True)["type"]
    'heartbeat_ping'
    """
    kinds, payloads = (FROM_CLIENT, CLIENT_EXAMPLES) if from_client else (FROM_SERVER, SERVER_EXAMPLES)
    if type_ not in kinds:
        raise KeyError(type_)
    message: dict[str, Any] = {"type": type_, "id": _ID, "timestamp": _TIME, "payload": payloads[type_]}
    if from_client:
        return message | ({"session_id": _SESSION} if type_ in _ABOUT_A_SESSION else {})
    if type_ in DURABLE:
        return message | {"session_id": _SESSION, "epoch": _EPOCH, "offset": 174}
    return message | ({"re": _REQUEST} if type_ in _ANSWERS else {})
