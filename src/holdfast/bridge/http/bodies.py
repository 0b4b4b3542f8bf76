"""What the bridge answers over HTTP, and what it takes: one type for each body. The OpenAPI document is made from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

__all__ = [
    "Accepted",
    "BatchReply",
    "Body",
    "Checkpoint",
    "ClientReport",
    "Command",
    "CommandReply",
    "EventPage",
    "GapBody",
    "Health",
    "HookBatch",
    "HookBody",
    "HookRejection",
    "HookReply",
    "Info",
    "NewEvent",
    "PairRequest",
    "Paired",
    "Reason",
    "Reloaded",
    "ServerLimitsBody",
    "SessionBody",
    "SessionPage",
    "Ticket",
    "WaitingBody",
]


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A JSON body. Unknown fields of a request are ignored."""


class Health(Body, frozen=True, kw_only=True):
    """Whether the bridge works."""

    status: Literal["healthy", "degraded"]
    timestamp: str
    version: str = ""
    checks: dict[str, bool] = {}
    """Only for those who have a token."""
    problems: dict[str, str] = {}
    """Why a check failed, and what to do about it. Only for those who have a token."""


class ServerLimitsBody(Body, frozen=True, kw_only=True):
    """How much the bridge allows."""

    max_sessions: int
    max_websocket_connections: int
    max_message_size_mb: float
    hook_timeout_seconds: float
    max_body_bytes: int
    requests_per_minute: dict[str, int]
    grace_seconds: float
    replay_bytes: int
    replay_age_seconds: float


class Info(Body, frozen=True, kw_only=True):
    """What the bridge is."""

    server_version: str
    protocols: list[int]
    connection_mode: str
    limits: ServerLimitsBody
    supported_agents: list[str]
    hook_events: list[str]
    active_sessions: int
    connections: int
    uptime_seconds: float


class Checkpoint(Body, frozen=True, kw_only=True):
    """The last snapshot of a session."""

    offset: int
    message_count: int
    last_message_id: str | None = None


class SessionBody(Body, frozen=True, kw_only=True, omit_defaults=False):
    """A session."""

    session_id: str
    state: Literal["created", "active", "paused", "closed", "error"]
    resumable: bool
    agent: str
    title: str
    working_directory: str
    created_at: str
    last_activity_at: str
    epoch: str
    oldest_offset: int
    top_offset: int
    in_use: bool
    """Whether a program works in it."""
    clients: int
    """Connections that have joined it."""
    checkpoint: Checkpoint | None = None
    problem: str = ""
    """Why it cannot be read, if so."""


class SessionPage(Body, frozen=True, kw_only=True, omit_defaults=False):
    """Sessions in the order of their ids."""

    sessions: list[SessionBody]
    next: str | None = None
    """Give it as `after` to get the next page; null: there is none."""


class EventPage(Body, frozen=True, kw_only=True, omit_defaults=False):
    """Messages of a session's log, as WebSocket clients get them."""

    session_id: str
    epoch: str
    events: list[Any]
    next_after: int
    """Give it as `after`, with the epoch, to get the next page."""
    has_more: bool


class GapBody(Body, frozen=True, kw_only=True):
    """Messages are missing between the client's position and the log."""

    error: str
    code: str
    message: str
    gap: dict[str, Any]


class NewEvent(Body, frozen=True, kw_only=True):
    """Something for a session: a message, or the answer to a question."""

    type: Literal["message", "session_message", "answer"]
    content: Annotated[str, Meta(max_length=1_000_000)] | UnsetType = UNSET
    """The text of a message."""
    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")] | UnsetType = UNSET
    """The same id again is stored once. Without it the header Idempotency-Key is used."""
    question_id: Annotated[str, Meta(min_length=1, max_length=256)] | UnsetType = UNSET
    arguments_hash: Annotated[str, Meta(max_length=256)] = ""
    """That of the question as it was shown. The answer counts only for that."""
    value: Any = None
    outcome: Literal["accepted", "rejected", "dismissed"] = "accepted"
    reason: Annotated[str, Meta(max_length=4_096)] = ""


class Accepted(Body, frozen=True, kw_only=True, omit_defaults=False):
    """It is stored."""

    accepted: bool
    message_id: str
    offset: int | None = None
    duplicate: bool = False


class HookBody(Body, frozen=True, kw_only=True):
    """A hook event: this form, the same with `event_type`, or the body of Claude Code with `hook_event_name`."""

    session_id: Annotated[str, Meta(min_length=1, max_length=128)]
    event: str | UnsetType = UNSET
    event_type: str | UnsetType = UNSET
    hook_event_name: str | UnsetType = UNSET
    timestamp: str | UnsetType = UNSET
    payload: dict[str, Any] | UnsetType = UNSET


class HookReply(Body, frozen=True, kw_only=True, omit_defaults=False):
    """The event is in the session's log."""

    received: bool
    event_id: str
    broadcast_count: int
    """Connections that have joined the session."""
    timestamp: str
    offset: int
    duplicate: bool = False


class HookRejection(Body, frozen=True, kw_only=True):
    """The event was not accepted."""

    received: bool
    code: str
    errors: list[dict[str, str]]
    validation_errors: list[dict[str, str]]
    timestamp: str


class HookBatch(Body, frozen=True, kw_only=True):
    """Several hook events. Each is stored or rejected by itself."""

    events: Annotated[list[HookBody], Meta(min_length=1, max_length=1_000)]


class BatchReply(Body, frozen=True, kw_only=True, omit_defaults=False):
    """What became of the events of a batch."""

    received: bool
    count: int
    accepted: int
    rejected: int
    event_ids: list[str]
    errors: list[dict[str, Any]] = []
    """What was wrong with those that were rejected, each with its index."""
    timestamp: str = ""


class Ticket(Body, frozen=True, kw_only=True, omit_defaults=False):
    """A ticket stands for the token once, in the message `auth` of a WebSocket."""

    ticket: str
    expires_in_ms: int


class Command(Body, frozen=True, kw_only=True):
    """What an operation that waits shall do."""

    run: Annotated[str, Meta(min_length=1, max_length=128)]
    command: Literal["retry_now", "fall_back", "cancel"]


class CommandReply(Body, frozen=True, kw_only=True, omit_defaults=False):
    """Whether the operation was waiting, and does it."""

    done: bool


class WaitingBody(Body, frozen=True, kw_only=True, omit_defaults=False):
    """The operations that wait at present."""

    waiting: list[dict[str, Any]]


class Reason(Body, frozen=True, kw_only=True):
    """Why a session is closed."""

    reason: Annotated[str, Meta(max_length=200)] = "closed"


class Reloaded(Body, frozen=True, kw_only=True, omit_defaults=False):
    """The rules for hook events that are in force now."""

    reloaded: bool
    strict: bool
    skew_seconds: float | None


class ClientReport(Body, frozen=True, kw_only=True):
    """An error that a client has seen, for the error metrics."""

    code: Annotated[str, Meta(pattern=r"^[A-Z][A-Z_]{1,63}$")]
    session_id: Annotated[str, Meta(max_length=128)] = ""


class PairRequest(Body, frozen=True, kw_only=True):
    """The code that `holdfast pair` shows, and what the device is called."""

    code: Annotated[str, Meta(min_length=1, max_length=64)]
    name: Annotated[str, Meta(min_length=1, max_length=100)]


class Paired(Body, frozen=True, kw_only=True, omit_defaults=False):
    """The token of a new device. It is shown here, and never again."""

    token: str
    token_id: str
    name: str
    role: str
