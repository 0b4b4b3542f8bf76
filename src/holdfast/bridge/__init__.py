"""The bridge: a server on which people drive their agents from elsewhere, and the client. The protocol is `holdfast.wire`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.bridge.client.client import Client, Pending
    from holdfast.bridge.client.driver import ConnectionStatus
    from holdfast.bridge.client.errors import BridgeConnectionError, ReconnectionExhaustedError
    from holdfast.bridge.client.messages import (
        AnswerEnded,
        AnswerStarted,
        Gap,
        HookEvent,
        Message,
        Notification,
        NotStored,
        Presence,
        Question,
        QuestionClosed,
        Recovery,
        SessionEvent,
        Snapshot,
        State,
        Text,
        ToolCalled,
        ToolFailed,
        ToolReturned,
        Unknown,
        UserText,
    )
    from holdfast.bridge.client.session import RemoteSession
    from holdfast.bridge.error_reports import ErrorReports
    from holdfast.bridge.host_link import AgentProcess
    from holdfast.bridge.lockout import Lockout, LockoutLimits
    from holdfast.bridge.server import Bridge
    from holdfast.bridge.settings import BridgeSettings
    from holdfast.bridge.tls import TlsFiles, pin_of_file
    from holdfast.bridge.tokens import Tokens
    from holdfast.bridge.turn import Turn
    from holdfast.sessions.questions.question import Answer
    from holdfast.wire.position import Position
    from holdfast.wire.reconnect import Schedule

__all__ = [
    "AgentProcess",
    "Answer",
    "AnswerEnded",
    "AnswerStarted",
    "Bridge",
    "BridgeConnectionError",
    "BridgeSettings",
    "Client",
    "ConnectionStatus",
    "ErrorReports",
    "Gap",
    "HookEvent",
    "Lockout",
    "LockoutLimits",
    "Message",
    "NotStored",
    "Notification",
    "Pending",
    "Position",
    "Presence",
    "Question",
    "QuestionClosed",
    "ReconnectionExhaustedError",
    "Recovery",
    "RemoteSession",
    "Schedule",
    "SessionEvent",
    "Snapshot",
    "State",
    "Text",
    "TlsFiles",
    "Tokens",
    "ToolCalled",
    "ToolFailed",
    "ToolReturned",
    "Turn",
    "Unknown",
    "UserText",
    "pin_of_file",
]

_HOMES = {
    "ErrorReports": "holdfast.bridge.error_reports",
    "Lockout": "holdfast.bridge.lockout",
    "LockoutLimits": "holdfast.bridge.lockout",
    "TlsFiles": "holdfast.bridge.tls",
    "pin_of_file": "holdfast.bridge.tls",
    "AgentProcess": "holdfast.bridge.host_link",
    "Bridge": "holdfast.bridge.server",
    "BridgeSettings": "holdfast.bridge.settings",
    "Tokens": "holdfast.bridge.tokens",
    "Turn": "holdfast.bridge.turn",
    "Answer": "holdfast.sessions.questions.question",
    "Position": "holdfast.wire.position",
    "Schedule": "holdfast.wire.reconnect",
    "Client": "holdfast.bridge.client.client",
    "Pending": "holdfast.bridge.client.client",
    "ConnectionStatus": "holdfast.bridge.client.driver",
    "BridgeConnectionError": "holdfast.bridge.client.errors",
    "ReconnectionExhaustedError": "holdfast.bridge.client.errors",
    "RemoteSession": "holdfast.bridge.client.session",
}

# Everything else is a message of a session.
__getattr__ = loader(__name__, globals(), dict.fromkeys(__all__, "holdfast.bridge.client.messages") | _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
