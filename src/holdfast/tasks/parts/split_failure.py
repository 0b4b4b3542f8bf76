"""The fault of a task that was split: why it ended, and what its parts had.

Invariant: the code is that of what ended the task, such as the budget around it. Only if a part was too large as well, and could not be split
further, it is the task's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Fault, ItemError, Partial
from holdfast.tasks.task import plain_fault
from holdfast.views import task as view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.faults import Code
    from holdfast.tasks.task import Task, TaskResult

__all__ = ["SPLITTABLE", "is_of_split", "merge_failed", "not_done", "split_failed", "values_of"]

SPLITTABLE = frozenset({"TASK_TURNS_EXHAUSTED", "TASK_CONTEXT_EXHAUSTED", "TASK_OUTPUT_EXHAUSTED"})
"""Limits of the task itself, and not of what is around it: smaller parts can help."""
_STOPPED: Code = "TASK_SIBLING_FAILED"


def not_done(failed: Task | None, *, begun: bool) -> Fault:
    """Return the fault of a part that did nothing wrong: it was stopped, or did not begin, because `failed` failed."""
    because = "another part" if failed is None else failed.label
    return Fault.of(_STOPPED, f"{'Stopped' if begun else 'Not begun'}, because {because} failed")


def split_failed(
    whole: Fault, parts: Sequence[Task], results: list[TaskResult], *, ended_by: Fault, part: Task | None, splits: int
) -> Fault:
    """Return the fault of a task that was split because of `whole`, and whose `part` ended with `ended_by`. `splits`: how often it was."""
    done = [value for each in results for value in _had(each)]
    errors = tuple(
        ItemError.of(each.label, result.fault)
        for each, result in zip(parts, results, strict=True)
        if result.fault is not None
    )
    partial = Partial(payload=done, errors=errors, complete=len(done), expected=sum(map(_size, results)))
    facts: dict[str, Any] = {
        "depth": max(splits, ended_by.context.get("depth", 0)),
        "split": {"code": whole.code, "parts": len(parts)},
        "failed_step": next((number for number, each in enumerate(parts) if each is part), None),
    }
    if facts["failed_step"] is None:
        del facts["failed_step"]
    if ended_by.code in SPLITTABLE or ended_by.code == _STOPPED:
        message = f"{whole.message}. It was split, and a part failed: {ended_by.message}"
        context = {**whole.context, **facts, "subtask_error": view.write(plain_fault(ended_by))}
        return msgspec.structs.replace(whole, message=message, context=context, partial=partial)
    if ended_by.partial is not None:
        # The partial output of the part has its place here, because that of the task holds whole results.
        facts["subtask_error"] = view.write(plain_fault(ended_by))
    whole_parts = sum(each.fault is None for each in results)
    message = ended_by.message if is_of_split(ended_by) else _account(ended_by, part, whole_parts, len(parts))
    return msgspec.structs.replace(ended_by, message=message, context={**ended_by.context, **facts}, partial=partial)


def _had(result: TaskResult) -> list[Any]:
    """Return the values that a part had: its own, or if it was split and failed, those of its parts."""
    if result.fault is None:
        return values_of([result])
    inner = _inner(result)
    return [] if inner is None else list(inner.payload)


def _size(result: TaskResult) -> int:
    """Return of how many parts that were not split themselves a part consists."""
    inner = _inner(result)
    return 1 if inner is None or inner.expected is None else inner.expected


def _inner(result: TaskResult) -> Partial | None:
    fault = result.fault
    if fault is None or not is_of_split(fault) or fault.partial is None or not isinstance(fault.partial.payload, list):
        return None
    return fault.partial


def _account(ended_by: Fault, part: Task | None, done: int, parts: int) -> str:
    named = ""
    # The message of an exception in a function begins with the part that it performed.
    if part is not None and not ended_by.message.startswith(part.label):
        named = f" This ended {part.label}."
    of_which = f"{done} of which {'is' if done == 1 else 'are'} done"
    return f"{ended_by.message}.{named} The task was split into {parts} parts, {of_which}"


def is_of_split(fault: Fault) -> bool:
    """Return whether the fault is that of a task that was split: each of its parts had its own second try."""
    return "split" in fault.context


def merge_failed(fault: Fault, results: list[TaskResult]) -> Fault:
    """Return the fault of a merge, with the results that it had to merge."""
    partial = Partial(payload=values_of(results), complete=len(results), expected=len(results))
    return msgspec.structs.replace(fault, partial=partial)


def values_of(results: list[TaskResult]) -> list[Any]:
    """Return the value of each result; of a result without one the text."""
    return [each.content if each.value is None else each.value for each in results]
