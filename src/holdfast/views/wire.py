"""The wire view: the bridge's `connection_error`, `error` and `tool_error`, HTTP bodies, hook replies.

Invariant: codes are sent unchanged. If an old name of a code was read, the same old name is written again. A
fault's context is the message's `details`, except for the fields that have another place in the message.

The sender passes message ids and times as arguments, so there is no clock here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import Fault, InvalidError, Partial, Schedule, meaning
from holdfast.views.view import (
    MS,
    View,
    code_for,
    facts,
    given,
    objects,
    read_delay,
    renamed,
    spread_partial,
    take_partial,
    write_delay,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Redactor

__all__ = ["connection_error", "error_reply", "hook_reply", "http_body", "read", "tool_error"]

P = TypeVar("P")

_RETRIES = 3
"""The highest number of retries of a tool call (S0-21)."""
# The partial result of a process tool. Its details have these two names at the top level.
_STREAMS = ("stdout", "stderr")
_IN_SESSION = frozenset({"interaction_id", "tool_call_id", "run"})
"""The names of things in a session that may be missing: a question, a tool call, an operation."""
_NAMES: Mapping[str, str] = {"phase": "currentPhase"}
"""The only field that document 000 writes in camelCase (S0-16)."""
_OUR_NAMES = {theirs: ours for ours, theirs in _NAMES.items()}
# This is our own list, because Python's phrases differ between versions. It covers every status of the catalog (S0-17).
_HTTP_WORDS: Mapping[int, str] = {
    400: "BadRequest",
    401: "Unauthorized",
    402: "PaymentRequired",
    403: "Forbidden",
    404: "NotFound",
    408: "RequestTimeout",
    409: "Conflict",
    410: "Gone",
    413: "ContentTooLarge",
    415: "UnsupportedMediaType",
    422: "UnprocessableContent",
    426: "UpgradeRequired",
    429: "TooManyRequests",
    499: "ClientClosedRequest",
    500: "InternalServerError",
    501: "NotImplemented",
    502: "BadGateway",
    503: "ServiceUnavailable",
    504: "GatewayTimeout",
    507: "InsufficientStorage",
    529: "Overloaded",
}


def connection_error(
    fault: Fault, *, literal: bool = False, with_fault: bool = False, redactor: Redactor | None = None
) -> dict[str, Any]:
    """Return the message that ends or rejects a connection; `literal` with the sentence of the specification.

    >>> wire.connection_error(Fault.of("AUTH_TOKEN_EXPIRED"))["payload"]["code"]
    'AUTH_TOKEN_EXPIRED'
    """
    return _CONNECTION_ERROR.write(fault, with_fault=with_fault, redactor=redactor, literal=literal)


def error_reply(
    fault: Fault,
    message_id: str | None = None,
    *,
    verdict: bool = False,
    literal: bool = False,
    with_fault: bool = False,
    redactor: Redactor | None = None,
) -> dict[str, Any]:
    """Return the error reply to the message `message_id`.

    `verdict` adds severity and recoverability, and an `id` of null if the message could not be read. `literal` replaces the
    message by the sentence of the specification.
    """
    document = _ERROR.draft(fault, redactor, literal=literal)
    if message_id is not None:
        document["id"] = message_id
    # The message in document 000 has neither field, so they are added only on request.
    if verdict:
        document = {"id": None, **document}
        document["payload"] = {**document["payload"], "severity": fault.severity, "recoverable": fault.retryable}
    return _ERROR.sealed(document, fault if with_fault else None, redactor)


def tool_error(
    fault: Fault,
    *,
    retryable: bool | None = None,
    max_retries: int | None = None,
    literal: bool = False,
    with_fault: bool = False,
    redactor: Redactor | None = None,
) -> dict[str, Any]:
    """Return the message for a failed tool call; the fault's context contains `tool` and `tool_call_id`.

    `retryable` and `max_retries` are what the tool's contract allows; without them the fault decides. `literal` replaces the
    message of a command that failed by the sentence of the specification.

    >>> fault = Fault.of("TOOL_EXECUTION_FAILED", context={"tool": "bash", "exit_code": 1})
    >>> wire.tool_error(fault, retryable=True, literal=True)["payload"]["message"]
    'Command exited with code 1'
    """
    document = _TOOL_ERROR.draft(fault, redactor, literal=literal)
    if retryable is not None:
        document["payload"] = {
            **document["payload"],
            "retryable": retryable,
            "max_retries": _RETRIES if retryable else 0,
        }
    if max_retries is not None:
        document["payload"] = {**document["payload"], "max_retries": max_retries}
    return _TOOL_ERROR.sealed(document, fault if with_fault else None, redactor)


def http_body(
    fault: Fault,
    *,
    request_id: str | None = None,
    timestamp: str | None = None,
    documentation_url: str | None = None,
    literal: bool = False,
    with_fault: bool = False,
    redactor: Redactor | None = None,
) -> dict[str, Any]:
    """Return the body of an HTTP error; the optional arguments are added as fields if they are given.

    `literal` replaces the message by the sentence of the specification. Send it with the status `fault.entry.http_status`.

    >>> wire.http_body(Fault.of("SESS_NOT_FOUND"))["error"]
    'NotFound'
    """
    own = {"request_id": request_id, "timestamp": timestamp, "documentation_url": documentation_url}
    document = _HTTP.draft(fault, redactor, literal=literal) | {
        name: value for name, value in own.items() if value is not None
    }
    return _HTTP.sealed(document, fault if with_fault else None, redactor)


def hook_reply(fault: Fault, *, with_fault: bool = False, redactor: Redactor | None = None) -> dict[str, Any]:
    """Return the reply to a hook event that was not accepted."""
    return _HOOK.write(fault, with_fault=with_fault, redactor=redactor)


def read(document: object) -> Fault:
    """Return the fault of any of these documents; raises `InvalidError` for anything else."""
    if not isinstance(document, dict):
        raise InvalidError.saying("$", "an object", type(document).__name__, "PROTO_INVALID_MESSAGE")
    # A message has `type`, a hook reply has `received`, an HTTP body has neither of them.
    if "type" in document:
        return _message_view(document["type"]).read(document)
    return (_HOOK if "received" in document else _HTTP).read(document)


class _Message(msgspec.Struct, Generic[P], kw_only=True):
    type: str
    payload: P
    id: str | UnsetType | None = UNSET


class _ErrorPayload(msgspec.Struct, kw_only=True):
    code: str
    message: str
    violations: list[dict[str, Any]] | UnsetType = UNSET
    details: dict[str, Any] | UnsetType = UNSET
    recoverable: bool | UnsetType = UNSET
    retry_after_ms: int | float | UnsetType = UNSET


class _ToolErrorPayload(msgspec.Struct, kw_only=True):
    tool_call_id: str
    tool: str
    code: str
    message: str
    retryable: bool
    max_retries: int
    details: dict[str, Any] | UnsetType = UNSET
    retry_after_ms: int | float | UnsetType = UNSET


def _show_connection_error(fault: Fault) -> _Message[_ErrorPayload]:
    payload = _ErrorPayload(
        code=fault.code,
        message=fault.message,
        details=renamed(facts(fault.context), _NAMES) or UNSET,
        recoverable=fault.retryable,
        retry_after_ms=write_delay(fault.retry_after, MS),
    )
    return _Message(type="connection_error", payload=payload)


def _show_error(fault: Fault) -> _Message[_ErrorPayload]:
    # The details are copied, because `violations` is removed from them below.
    details = renamed(facts(fault.context), _NAMES)
    violations = objects(details.get("violations"))
    if violations is not UNSET:
        del details["violations"]
    # In document 000 a missing `recoverable` means no. So it is written if the code alone suggests a yes.
    silent = not (fault.retryable or fault.entry.retryable)
    payload = _ErrorPayload(
        code=fault.code,
        message=fault.message,
        violations=violations,
        details=details or UNSET,
        recoverable=UNSET if silent else fault.retryable,
        retry_after_ms=write_delay(fault.retry_after, MS),
    )
    return _Message(type="error", payload=payload)


def _show_tool_error(fault: Fault) -> _Message[_ToolErrorPayload]:
    details = facts(fault.context)
    payload = _ToolErrorPayload(
        tool_call_id=str(details.pop("tool_call_id", "")),
        tool=str(details.pop("tool", "")),
        code=fault.code,
        message=fault.message,
        retryable=fault.retryable,
        max_retries=_max_retries(fault),
        details=details | _silent_streams(fault) | _show_partial(fault.partial) or UNSET,
        retry_after_ms=write_delay(fault.retry_after, MS),
    )
    return _Message(type="tool_error", payload=payload)


def _build_error(document: _Message[_ErrorPayload]) -> Fault:
    payload = document.payload
    context = renamed(facts(given(payload.details, {})), _OUR_NAMES)
    if payload.violations is not UNSET:
        context["violations"] = payload.violations
    return Fault.of(
        meaning(payload.code).code,
        payload.message,
        retryable=given(payload.recoverable, None),
        retry_after=read_delay(payload.retry_after_ms, MS),
        context=context,
    )


def _build_tool_error(document: _Message[_ToolErrorPayload]) -> Fault:
    payload = document.payload
    details = facts(given(payload.details, {}))
    partial = _build_partial(details)
    return Fault.of(
        code_for(payload.code, "TOOL_EXECUTION_FAILED"),
        payload.message,
        retryable=payload.retryable,
        retry_after=read_delay(payload.retry_after_ms, MS),
        context=details | {"tool_call_id": payload.tool_call_id, "tool": payload.tool},
        partial=partial,
    )


def _max_retries(fault: Fault) -> int:
    if not fault.retryable:
        return 0
    return 1 if fault.schedule in (Schedule.ONCE, Schedule.MATCHING) else _RETRIES


def _sentence(fault: Fault) -> str | None:
    """Return document 000's own sentence for the code; None if it has none, or if a fact for it is missing."""
    match fault.code:
        # The catalog has these sentences from the document. A fault of a foreign error has that error's text instead.
        case "CONN_TLS_HANDSHAKE_FAILED" | "PROTO_INVALID_MESSAGE":
            return fault.entry.message
        # Otherwise something in the session is missing, and the session is there.
        case "SESS_NOT_FOUND" if "session_id" in fault.context and fault.context.keys().isdisjoint(_IN_SESSION):
            return f"Session '{fault.context['session_id']}' not found"
    return None


