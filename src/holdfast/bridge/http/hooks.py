"""Hook events: what the hooks of a command-line agent post becomes a `claude_event` in the log of its session.

Three forms are accepted: `{event, timestamp, session_id, payload}`, the same with `event_type`, and the body that Claude Code itself gives
to its hooks (`hook_event_name`). A client sees one form, with one name for each thing.

Invariant: an event is stored whole or not at all, and once, however often it is posted with the same key. All that is wrong with an event
is listed at once. A hook never waits long: the agent stands still meanwhile.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import NAMESPACE_URL, uuid4, uuid5

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions.journal import audit
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.stores import Claim, Commit, NewEntry, NewSession
from holdfast.stores.records import check_name
from holdfast.views import wire
from holdfast.wire.envelope import is_timestamp, stamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.clock import Clock
    from holdfast.faults import Code
    from holdfast.stores import Store

__all__ = [
    "EVENTS",
    "SEVEN",
    "HookError",
    "HookEvent",
    "HookRules",
    "HookStore",
    "Stored",
    "invalid",
    "read_hook",
    "rejection",
]

SEVEN: Final = (
    "SessionStart",
    "SessionEnd",
    "PreToolUse",
    "PostToolUse",
    "UserPromptSubmit",
    "Stop",
    "SubagentStop",
)
"""The events that every version of the hooks has."""
EVENTS: Final = (*SEVEN, "PreCompact", "Notification")
"""The events of the first two forms. Claude Code has more, and new ones with each version: its own form may name any."""

_NATIVE_EVENT = re.compile(r"[A-Z][A-Za-z]{1,63}")
_NAMES: Mapping[str, str] = {
    "tool_name": "tool",
    "tool_input": "params",
    "tool_response": "result",
    "cwd": "working_directory",
}
"""Claude Code's names, and the names that clients get."""
_RISKS = ("low", "medium", "high", "critical")
_STOPS = ("task_completed", "user_request", "error", "max_tokens", "safety")
_REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "SessionStart": {"working_directory": str},
    "PreToolUse": {"tool": str, "params": dict, "risk_level": _RISKS, "requires_approval": bool},
    "PostToolUse": {"tool": str, "params": dict, "result": object, "success": bool},
    "UserPromptSubmit": {"prompt": str},
    "Stop": {"reason": _STOPS},
}
"""What a strict bridge requires of each event's payload."""
_KINDS = {str: "a text", dict: "an object", bool: "true or false"}
_CLIENT = "bridge:hooks"
"""Who claims the keys of hook events. Ids of clients have no colon in front of their first part."""


class HookRules(msgspec.Struct, frozen=True, kw_only=True):
    """What an event must have besides its form."""

    events: tuple[str, ...] = EVENTS
    """The events of the first two forms that are accepted."""
    strict: bool = False
    """Require the fields that each event should have in its payload."""
    skew: float | None = None
    """Seconds by which the time of an event may differ from now. None: any time."""


