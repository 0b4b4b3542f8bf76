"""`fault_of`: the fault of anything that failed. It returns a Fault for any object and never raises.

This module also holds the rules that recognise failures, the account that a recovery leaves on an exception, and the
pages of the codes.

Invariant: an exception that already carries its history keeps it. Classifying an exception does not wrap or change it,
and imports nothing.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import classify, options
from holdfast.faults import Err, Fault, HoldfastError, Partial
from holdfast.faults.redaction import CAP_BYTES
from holdfast.once.evidence import VERIFIED
from holdfast.runtime.secrets import process_redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from holdfast.classify import Classifier, Rule
    from holdfast.faults import Code, Redactor

__all__ = [
    "FAULT_ATTRIBUTE",
    "GAVE_UP_IN",
    "RuleSet",
    "add_note",
    "did_not_happen",
    "fault_by",
    "fault_of",
    "forget_account",
    "found_not_to_have_happened",
    "gave_up_in",
    "has_account",
    "is_reported",
    "leave_account",
    "leave_fault",
    "page_of",
    "pass_outcome",
    "permanent_by_status",
    "use_rules",
    "with_outcome",
]

FAULT_ATTRIBUTE = "__holdfast_fault__"
"""The attribute of an exception in which a recovery leaves the fault with every attempt."""

GAVE_UP_IN = "__holdfast_gave_up_in__"
"""The attribute of an exception with the run of the recovery that gave up. That run does not retry the failure."""

_JUDGED_BEFORE = "__holdfast_judged_before__"
"""The attribute with the original fault of one of our own exceptions, while an operation's account replaces it."""

_DID_NOT_HAPPEN = "__holdfast_did_not_happen__"
"""The attribute of an exception after which it is known that the call did not happen: `verify` found out, or it was not sent."""

_MOST_CAUSES = 10
"""How many causes of an error are searched for a status."""

_MOST_SEARCHED = 1000
"""How many errors around a failure are searched for an earlier give-up: its causes, its contexts and group members."""


class RuleSet:
    """The rules that recognise failures: first the rules that extensions added to a runtime, then ours."""

    def __init__(self) -> None:
        self._classifier: Classifier | None = None
        self._added: tuple[tuple[Rule, ...], ...] = ()
        self._lock = threading.Lock()

    @property
    def classifier(self) -> Classifier:
        """The classifier with all rules. Our rules are loaded at the first read: importing `recover` needs none."""
        return self._classifier or classify.CLASSIFIER

    def add(self, rules: tuple[Rule, ...]) -> Callable[[], None]:
        """Try these rules before all others; the returned function removes them. A rule must not raise."""
        with self._lock:
            # The rules added last come first: an application can correct an extension that it has loaded.
            self._use((rules, *self._added))

        def remove() -> None:
            with self._lock:
                self._use(tuple(kept for kept in self._added if kept is not rules))

        return remove

    def copy(self) -> RuleSet:
        """Return these rules for another runtime. Rules that one of the two adds or removes later do not change the other."""
        copied = RuleSet()
        copied._use(self._added)
        return copied

    def after_fork(self) -> None:
        """Replace the lock after a fork: a thread of the parent may hold it, and that thread does not exist here."""
        self._lock = threading.Lock()

    def _use(self, added: tuple[tuple[Rule, ...], ...]) -> None:
        # The classifier is replaced as a whole, so that calls in other threads read it without the lock.
        self._added = added
        rules = [rule for several in added for rule in several]
        self._classifier = classify.CLASSIFIER.with_rules(*rules) if rules else None


class _DefaultRules:
    """The rules of the default runtime. They are kept here, because `fault_of` is also used without any runtime."""

    rules = RuleSet()


def use_rules(rules: RuleSet) -> None:
    """Make these the rules of `fault_of` where no classifier is given; the default runtime does so."""
    _DefaultRules.rules = rules


@options.suggests
def fault_of(
    failure: Any,
    *,
    provider: str = "",
    now: float | None = None,
    classifier: Classifier | None = None,
    redactor: Redactor | None = None,
) -> Fault:
    """Return the fault of an exception, an HTTP response, a finished process, an `Err`, or a text. Never raises.

    A response is any object with `status_code`, `status` or `statusCode`; a process any object with `returncode`. Only data
    that is already in memory is read: an unread body stays unread. `now` is the wall clock that dates are compared with; the
    default is the present. By default `classifier` has our rules and those that extensions added. Secrets that
    `redactor` knows (by default those of this process) are masked in the fault itself, so nothing made of it can show
    them.

        try:
            client.messages.create(...)
        except Exception as error:
            fault = fault_of(error)
            print(fault.code, fault.retryable, fault.retry_after)
    """
    return fault_by(
        classifier or _DefaultRules.rules.classifier,
        failure,
        provider,
        time.time() if now is None else now,
        process_redactor() if redactor is None else redactor,
    )


