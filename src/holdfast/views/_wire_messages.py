"""Document 000's three error messages: `connection_error` (S0-11), `error` (S0-14) and `tool_error` (S0-21).

Invariant: the fault's context is the message's `details`; only what document 000 names elsewhere stands elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import Fault, Partial, Schedule, meaning
from holdfast.views._document import MS, code_for, given, hint, hinted, objects, renamed
from holdfast.views._partial import gather, spread
from holdfast.views._view import View, facts

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CONNECTION_ERROR", "ERROR", "TOOL_ERROR"]

P = TypeVar("P")

_RETRIES = 3
"""How often a tool call is repeated at most (S0-21)."""
_STREAMS = ("stdout", "stderr")
_NAMES: Mapping[str, str] = {"phase": "currentPhase"}
"""The one fact document 000 spells in camelCase (S0-16)."""
_OUR_NAMES = {theirs: ours for ours, theirs in _NAMES.items()}


class _Message(msgspec.Struct, Generic[P], kw_only=True):
    type: str
    payload: P
    id: str | UnsetType | None = UNSET


class _Problem(msgspec.Struct, kw_only=True):
    code: str
    message: str
    violations: list[dict[str, Any]] | UnsetType = UNSET
    details: dict[str, Any] | UnsetType = UNSET
    recoverable: bool | UnsetType = UNSET
    retry_after_ms: int | float | UnsetType = UNSET


class _ToolProblem(msgspec.Struct, kw_only=True):
    tool_call_id: str
    tool: str
    code: str
    message: str
    retryable: bool
    max_retries: int
    details: dict[str, Any] | UnsetType = UNSET
    retry_after_ms: int | float | UnsetType = UNSET


def _show_connection_error(fault: Fault) -> _Message[_Problem]:
    payload = _Problem(
        code=fault.code,
        message=fault.message,
        details=facts(fault.context) or UNSET,
        recoverable=fault.retryable,
        retry_after_ms=hinted(fault.retry_after, MS),
    )
    return _Message(type="connection_error", payload=payload)


def _show_error(fault: Fault) -> _Message[_Problem]:
    details = renamed(facts(fault.context), _NAMES)
    violations = objects(details.get("violations"))
    if violations is not UNSET:
        del details["violations"]
    # The sample says nothing of recovery and means no. We say it wherever a reader could take silence for a yes.
    silent = not (fault.retryable or fault.entry.retryable)
    payload = _Problem(
        code=fault.code,
        message=fault.message,
        violations=violations,
        details=details or UNSET,
        recoverable=UNSET if silent else fault.retryable,
        retry_after_ms=hinted(fault.retry_after, MS),
    )
    return _Message(type="error", payload=payload)


def _show_tool_error(fault: Fault) -> _Message[_ToolProblem]:
    details = facts(fault.context)
    payload = _ToolProblem(
        tool_call_id=str(details.pop("tool_call_id", "")),
        tool=str(details.pop("tool", "")),
        code=fault.code,
        message=fault.message,
        retryable=fault.retryable,
        max_retries=_max_retries(fault),
        details=details | _show_partial(fault.partial) or UNSET,
        retry_after_ms=hinted(fault.retry_after, MS),
    )
    return _Message(type="tool_error", payload=payload)


def _build_problem(document: _Message[_Problem]) -> Fault:
    payload = document.payload
    context = renamed(facts(given(payload.details, {})), _OUR_NAMES)
    if payload.violations is not UNSET:
        context["violations"] = payload.violations
    return Fault.of(
        meaning(payload.code).code,
        payload.message,
        retryable=given(payload.recoverable, None),
        retry_after=hint(payload.retry_after_ms, MS),
        context=context,
    )


def _build_tool_problem(document: _Message[_ToolProblem]) -> Fault:
    payload = document.payload
    details = facts(given(payload.details, {}))
    partial = _build_partial(details)
    return Fault.of(
        code_for(payload.code, "TOOL_EXECUTION_FAILED"),
        payload.message,
        retryable=payload.retryable,
        retry_after=hint(payload.retry_after_ms, MS),
        context=details | {"tool_call_id": payload.tool_call_id, "tool": payload.tool},
        partial=partial,
    )


def _max_retries(fault: Fault) -> int:
    if not fault.retryable:
        return 0
    return 1 if fault.schedule is Schedule.ONCE else _RETRIES


def _show_partial(partial: Partial | None) -> dict[str, Any]:
    """Return what a tool left: a process its two streams under their own names, any other its payload (S2-20)."""
    if partial is None:
        return {}
    if isinstance(partial.payload, dict) and partial.payload.keys() <= set(_STREAMS):
        return spread(partial, None) | partial.payload
    return spread(partial, "payload")


def _build_partial(details: dict[str, Any]) -> Partial | None:
    streams = {name: details.pop(name) for name in _STREAMS if name in details}
    return gather(details, ["payload"], streams or None)


CONNECTION_ERROR = View(
    name="connection_error", shape=_Message[_Problem], show=_show_connection_error, build=_build_problem
)
ERROR = View(name="error", shape=_Message[_Problem], show=_show_error, build=_build_problem)
TOOL_ERROR = View(name="tool_error", shape=_Message[_ToolProblem], show=_show_tool_error, build=_build_tool_problem)
