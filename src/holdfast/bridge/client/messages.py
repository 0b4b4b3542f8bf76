"""What a client gets from a session, as values: `Text`, `Question`, `Gap` and the others.

Invariant: every message of a session's log becomes exactly one value. One that this version does not know, or cannot read, is a
`Unknown` and not an error, so that an older client can follow a newer server.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast.faults import Fault
from holdfast.views import wire
from holdfast.wire.position import GapReason, Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.wire.envelope import Envelope

__all__ = [
    "AnswerEnded",
    "AnswerStarted",
    "Gap",
    "HookEvent",
    "Message",
    "NotStored",
    "Notification",
    "Presence",
    "Question",
    "QuestionClosed",
    "Recovery",
    "SessionEvent",
    "Snapshot",
    "State",
    "Text",
    "ToolCalled",
    "ToolFailed",
    "ToolReturned",
    "Unknown",
    "UserText",
    "message_of",
]


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    position: Position | None = None
    """Its place in the session's log. None: it is not a part of it, and does not come again."""
    at: str = ""
    """When the server made it: a date and time of ISO 8601."""


class Text(_Message, frozen=True, kw_only=True):
    """A piece of the agent's answer: `case Text(text=text): print(text, end="")`."""

    text: str
    stream_id: str = ""
    """The answer that it is a piece of."""


class AnswerStarted(_Message, frozen=True, kw_only=True):
    """The agent begins an answer. If it begins the same answer anew after a failure, this comes a second time."""

    stream_id: str
    turn: int = 0
    model: str = ""


class AnswerEnded(_Message, frozen=True, kw_only=True):
    """An answer has ended. With the reason `error` its pieces are void."""

    stream_id: str
    finish_reason: str = "stop"
    usage: dict[str, Any] | None = None
    usd: float | None = None


class UserText(_Message, frozen=True, kw_only=True, rename={"text": "content"}):
    """A message that a user sent, from this client or from another one."""

    text: str
    client_id: str = ""
    message_id: str = ""


class ToolCalled(_Message, frozen=True, kw_only=True, rename={"id": "tool_call_id"}):
    """The agent calls a tool."""

    id: str
    tool: str
    params: dict[str, Any] = {}
    description: str = ""
    turn: int = 0


class ToolReturned(_Message, frozen=True, kw_only=True, rename={"id": "tool_call_id"}):
    """A tool call has ended, well or not."""

    id: str
    tool: str
    success: bool = True
    content: str = ""
    cut: int = 0
    """How many characters of the result `content` leaves out at its end."""
    error: dict[str, Any] | None = None
    duration_ms: int | None = None


class ToolFailed(_Message, frozen=True, kw_only=True, rename={"id": "tool_call_id"}):
    """A tool call has failed: the code, the message, and whether it may be tried again."""

    id: str
    tool: str
    code: str
    message: str
    retryable: bool = False
    details: dict[str, Any] = {}


class Question(_Message, frozen=True, kw_only=True, rename={"id": "question_id"}):
    """A person is asked: `case Question(id=i, prompt=p): await session.answer(i, True)`."""

    id: str
    kind: str = "Ask"
    """Ask, Approve, Select, Confirm, Auth.DeviceCode or Auth.Password."""
    prompt: str = ""
    choices: tuple[str, ...] = ()
    """The choices of a Select."""
    url: str = ""
    """Where to sign in, for a device code."""
    user_code: str = ""
    """The code to type there."""
    expires_at: str | None = None
    """A later answer is rejected."""
    tool: str = ""
    """The tool that somebody must approve."""
    params: dict[str, Any] = {}
    """The arguments that it would be called with."""
    tool_call_id: str = ""
    """The id of the call: that of its `ToolCalled`, `ToolReturned` and `ToolFailed`."""
    arguments_hash: str = ""
    """Identifies exactly what is asked. `session.answer` sends it along, so that the answer counts for nothing else."""
    cut: bool = False
    """Whether `params` are not whole."""
    risk_level: str = ""
    source: str = ""
    """Who wants to call the tool: `agent_sdk`, or `hooks` of a command-line agent."""


