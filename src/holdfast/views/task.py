"""Document 003's view: TaskError (`type`, `reason` or `resource`, `message`, `details`) and the failed TaskResult.

Invariant: a failed task keeps what it had produced, in one place, and `FAILED` marks it as partial (S3-6).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import Fault, InvalidError, Partial
from holdfast.views._document import checked, given, shaped
from holdfast.views._task_error import CONTENT, EXHAUSTION, FAILURE, FORMAT, INVALID, SUBTASK, TASK_ERROR
from holdfast.views._view import View

if TYPE_CHECKING:
    from holdfast.faults import Redactor

__all__ = ["Handler", "Status", "dispatch", "read", "read_result", "write", "write_result"]


class Status(StrEnum):
    """How a task ended, or that it has not yet."""

    COMPLETE = "COMPLETE"
    CONTINUATION = "CONTINUATION"
    """It needs the result of a subtask first."""
    FAILED = "FAILED"


class Handler(StrEnum):
    """Who answers a task's failure (S3-10)."""

    RESOURCE = "resource"
    """Splits the task."""
    CONTEXT = "context"
    """Finds the background knowledge another way."""
    SUBTASK = "subtask"
    """Uses what the subtask left, or asks it again."""
    FORMAT = "format"
    """Shows the model what was expected."""
    GENERAL = "general"


def write(fault: Fault, *, with_fault: bool = False, redactor: Redactor | None = None) -> dict[str, Any]:
    """Return the TaskError of `fault`."""
    return TASK_ERROR.write(fault, with_fault=with_fault, redactor=redactor)


def read(document: object) -> Fault:
    """Return the fault a TaskError tells, or raise `InvalidError`."""
    return TASK_ERROR.read(document)


def write_result(
    fault: Fault,
    *,
    notes: dict[str, Any] | None = None,
    with_fault: bool = False,
    redactor: Redactor | None = None,
) -> dict[str, Any]:
    """Return the FAILED TaskResult of `fault`; `notes`, the `iteration_history` say, stand beside its error (S3-13)."""
    document = _RESULT.told(fault, redactor)
    if notes is not None:
        document["notes"] = {**document.get("notes", {}), **notes}
    return _RESULT.sealed(document, fault if with_fault else None, redactor)


def read_result(document: object) -> Fault | None:
    """Return the fault of a FAILED TaskResult and None for one that did not fail, or raise `InvalidError`."""
    result = shaped(checked(document, INVALID), _TaskResult, INVALID)
    if result.status not in set(Status):
        raise InvalidError.saying("$.status", " or ".join(Status), repr(result.status), INVALID)
    return _RESULT.read(document) if result.status == Status.FAILED else None


def dispatch(fault: Fault) -> Handler:
    """Return who answers this failure. Total, unlike document 003's own, which drops the types it does not name."""
    error = TASK_ERROR.told(fault)
    kind, reason = error["type"], error.get("reason", "").casefold()
    if kind not in {EXHAUSTION, FAILURE}:
        kind, _, reason = fault.entry.task.partition("/")
    if kind == EXHAUSTION:
        return Handler.RESOURCE
    if reason.startswith("context_"):
        return Handler.CONTEXT
    return {SUBTASK: Handler.SUBTASK, FORMAT: Handler.FORMAT}.get(reason, Handler.GENERAL)


class _TaskResult(msgspec.Struct, kw_only=True):
    content: Any
    status: str
    notes: dict[str, Any] | UnsetType = UNSET


def _show(fault: Fault) -> _TaskResult:
    error = TASK_ERROR.told(fault)
    # What an atomic task had written is the result's own content, not its error's as well.
    return _TaskResult(content=error.pop(CONTENT, ""), status=Status.FAILED, notes={"error": error})


def _build(document: _TaskResult) -> Fault:
    fault = _noted_error(given(document.notes, {}).get("error"))
    if fault.partial is None and document.content not in ("", None):
        return msgspec.structs.replace(fault, partial=Partial(payload=document.content))
    return fault


def _noted_error(error: Any) -> Fault:
    if error is None:
        return Fault.of("TASK_UNEXPECTED", "The task failed without saying why")
    try:
        return TASK_ERROR.read(error)
    except InvalidError as bad:
        found = bad.fault.context
        path = "$.notes.error" + found["path"].removeprefix("$")
        raise InvalidError.saying(path, found["expected"], found["received"], INVALID) from None


_RESULT = View(name="result", shape=_TaskResult, show=_show, build=_build, refuses=INVALID, leaves_process=False)
