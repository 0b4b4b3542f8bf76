"""The task view: TaskError (`type`, `reason` or `resource`, `message`, `details`) and the failed TaskResult.

Invariant: a failed task keeps its partial result in one place, and `FAILED` marks the result as partial. Output of the wrong
type stands in two fields, `originalOutput` and `partialOutput`, because readers look for it in either.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import Fault, HoldfastError, InvalidError, Partial
from holdfast.views.view import View, checked, code_for, facts, given, renamed, shaped, spread_partial, take_partial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Code, Redactor

__all__ = [
    "Handler",
    "Reason",
    "Status",
    "TaskDocumentFields",
    "dispatch",
    "fault_in",
    "read",
    "read_result",
    "write",
    "write_result",
]

_INVALID: Code = "TASK_INPUT_INVALID"
_EXHAUSTION = "RESOURCE_EXHAUSTION"
_FAILURE = "TASK_FAILURE"
_FORMAT = "output_format_failure"
_SUBTASK = "subtask_failure"
_CONTENT = "content"

Reason: TypeAlias = Literal[
    "context_retrieval_failure",
    "context_matching_failure",
    "context_parsing_failure",
    "xml_validation_failure",
    "output_format_failure",
    "execution_timeout",
    "execution_halted",
    "subtask_failure",
    "input_validation_failure",
    "unexpected_error",
]
"""Why a task failed. A task document may have others, such as `unbound_symbol`."""

_RESOURCES = ("turns", "context", "output")
_TYPES: Mapping[Code, str] = {
    "TASK_OUTPUT_INVALID": "INVALID_OUTPUT",
    "TASK_MODEL_INVALID": "VALIDATION_ERROR",
    "TASK_XML_PARSE_ERROR": "XML_PARSE_ERROR",
}
"""The codes that some documents have a type of their own for (N3-2). It is read, and written back; what we write is a failure with a
reason, because a reader that knows the two types of document 003 would overlook any other."""

_NAMES: Mapping[str, str] = {
    "expected": "expectedType",
    "actual": "actualType",
    "subtask_request": "subtaskRequest",
    "subtask_error": "subtaskError",
    "nesting_depth": "nestingDepth",
    "failed_step": "failedStep",
    "invalid_model": "invalidModel",
}
"""Context fields that have other names in document 003 (S3-4, S3-9, S3-15)."""
_OUR_NAMES = {theirs: ours for ours, theirs in _NAMES.items()}

# Codes of workflows, whose partial result is an environment of bindings.
_WORKFLOW: frozenset[Code] = frozenset({"TASK_EVALUATION_FAILED", "TASK_UNBOUND_SYMBOL"})
_ORIGINAL = "originalOutput"
_OUTPUT = "partialOutput"
_PLACES = (_ORIGINAL, "partialResults", "s_expression_environment", _OUTPUT)


class Status(StrEnum):
    """The status of a task, such as `Status.FAILED`."""

    COMPLETE = "COMPLETE"
    CONTINUATION = "CONTINUATION"
    """The task needs the result of a subtask first."""
    FAILED = "FAILED"


class TaskDocumentFields:
    """Gives an exception the fields of its task document.

    For example:
        except TaskError as error:
            if error.reason == "subtask_failure":
                request = error.details["subtaskRequest"]
    """

    fault: Fault

    @property
    def type(self) -> str:
        """`RESOURCE_EXHAUSTION`, `TASK_FAILURE` or another type of error."""
        return str(self._document["type"])

    @property
    def reason(self) -> str:
        """Why a task failed, such as `subtask_failure`; of an exhausted resource its name, such as `turns`."""
        return str(self._document.get("reason", self._document.get("resource", "")))

    @property
    def message(self) -> str:
        """What happened, in a sentence."""
        return str(self._document["message"])

    @property
    def details(self) -> dict[str, Any]:
        """What is known about the failure."""
        found: dict[str, Any] = self._document.get("details", {})
        return found

    @property
    def _document(self) -> dict[str, Any]:
        return write(self.fault)


class Handler(StrEnum):
    """Who handles a task's failure; `dispatch` chooses one."""

    RESOURCE = "resource"
    """Splits the task."""
    CONTEXT = "context"
    """Finds the background knowledge in another way."""
    SUBTASK = "subtask"
    """Uses the subtask's partial result, or runs it again."""
    FORMAT = "format"
    """Shows the model what was expected."""
    GENERAL = "general"