class QuestionClosed(_Message, frozen=True, kw_only=True, rename={"id": "question_id"}):
    """A question was answered, by anybody, or has expired."""

    id: str
    outcome: str = ""
    by: str = ""


class Recovery(_Message, frozen=True, kw_only=True):
    """A retry, a fallback or another recovery event, or what a validator says (`event["type"] == "hook"`, with a `badge`).

    `line` is what a person reads: `Retrying... (2/3)`.
    """

    line: str
    reason: str = ""
    """Why an attempt is made again, in words for people."""
    until: str = ""
    """When the next attempt is made, as ISO 8601; empty: none is made."""
    event: dict[str, Any] = {}
    run: str = ""
    """The operation that waits: `session.command(message.run, "retry_now")`."""
    can: tuple[Literal["retry_now", "fall_back", "cancel"], ...] = ()
    """The commands that it takes now."""


class HookEvent(_Message, frozen=True, kw_only=True):
    """A hook event of a command-line agent."""

    event: str
    data: dict[str, Any] = {}
    event_id: str = ""


class Notification(_Message, frozen=True, kw_only=True, rename={"id": "notification_id", "kind": "notification_type"}):
    """Something that a person should know."""

    id: str
    kind: str = ""
    title: str = ""
    body: str = ""
    priority: str = "normal"
    data: dict[str, Any] = {}


class SessionEvent(_Message, frozen=True, kw_only=True):
    """Another entry of the session's log, by name: a turn began, a step ended. Most clients ignore it."""

    event: str
    details: dict[str, Any] = {}


class State(_Message, frozen=True, kw_only=True):
    """What the session does now. It comes after each join, before the first new message."""

    state: str
    turn: str = "idle"
    """`running`, `idle`, or `requires_action`: it waits for an answer."""
    turn_number: int | None = None
    """The number of the turn that runs, or of the last one; 0: there was none. None: the server is older and does not say it."""
    in_flight: bool = False
    """Whether that turn runs. A question may also wait without one."""
    at_offset: int = 0
    stop_reason: str = ""
    pending_questions: list[Any] = []
    pending_approvals: list[Any] = []

    @property
    def questions(self) -> tuple[Question, ...]:
        """The questions that are open: `for question in state.questions: …`. Those that asked them may be too old to be sent again."""
        return _open_questions(self.pending_approvals, self.pending_questions)


class Presence(_Message, frozen=True, kw_only=True):
    """How many clients are in the session."""

    clients: int


class Gap(_Message, frozen=True, kw_only=True):
    """Messages are missing, and cannot be sent again: `case Gap(): await session.reload()`.

    If you go on without `reload`, the client loads the snapshot itself, and it is the next message.
    """

    reason: GapReason
    """evicted, expired: too many or too old to be held; ahead, diverged: the server has lost some; epoch, reset: the log began anew."""
    requested: int = 0
    """The last offset that this client has."""
    oldest_offset: int = 0
    top_offset: int = 0

    @property
    def fault(self) -> Fault:
        """The same as a fault: SESS_GAP."""
        context = {
            "reason": self.reason,
            "requested": self.requested,
            "oldest": self.oldest_offset,
            "top": self.top_offset,
        }
        return Fault.of("SESS_GAP", context=context)


class Snapshot(_Message, frozen=True, kw_only=True):
    """The session as it is. What follows begins after it."""

    state: Any = None

    @property
    def questions(self) -> tuple[Question, ...]:
        """The questions that are open: `for question in snapshot.questions: …`."""
        state = self.state if isinstance(self.state, dict) else {}
        return _open_questions(state.get("pending_approvals", []), state.get("pending_questions", []))


class NotStored(_Message, frozen=True, kw_only=True):
    """A message of this client was rejected or has expired, and no `send` waits for it any more.

    It was kept from an earlier run of the program, or its `send` was cancelled.
    """

    id: str
    fault: Fault
    payload: dict[str, Any] = {}
    """What was sent."""