def fault_by(classifier: Classifier, failure: Any, provider: str, now: float, redactor: Redactor) -> Fault:
    """Return the fault of a failure, as `fault_of` does, for callers that have everything it needs. Never raises."""
    try:
        return _fault_of(failure, provider, now, classifier).masked(redactor)
    except Exception as defect:  # noqa: BLE001 - it must return a fault even for objects whose attributes raise
        return Fault.of("SYS_UNKNOWN", retryable=False, rule=f"fault-of-failed.{type(defect).__name__}")


def permanent_by_status(fault: Fault, failure: Any, statuses: Container[int]) -> Fault:
    """Return the fault of a failure; if its HTTP status, or that of a cause, is one of `statuses`, the permanent one that this means."""
    cause = getattr(failure, "__cause__", None)
    for _ in range(_MOST_CAUSES):
        if not fault.retryable or "status" in fault.context or cause is None:
            break
        status = classify.from_exception(cause).context.get("status")
        if status in statuses:
            fault = msgspec.structs.replace(fault, context={**fault.context, "status": status})
        cause = cause.__cause__
    return classify.permanent_by_status(fault, statuses)


def leave_account(error: BaseException, fault: Fault, note: str, around: str) -> None:
    """Leave the fault and a short note on the exception that is let through; nothing else about it changes."""
    attributes = error.__dict__
    notes = attributes.get("__notes__")
    if isinstance(notes, list) and attributes.get(GAVE_UP_IN) is None:
        # An exception object that is raised again and again would collect our notes without end.
        notes[:] = [kept for kept in notes if not (isinstance(kept, str) and kept.startswith("holdfast: "))]
    add_note(error, note)
    attributes[GAVE_UP_IN] = around
    if isinstance(error, HoldfastError):
        attributes.setdefault(_JUDGED_BEFORE, error.fault)
    leave_fault(error, fault)


def leave_fault(error: BaseException, fault: Fault) -> None:
    """Leave the fault on the exception, where `fault_of` finds it."""
    # Written to `__dict__`: an immutable exception raises in `__setattr__`, and that error would replace it.
    error.__dict__[FAULT_ATTRIBUTE] = fault
    if isinstance(error, HoldfastError):
        error.__dict__["fault"] = fault


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception. An exception that accepts none, such as a frozen dataclass, stays without it."""
    # `fault_of` still has the whole account. The exception that surfaces must be this one, not the error of its `add_note`.
    with suppress(Exception):
        error.add_note(note)


def did_not_happen(error: BaseException) -> None:
    """Mark an error, or a cancellation, after which it is known that the call did not happen: it may be made again."""
    error.__dict__[_DID_NOT_HAPPEN] = True


def pass_outcome(cancelled: BaseException, late: Exception) -> None:
    """Mark the error of a call that was too late if its cancellation is marked: it was cancelled before it was sent."""
    if cancelled.__dict__.pop(_DID_NOT_HAPPEN, False):
        did_not_happen(late)


def with_outcome(fault: Fault, error: Exception) -> Fault:
    """Return the fault of an error with what was found out about the call's outcome."""
    # It holds for one attempt: a later one may fail with the very same object.
    if error.__dict__.pop(_DID_NOT_HAPPEN, False):
        return found_not_to_have_happened(fault)
    return fault


def found_not_to_have_happened(fault: Fault) -> Fault:
    """Return the fault of a call of which somebody found out that it did not happen. It names that as its evidence."""
    return msgspec.structs.replace(fault, maybe_executed=False, context={**fault.context, "evidence": VERIFIED})


def has_account(error: BaseException) -> bool:
    """Whether an operation has left its account on an exception."""
    return FAULT_ATTRIBUTE in error.__dict__


def is_reported(error: BaseException) -> bool:
    """Whether an operation has given up on an exception. Its event has told logs, metrics and alerts of it."""
    return GAVE_UP_IN in error.__dict__


def forget_account(error: BaseException) -> None:
    """Remove what an earlier operation left on an exception that is raised again."""
    attributes = error.__dict__
    attributes.pop(FAULT_ATTRIBUTE, None)
    attributes.pop(GAVE_UP_IN, None)
    if isinstance(error, HoldfastError):
        attributes["fault"] = attributes.pop(_JUDGED_BEFORE, error.fault)