def _worded_message(fault: Fault, document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "payload": _worded_body(fault, document["payload"])}


def _worded_body(fault: Fault, document: dict[str, Any]) -> dict[str, Any]:
    sentence = _sentence(fault)
    return document if sentence is None else {**document, "message": sentence}


def _worded_tool_error(fault: Fault, document: dict[str, Any]) -> dict[str, Any]:
    code = fault.context.get("exit_code")
    if fault.code != "TOOL_EXECUTION_FAILED" or not isinstance(code, int):
        return document
    return {**document, "payload": {**document["payload"], "message": f"Command exited with code {code}"}}


def _silent_streams(fault: Fault) -> dict[str, str]:
    """Return the two streams of a process as empty texts: what it did not print is written, too."""
    return dict.fromkeys(_STREAMS, "") if isinstance(fault.context.get("exit_code"), int) else {}


def _show_partial(partial: Partial | None) -> dict[str, Any]:
    """Return a tool's partial result: the two streams of a process by name, otherwise the payload (S2-20)."""
    if partial is None:
        return {}
    if isinstance(partial.payload, dict) and partial.payload.keys() <= set(_STREAMS):
        return spread_partial(partial, None) | partial.payload
    return spread_partial(partial, "payload")


def _build_partial(details: dict[str, Any]) -> Partial | None:
    streams = {name: details.pop(name) for name in _STREAMS if name in details}
    return take_partial(details, ["payload"], streams if any(streams.values()) else None)


