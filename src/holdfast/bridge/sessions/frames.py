"""Frames: an entry of a session's log as clients get it.

Invariant: every entry becomes exactly one message, so offsets on the wire have no holes. The same entry becomes the same bytes each time,
also after a restart. Secrets are masked here, because everything that leaves the bridge passes here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID, uuid5

import msgspec

from holdfast.sessions.questions.question import TOOL_CALL
from holdfast.wire.envelope import may_have_long_number, stamp, write
from holdfast.wire.messages import DURABLE
from holdfast.wire.replay import RingMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.faults import Redactor
    from holdfast.stores import Entry

__all__ = [
    "LogPlace",
    "approval_payload",
    "fitting",
    "frame_of",
    "message_of",
    "notification_of",
    "question_payload",
    "replay_frame",
    "tool_call_of",
    "user_frame",
]

_IDS: Final = UUID("7d5fbd4c-6a0e-4b7e-9c55-0d6b1a3f2e18")
"""The namespace in which the ids of messages are made from the ids of entries."""
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""A UUID as Python writes it. Others are made so."""
_ENCODER: Final = msgspec.json.Encoder()
_MOST_BYTES: Final = 4 * 2**20
"""The most bytes of a message of the log. Clients read messages of 16 MiB, and several come in one replay."""
_SECRET: Final = 8_192
"""The most characters of a secret, such as a private key."""
_RISKS: Final = {"read": "low", "idempotent": "medium", "unsafe": "high"}
"""How dangerous a call is, by the effect that its tool declares."""
_LARGEST: Final = 2**53 - 1
"""The largest whole number that JavaScript reads as it is."""
_MANY_DIGITS: Final = re.compile(rb"\d{16}")
_EVENT_FIELDS: Final = ("turn", "step", "state", "title", "by", "outcome", "ok", "reason", "agent", "until", "role")
"""What of an entry a client learns that needs no more than that it happened: names, never arguments or results."""


def frame_of(
    entry: Entry, session: str, epoch: str, *, redactor: Redactor, tool_call: Callable[[str], str], at: float = 0.0
) -> RingMessage:
    """Return the frame of an entry. `tool_call` returns the tool call of a question; empty if the question is about none.

    at: when it came, by the monotonic clock.
    """
    message = message_of(entry, tool_call)
    place = LogPlace(entry.offset, _id(entry.id, epoch), entry.at, session, epoch)
    return _frame(message, place, redactor, at)


def user_frame(content: str, client: str, id_: str, place: LogPlace, *, redactor: Redactor, at: float) -> RingMessage:
    """Return the frame of a user's message that was just stored: the same as `frame_of` returns for its entry, without reading it again."""
    return _frame(("user_message", _user_payload(content, client, id_)), place, redactor, at)


class LogPlace(NamedTuple):
    """Where a message stands, and when it was stored."""

    offset: int
    id: str
    """A UUID."""
    stored_at: float
    session: str
    epoch: str


def _frame(message: tuple[str, dict[str, Any]], place: LogPlace, redactor: Redactor, at: float) -> RingMessage:
    type_, payload = message
    offset, id_, stored_at, session, epoch = place
    written = _ENCODER.encode(payload)
    if may_have_long_number(written):
        # A client rejects a frame with a number of more than 64 bits, and would wait for it for ever.
        payload = _readable(payload)
        written = _ENCODER.encode(payload)
    if len(written) > _MOST_BYTES or not redactor.keeps(written):
        written = _ENCODER.encode(fitting(payload, redactor))
    timestamp = stamp(stored_at)
    frame = write(
        type_, msgspec.Raw(written), id_=id_, timestamp=timestamp, session_id=session, epoch=epoch, offset=offset
    )
    return RingMessage(offset, id_, timestamp, frame, at)