class Unknown(_Message, frozen=True, kw_only=True):
    """A message that this version does not know."""

    type: str
    payload: dict[str, Any] = {}


Message: TypeAlias = (
    Text
    | AnswerStarted
    | AnswerEnded
    | UserText
    | ToolCalled
    | ToolReturned
    | ToolFailed
    | Question
    | QuestionClosed
    | Recovery
    | HookEvent
    | Notification
    | SessionEvent
    | State
    | Presence
    | Gap
    | Snapshot
    | NotStored
    | Unknown
)
"""Anything that a session yields."""


def _approval(payload: dict[str, Any]) -> dict[str, Any]:
    tool = payload.get("tool", "")
    return {
        **payload,
        "question_id": payload.get("question_id") or payload.get("tool_call_id"),
        "kind": "Approve",
        "prompt": payload.get("description") or f"Run {tool}?",
    }


def _resolved(payload: dict[str, Any]) -> dict[str, Any]:
    id_ = payload.get("question_id") or payload.get("tool_call_id")
    return {"question_id": id_, "outcome": payload.get("decision", ""), "by": payload.get("by", "")}


def _open_questions(approvals: list[Any], questions: list[Any]) -> tuple[Question, ...]:
    payloads = [*map(_approval, approvals), *questions]
    found = []
    for payload in payloads:
        # A newer server may send others.
        with suppress(msgspec.ValidationError):
            found.append(msgspec.convert(payload, Question))
    return tuple(found)


def _event(payload: dict[str, Any]) -> dict[str, Any]:
    details = {name: value for name, value in payload.items() if name != "event"}
    return {"event": payload.get("event"), "details": details}


_KINDS: dict[str, type[Message]] = {
    "stream_chunk": Text,
    "stream_start": AnswerStarted,
    "stream_end": AnswerEnded,
    "user_message": UserText,
    "tool_call": ToolCalled,
    "tool_result": ToolReturned,
    "tool_error": ToolFailed,
    "question": Question,
    "approval_required": Question,
    "question_closed": QuestionClosed,
    "approval_resolved": QuestionClosed,
    "recovery": Recovery,
    "claude_event": HookEvent,
    "notification": Notification,
    "session_event": SessionEvent,
    "session_state": State,
    "presence": Presence,
    "gap": Gap,
    "snapshot": Snapshot,
}
_CHANGED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "approval_required": _approval,
    "approval_resolved": _resolved,
    "session_event": _event,
}
"""The payloads that differ from the value more than in names."""


def message_of(envelope: Envelope) -> Message:
    """Return the value of a message of the server.

    >>> message_of(Envelope(type="stream_chunk", id="1", timestamp="", payload={"stream_id": "s", "text": "Hi"})).text
    'Hi'
    """
    place = None
    if envelope.offset:
        place = Position(epoch=envelope.epoch, offset=envelope.offset, id=envelope.id)
    kind, change = _KINDS.get(envelope.type), _CHANGED.get(envelope.type)
    common = {"position": place, "at": envelope.timestamp}
    if kind is not None:
        payload = envelope.payload if change is None else change(envelope.payload)
        # A newer server may send other fields. Then the application gets the message as it is.
        with suppress(msgspec.ValidationError):
            return msgspec.convert({**payload, **common}, kind)
    return Unknown(type=envelope.type, payload=envelope.payload, position=place, at=envelope.timestamp)


def gap_of(payload: dict[str, Any]) -> Gap:
    """Return the value of a gap. A reason that this version does not know counts as `reset`."""
    try:
        return msgspec.convert(payload, Gap)
    except msgspec.ValidationError:
        return Gap(reason="reset")


def fault_of_payload(payload: dict[str, Any] | None) -> Fault:
    """Return the fault of an `error` message."""
    if not payload:
        return Fault.of("SYS_BRIDGE_ERROR", "The bridge rejected the message and did not say why")
    return wire.read({"type": "error", "payload": payload})