def write(
    fault: Fault, *, literal: bool = False, with_fault: bool = False, redactor: Redactor | None = None
) -> dict[str, Any]:
    """Return the TaskError of `fault`.

    `literal` replaces the message of a failed subtask by the sentence of the specification, which quotes the description in
    the subtask's request.

    >>> task.write(Fault.of("TASK_TURNS_EXHAUSTED"))["resource"]
    'turns'
    """
    return _TASK_ERROR.write(fault, with_fault=with_fault, redactor=redactor, literal=literal)


def read(document: object) -> Fault:
    """Return the fault of a TaskError; raises `InvalidError` for any other document."""
    return _TASK_ERROR.read(document)


def write_result(
    fault: Fault,
    *,
    notes: dict[str, Any] | None = None,
    literal: bool = False,
    with_fault: bool = False,
    redactor: Redactor | None = None,
) -> dict[str, Any]:
    """Return the FAILED TaskResult of `fault`; `notes` (such as `iteration_history`) are added beside its error.

    `literal` as for `write`.
    """
    document = _RESULT.draft(fault, redactor, literal=literal)
    if notes is not None:
        document["notes"] = {**document.get("notes", {}), **notes}
    return _RESULT.sealed(document, fault if with_fault else None, redactor)


def read_result(document: object) -> Fault | None:
    """Return the fault of a FAILED TaskResult, or None for any other TaskResult.

    Other documents raise `InvalidError`.
    """
    result = shaped(checked(document, _INVALID), _TaskResult, _INVALID)
    # The list is closed, because an unknown status of a newer version must not count as "not failed".
    if result.status not in set(Status):
        raise InvalidError.saying("$.status", " or ".join(Status), repr(result.status), _INVALID)
    return _RESULT.read(document) if result.status == Status.FAILED else None


def fault_in(error: Fault | HoldfastError | Mapping[str, Any]) -> Fault:
    """Return the fault of an exception or of a TaskError; raises `InvalidError` for any other document."""
    if isinstance(error, Fault):
        return error
    return error.fault if isinstance(error, HoldfastError) else read(error)


def dispatch(error: Fault | HoldfastError | Mapping[str, Any]) -> Handler:
    """Return who handles this failure: a fault, an exception with one, or a TaskError. Every fault has a handler.

    >>> dispatch(Fault.of("TASK_CONTEXT_EXHAUSTED"))
    <Handler.RESOURCE: 'resource'>
    """
    fault = fault_in(error)
    error = _TASK_ERROR.draft(fault)
    kind, reason = error["type"], error.get("reason", "").casefold()
    # Document 003 has no handler for the types of others, so the catalog's reason decides.
    if kind not in {_EXHAUSTION, _FAILURE}:
        kind, _, reason = fault.entry.task.partition("/")
    if kind == _EXHAUSTION:
        return Handler.RESOURCE
    if reason.startswith("context_"):
        return Handler.CONTEXT
    return {_SUBTASK: Handler.SUBTASK, _FORMAT: Handler.FORMAT}.get(reason, Handler.GENERAL)


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


def _show_error(fault: Fault) -> dict[str, Any]:
    kind, _, word = fault.entry.task.partition("/")
    if fault.code == "TASK_EVALUATION_FAILED" and "subtask_error" in fault.context:
        word = _SUBTASK  # what failed was called by the workflow; otherwise the program itself is wrong (S3-18)
    document: dict[str, Any] = {"type": kind, "message": fault.message}
    details = renamed(facts(fault.context), _NAMES)
    if kind == _FAILURE:
        document["reason"] = word
    else:
        document["resource"] = word
        document["metrics"] = {name: details.pop(name) for name in ("used", "limit") if name in details}
    if fault.partial is not None:
        place = _place(fault, fault.partial, word)
        if place == _CONTENT and fault.partial.payload is not None:
            document[_CONTENT] = fault.partial.payload
        details |= spread_partial(fault.partial, None if place == _CONTENT else place)
        if _ORIGINAL in details:
            details.setdefault(_OUTPUT, details[_ORIGINAL])
    return document | ({"details": details} if details else {})


def _place(fault: Fault, partial: Partial, word: str) -> str:
    """Return the field in which a reader of document 003 looks for a partial result."""
    if word == _FORMAT:
        return _ORIGINAL  # the output is complete but has the wrong form: a reader may still parse it (S3-9)
    if isinstance(partial.payload, list):
        return "partialResults"  # the results of the finished steps (S3-4, N3-2)
    if fault.code in _WORKFLOW or "failing_expression" in fault.context:
        return "s_expression_environment"  # a workflow's partial result is its bindings (S3-7, S3-18)
    if word == _SUBTASK:
        return _OUTPUT  # not the task's own output but that of the failed subtask (S3-15)
    return _CONTENT  # an atomic task's output so far (S3-6)