class _Body(msgspec.Struct, kw_only=True):
    error: str
    code: str
    message: str
    suggestions: list[str] | UnsetType = UNSET
    violations: list[dict[str, Any]] | UnsetType = UNSET
    retry_after: int | float | UnsetType = UNSET


class _HookReply(msgspec.Struct, kw_only=True):
    received: bool
    code: str | UnsetType = UNSET
    errors: list[dict[str, Any]] | UnsetType = UNSET
    validation_errors: list[dict[str, Any]] | UnsetType = UNSET
    """Another form of `errors`, in which each error has its own code (N0-17)."""


def _message_view(kind: object) -> View[Any]:
    for name, view in _MESSAGES.items():
        if name == kind:
            return view
    received = repr(kind) if isinstance(kind, str) else type(kind).__name__
    raise InvalidError.saying("$.type", " or ".join(_MESSAGES), received, "PROTO_INVALID_MESSAGE")


def _show_body(fault: Fault) -> _Body:
    violations = objects(fault.context.get("violations"))
    listed = fault.entry.suggestions
    if violations is UNSET:
        # Nobody can fix the fields of an empty list.
        listed = tuple(each for each in listed if "`violations`" not in each)
    return _Body(
        error=_HTTP_WORDS[fault.entry.http_status],
        code=fault.code,
        message=fault.message,
        suggestions=list(listed),
        violations=violations,
        retry_after=write_delay(fault.retry_after),
    )


