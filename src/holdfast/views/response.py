"""The Response view: `{success, data, error{type, code, message, retryable, context}, metadata}`.

Invariant: a Response with an error is never a success, and its `data` is the partial result. A recoverable failure has
the type `validation`. A cancellation has no type of its own. Its type is `permanent`, so it is neither retried nor
restarted. `retryable` is about the failure, not about the operation: a timeout stays retryable after the last attempt.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import Err, Fault, InvalidError, Kind, Ok, Partial
from holdfast.views.view import (
    View,
    checked,
    code_for,
    facts,
    given,
    is_exhausted,
    is_retryable,
    jsonable,
    milliseconds,
    renamed,
    shaped,
)

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
    "plain",
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
    # A permanent error is neither retried nor restarted, which is right for a cancellation.
    Kind.CANCELLED: "permanent",
}
_STAND_INS: Mapping[ErrorType, Code] = {
    "validation": "PROTO_INVALID_MESSAGE",
    "transient": "ACTOR_ERROR",
    "fatal": "ACTOR_CRASHED",
    "permanent": "ACTOR_CLI_ERROR",
}
"""The code that replaces an unknown code, by type. It has the same kind; the verdict is read from the document."""

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
"""Codes that have other names in document 004 (S4-7)."""
_TIMEOUTS: frozenset[Code] = frozenset({"PROVIDER_TIMEOUT", "SYS_TIMEOUT", "SYS_DEADLINE_EXCEEDED", "TASK_TIMEOUT"})
"""Time limits that document 004 does not tell apart (S4-12)."""

_NAMES: Mapping[Code, Mapping[str, str]] = {
    "PROTO_UNKNOWN_TYPE": {"supported": "supportedTypes", "received": "receivedType"},
    "PROVIDER_STREAM_STALLED": {"duration_ms": "durationMs"},
    "ACTOR_CRASHED": {"restart_count": "restartCount"},
    "ACTOR_MAX_RESTARTS": {"original_error": "originalError"},
}
"""Context fields that have other names in document 004."""


_CONTEXTS: Mapping[Code, frozenset[str]] = {
    **dict.fromkeys(
        ("PROTO_INVALID_MESSAGE", "CONN_TIMEOUT", "CIRCUIT_OPEN", "TOOL_TIMEOUT", "ACTOR_NOT_FOUND", *_TIMEOUTS),
        frozenset(),
    ),
    "ACTOR_CLI_NETWORK": frozenset(),
    "ACTOR_CLI_ERROR": frozenset(),
    "PROTO_UNKNOWN_TYPE": frozenset({"supportedTypes", "receivedType"}),
    "PROVIDER_STREAM_STALLED": frozenset({"durationMs"}),
    "ACTOR_CRASHED": frozenset({"restartCount"}),
    "ACTOR_MAX_RESTARTS": frozenset({"originalError"}),
}
"""The only context fields that document 004 shows for a code."""


class ActorError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The error of a Response.

    For example:
        error = Errors.transient("NETWORK_TIMEOUT", "no response within 30 s")
        body = response.failed(error)
    """

    type: ErrorType
    code: str
    message: str
    retryable: bool
    context: dict[str, Any] | None = None


class Errors:
    """Builds an `ActorError` by its type. Only transient errors are retryable: `Errors.fatal("CRASH", "state is lost")`."""

    @staticmethod
    def validation(code: str, message: str, context: dict[str, Any] | None = None) -> ActorError:
        """Return the error for a message or value that failed validation."""
        return ActorError(type="validation", code=code, message=message, retryable=False, context=context)

    @staticmethod
    def transient(code: str, message: str, context: dict[str, Any] | None = None) -> ActorError:
        """Return the error for a temporary failure."""
        return ActorError(type="transient", code=code, message=message, retryable=True, context=context)

    @staticmethod
    def fatal(code: str, message: str, context: dict[str, Any] | None = None) -> ActorError:
        """Return the error for a state that only a restart repairs."""
        return ActorError(type="fatal", code=code, message=message, retryable=False, context=context)

    @staticmethod
    def permanent(code: str, message: str, context: dict[str, Any] | None = None) -> ActorError:
        """Return the error for a failure that cannot be repaired by waiting or by restarting."""
        return ActorError(type="permanent", code=code, message=message, retryable=False, context=context)


class Strategy(StrEnum):
    """What to do about a failure; `decide` chooses one."""

    RETURN = "return"
    """Return the failure as a result."""
    RETRY = "retry"
    """Retry, with backoff."""
    CONTINUE = "continue"
    """Log a warning and continue without the result."""
    RESTART = "restart"
    """Restart the actor."""
    ESCALATE = "escalate"
    """Notify the supervisor."""

    @property
    def kind(self) -> Kind:
        """The kind of failure for which this strategy is right."""
        return _KINDS[self]


_KINDS: Mapping[Strategy, Kind] = {
    Strategy.RETURN: Kind.RECOVERABLE,
    Strategy.RETRY: Kind.TRANSIENT,
    Strategy.CONTINUE: Kind.RECOVERABLE,
    Strategy.RESTART: Kind.FATAL,
    Strategy.ESCALATE: Kind.PERMANENT,
}


def decide(
    *, expected: bool = False, temporary: bool = False, can_continue: bool = False, restart_helps: bool = False
) -> Strategy:
    """Return what to do about a failure.

    Four questions are checked in order, and the first yes decides. Without a yes: escalate.

    `expected`: validation or business logic. `temporary`: network, rate limit. `can_continue`: an optional feature or a
    degraded mode. `restart_helps`: the state is corrupt.

    >>> decide(temporary=True)
    <Strategy.RETRY: 'retry'>
    """
    if expected:
        return Strategy.RETURN
    if temporary:
        return Strategy.RETRY
    if can_continue:
        return Strategy.CONTINUE
    return Strategy.RESTART if restart_helps else Strategy.ESCALATE


