"""Document 000's view: the bridge's `connection_error`, `error` and `tool_error` messages, HTTP bodies, hook replies.

Invariant: codes go over the wire verbatim; an old name that came in goes out again as it came (N0-14).

What belongs to the sender, message ids and times, is an argument: there is no clock here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import Fault, InvalidError, meaning
from holdfast.views._document import code_for, given, hint, hinted, objects
from holdfast.views._http_words import WORDS
from holdfast.views._view import View
from holdfast.views._wire_messages import CONNECTION_ERROR, ERROR, TOOL_ERROR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Redactor

__all__ = ["connection_error", "error_reply", "hook_reply", "http_body", "read", "tool_error"]


def connection_error(fault: Fault, *, with_fault: bool = False, redactor: Redactor | None = None) -> dict[str, Any]:
    """Return the message that ends or refuses a connection (S0-11)."""
    return CONNECTION_ERROR.write(fault, with_fault=with_fault, redactor=redactor)


def error_reply(
    fault: Fault,
    message_id: str | None = None,
    *,
    verdict: bool = False,
    with_fault: bool = False,
    redactor: Redactor | None = None,
) -> dict[str, Any]:
    """Return the reply to the message `message_id` (S0-14).

    `verdict` adds severity and recoverability, and an `id` of null where the message could not be read (B13).
    """
    document = ERROR.told(fault, redactor)
    if message_id is not None:
        document["id"] = message_id
    if verdict:
        document = {"id": None, **document}
        document["payload"] = {**document["payload"], "severity": fault.severity, "recoverable": fault.retryable}
    return ERROR.sealed(document, fault if with_fault else None, redactor)


def tool_error(fault: Fault, *, with_fault: bool = False, redactor: Redactor | None = None) -> dict[str, Any]:
    """Return the message for a tool call that failed (S0-21); the context holds `tool` and `tool_call_id`."""
    return TOOL_ERROR.write(fault, with_fault=with_fault, redactor=redactor)


def http_body(
    fault: Fault,
    *,
    request_id: str | None = None,
    timestamp: str | None = None,
    documentation_url: str | None = None,
    with_fault: bool = False,
    redactor: Redactor | None = None,
) -> dict[str, Any]:
    """Return the body of an HTTP error (S0-17), with what the caller knows of the envelope (N0-14).

    The status to send it with is `fault.entry.http_status`.
    """
    own = {"request_id": request_id, "timestamp": timestamp, "documentation_url": documentation_url}
    document = _HTTP.told(fault, redactor) | {name: value for name, value in own.items() if value is not None}
    return _HTTP.sealed(document, fault if with_fault else None, redactor)


def hook_reply(fault: Fault, *, with_fault: bool = False, redactor: Redactor | None = None) -> dict[str, Any]:
    """Return the reply to a hook event that was not accepted (S0-25)."""
    return _HOOK.write(fault, with_fault=with_fault, redactor=redactor)


def read(document: object) -> Fault:
    """Return the fault that any of these documents tells, or raise `InvalidError`."""
    if not isinstance(document, dict):
        raise InvalidError.saying("$", "an object", type(document).__name__, "PROTO_INVALID_MESSAGE")
    if "type" in document:
        return _message_view(document["type"]).read(document)
    return (_HOOK if "received" in document else _HTTP).read(document)


class _Body(msgspec.Struct, kw_only=True):
    error: str
    code: str
    message: str
    suggestions: list[str] | UnsetType = UNSET
    violations: list[dict[str, Any]] | UnsetType = UNSET
    retry_after: int | float | UnsetType = UNSET


class _Refusal(msgspec.Struct, kw_only=True):
    received: bool
    code: str | UnsetType = UNSET
    errors: list[dict[str, Any]] | UnsetType = UNSET
    validation_errors: list[dict[str, Any]] | UnsetType = UNSET
    """The other spelling, in which each error has its own code (N0-17)."""


def _message_view(kind: object) -> View[Any]:
    for name, view in _MESSAGES.items():
        if name == kind:
            return view
    received = repr(kind) if isinstance(kind, str) else type(kind).__name__
    raise InvalidError.saying("$.type", " or ".join(_MESSAGES), received, "PROTO_INVALID_MESSAGE")


def _show_body(fault: Fault) -> _Body:
    return _Body(
        error=WORDS[fault.entry.http_status],
        code=fault.code,
        message=fault.message,
        suggestions=list(fault.entry.suggestions),
        violations=objects(fault.context.get("violations")),
        retry_after=hinted(fault.retry_after),
    )


def _build_body(document: _Body) -> Fault:
    return Fault.of(
        meaning(document.code).code,
        document.message,
        retry_after=hint(document.retry_after),
        context={} if document.violations is UNSET else {"violations": document.violations},
    )


def _show_refusal(fault: Fault) -> _Refusal:
    # The reply has no message of its own, so a fault that lists no errors is the one error.
    alone = {"field": fault.context.get("field", ""), "message": fault.message}
    return _Refusal(received=False, code=fault.code, errors=given(objects(fault.context.get("errors")), [alone]))


def _build_refusal(document: _Refusal) -> Fault:
    if document.received:
        raise InvalidError.saying("$.received", "false", "true", "PROTO_INVALID_MESSAGE")
    errors = given(document.errors, given(document.validation_errors, None))
    if errors is None:
        raise InvalidError.saying("$.errors", "a list of errors", "nothing", "PROTO_INVALID_MESSAGE")
    first = errors[0].get("code") if errors else None
    name = given(document.code, first if isinstance(first, str) else "")
    return Fault.of(code_for(name, "HOOK_VALIDATION_FAILED"), context={"errors": errors})


_HTTP = View(name="http", shape=_Body, show=_show_body, build=_build_body)
_HOOK = View(name="hook", shape=_Refusal, show=_show_refusal, build=_build_refusal)
_MESSAGES: Mapping[str, View[Any]] = {"connection_error": CONNECTION_ERROR, "error": ERROR, "tool_error": TOOL_ERROR}
