"""What shows that the effect of a call did not happen: the only ground for a second run of an unsafe body that has begun.

A failure proves something about the one call that it ended, never about what the body did before. Nobody can see whether a body that
failed on its second request has paid with its first one, so a body should have one effect, and the docs say so: a step for each effect.
What can be seen counts, though: the failure of a request that only reads (GET, HEAD, OPTIONS) is none of the effect, and shows nothing about it.
Within that, the list is closed. A failure counts only if

- the request was never sent: the connection was refused, the name was not resolved, the connection or its TLS handshake did not come
  about, no connection of the pool was free, or one of our own limits rejected the call;
- the other side answered with a status that promises that it did nothing (`REJECTING`). Of those from 500 on only a 503 that says when
  to come back does: a proxy sends 502, 503 and 504 also for a request that its service has carried out;
- the tool says so with an error made for that: `ToolError`, or a code of ours for a call that is rejected before it is made;
- the function was never entered, because its arguments did not fit;
- somebody looked: the fault names the evidence, or has a code that leaves the outcome open and says that it did not happen.

Words prove nothing: a status or a refused connection that was only read in a text is no evidence. And of a call that was attempted
several times, each attempt must show that it did not happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.faults.catalog import MAY_HAVE_HAPPENED

if TYPE_CHECKING:
    from holdfast.faults import Attempt, Code, Fault

__all__ = ["KNOWN", "NOT_CALLED", "REJECTING", "VERIFIED", "Ending", "evidence_of"]

NOT_CALLED = "not-called"
"""The function was not entered."""
KNOWN = "known"
"""The failure itself says that nothing was begun."""
VERIFIED = "verified"
"""The tool's `verify` looked after the call had ended, and did not find it."""

REJECTING: dict[int, str] = {
    400: "the request was not understood",
    401: "the caller is not known",
    402: "the payment was declined, or the account may not call",
    403: "the caller may not do this",
    404: "there is nothing at this address",
    405: "the address does not take this method",
    406: "no form of the answer is acceptable",
    410: "there is nothing at this address any more",
    411: "a request without a length is not read",
    413: "the request is too large to be read",
    414: "the address is too long to be read",
    415: "the body's form is not known",
    417: "an expectation of the request is not met, so its body was not read",
    421: "the server does not answer for this address",
    422: "the content was understood and rejected",
    423: "the resource is locked",
    426: "another protocol is required first",
    428: "a condition is required first",
    429: "too many requests: this one was turned away",
    431: "the headers are too large to be read",
    451: "it may not be done for legal reasons",
}
"""The statuses that promise that nothing was done, and why.

Missing on purpose: 408 (a gateway sends it also for a request that was read), 409 and 412 (an earlier attempt of the same call may be
what is in conflict), 424 (a part may have been done), 425 (its code is also that of 503), 499 (the caller left)."""

_UNAVAILABLE = 503

_UNSENT: dict[Code, str] = {
    "CONN_REFUSED": "connection-refused",
    "CONN_DNS_FAILED": "name-not-resolved",
}
"""Failures before the first byte of a request, if an exception's class or number says so."""
_OPENING: dict[Code, str] = {
    "CONN_REFUSED": "connection-refused",
    "CONN_RESET": "not-connected",
    "CONN_TIMEOUT": "not-connected",
    "CONN_UNREACHABLE": "not-connected",
    "CONN_TLS_HANDSHAKE_FAILED": "tls-failed",
    "PROVIDER_POOL_TIMEOUT": "no-connection-free",
}
"""Failures that also occur after a request was sent. They count if the connection was still being opened."""
_REJECTED_BY_US: frozenset[Code] = frozenset({
    "CIRCUIT_OPEN",
    "SYS_BUDGET_EXHAUSTED",
    "SYS_BULKHEAD_FULL",
    "SYS_RATE_LIMITED",
})  # fmt: skip
_REJECTED_BY_TOOL: frozenset[Code] = frozenset({
    "TASK_GRANT_CONSUMED",
    "TASK_GRANT_EXPIRED",
    "TASK_GRANT_INVALID",
    "TOOL_APPROVAL_DENIED",
    "TOOL_COMMAND_NOT_FOUND",
    "TOOL_FILE_NOT_FOUND",
    "TOOL_FORBIDDEN",
    "TOOL_INPUT_INVALID",
    "TOOL_INPUT_TOO_LARGE",
    "TOOL_NOT_FOUND",
    "TOOL_SERVER_NOT_REGISTERED",
})  # fmt: skip
"""Codes with which a tool says that it did not begin. They count on an error of ours that was written for that, not recognised in what a
program printed."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What the exception that ended a body shows besides its fault."""

    entered: bool = True
    """The function was entered. False: its arguments did not fit."""
    is_ours: bool = False
    """It is a `HoldfastError`."""
    is_refusal: bool = False
    """It is a `ToolError`: the tool says in its own words that it does not do what was asked."""
    is_unsent: bool = False
    """It came while the connection was opened."""
    status: int | None = None
    """The status that it carries as a number."""


def evidence_of(fault: Fault, ending: Ending) -> str:
    """Return the name of the evidence that a call did not happen; empty if there is none.

    >>> evidence_of(Fault.of("PROVIDER_BAD_REQUEST"), Ending(status=422))
    'status-422'
    """
    if "evidence" in fault.context:
        return str(fault.context["evidence"])
    found = _found(fault, ending)
    proven = len(fault.attempts) < 2 or all(_proves(each, fault) for each in fault.attempts)
    return found if proven else ""


def _found(fault: Fault, ending: Ending) -> str:
    code = fault.code
    if not ending.entered:
        return NOT_CALLED
    if code in MAY_HAVE_HAPPENED and not fault.maybe_executed:
        # Whoever made this fault knew more than its code says: a `verify` looked, or the message was never handed over.
        return KNOWN
    if ending.is_unsent and code in _OPENING:
        return _OPENING[code]
    if fault.maybe_executed:
        return ""
    if code in _UNSENT and fault.rule in _SEEN:
        return _UNSENT[code]
    if ending.status is not None:
        is_turned_away = ending.status == _UNAVAILABLE and fault.retry_after is not None
        return f"status-{ending.status}" if is_turned_away or ending.status in REJECTING else ""
    if ending.is_ours and not fault.rule:
        return "rejected-by-us" if code in _REJECTED_BY_US else "rejected-by-tool" if _is_said(code, ending) else ""
    return ""


_SEEN = frozenset({"", "network.by_class", "network.by_errno"})
"""Rules of the classifier that read a class or a number, not a text."""


def _is_said(code: str, ending: Ending) -> bool:
    return ending.is_refusal or code in _REJECTED_BY_TOOL


def _proves(attempt: Attempt, last: Fault) -> bool:
    """Whether an attempt of the same call did not happen: it was not sent, or failed in the same way as the last one."""
    if attempt.code in _UNSENT or attempt.code in _REJECTED_BY_US:
        return True
    is_same = attempt.code == last.code and _type(attempt) == _type(last)
    return is_same and attempt.code not in MAY_HAVE_HAPPENED


def _type(failed: Attempt | Fault) -> str:
    return "" if failed.cause is None else failed.cause.type