def write(
    fault: Fault,
    *,
    metadata: dict[str, Any] | None = None,
    literal: bool = False,
    with_fault: bool = False,
    redactor: Redactor | None = None,
) -> dict[str, Any]:
    """Return the failed Response of `fault`; `metadata` replaces metadata that was read from another Response.

    After retries the message begins with the number of attempts. `literal` replaces the message and the context by those of
    the specification, where it has its own for the code.

    >>> response.write(Fault.of("TOOL_TIMEOUT"))["error"]["code"]
    'TIMEOUT'
    """
    document = _VIEW.draft(fault, redactor, literal=literal)
    # It is added last, because metadata describes this message, not the failure.
    if metadata is not None:
        document["metadata"] = metadata
    return _VIEW.sealed(document, fault if with_fault else None, redactor)


def read(document: object) -> Fault:
    """Return the fault of a failed Response; raises `InvalidError` for any other document."""
    # A success has no fault. Guessing one would turn a result into a failure.
    if _succeeded(document):
        raise InvalidError.saying("$.success", "false", "true", _VIEW.invalid)
    return _VIEW.read(document)


def failed(
    error: ActorError, *, metadata: dict[str, Any] | None = None, redactor: Redactor | None = None
) -> dict[str, Any]:
    """Return the Response that holds `error`."""
    failure = _Response(success=False, error=error, metadata=UNSET if metadata is None else metadata)
    return _VIEW.sealed(msgspec.to_builtins(failure), None, redactor)


def plain(response: dict[str, Any]) -> dict[str, Any]:
    """Return a Response whose error may be an `ActorError` as JSON: `plain({"success": False, "error": Errors.fatal("LOST", "m")})`."""
    error = response.get("error")
    return {**response, "error": msgspec.to_builtins(error)} if isinstance(error, ActorError) else response


def from_outcome(
    outcome: Outcome[Any],
    *,
    metadata: dict[str, Any] | None = None,
    literal: bool = False,
    redactor: Redactor | None = None,
) -> dict[str, Any]:
    """Return an outcome as a Response; `literal` as for `write`."""
    if isinstance(outcome, Err):
        return write(outcome.fault, metadata=metadata, literal=literal, redactor=redactor)
    success = _Success(success=True, data=outcome.value, metadata=UNSET if metadata is None else metadata)
    # A successful result is not masked and not capped, because the caller needs all of it.
    document: dict[str, Any] = jsonable(success)
    return document


def to_outcome(document: object) -> Outcome[Any]:
    """Return a Response as an outcome; raises `InvalidError` for any other document. A success loses its metadata."""
    if not _succeeded(document):
        return Err(read(document))
    # A success is checked, too: `data` must be JSON before a caller may trust it.
    success = shaped(checked(document, _VIEW.invalid), _Success, _VIEW.invalid)
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
        message=_counted(fault, fault.message),
        retryable=is_retryable(fault),
        context=context or None,
    )
    # A failed command's stdout, stderr and exitCode are in `data` (S4-15): that is a partial result.
    return _Response(success=False, error=error, data=UNSET if fault.partial is None else fault.partial.payload)


def _counted(fault: Fault, message: str) -> str:
    """Return the message with the number of attempts, if a failure was retried until a limit was reached (S4-9)."""
    attempts = len(fault.attempts)
    return f"Failed after {attempts} attempts: {message}" if attempts > 1 and is_exhausted(fault) else message


def _worded(fault: Fault, document: dict[str, Any]) -> dict[str, Any]:
    error = dict(document["error"])
    if fault.code in _TIMEOUTS:
        error["code"] = _CODES["TOOL_TIMEOUT"]
    sentence = _sentence(fault)
    if sentence is not None:
        error["message"] = _counted(fault, sentence)
    if fault.code in _CONTEXTS:
        context = {
            name: value for name, value in (error.pop("context", None) or {}).items() if name in _CONTEXTS[fault.code]
        }
        error |= {"context": context} if context else {}
    return {**document, "error": error}


def _sentence(fault: Fault) -> str | None:
    """Return document 004's own sentence for the code; None if it has none, or if a fact for it is missing."""
    facts = fault.context
    limit = milliseconds(facts, "limit_s", "timeout_s", "idle_s", "timeout_ms")
    match fault.code:
        case "PROTO_INVALID_MESSAGE":
            return "Message payload is invalid"
        case "CIRCUIT_OPEN":
            return "Service temporarily unavailable"
        case "PROTO_UNKNOWN_TYPE" if "received" in facts:
            return f"Task does not support message type: {facts['received']}"
        case code if (code == "TOOL_TIMEOUT" or code in _TIMEOUTS) and limit is not None and "operation" in facts:
            return f'Operation "{facts["operation"]}" timed out after {limit}ms'
        case "PROVIDER_STREAM_STALLED" if limit is not None:
            return f"Stream exceeded timeout of {limit}ms"
        case "ACTOR_CLI_NETWORK" | "ACTOR_CLI_ERROR" if "reason" in facts:
            return str(facts["reason"])
        case "ACTOR_MAX_RESTARTS" if {"actor", "restarts", "window_s"} <= facts.keys():
            return f"Actor {facts['actor']} failed {facts['restarts']} times in {milliseconds(facts, 'window_s')}ms"
    return None


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


_VIEW = View(name="response", shape=_Response, show=_show, build=_build, wording=_worded)
