"""The category view: `{category, isRetryable, suggestedDelay, maxRetries, message, originalError}`.

Invariant: `suggestedDelay` is the delay that the server requested, in milliseconds, or 0. It is never the usual delay
of a category, because clients would then use a constant instead of a backoff.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from holdfast.faults import Category, Cause, Fault, Schedule
from holdfast.faults.sentences import operation_timed_out
from holdfast.views.view import MS, View, code_for, given, is_retryable, milliseconds, read_delay, write_delay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Code, Redactor

__all__ = ["ClassifiedError", "of", "read", "write"]

_RETRIES: Mapping[Category, int] = {
    Category.RATE_LIMIT: 5,
    Category.TIMEOUT: 3,
    Category.NETWORK: 3,
    Category.UNAVAILABLE: 3,
    Category.TOOL_ERROR: 2,
    Category.AGENT_CRASH: 2,
    # There is one retry, because nobody knows whether an unknown failure is temporary.
    Category.UNKNOWN: 1,
}
"""How often a category is retried (N1-1). A category that is not listed is not retried."""


def write(
    fault: Fault, *, literal: bool = False, with_fault: bool = False, redactor: Redactor | None = None
) -> dict[str, Any]:
    """Return the ClassifiedError of `fault`.

    `literal` replaces the message of a timeout by the sentence of the specification. `isRetryable` is about the failure: it
    is also true if an operation has given up on a temporary failure.

    >>> category.write(Fault.of("PROVIDER_OVERLOADED"))["category"]
    'unavailable'
    """
    return _VIEW.write(fault, with_fault=with_fault, redactor=redactor, literal=literal)


def read(document: object) -> Fault:
    """Return the fault of a ClassifiedError; raises `InvalidError` for any other document."""
    return _VIEW.read(document)


def of(category: Category, message: str | None = None) -> Fault:
    """Return a fault for which only the category is known, with the category's own verdict.

    >>> category.of(Category.TIMEOUT).retryable
    True
    """
    return Fault.of(code_for(category, "SYS_UNKNOWN"), message, retryable=category in _RETRIES)


class ClassifiedError(TypedDict):
    """The document of this view, as `write` returns it."""

    category: str
    isRetryable: bool
    suggestedDelay: float
    maxRetries: int
    message: str
    originalError: Any


class _ClassifiedError(msgspec.Struct, kw_only=True, rename="camel"):
    category: str
    is_retryable: bool
    suggested_delay: int | float
    max_retries: int
    message: str
    original_error: Any = None


def _show(fault: Fault) -> _ClassifiedError:
    cause = fault.cause
    return _ClassifiedError(
        category=fault.category,
        is_retryable=is_retryable(fault),
        suggested_delay=given(write_delay(fault.retry_after, MS), 0),
        max_retries=_max_retries(fault),
        message=fault.message,
        original_error=None if cause is None else {"name": cause.type, "message": cause.message},
    )


def _build(document: _ClassifiedError) -> Fault:
    return Fault.of(
        _code(document.category),
        document.message,
        retryable=document.is_retryable,
        retry_after=read_delay(document.suggested_delay, MS),
        cause=_cause(document.original_error),
    )


def _worded(fault: Fault, document: dict[str, Any]) -> dict[str, Any]:
    limit = milliseconds(fault.context, "limit_s", "timeout_s")
    if fault.category is not Category.TIMEOUT or limit is None:
        return document
    return {**document, "message": operation_timed_out(limit)}


def _max_retries(fault: Fault) -> int:
    if not is_retryable(fault):
        return 0
    # A code that allows one retry is more exact than its category.
    return 1 if fault.schedule in (Schedule.ONCE, Schedule.MATCHING) else _RETRIES.get(fault.category, 1)


def _code(category: str) -> Code:
    """Return the code of a category. Other names are not resolved: `TIMEOUT` is also a tool's code in the Response view."""
    # JavaScript clients write the category in upper case or in lower case.
    folded = category.casefold()
    return code_for(folded, "SYS_UNKNOWN") if folded in set(Category) else "SYS_UNKNOWN"


def _cause(error: Any) -> Cause | None:
    """Return the cause for a JavaScript Error in JSON."""
    match error:
        case {"name": str(name), "message": str(message)}:
            return Cause(type=name, message=message)
        # The error was serialised without its name.
        case str(message) | {"message": str(message)}:
            return Cause(type="Error", message=message)
    return None


_VIEW = View(name="category", shape=_ClassifiedError, show=_show, build=_build, wording=_worded)
