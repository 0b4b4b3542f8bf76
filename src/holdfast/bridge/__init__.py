"""The bridge: a server on which people drive their agents from elsewhere, and the client. It performs what `holdfast.wire` decides.

What a client sends is stored before it is acknowledged, and a client that was away gets what it missed. The walk of a message: `access/` lets
its socket in, `connection` drives the protocol, `requests` does what the message says with the `hub`, `sessions/` stores it and lets the agent
answer. `http/` is the same over HTTP, `host/` the process in which agents outlive the server, `client/` the other side, `page/` the web page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.bridge.access.lockout import Lockout, LockoutLimits
    from holdfast.bridge.access.tls import TlsFiles, pin_of_file
    from holdfast.bridge.access.tokens import Tokens
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
    from holdfast.bridge.host.link import AgentProcess
    from holdfast.bridge.server import Bridge
    from holdfast.bridge.sessions.turn import Turn
    from holdfast.bridge.settings import BridgeSettings
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
    "Lockout": "holdfast.bridge.access.lockout",
    "LockoutLimits": "holdfast.bridge.access.lockout",
    "TlsFiles": "holdfast.bridge.access.tls",
    "pin_of_file": "holdfast.bridge.access.tls",
    "AgentProcess": "holdfast.bridge.host.link",
    "Bridge": "holdfast.bridge.server",
    "BridgeSettings": "holdfast.bridge.settings",
    "Tokens": "holdfast.bridge.access.tokens",
    "Turn": "holdfast.bridge.sessions.turn",
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
