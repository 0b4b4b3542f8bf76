"""Document 004's view: the Response `{success, data, error{type, code, message, retryable, context}, metadata}`.

Invariant: a Response with an error never succeeds, and what it holds as `data` is the partial result. Document 004's
"recoverable" is its `validation`; a cancellation, which it does not know, is `permanent`: neither retried nor restarted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import Err, Fault, InvalidError, Kind, Ok, Partial
from holdfast.views._document import checked, code_for, given, jsonable, renamed, shaped
from holdfast.views._strategy import Strategy, decide
from holdfast.views._view import View, facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Code, Outcome, Redactor

__all__ = [
    "ActorError",
    "ErrorType",
    "Errors",
    "Strategy",
    "decide",
    "failed",
    "from_outcome",
    "read",
    "to_outcome",
    "write",
]

ErrorType: TypeAlias = Literal["validation", "transient", "fatal", "permanent"]

_TYPES: Mapping[Kind, ErrorType] = {
    Kind.RECOVERABLE: "validation",
    Kind.TRANSIENT: "transient",
    Kind.FATAL: "fatal",
    Kind.PERMANENT: "permanent",
    Kind.CANCELLED: "permanent",
}
_STAND_INS: Mapping[ErrorType, Code] = {
    "validation": "PROTO_INVALID_MESSAGE",
    "transient": "ACTOR_ERROR",
    "fatal": "ACTOR_CRASHED",
    "permanent": "ACTOR_CLI_ERROR",
}
"""What a code never heard of means by its type: the same kind. Its verdict is in the document."""

_CODES: Mapping[Code, str] = {
    "PROTO_INVALID_MESSAGE": "INVALID_MESSAGE",
    "PROTO_UNKNOWN_TYPE": "UNKNOWN_MESSAGE_TYPE",
    "CONN_TIMEOUT": "NETWORK_TIMEOUT",
    "TOOL_TIMEOUT": "TIMEOUT",
    "PROVIDER_STREAM_STALLED": "STREAM_TIMEOUT",
    "ACTOR_MAX_RESTARTS": "MAX_RESTARTS_EXCEEDED",
    "ACTOR_CLI_NETWORK": "CLAUDE_CLI_NETWORK",
    "ACTOR_CLI_ERROR": "CLAUDE_CLI_ERROR",
}
"""The codes document 004 has its own names for (S4-7)."""

_NAMES: Mapping[Code, Mapping[str, str]] = {
    "PROTO_UNKNOWN_TYPE": {"supported": "supportedTypes", "received": "receivedType"},
    "PROVIDER_STREAM_STALLED": {"duration_ms": "durationMs"},
    "ACTOR_CRASHED": {"restart_count": "restartCount"},
    "ACTOR_MAX_RESTARTS": {"original_error": "originalError"},
}
"""The facts document 004 has its own names for."""


class ActorError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Document 004's error value."""

    type: ErrorType
    code: str
    message: str
    retryable: bool
    context: dict[str, Any] | None = None


class Errors:
    """Document 004's factories. Only what is transient is retryable (S4-6)."""

    @staticmethod
    def validation(code: str, message: str, context: dict[str, Any] | None = None) -> ActorError:
        """Return the error for a message or value that was expected to fail."""
        return ActorError(type="validation", code=code, message=message, retryable=False, context=context)

    @staticmethod
    def transient(code: str, message: str, context: dict[str, Any] | None = None) -> ActorError:
        """Return the error for what passes by itself."""
        return ActorError(type="transient", code=code, message=message, retryable=True, context=context)

    @staticmethod
    def fatal(code: str, message: str, context: dict[str, Any] | None = None) -> ActorError:
        """Return the error for a state that only a restart can mend."""
        return ActorError(type="fatal", code=code, message=message, retryable=False, context=context)

    @staticmethod
    def permanent(code: str, message: str, context: dict[str, Any] | None = None) -> ActorError:
        """Return the error for what neither waiting nor restarting mends."""
        return ActorError(type="permanent", code=code, message=message, retryable=False, context=context)


def write(
    fault: Fault,
    *,
    metadata: dict[str, Any] | None = None,
    with_fault: bool = False,
    redactor: Redactor | None = None,
) -> dict[str, Any]:
    """Return the failed Response of `fault`; `metadata` given here replaces what another side said."""
    document = _VIEW.told(fault, redactor)
    if metadata is not None:
        document["metadata"] = metadata
    return _VIEW.sealed(document, fault if with_fault else None, redactor)


def read(document: object) -> Fault:
    """Return the fault a failed Response tells, or raise `InvalidError`."""
    if _succeeded(document):
        raise InvalidError.saying("$.success", "false", "true", _VIEW.refuses)
    return _VIEW.read(document)


def failed(
    error: ActorError, *, metadata: dict[str, Any] | None = None, redactor: Redactor | None = None
) -> dict[str, Any]:
    """Return the Response that holds `error`."""
    told = _Response(success=False, error=error, metadata=UNSET if metadata is None else metadata)
    return _VIEW.sealed(msgspec.to_builtins(told), None, redactor)


def from_outcome(
    outcome: Outcome[Any], *, metadata: dict[str, Any] | None = None, redactor: Redactor | None = None
) -> dict[str, Any]:
    """Return an outcome as a Response."""
    if isinstance(outcome, Err):
        return write(outcome.fault, metadata=metadata, redactor=redactor)
    success = _Success(success=True, data=outcome.value, metadata=UNSET if metadata is None else metadata)
    # Not masked and not capped: a result is what was asked for, and it is whole or it is no result.
    told: dict[str, Any] = jsonable(success)
    return told


def to_outcome(document: object) -> Outcome[Any]:
    """Return a Response as an outcome, or raise `InvalidError`. The metadata of a success is the caller's to read."""
    if not _succeeded(document):
        return Err(read(document))
    success = shaped(checked(document, _VIEW.refuses), _Success, _VIEW.refuses)
    return Ok(given(success.data, None))


class _Success(msgspec.Struct, kw_only=True):
    success: bool
    data: Any = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class _Response(_Success, kw_only=True):
    error: ActorError


def _succeeded(document: object) -> bool:
    return isinstance(document, dict) and document.get("success") is True


def _show(fault: Fault) -> _Response:
    context = renamed(facts(fault.context), _NAMES.get(fault.code, {}))
    error = ActorError(
        type=_TYPES[fault.kind],
        code=_CODES.get(fault.code, fault.code),
        message=fault.message,
        retryable=fault.retryable,
        context=context or None,
    )
    # A failed command's stdout, stderr and exitCode stand in `data` (S4-15): that is a partial result.
    return _Response(success=False, error=error, data=UNSET if fault.partial is None else fault.partial.payload)


def _build(document: _Response) -> Fault:
    error = document.error
    code = code_for(error.code, _STAND_INS[error.type])
    names = {theirs: ours for ours, theirs in _NAMES.get(code, {}).items()}
    return Fault.of(
        code,
        error.message,
        retryable=error.retryable,
        context=renamed(facts(error.context or {}), names),
        partial=None if document.data is UNSET else Partial(payload=document.data),
    )


_VIEW = View(name="response", shape=_Response, show=_show, build=_build)