def _build_error(document: _TaskError) -> Fault:
    details = facts(given(document.details, {}))
    if _ORIGINAL in details and _same_output(details):
        del details[_OUTPUT]
    partial = take_partial(details, _PLACES, given(document.content, None))
    context = renamed(details, _OUR_NAMES) | given(document.metrics, {}) | _own_facts(document)
    return Fault.of(_code(document), document.message, context=facts(context), partial=partial)


def _same_output(details: dict[str, Any]) -> bool:
    """Whether `partialOutput` only repeats `originalOutput`. JSON tells 1, 1.0 and true apart, Python does not."""
    both = details[_ORIGINAL], details.get(_OUTPUT)
    return _OUTPUT in details and msgspec.json.encode(both[0]) == msgspec.json.encode(both[1])


def _worded(fault: Fault, document: dict[str, Any]) -> dict[str, Any]:
    request = fault.context.get("subtask_request")
    description = request.get("description") if isinstance(request, dict) else None
    if fault.code != "TASK_SUBTASK_FAILED" or not isinstance(description, str):
        return document
    return {**document, "message": f'Subtask "{description}" failed'}


def _worded_result(fault: Fault, document: dict[str, Any]) -> dict[str, Any]:
    notes = document["notes"]
    return {**document, "notes": {**notes, "error": _worded(fault, notes["error"])}}


def _own_facts(document: _TaskError) -> dict[str, Any]:
    own = {
        "violations": document.violations,
        "path": document.path,
        "invalid_model": document.invalid_model,
        "location": document.location,
    }
    return {name: value for name, value in own.items() if value is not UNSET}


def _code(document: _TaskError) -> Code:
    match document.type:
        case "RESOURCE_EXHAUSTION":
            if document.resource not in _RESOURCES:
                raise InvalidError.saying(
                    "$.resource", " or ".join(_RESOURCES), repr(given(document.resource, "")), _INVALID
                )
            return code_for(f"{_EXHAUSTION}/{document.resource}", _INVALID)
        case "TASK_FAILURE":
            if document.reason is UNSET:
                raise InvalidError.saying("$.reason", "a reason", "nothing", _INVALID)
            # Document 003 lists ten reasons and uses an eleventh, `unbound_symbol`. So unknown reasons are accepted.
            return code_for(f"{_FAILURE}/{document.reason}", "TASK_UNEXPECTED")
    for code, kind in _TYPES.items():
        if kind == document.type:
            return code
    raise InvalidError.saying(
        "$.type", " or ".join((_EXHAUSTION, _FAILURE, *_TYPES.values())), repr(document.type), _INVALID
    )


_TASK_ERROR = View(
    name="task",
    shape=_TaskError,
    show=_show_error,
    build=_build_error,
    invalid=_INVALID,
    leaves_process=False,
    wording=_worded,
)


class _TaskResult(msgspec.Struct, kw_only=True):
    content: Any
    status: str
    notes: dict[str, Any] | UnsetType = UNSET


def _show(fault: Fault) -> _TaskResult:
    error = _TASK_ERROR.draft(fault)
    # The output of an atomic task is the content of the result, so it is removed from the error.
    return _TaskResult(content=error.pop(_CONTENT, ""), status=Status.FAILED, notes={"error": error})


def _build(document: _TaskResult) -> Fault:
    fault = _noted_error(given(document.notes, {}).get("error"))
    # Document 003 keeps an atomic task's output in `content`, not in the error.
    if fault.partial is None and document.content not in ("", None):
        return msgspec.structs.replace(fault, partial=Partial(payload=document.content))
    return fault


def _noted_error(error: Any) -> Fault:
    if error is None:
        return Fault.of("TASK_UNEXPECTED", "The task failed without saying why")
    try:
        return _TASK_ERROR.read(error)
    except InvalidError as bad:
        found = bad.fault.context
        # The path starts at the top of the document that the caller passed.
        path = "$.notes.error" + found["path"].removeprefix("$")
        raise InvalidError.saying(path, found["expected"], found["received"], _INVALID) from None


_RESULT = View(
    name="result",
    shape=_TaskResult,
    show=_show,
    build=_build,
    invalid=_INVALID,
    leaves_process=False,
    wording=_worded_result,
)
