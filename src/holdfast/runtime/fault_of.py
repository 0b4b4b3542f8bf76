"""`fault_of`: the fault of anything that failed. Total: it returns a Fault whatever it is given, and never raises.

Invariant: an exception that already carries its history keeps it; nothing is wrapped, changed or imported to look.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from holdfast import classify
from holdfast.faults import Err, Fault, HoldfastError
from holdfast.runtime.rules import IN_USE
from holdfast.runtime.secrets import process_redactor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.classify import Classifier
    from holdfast.faults import Redactor

__all__ = ["FAULT_ATTRIBUTE", "GAVE_UP_IN", "fault_of", "forget_account", "gave_up_in", "leave_account"]

FAULT_ATTRIBUTE = "__holdfast_fault__"
"""Where a recovery leaves the fault, with every attempt, on the original exception it lets through."""

GAVE_UP_IN = "__holdfast_gave_up_in__"
"""Which run a recovery was part of when it gave up: that run need not try again what was tried already."""

_JUDGED_BEFORE = "__holdfast_judged_before__"
"""The fault an exception of ours was made with, while an operation's account stands in its place."""

_CAUSES = 10
"""How far back a wrapped error is looked at."""


def fault_of(
    failure: Any,
    *,
    provider: str = "",
    now: float | None = None,
    classifier: Classifier | None = None,
    redactor: Redactor | None = None,
) -> Fault:
    """Return the fault of an exception, an HTTP response, a finished process, an `Err`, or a text.

    A response is anything with `status_code` (or `status`) and `headers`; a process anything with `returncode`. Only
    what is already in memory is read: a body that was not read stays unread. `now` is the wall clock that dates are read
    by; by default, the present. `classifier` is by default ours with the rules that extensions added. Secrets that `redactor` knows, by default those of this process, are masked in the fault
    itself: whatever is made of it later cannot show them.
    """
    try:
        fault = _fault_of(failure, provider, time.time() if now is None else now, classifier or IN_USE.classifier)
        return fault.masked(process_redactor() if redactor is None else redactor)
    except Exception as defect:  # noqa: BLE001 - the promise is to be total, also for objects that fight back
        return Fault.of("SYS_UNKNOWN", retryable=False, rule=f"fault-of-failed.{type(defect).__name__}")


def leave_account(error: BaseException, fault: Fault, note: str, around: str) -> None:
    """Leave the fault and a short account on the exception that is let through; it stays what it is otherwise."""
    notes: list[str] | None = error.__dict__.get("__notes__")
    if notes and error.__dict__.get(GAVE_UP_IN) is None:
        # An object that is raised again and again would collect our lines without end.
        notes[:] = [kept for kept in notes if not kept.startswith("holdfast: ")]
    error.add_note(note)
    error.__dict__[FAULT_ATTRIBUTE] = fault
    error.__dict__[GAVE_UP_IN] = around
    if isinstance(error, HoldfastError):
        error.__dict__.setdefault(_JUDGED_BEFORE, error.fault)
        error.fault = fault


def forget_account(error: BaseException) -> None:
    """Take back what an earlier operation left on an exception that is raised once more."""
    error.__dict__.pop(FAULT_ATTRIBUTE, None)
    error.__dict__.pop(GAVE_UP_IN, None)
    if isinstance(error, HoldfastError):
        error.fault = error.__dict__.pop(_JUDGED_BEFORE, error.fault)


def gave_up_in(error: BaseException, run: str) -> bool:
    """Whether a recovery that was part of `run` has given up on this error, or on what caused it."""
    seen: BaseException | None = error
    for _ in range(_CAUSES):
        if seen is None:
            return False
        if seen.__dict__.get(GAVE_UP_IN) == run:
            return True
        seen = seen.__cause__
    return False


def _fault_of(failure: Any, provider: str, now: float, classifier: Classifier) -> Fault:
    match failure:
        case Fault():
            return failure
        case Err():
            return failure.fault
        case HoldfastError():
            return failure.fault
        case BaseException():
            kept = failure.__dict__.get(FAULT_ATTRIBUTE)
            if isinstance(kept, Fault):
                return kept
            return classify.from_exception(failure, provider=provider, now=now, classifier=classifier)
        case str() | bytes() | bytearray():
            text = failure if isinstance(failure, str) else bytes(failure).decode("utf-8", "replace")
            return classify.from_text(text, provider=provider, now=now, classifier=classifier)
    if isinstance(exit_code := _attribute(failure, "returncode"), int):
        return classify.from_process(exit_code, _stderr(failure), provider=provider, now=now, classifier=classifier)
    status = _attribute(failure, "status_code", "status")
    if isinstance(status, int):
        headers, body = _headers(failure), _body(failure)
        return classify.from_http(status, headers, body, provider=provider, now=now, classifier=classifier)
    if isinstance(failure, (dict, list)):
        return classify.from_http(None, None, failure, provider=provider, now=now, classifier=classifier)
    return Fault.of(
        "SYS_UNKNOWN", f"Not a failure we know: {type(failure).__name__}", retryable=False, rule="not-a-failure"
    )


def _attribute(failure: Any, *names: str) -> Any:
    """Return the first of these attributes that can be read; a property of a half-built object may raise."""
    for name in names:
        try:
            value = getattr(failure, name, None)
        except Exception:  # noqa: BLE001, S112 - the next name may do
            continue
        if value is not None:
            return value
    return None


def _headers(response: Any) -> Mapping[str, Any] | None:
    headers = _attribute(response, "headers")
    try:
        return dict(headers.items())
    except Exception:  # noqa: BLE001 - not a mapping after all; the status still tells
        return None


def _body(response: Any) -> Any:
    """The body where it was read already (httpx and requests keep it so), or a plain `body`."""
    body = _attribute(response, "_content", "_body", "body")
    return body if isinstance(body, (str, bytes, bytearray, dict, list)) else ""


def _stderr(process: Any) -> str:
    output = _attribute(process, "stderr")
    if isinstance(output, bytes):
        return output.decode("utf-8", "replace")
    return output if isinstance(output, str) else ""