def fitting(payload: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    """Return a payload without secrets; if it is too long for a message with shorter texts and lists, and with `cut`.

    A client that cannot read one message of a log could read none after it.
    """
    if len(_ENCODER.encode(payload)) <= _MOST_BYTES:
        return dict(redactor.value(payload))
    scissors = _Scissors()
    # First shorter and then masked: to look for secrets in all of it would take seconds, in which no other session goes on.
    shown = redactor.value({name: scissors.shorten(value, (name,)) for name, value in payload.items()})
    scissors.take_ends(shown)
    # A number says already how much is cut.
    return dict(shown) | {"cut": payload.get("cut") or (1 if "success" in payload else True)}


class _Scissors:
    """Makes a value fit into a message: so many characters and items in all. Short texts, such as ids, stay."""

    def __init__(self) -> None:
        self._characters, self._items = 524_288, 4_096
        self._cut: list[tuple[tuple[Any, ...], int]] = []
        """Where the texts are that were cut, and how long they may be."""

    def shorten(self, value: Any, path: tuple[Any, ...]) -> Any:
        match value:
            case str() if len(value) > 256:
                most = min(self._characters, 262_144)
                self._characters -= min(len(value), most)
                if len(value) <= most or most == 0:
                    return value[:most]
                self._cut.append((path, most))
                return value[: most + _SECRET]
            case list():
                return [self.shorten(each, (*path, place)) for place, each in enumerate(self._some(value))]
            case dict():
                return {name[:64]: self.shorten(each, (*path, name[:64])) for name, each in self._some(value.items())}
            case _:
                return value

    def _some(self, items: Iterable[Any]) -> Iterator[Any]:
        for each in items:
            if self._items == 0:
                return
            self._items -= 1
            yield each

    def take_ends(self, shown: Any) -> None:
        """Remove the ends of the texts that were cut: half a secret, which nobody recognises, may stand there."""
        for (*path, last), most in self._cut:
            place = shown
            for step in path:
                # What stood in a field with a secret's name is masked as a whole.
                place = place[step] if isinstance(place, dict | list) else None
            if isinstance(place, dict | list) and isinstance(place[last], str):
                place[last] = place[last][:-_SECRET][:most]


def message_of(entry: Entry, tool_call: Callable[[str], str]) -> tuple[str, dict[str, Any]]:
    """Return the type and the payload of an entry's message."""
    try:
        body = msgspec.json.decode(entry.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "session_event", {"event": entry.type, "damaged": True}
    if not isinstance(body, dict):
        return "session_event", {"event": entry.type}
    if entry.type in DURABLE:
        # The bridge wrote it, as it is sent.
        return entry.type, body
    match entry.type:
        case "message" if body.get("role", "user") == "user":
            return "user_message", _user_message(body)
        case "interaction_raised":
            if tool_call_of(body):
                return "approval_required", approval_payload(body)
            return "question", question_payload(body)
        case "interaction_answered":
            return _closed(body, tool_call(str(body.get("id", ""))))
        case _:
            event = {"event": entry.type} | {name: body[name] for name in _EVENT_FIELDS if name in body}
            given = body.get("input")
            if entry.type == "turn_started" and isinstance(given, dict) and type(given.get("offset")) is int:
                event["answers"] = given["offset"]
                if "coalesced" in given:
                    event["coalesced"] = given["coalesced"]
            return "session_event", event


def tool_call_of(raised: dict[str, Any]) -> str:
    """Return the tool call that a stored question is about; empty if it asks for something else than to approve one."""
    details = raised.get("payload", {}).get("details")
    if raised.get("kind") != "Approve" or not isinstance(details, dict) or "tool" not in details:
        return ""
    # Logs of older versions have a place in the run in place of the call's id.
    return str(raised["payload"].get(TOOL_CALL) or details.get("call") or raised.get("id", ""))


def approval_payload(raised: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of `approval_required` for a stored question about a tool call."""
    question = raised["payload"]
    details = question["details"]
    params, is_cut = _params(details.get("arguments"))
    payload = {
        "tool_call_id": tool_call_of(raised),
        "tool": str(details["tool"]),
        "params": _readable(params),
        **exact(params),
        "description": str(question.get("prompt", "")),
        "question_id": str(raised.get("id", "")),
        "arguments_hash": str(raised.get("args", "")),
        "risk_level": _RISKS.get(details.get("effect"), "medium"),
        "source": "agent_sdk",
    }
    return payload | ({"cut": True} if is_cut else {}) | _expiry(raised)


def exact(params: dict[str, Any]) -> dict[str, str]:
    """Return the field with the arguments as a text, if JavaScript would round a number in them: people must see what runs."""
    text = msgspec.json.encode(params, enc_hook=str)
    if not _MANY_DIGITS.search(text) or not _is_rounded(params):
        return {}
    return {"arguments": msgspec.json.format(text, indent=2).decode()}


def _is_rounded(value: Any) -> bool:
    """Whether a value has a whole number that a float cannot hold."""
    match value:
        case int():
            return not -_LARGEST <= value <= _LARGEST
        case dict():
            return any(map(_is_rounded, value.values()))
        case list() | tuple():
            return any(map(_is_rounded, value))
        case _:
            return False


def _readable(value: Any) -> Any:
    """Return a value with whole numbers of more than 64 bits as texts."""
    match value:
        case int():
            return value if -(2**63) <= value < 2**64 else str(value)
        case dict():
            return {name: _readable(each) for name, each in value.items()}
        case list() | tuple():
            return [_readable(each) for each in value]
        case _:
            return value


def notification_of(frame: bytes) -> str | None:
    """Return the id of the notification that a frame is; None if it is none."""
    if b'"notification"' not in frame:
        return None
    message = msgspec.json.decode(frame)
    return str(message["payload"].get("notification_id", "")) if message["type"] == "notification" else None


def question_payload(raised: dict[str, Any], user_code: str = "") -> dict[str, Any]:
    """Return the payload of `question` for a stored question. `user_code` is shown, and stored nowhere."""
    question = raised.get("payload", {})
    payload: dict[str, Any] = {
        "question_id": str(raised.get("id", "")),
        "kind": raised.get("kind", "Ask"),
        "prompt": str(question.get("prompt", "")),
        "arguments_hash": str(raised.get("args", "")),
    }
    if question.get("choices"):
        payload["choices"] = [str(choice) for choice in question["choices"]]
    if question.get("url"):
        payload["url"] = str(question["url"])
    if user_code:
        payload["user_code"] = user_code
    return payload | _expiry(raised)


def replay_frame(
    held: Iterable[RingMessage], fields: dict[str, Any], *, id_: str, at: float, as_text: bool = False
) -> bytes:
    """Return a frame `replay_buffer` with these messages as they were. as_text: each as a string, as older clients want them."""
    messages: list[Any] = [message.frame.decode() if as_text else msgspec.Raw(message.frame) for message in held]
    document = {
        "type": "replay_buffer",
        "id": id_,
        "timestamp": stamp(at),
        "payload": {"messages": messages} | fields,
        "session_id": fields.get("session_id", ""),
    }
    return msgspec.json.encode(document)


def _user_message(body: dict[str, Any]) -> dict[str, Any]:
    content = body.get("content")
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    return _user_payload(text, str(body.get("client", "")), str(body.get("id", "")))


def _user_payload(content: str, client: str, id_: str) -> dict[str, Any]:
    return {"content": content, "client_id": client, "message_id": id_}


def _params(arguments: Any) -> tuple[dict[str, Any], bool]:
    """Return the arguments as an object, and whether they are cut. Agents store them as a text, which older versions cut."""
    is_cut = False
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except msgspec.DecodeError:
            is_cut = True
    return (arguments if isinstance(arguments, dict) else {"arguments": arguments}), is_cut


def _expiry(raised: dict[str, Any]) -> dict[str, Any]:
    until = raised.get("expires_at")
    return {"expires_at": stamp(until)} if isinstance(until, int | float) else {}


def _closed(body: dict[str, Any], tool_call: str) -> tuple[str, dict[str, Any]]:
    outcome, by = str(body.get("outcome", "")), str(body.get("by", ""))
    question = str(body.get("id", ""))
    if not tool_call:
        return "question_closed", {"question_id": question, "outcome": outcome, "by": by}
    decision = {"accepted": "approved"}.get(outcome, outcome)
    return "approval_resolved", {"tool_call_id": tool_call, "question_id": question, "decision": decision, "by": by}


def _id(entry: str, epoch: str) -> str:
    """Return the message's id: a UUID that is the same each time. Older clients check that it is one."""
    if _UUID.fullmatch(entry):
        return entry
    try:
        return str(UUID(entry)) if len(entry) == 36 else str(uuid5(_IDS, f"{epoch}:{entry}"))
    except ValueError:
        return str(uuid5(_IDS, f"{epoch}:{entry}"))