def _build_body(document: _Body) -> Fault:
    return Fault.of(
        meaning(document.code).code,
        document.message,
        retry_after=read_delay(document.retry_after),
        context={} if document.violations is UNSET else {"violations": document.violations},
    )


def _show_hook(fault: Fault) -> _HookReply:
    # The reply has no message of its own. So a fault without a list of errors is written as the only error.
    alone = {"field": fault.context.get("field", ""), "message": fault.message}
    return _HookReply(received=False, code=fault.code, errors=given(objects(fault.context.get("errors")), [alone]))


def _build_hook(document: _HookReply) -> Fault:
    if document.received:
        raise InvalidError.saying("$.received", "false", "true", "PROTO_INVALID_MESSAGE")
    errors = given(document.errors, given(document.validation_errors, None))
    if errors is None:
        raise InvalidError.saying("$.errors", "a list of errors", "nothing", "PROTO_INVALID_MESSAGE")
    # Messages of older hooks carry no code themselves. The code is on each of their errors.
    first = errors[0].get("code") if errors else None
    name = given(document.code, first if isinstance(first, str) else "")
    return Fault.of(code_for(name, "HOOK_VALIDATION_FAILED"), context={"errors": errors})


_CONNECTION_ERROR = View(
    name="connection_error",
    shape=_Message[_ErrorPayload],
    show=_show_connection_error,
    build=_build_error,
    wording=_worded_message,
)
_ERROR = View(
    name="error", shape=_Message[_ErrorPayload], show=_show_error, build=_build_error, wording=_worded_message
)
_TOOL_ERROR = View(
    name="tool_error",
    shape=_Message[_ToolErrorPayload],
    show=_show_tool_error,
    build=_build_tool_error,
    wording=_worded_tool_error,
)
_HTTP = View(name="http", shape=_Body, show=_show_body, build=_build_body, wording=_worded_body)
_HOOK = View(name="hook", shape=_HookReply, show=_show_hook, build=_build_hook)
_MESSAGES: Mapping[str, View[Any]] = {"connection_error": _CONNECTION_ERROR, "error": _ERROR, "tool_error": _TOOL_ERROR}
