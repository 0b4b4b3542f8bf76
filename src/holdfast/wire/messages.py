"""The payload of every message: one class for each type, for both directions.

Invariant: this is the only place that says what a message contains. Reading, the reference page and the generated description all use it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.wire.envelope import Invalid, Violation, shown
from holdfast.wire.outbox import AckResult
from holdfast.wire.position import GapReason, Position

NAME_LENGTH: Final = 200
"""The most characters of a name that people give: a title, an agent, a device."""
PATH_LENGTH: Final = 4_096

SessionId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256, description="The id of a session.")]
Id: TypeAlias = Annotated[str, Meta(max_length=256)]
Name: TypeAlias = Annotated[str, Meta(max_length=NAME_LENGTH)]
Path: TypeAlias = Annotated[str, Meta(max_length=PATH_LENGTH)]
Reason: TypeAlias = Annotated[str, Meta(max_length=4_096)]
Secret: TypeAlias = Annotated[str, Meta(max_length=8_192)]
Text: TypeAlias = Annotated[str, Meta(max_length=1_000_000)]
Role: TypeAlias = Literal["controller", "observer"]
Doing: TypeAlias = Literal["running", "idle", "requires_action"]
Time: TypeAlias = Annotated[str, Meta(max_length=64, description="A date and time of ISO 8601.")]
ConnectionMode: TypeAlias = Literal["local_only", "private_network", "secure_remote", "direct_public", "misconfigured"]


# A value that cannot change has no cycles, so the garbage collector need not look at it.
class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a message contains. Unknown fields are ignored, so that newer clients and servers understand older ones."""


class _OfSession(Payload, frozen=True, kw_only=True):
    session_id: SessionId | UnsetType = UNSET
    """The session; without it the one that the connection has joined."""


class _Long(Payload, frozen=True, kw_only=True):
    cut: bool = False
    """Whether its texts and lists are not whole: they were too long for a message. The session's log has all of it."""


# --- from the client ---


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session to join again while authenticating."""

    session_id: SessionId
    role: Role = "controller"
    """What it wants to be. It does not become more than what its `resume_token` says that it was."""
    resume_token: Id = ""
    after: Position | None = None


class Auth(Payload, frozen=True, kw_only=True):
    """The first message of a connection: who is there."""

    token: Secret = ""
    ticket: Id = ""
    """A one-time ticket in place of the token, for browsers."""
    client_id: Id = ""
    """The same for all connections of one client. A newer connection takes over from an older one."""
    client_version: Name = ""
    platform: Name = ""
    device_id: Id = ""
    purpose: Literal["primary", "probe"] = "primary"
    protocol: tuple[int, ...] = ()
    """The versions of the protocol that the client speaks; empty: 1."""
    supported_protocols: tuple[Name, ...] = ()
    """The same in an older form: `["v1"]`."""
    resume: tuple[ResumeRequest, ...] = ()
    """Sessions to join at once."""


class HealthCheck(Payload, frozen=True, kw_only=True):
    """Asks how well the connection is."""

    timestamp: Id = ""
    client_nonce: Id = ""
    client_capabilities: tuple[Name, ...] = ()


class AcknowledgeWarning(Payload, frozen=True, kw_only=True):
    """The user has read a warning: only then a session may be joined over a public connection."""

    warning_code: Name


class Heartbeat(Payload, frozen=True, kw_only=True):
    """A sign of life, or the answer to one."""

    offsets: dict[Id, int] = {}
    """From the server: the last offset that it has sent for each session. A client that has less has lost something on the way."""


class RefreshToken(Payload, frozen=True, kw_only=True):
    """A new token, before the old one expires."""

    token: Annotated[str, Meta(min_length=1, max_length=8_192)]


class SessionList(Payload, frozen=True, kw_only=True):
    """Asks for the sessions that the client may see, in the order of their ids."""

    after: Id = ""
    """The id after which the list goes on: `next` of the answer before."""
    in_use: bool = False
    """Only those that this server has in use: the ones that may work, or wait for a person. The answer is short, so a client may ask often."""


class SessionCreate(_OfSession, frozen=True, kw_only=True):
    """Makes a session and joins it."""

    agent: Name = ""
    title: Name = ""
    working_directory: Path = ""


class SessionJoin(Payload, frozen=True, kw_only=True):
    """Joins a session, or joins it again after a position."""

    session_id: SessionId
    role: Role = "controller"
    resume_token: Id = ""
    after: Position | None = None
    history: Literal["tail", "full", "pending", "none"] = "tail"
    """What a client without a position gets: what is held, all, what waits for an answer, or only what is new."""


class SessionStart(_OfSession, frozen=True, kw_only=True):
    """Makes a session, or with `resume` joins one: the form of older clients."""

    resume: bool = False
    agent: Name = ""
    title: Name = ""
    working_directory: Path = ""


class SessionResume(Payload, frozen=True, kw_only=True):
    """Makes a paused session active again, and joins it."""

    session_id: SessionId


class SessionMessage(_OfSession, frozen=True, kw_only=True):
    """Something for the agent."""

    content: Text | UnsetType = UNSET
    text: Text | UnsetType = UNSET
    """The same as `content`."""
    role: Literal["user"] = "user"
    expires_at: Time | None = None
    """Not stored after this time."""


class Answer(_OfSession, frozen=True, kw_only=True):
    """The answer to a question."""

    question_id: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments_hash: Id = ""
    """That of the question as it was shown. The answer counts only for that."""
    value: Any = None
    outcome: Literal["accepted", "rejected", "dismissed"] = "accepted"
    reason: Reason = ""
    expires_at: Time | None = None


class ApprovalResponse(_OfSession, frozen=True, kw_only=True):
    """The answer to `approval_required`."""

    tool_call_id: Annotated[str, Meta(min_length=1, max_length=256)]
    question_id: Id = ""
    """The question that was shown. Without it the one that waits and is about this call."""
    arguments_hash: Id = ""
    """That of the question as it was shown. The answer counts only for that."""
    decision: Literal["approved", "rejected", "modified"]
    modifications: dict[Name, Any] | None = None
    """Other arguments for the tool, with `modified`. The call is rejected, and the model is asked to call the tool with these arguments. That
    call is checked and asked about as any other: an approval holds for the arguments that were shown.
    """
    reason: Reason = ""


class RequestReplay(_OfSession, frozen=True, kw_only=True):
    """Asks for messages again, by time or by position; without either for everything that is held."""

    since: Time | None = None
    since_offset: int | None = None
    epoch: Id = ""


class ClientAck(_OfSession, frozen=True, kw_only=True):
    """How far the client's application has come. Delivery does not depend on it."""

    epoch: Id
    offset: int