class HookError(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with an event."""

    field: str
    message: str
    code: str

    @property
    def fault(self) -> Fault:
        """The fault of this field alone."""
        code: Any = self.code
        return Fault.of(code, self.message, context={"field": self.field})


class HookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the one form that is stored."""

    event: str
    session_id: str
    data: dict[str, Any]
    key: str = ""
    """What is the same when the event is posted again: its tool call. Empty: nothing says whether it is the same."""


def read_hook(body: Any, *, now: float, rules: HookRules | None = None) -> HookEvent | list[HookError]:
    """Return the event of a posted body, or everything that is wrong with it. `now` is the wall clock.

    >>> read_hook({"hook_event_name": "Stop", "session_id": "s-1"}, now=0.0).event
    'Stop'
    """
    if not isinstance(body, dict):
        return [_error("$", "Expected an object", "HOOK_INVALID_PAYLOAD")]
    if "hook_event_name" in body:
        return _read_native(body)
    return _read_document(body, now, rules or HookRules())


def _read_native(body: dict[str, Any]) -> HookEvent | list[HookError]:
    event = body["hook_event_name"]
    errors = _session_errors(body)
    if not isinstance(event, str) or _NATIVE_EVENT.fullmatch(event) is None:
        errors.insert(0, _error("hook_event_name", "Expected the name of an event", "HOOK_INVALID_EVENT_TYPE"))
    if errors:
        return errors
    data = {_NAMES.get(name, name): value for name, value in body.items() if name not in _HEAD}
    if event in {"PostToolUse", "PostToolUseFailure"}:
        data.setdefault("success", event == "PostToolUse")
    return HookEvent(event=event, session_id=body["session_id"], data=data, key=_key(event, body))


_HEAD = frozenset({"hook_event_name", "session_id"})


def _read_document(body: dict[str, Any], now: float, rules: HookRules) -> HookEvent | list[HookError]:
    name = "event_type" if "event_type" in body and "event" not in body else "event"
    event, payload = body.get(name), body.get("payload")
    errors = []
    if event not in rules.events:
        start = "Required" if event is None else "Invalid enum value"
        errors.append(_error(name, f"{start}. Expected one of: {', '.join(rules.events)}", "HOOK_INVALID_EVENT_TYPE"))
    errors += _time_errors(body, now, rules.skew) + _session_errors(body)
    if not isinstance(payload, dict):
        problem = "Required" if payload is None else f"Expected an object, received {_kind(payload)}"
        errors.append(_error("payload", problem, "HOOK_INVALID_PAYLOAD"))
    elif rules.strict:
        errors += _payload_errors(str(event), payload)
    if errors:
        return errors
    assert isinstance(payload, dict)
    data = {"timestamp": body["timestamp"], **payload}
    return HookEvent(event=str(event), session_id=body["session_id"], data=data, key=_key(str(event), payload))


def _time_errors(body: dict[str, Any], now: float, skew: float | None) -> list[HookError]:
    given = body.get("timestamp")
    if not is_timestamp(given):
        problem = "Required" if given is None else "Invalid datetime. Expected ISO 8601 such as 2026-03-20T14:32:00Z"
        return [_error("timestamp", problem, "HOOK_INVALID_TIMESTAMP")]
    away = abs(_seconds(str(given), now) - now)
    if skew is None or away <= skew:
        return []
    problem = f"{away:.0f} s away from the bridge's clock; at most {skew:.0f} s are accepted"
    return [_error("timestamp", problem, "HOOK_STALE_TIMESTAMP")]


def _seconds(text: str, now: float) -> float:
    # A leap second is a right time that Python does not know.
    with suppress(ValueError):
        return datetime.fromisoformat(text.replace(",", ".")).timestamp()
    return now


def _session_errors(body: dict[str, Any]) -> list[HookError]:
    given = body.get("session_id")
    if given is None or given == "":
        return [_error("session_id", "Required", "HOOK_INVALID_SESSION_ID")]
    try:
        check_name("session_id", given)
    except HoldfastError:
        expected = "Expected 1 to 128 letters, digits or _.:@- with a letter or digit first"
        return [_error("session_id", expected, "HOOK_INVALID_SESSION_ID")]
    return []


def _payload_errors(event: str, payload: dict[str, Any]) -> list[HookError]:
    errors = []
    for name, kind in _REQUIRED.get(event, {}).items():
        if name not in payload:
            problem = "Required"
        elif isinstance(kind, tuple):
            problem = "" if payload[name] in kind else f"Expected one of: {', '.join(kind)}"
        else:
            problem = "" if isinstance(payload[name], kind) else f"Expected {_KINDS[kind]}"
        if problem:
            errors.append(_error(f"payload.{name}", problem, "HOOK_INVALID_PAYLOAD"))
    return errors


def _key(event: str, body: dict[str, Any]) -> str:
    call = body.get("tool_use_id")
    return f"{event}/{call}" if isinstance(call, str) and call else ""


def _error(field: str, message: str, code: Code) -> HookError:
    return HookError(field=field, message=message, code=code)


def _kind(value: Any) -> str:
    names = {str: "a text", list: "an array", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def invalid(errors: list[HookError]) -> HoldfastError:
    """Return the error for an event that cannot be read: HOOK_VALIDATION_FAILED with all that is wrong."""
    listed = [{"field": error.field, "message": error.message} for error in errors]
    return HoldfastError(Fault.of("HOOK_VALIDATION_FAILED", context={"errors": listed}))


def rejection(errors: list[HookError], now: float) -> dict[str, Any]:
    """Return the reply to an event that was not accepted, in both published forms: `errors`, and `validation_errors` with codes."""
    reply = wire.hook_reply(invalid(errors).fault)
    return reply | {"validation_errors": [msgspec.to_builtins(error) for error in errors], "timestamp": stamp(now)}


class Stored(NamedTuple):
    """An event that is in the log."""

    event_id: str
    offset: int
    duplicate: bool


class HookStore:
    """Stores hook events. An event of a session that does not exist makes the session, so that people can watch it.

        stored = await HookStore(store, clock=clock, timeout=0.75).add(event, key="4f2c")

    timeout: seconds that the store may take. A hook runs in the agent's own path, so it fails soon rather than late.
    """

    def __init__(self, store: Store, *, clock: Clock, timeout: float = 0.75) -> None:
        self._store, self._clock, self._timeout = store, clock, timeout

    async def add(self, event: HookEvent, key: str = "", *, by: str = "") -> Stored:
        """Store an event and return where it is. `key` is the caller's own key for it, among those of `by`.

        Raises SESS_CLOSED, PROTO_DUPLICATE_ID for a key with another body, and SESS_STORE_UNAVAILABLE if the store does not answer in time.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._add(event, key, by)
        except TimeoutError:
            fault = Fault.of("SESS_STORE_UNAVAILABLE", retry_after=2.0, context={"session_id": event.session_id})
            raise HoldfastError(fault) from None
        except HoldfastError as error:
            if error.fault.code != "SESS_STORE_UNAVAILABLE" or error.fault.retry_after is not None:
                raise
            raise HoldfastError(msgspec.structs.replace(error.fault, retry_after=2.0)) from error

    async def _add(self, event: HookEvent, key: str, by: str) -> Stored:
        commit, id_ = self._commit(event, key, by)
        try:
            receipt = await self._store.commit(commit)
        except HoldfastError as error:
            if error.fault.code != "SESS_NOT_FOUND":
                raise
            await self._create(event.session_id)
            receipt = await self._store.commit(commit)
        if receipt.duplicate:
            id_ = str(msgspec.json.decode(receipt.result))
        return Stored(id_, receipt.first, receipt.duplicate)

    def _commit(self, event: HookEvent, key: str, by: str) -> tuple[Commit, str]:
        # Nobody reads a hook event back as a program, so its secrets need not be stored to be masked later.
        data = process_redactor().value(event.data)
        # The key of a tool call is the same whoever posts it.
        claimed = f"{by}/{key}" if key and by else key or event.key
        id_ = str(uuid5(NAMESPACE_URL, f"{event.session_id}/{claimed}") if claimed else uuid4())
        body = msgspec.json.encode({"event": event.event, "data": data, "event_id": id_})
        claim = None
        if claimed:
            # The key of a tool call says all: its time, for example, may differ when it is posted again.
            same = f"{event.event}{msgspec.json.encode(event.data, order='deterministic')!r}" if key else claimed
            digest = sha256(same.encode()).digest()[:16]
            # The key may be any text, and an id may not.
            name = sha256(claimed.encode(errors="replace")).hexdigest()[:32]
            claim = Claim(client=_CLIENT, id=name, body_hash=digest, result=msgspec.json.encode(id_))
        return Commit(
            session=event.session_id, entries=(NewEntry(type="claude_event", body=body, id=id_),), claim=claim
        ), id_

    async def _create(self, session: str) -> None:
        now = self._clock.wall()
        manifest = Manifest(
            session_id=session, store_id=self._store.id, created_at=now, updated_at=now, agent_type="hooks"
        )
        made = audit("SessionLifecycle", session, state="created", by="hook")
        commit = Commit(session=session, create=NewSession(manifest=encode_manifest(manifest)), audit=(made,))
        # Two first events may come at once, and one of them makes the session.
        try:
            await self._store.commit(commit)
        except HoldfastError as error:
            if error.fault.code != "SESS_ILLEGAL_TRANSITION":
                raise
