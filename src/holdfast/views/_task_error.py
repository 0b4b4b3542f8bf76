"""Document 003's TaskError: how a fault becomes one, and one a fault.

Invariant: a partial result stands where document 003's reader will look for it, and only there (see `_place`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import Fault, InvalidError, Partial
from holdfast.views._document import code_for, given, renamed
from holdfast.views._partial import gather, spread
from holdfast.views._view import View, facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Code

__all__ = ["CONTENT", "EXHAUSTION", "FAILURE", "FORMAT", "INVALID", "SUBTASK", "TASK_ERROR"]

INVALID: Code = "TASK_INPUT_INVALID"
EXHAUSTION = "RESOURCE_EXHAUSTION"
FAILURE = "TASK_FAILURE"
FORMAT = "output_format_failure"
SUBTASK = "subtask_failure"
CONTENT = "content"

_RESOURCES = ("turns", "context", "output")
_TYPES: Mapping[Code, str] = {
    "TASK_OUTPUT_INVALID": "INVALID_OUTPUT",
    "TASK_MODEL_INVALID": "VALIDATION_ERROR",
    "TASK_XML_PARSE_ERROR": "XML_PARSE_ERROR",
}
"""The codes that are a type of their own, neither a spent resource nor a failure with a reason (N3-2)."""

_OWN_FIELDS: Mapping[str, tuple[str, ...]] = {
    "INVALID_OUTPUT": ("violations",),
    "VALIDATION_ERROR": ("path", "invalidModel"),
    "XML_PARSE_ERROR": ("location",),
}
"""The facts those types hold beside their message; every other fact is a detail."""

_NAMES: Mapping[str, str] = {
    "expected": "expectedType",
    "actual": "actualType",
    "subtask_request": "subtaskRequest",
    "subtask_error": "subtaskError",
    "nesting_depth": "nestingDepth",
    "failed_step": "failedStep",
    "invalid_model": "invalidModel",
}
"""The facts document 003 has its own names for (S3-4, S3-9, S3-15)."""
_OUR_NAMES = {theirs: ours for ours, theirs in _NAMES.items()}

_WORKFLOW: frozenset[Code] = frozenset({"TASK_EVALUATION_FAILED", "TASK_UNBOUND_SYMBOL"})
_PLACES = ("originalOutput", "partialResults", "s_expression_environment", "partialOutput")


class _TaskError(msgspec.Struct, kw_only=True, rename="camel"):
    type: str
    message: str
    reason: str | UnsetType = UNSET
    resource: str | UnsetType = UNSET
    metrics: dict[str, Any] | UnsetType = UNSET
    details: dict[str, Any] | UnsetType = UNSET
    content: Any = UNSET
    violations: Any = UNSET
    path: Any = UNSET
    invalid_model: Any = UNSET
    location: Any = UNSET


def _show(fault: Fault) -> dict[str, Any]:
    kind, _, word = fault.entry.task.partition("/")
    kind = _TYPES.get(fault.code, kind)
    told: dict[str, Any] = {"type": kind, "message": fault.message}
    details = renamed(facts(fault.context), _NAMES)
    if kind == FAILURE:
        told["reason"] = word
    elif kind == EXHAUSTION:
        told["resource"] = word
        told["metrics"] = {name: details.pop(name) for name in ("used", "limit") if name in details}
    else:
        told |= {name: details.pop(name) for name in _OWN_FIELDS[kind] if name in details}
    if fault.partial is not None:
        place = _place(fault, fault.partial, word)
        if place == CONTENT and fault.partial.payload is not None:
            told[CONTENT] = fault.partial.payload
        details |= spread(fault.partial, None if place == CONTENT else place)
    return told | ({"details": details} if details else {})


def _place(fault: Fault, partial: Partial, word: str) -> str:
    """Return where a partial result belongs."""
    if word == FORMAT:
        return "originalOutput"  # all of it, in the wrong form: S3-9 keeps it for a reader who can parse it after all
    if isinstance(partial.payload, list):
        return "partialResults"  # the results of the steps that were done (S3-4, N3-2)
    if fault.code in _WORKFLOW:
        return "s_expression_environment"  # a workflow's partial result is what it had bound (S3-7, S3-18)
    if word == SUBTASK:
        return "partialOutput"  # not the task's own output but that of the part that failed (S3-15)
    return CONTENT  # an atomic task's output so far (S3-6)


def _build(document: _TaskError) -> Fault:
    details = facts(given(document.details, {}))
    partial = gather(details, _PLACES, given(document.content, None))
    context = renamed(details, _OUR_NAMES) | given(document.metrics, {}) | _own_facts(document)
    return Fault.of(_code(document), document.message, context=facts(context), partial=partial)


def _own_facts(document: _TaskError) -> dict[str, Any]:
    told = {
        "violations": document.violations,
        "path": document.path,
        "invalid_model": document.invalid_model,
        "location": document.location,
    }
    return {name: value for name, value in told.items() if value is not UNSET}


def _code(document: _TaskError) -> Code:
    match document.type:
        case "RESOURCE_EXHAUSTION":
            if document.resource not in _RESOURCES:
                raise InvalidError.saying(
                    "$.resource", " or ".join(_RESOURCES), repr(given(document.resource, "")), INVALID
                )
            return code_for(f"{EXHAUSTION}/{document.resource}", INVALID)
        case "TASK_FAILURE":
            if document.reason is UNSET:
                raise InvalidError.saying("$.reason", "a reason", "nothing", INVALID)
            # Document 003 lists ten reasons and uses an eleventh, `unbound_symbol`: the list is open.
            return code_for(f"{FAILURE}/{document.reason}", "TASK_UNEXPECTED")
    for code, kind in _TYPES.items():
        if kind == document.type:
            return code
    raise InvalidError.saying(
        "$.type", " or ".join((EXHAUSTION, FAILURE, *_TYPES.values())), repr(document.type), INVALID
    )


TASK_ERROR = View(name="task", shape=_TaskError, show=_show, build=_build, refuses=INVALID, leaves_process=False)