class NotificationAck(Payload, frozen=True, kw_only=True):
    """The user has seen these notifications."""

    notification_ids: tuple[Id, ...]


class Command(_OfSession, frozen=True, kw_only=True):
    """What to do with an operation that waits."""

    run: Annotated[
        str,
        Meta(min_length=1, max_length=256, description="The id of the operation, as its `recovery` messages have it."),
    ]
    command: Literal["retry_now", "fall_back", "cancel"]
    expires_at: Time | None = None
    """Not done after this time."""


class SessionEnd(_OfSession, frozen=True, kw_only=True):
    """Ends the session for good."""

    reason: Literal["user_request", "timeout", "error", "completed"] = "user_request"
    expires_at: Time | None = None


class SessionRename(_OfSession, frozen=True, kw_only=True):
    """Gives the session another title. Its id stays."""

    title: Name
    """Empty: none, and clients show the id."""
    expires_at: Time | None = None


class SessionStop(_OfSession, frozen=True, kw_only=True):
    """Stops the turn that runs. The session stays."""

    turn: Annotated[int, Meta(ge=1)] | None = None
    """The number of the turn. Another turn is not stopped. Without it: whichever runs."""
    expires_at: Time | None = None
    """Not done after this time."""


class SessionPlain(_OfSession, frozen=True, kw_only=True):
    """Leaves or pauses the session, or asks for a snapshot of it."""


FROM_CLIENT: dict[str, type[Payload]] = {
    "auth": Auth,
    "health_check": HealthCheck,
    "acknowledge_warning": AcknowledgeWarning,
    "heartbeat_ping": Heartbeat,
    "heartbeat_pong": Heartbeat,
    "refresh_token": RefreshToken,
    "session_list": SessionList,
    "session_create": SessionCreate,
    "session_join": SessionJoin,
    "session_start": SessionStart,
    "session_resume": SessionResume,
    "session_message": SessionMessage,
    "message": SessionMessage,
    "answer": Answer,
    "approval_response": ApprovalResponse,
    "request_replay": RequestReplay,
    "ack": ClientAck,
    "notification_ack": NotificationAck,
    "command": Command,
    "session_end": SessionEnd,
    "session_rename": SessionRename,
    "session_leave": SessionPlain,
    "session_pause": SessionPlain,
    "session_close": SessionEnd,
    "session_snapshot": SessionPlain,
    "stop": SessionStop,
}
"""What a client may send, and what it contains."""