def gave_up_in(error: BaseException, run: str) -> bool:
    """Whether a recovery that was part of `run` has given up on this error, or on one that led to it.

    The causes, the contexts and the members of groups are searched: an SDK may wrap the error of a recovery that runs inside
    it, also without `from`, and a task group wraps every error.
    """
    # The context is only searched for our own mark. It must not classify: a defect in an `except` block is not transient.
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found and len(seen) < _MOST_SEARCHED:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        if one.__dict__.get(GAVE_UP_IN) == run:
            return True
        seen.add(id(one))
        found += (one.__context__, one.__cause__)
        if isinstance(one, BaseExceptionGroup):
            found += one.exceptions
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
                # A recovery has given up on this error. Its fault holds every attempt, and classifying again would lose
                # them.
                return kept
            return _with_output(
                failure, classify.from_exception(failure, provider=provider, now=now, classifier=classifier)
            )
        case str() | bytes() | bytearray():
            text = failure if isinstance(failure, str) else bytes(failure).decode("utf-8", "replace")
            return classify.from_text(text, provider=provider, now=now, classifier=classifier)
    if isinstance(exit_code := _attribute(failure, "returncode"), int):
        text = _stream(failure, "stderr") or _stream(failure, "stdout")
        fault = classify.from_process(exit_code, text, provider=provider, now=now, classifier=classifier)
        return _with_output(failure, fault)
    status = _status(failure)
    if status is not None:
        headers, body = _headers(failure), _body(failure)
        return classify.from_http(status, headers, body, provider=provider, now=now, classifier=classifier)
    if isinstance(failure, (dict, list)):
        return classify.from_http(None, None, failure, provider=provider, now=now, classifier=classifier)
    return Fault.of(
        "SYS_UNKNOWN", f"Not a failure we know: {type(failure).__name__}", retryable=False, rule="not-a-failure"
    )


def _status(response: Any) -> int | None:
    """Return the status of a response. Some clients have a word in `status` and the number in `statusCode`."""
    numbers = (_attribute(response, name) for name in ("status_code", "status", "statusCode"))
    return next((number for number in numbers if isinstance(number, int) and not isinstance(number, bool)), None)


def _attribute(failure: Any, *names: str) -> Any:
    """Return the first of these attributes that can be read; a property of a foreign object may raise."""
    for name in names:
        try:
            value = getattr(failure, name, None)
        except Exception:  # noqa: BLE001, S112 - another attribute may be readable
            continue
        if value is not None:
            return value
    return None


def _headers(response: Any) -> Mapping[str, Any] | None:
    headers = _attribute(response, "headers")
    try:
        return dict(headers.items())
    except Exception:  # noqa: BLE001 - not a mapping after all; the status is enough
        return None


def _body(response: Any) -> Any:
    """Return a body that is already in memory, or ""."""
    # httpx and requests keep a body that was read in these attributes. Their properties would read the network, or raise.
    body = _attribute(response, "_content", "_body", "body")
    return body if isinstance(body, (str, bytes, bytearray, dict, list)) else ""


def _with_output(failure: Any, fault: Fault) -> Fault:
    """Return the fault with what the process printed before it failed, if `failure` is a process that failed."""
    # CalledProcessError and TimeoutExpired both have `cmd`; a finished process has `returncode`.
    if isinstance(failure, BaseException) and "cmd" not in failure.__dict__:
        return fault
    printed = {name: text for name in ("stdout", "stderr") if (text := _stream(failure, name))}
    return msgspec.structs.replace(fault, partial=Partial(payload=printed)) if printed else fault


def _stream(process: Any, name: str) -> str:
    """Return the end of an output stream of a process; "" if it was not captured."""
    output = _attribute(process, name)
    # Of a long output the end is kept, because a program prints last how it failed.
    if isinstance(output, bytes):
        output = output[-CAP_BYTES:].decode("utf-8", "replace")
    if not isinstance(output, str) or not output.strip():
        return ""
    # Bytes of another encoding may arrive as lone surrogates, which no JSON can hold.
    return output[-CAP_BYTES:].encode("utf-8", "replace").decode("utf-8")


def page_of(code: Code) -> str:
    """Return the Markdown page of a code: what happened, why, what Holdfast does, what you can do.

    Raises `FileNotFoundError` for a text that is no code.

        print(page_of("PROVIDER_RATE_LIMITED"))
    """
    from importlib import resources  # noqa: PLC0415 - few programs read pages, and every program would pay for the import

    page = resources.files("holdfast.faults").joinpath("pages", f"{code}.md").read_text(encoding="utf-8")
    # The head is read by `scripts/codes.py`: the catalog has what it says.
    return page.partition("\n+++\n")[2].lstrip("\n")