# --- from the server ---


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection may do."""

    max_frame: int
    max_inflight: int
    replay_bytes: int
    replay_age_ms: int
    grace_ms: int


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session in a list."""

    session_id: str
    status: str = ""
    agent: str = ""
    title: str = ""
    working_directory: str = ""
    turn: Doing | UnsetType = UNSET
    """What its agent does. Only of sessions that this server has in use, if it can be found out soon."""
    questions: int = 0
    """How many questions and approvals wait for a person in it."""
    last_at: Time = ""
    """When something was last stored in it."""
    cut: tuple[str, ...] = ()
    """The names of the texts above that are longer than what stands there."""


class ConnectionAck(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """The client is authenticated. It has the id of the `auth` message."""

    connection_id: str
    protocol: int
    server_version: str
    server_time: Time
    heartbeat_interval_ms: int
    limits: Limits
    connection_mode: ConnectionMode = "local_only"
    connection_mode_description: str = ""
    bridge_url: str = ""
    requires_health_verification: bool = False
    supported_agents: tuple[str, ...] = ()
    active_sessions: tuple[SessionSummary, ...] = ()
    resumed: tuple[str, ...] = ()
    """The sessions of `auth.resume` that are joined again."""


class ErrorPayload(Payload, frozen=True, kw_only=True):
    """What went wrong, and whether it passes."""

    code: str
    message: str
    recoverable: bool | UnsetType = UNSET
    severity: str = ""
    details: dict[str, Any] | UnsetType = UNSET
    violations: list[Violation] | UnsetType = UNSET
    retry_after_ms: float | None = None


class HealthStatus(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """How well the connection is."""

    status: Literal["healthy", "warning", "blocked"]
    connection_mode: ConnectionMode
    ready: bool
    server_timestamp: Time
    warnings: tuple[str, ...] = ()
    warning_details: dict[str, Any] = {}
    checks: dict[str, bool] = {}
    latency_ms: int | None = None
    requires_acknowledgment: bool = False


class AcknowledgmentAccepted(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """The warning is acknowledged."""

    warning_code: str
    ready: bool = True
    session_timeout: str = "8h"


class SessionJoined(Payload, frozen=True, kw_only=True):
    """The client is in the session, and where it is in its log."""

    session_id: str
    state: str
    role: Role
    epoch: str
    oldest_offset: int
    top_offset: int
    from_offset: int
    """What follows begins after this offset."""
    was_recovering: bool
    recovered: bool
    resume_token: str
    resume_expires_in_ms: int
    clients: int
    resume_status: Literal["ok", "expired", "unknown"] | None = None
    """What the resume token is worth that the client showed; null without one. The client is in the session in any case."""
    gap: dict[str, Any] | None = None


class SessionReady(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """The answer to `session_start`."""

    session_id: str
    agent: str = ""
    working_directory: str = ""
    status: str = "ready"


class ReplayBuffer(Payload, frozen=True, kw_only=True):
    """Messages that the client has missed, as they were, with their own ids, offsets and times."""

    messages: list[Any]
    session_id: str = ""
    from_: Annotated[int | None, Meta(description="The first offset.")] = msgspec.field(name="from", default=None)
    to: int | None = None
    more: bool = False
    complete: bool = True
    """Whether nothing is missing."""
    gap: dict[str, Any] | None = None


class SessionStatePayload(Payload, frozen=True, kw_only=True):
    """What the session does now. It comes after a replay and before the first live message."""

    session_id: str
    at_offset: int
    state: str
    turn: Doing
    turn_number: int | None = None
    """The number of the turn that runs, or of the last one; 0: there was none."""
    in_flight: bool = False
    """Whether that turn runs. A question may also wait without one."""
    stop_reason: str = ""
    """How the last turn ended, if none runs: `ok`, or why it failed or was cancelled."""
    pending_approvals: list[Any] = []
    pending_questions: list[Any] = []
    unacked_client_ids: list[str] = []
    """The client's last messages that are stored. Their acknowledgements may have been lost."""


class GapPayload(Payload, frozen=True, kw_only=True):
    """Messages are missing; a snapshot tells the rest."""

    reason: GapReason
    requested: int
    oldest_offset: int
    top_offset: int
    snapshot_offset: int | None = None
    recoverable_via: list[str] = []
    session_id: str = ""


class Snapshot(Payload, frozen=True, kw_only=True):
    """The session as it is, and the position at which a client goes on."""

    session_id: str
    epoch: str
    offset: int
    state: Any


class ServerAck(Payload, frozen=True, kw_only=True):
    """What became of messages that the client sent. It comes after they are stored."""

    ids: list[str]
    results: list[AckResult]


class SessionsPayload(Payload, frozen=True, kw_only=True):
    """The sessions that the client may see."""

    sessions: list[SessionSummary]
    next: str = ""
    """There are more: ask for those after this id."""


class UserMessage(_Long, frozen=True, kw_only=True):
    """A message of a user that was accepted, for all clients of the session."""

    content: str
    client_id: str = ""
    message_id: str = ""


class StreamStart(Payload, frozen=True, kw_only=True):
    """An answer begins."""

    stream_id: str
    turn: int = 0
    model: str = ""


class StreamChunk(Payload, frozen=True, kw_only=True):
    """A piece of an answer."""

    stream_id: str
    text: str


class StreamEnd(Payload, frozen=True, kw_only=True):
    """An answer has ended."""

    stream_id: str
    finish_reason: Literal["stop", "tool_call", "length", "error"] = "stop"
    usage: dict[str, Any] | None = None
    """The tokens of all calls of the answer: `input` without those that were `cached` or `written` to a cache, and `output`."""
    usd: float | None = None


class ToolCall(_Long, frozen=True, kw_only=True):
    """The agent calls a tool."""

    tool_call_id: str
    tool: str
    params: dict[str, Any]
    arguments: str = ""
    """`params` as a text, if they hold a number that JavaScript would round."""
    description: str = ""
    turn: int = 0


class ToolResult(Payload, frozen=True, kw_only=True):
    """A tool call has ended."""

    tool_call_id: str
    tool: str
    success: bool
    content: str = ""
    cut: int = 0
    """How many characters of the result `content` leaves out at its end."""
    error: dict[str, Any] | None = None
    duration_ms: int | None = None


class ToolError(_Long, frozen=True, kw_only=True):
    """A tool call has failed."""

    tool_call_id: str
    tool: str
    code: str
    message: str
    retryable: bool
    max_retries: int
    details: dict[str, Any] = {}


class ApprovalRequired(Payload, frozen=True, kw_only=True):
    """The agent wants to call a tool and somebody must approve."""

    tool_call_id: str
    tool: str
    params: dict[str, Any]
    arguments: str = ""
    """`params` as a text, if they hold a number that JavaScript would round: show this then."""
    description: str = ""
    question_id: str = ""
    arguments_hash: str = ""
    """Identifies exactly what is asked, also the arguments. An answer that has it counts for nothing else."""
    cut: bool = False
    """Whether `params` are not whole."""
    risk_level: Literal["low", "medium", "high", "critical"] = "medium"
    source: Literal["hooks", "agent_sdk"] = "agent_sdk"
    expires_at: Time | None = None


class ApprovalResolved(Payload, frozen=True, kw_only=True):
    """An approval was answered: by whom, and how."""

    tool_call_id: str
    decision: str
    by: str = ""
    question_id: str = ""


class Question(_Long, frozen=True, kw_only=True):
    """A question to a person. One with a code for signing in comes again without an offset: the code is in no log."""

    question_id: str
    arguments_hash: str = ""
    """Identifies exactly what is asked. An answer that has it counts for nothing else."""
    kind: Literal["Ask", "Approve", "Select", "Confirm", "Auth.DeviceCode", "Auth.Password"]
    prompt: str
    choices: list[str] = []
    url: str = ""
    user_code: str = ""
    expires_at: Time | None = None


class QuestionClosed(Payload, frozen=True, kw_only=True):
    """A question was answered, or has expired."""

    question_id: str
    outcome: str
    by: str = ""


class Recovery(_Long, frozen=True, kw_only=True):
    """A recovery event: a retry, a fallback, a circuit; or what a validator says of the agent's work. `line` is what a person reads."""

    event: dict[str, Any]
    line: str
    reason: str = ""
    """Why an attempt is made again, in words for people."""
    until: Time = ""
    """When the next attempt is made."""
    run: str = ""
    can: list[Literal["retry_now", "fall_back", "cancel"]] = []


class ClaudeEvent(_Long, frozen=True, kw_only=True):
    """A hook event of a command-line agent."""

    event: str
    data: dict[str, Any] = {}
    event_id: str = ""


class Notification(_Long, frozen=True, kw_only=True):
    """Something that a person should know."""

    notification_id: str
    notification_type: str
    title: str
    body: str = ""
    priority: Literal["low", "normal", "high"] = "normal"
    data: dict[str, Any] = {}


class SessionEvent(_Long, frozen=True, kw_only=True):
    """Anything else that the session's log holds: a turn or a step began or ended, a state changed. A client may ignore it.

    It has names only, no arguments and no results. Every entry of the log is one message, so that the offsets have no holes.
    """

    event: Annotated[str, Meta(description="The type of the log's entry, such as `turn_started` or `session_paused`.")]
    turn: int = 0
    """The number of the turn; 0: outside of any turn."""
    answers: int = 0
    """The offset of the user's message that the turn answers, and of the last one if it answers several; 0: of none."""
    coalesced: list[int] = []
    """The offsets of the earlier messages that the turn answers together with that one."""
    step: str = ""
    state: str = ""
    """The session's new state."""
    title: str = ""
    """With `session_renamed`: the session's new title."""
    by: str = ""
    """Who did it, where the log says so."""
    outcome: str = ""
    """How the turn ended."""
    ok: bool | UnsetType = UNSET
    """Whether the step returned, and did not fail."""
    reason: str = ""
    agent: str = ""
    until: float | None = None
    """When a run that waits for the end of a usage limit goes on: seconds since 1970."""
    role: str = ""
    """Of a message of the conversation: who said it."""
    damaged: bool = False
    """Whether the entry cannot be read."""


class Presence(Payload, frozen=True, kw_only=True):
    """Who is in the session."""

    session_id: str
    clients: int


class CertificateRotation(Payload, frozen=True, kw_only=True):
    """The server's certificate changes soon."""

    new_fingerprint: str
    effective_date: Time


FROM_SERVER: dict[str, type[Payload]] = {
    "connection_ack": ConnectionAck,
    "connection_error": ErrorPayload,
    "error": ErrorPayload,
    "health_status": HealthStatus,
    "acknowledgment_accepted": AcknowledgmentAccepted,
    "heartbeat_ping": Heartbeat,
    "heartbeat_pong": Heartbeat,
    "sessions": SessionsPayload,
    "session_joined": SessionJoined,
    "session_ready": SessionReady,
    "replay_buffer": ReplayBuffer,
    "session_state": SessionStatePayload,
    "gap": GapPayload,
    "snapshot": Snapshot,
    "ack": ServerAck,
    "user_message": UserMessage,
    "stream_start": StreamStart,
    "stream_chunk": StreamChunk,
    "stream_end": StreamEnd,
    "tool_call": ToolCall,
    "tool_result": ToolResult,
    "tool_error": ToolError,
    "approval_required": ApprovalRequired,
    "approval_resolved": ApprovalResolved,
    "question": Question,
    "question_closed": QuestionClosed,
    "recovery": Recovery,
    "claude_event": ClaudeEvent,
    "notification": Notification,
    "session_event": SessionEvent,
    "presence": Presence,
    "certificate_rotation_scheduled": CertificateRotation,
}
"""What the server sends, and what it contains."""

DURABLE = frozenset({
    "user_message",
    "stream_start",
    "stream_chunk",
    "stream_end",
    "tool_call",
    "tool_result",
    "tool_error",
    "approval_required",
    "approval_resolved",
    "question",
    "question_closed",
    "recovery",
    "claude_event",
    "notification",
    "session_event",
})  # fmt: skip
"""The messages that are a part of a session's log: they have an offset, and a client that was away gets them."""


def read_payload(type_: str, payload: dict[str, Any], id_: str) -> Payload | Invalid:
    """Return the payload of a client's message, or all that is wrong with it."""
    kind = FROM_CLIENT[type_]
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError:
        return Invalid(tuple(_violations(kind, payload)), id_)


def _violations(kind: type[Payload], payload: dict[str, Any]) -> list[Violation]:
    """Return what is wrong with each field. A whole conversion stops at the first one."""
    violations = []
    for field in msgspec.structs.fields(kind):
        name = f"payload.{field.encode_name}"
        if field.encode_name not in payload:
            if field.required:
                violations.append(Violation(field=name, constraint="required"))
            continue
        value = payload[field.encode_name]
        try:
            msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            violations.append(Violation(field=name, constraint=str(error), received=shown(value)))
    return violations
