"""The last rules: words that any program may use, then the words that forbid a retry of an unknown failure."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.concepts import FORBIDS_A_RETRY, INVALID, LIMIT, LOGIN, SUBSCRIPTION, turned_away
from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.phrases import find_late, late_phrases, phrases
from holdfast.classify.sentences import LATER, LONGEST, NO_ANSWER, meaning
from holdfast.classify.words import Words
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_LISTED = Words("plain")


def by_meaning(evidence: Evidence) -> Verdict | None:
    """A sentence without a status says that a login, a connection or a lock is the reason, in whatever words."""
    if evidence.status is not None or evidence.source in _ANSWERS or len(evidence.text) > LONGEST:
        return None
    raised = evidence.raised
    if raised is not None and evidence.named("TypeError", "AttributeError", "KeyError", "InterfaceError"):
        return None
    code = meaning(evidence.text)
    if code == "CONN_RESET" and (turned_away(evidence) or evidence.matches(_USAGE)):
        code = None
    elif code == "CONN_RESET" and evidence.matches(_BY_HAND):
        code = "PROVIDER_BAD_REQUEST"
    elif code == "CONN_RESET" and evidence.matches(_ABSENT):
        # The connection failed because what was asked for does not exist: psql reports a missing database in this way.
        code = "TOOL_FILE_NOT_FOUND"
    elif code == "TOOL_RESOURCE_BUSY" and evidence.matches(_SERVING):
        code = "PROVIDER_UNAVAILABLE"
    if code is not None:
        return Verdict(code=code, weak=raised is not None)
    if evidence.exit_code is None and evidence.rpc_code is None and NO_ANSWER.search(evidence.text):
        return Verdict(code="PROVIDER_MALFORMED_RESPONSE", weak=raised is not None)
    # "In subscription x … please retry later": a subscription of Azure is a place and no plan.
    forbids = FORBIDS_A_RETRY & ~SUBSCRIPTION if evidence.matches(_ASKED) else FORBIDS_A_RETRY
    if not evidence.matches(forbids) and not evidence.named("ValueError") and LATER.search(evidence.text):
        return Verdict(code="PROVIDER_UNAVAILABLE", weak=raised is not None)
    return None


_ASKED = phrases(_LISTED["asked"])
_USAGE = phrases(_LISTED["usage"])
_BY_HAND = phrases("you need to close", "you must close", "close all existing", "you need to stop")
"""A person must do something before the next attempt."""
_SERVING = phrases(_LISTED["serving"])
_ANSWERS = frozenset({Source.HTTP, Source.SSE, Source.GRPC, Source.JSONRPC})


# These verdicts are weak: any program may use these words, so a cause or a status is always preferred.
_WORDS: tuple[tuple[Code, Phrases], ...] = _LISTED.table("words", phrases)


_EXITED = re.compile(r"\bexit(?:ed)?(?: with)? (?:status|code)[: ]+(-?\d{1,3})\b")


@applies_when(phrases("exit code", "exited with", "exit status"))
def exited_in_text(evidence: Evidence) -> Verdict | None:
    """A text quotes the exit code of a process that a signal ended."""
    found = _EXITED.search(evidence.text) if evidence.exit_code is None and evidence.status is None else None
    number = 0 if found is None else int(found[1])
    if number in (137, 143, -9, -15):
        return Verdict(code="TOOL_KILLED", weak=True)
    return Verdict(code="TOOL_CRASHED", weak=True) if number in (134, 139, -6, -11) else None


@applies_when(phrases("validation error", "validation failed", "validation hook failed"))
def of_validator(evidence: Evidence) -> Verdict | None:
    """A sentence that no service sent says that a check failed: what was checked is wrong, and stays so."""
    if evidence.status is not None or evidence.source in _ANSWERS or evidence.provider:
        return None
    return Verdict(code="TOOL_INPUT_INVALID", weak=True)


@applies_when(reduce(or_, (group for _, group in _WORDS)))
def by_words(evidence: Evidence) -> Verdict | None:
    """The text has words that many programs use for the same failure."""
    code = evidence.first_match(_WORDS)
    return None if code is None else Verdict(code=code, weak=True)


_ABSENT = phrases("does not exist", "not found", "no such")


def absent(evidence: Evidence) -> Verdict | None:
    """The code of a web service says what is missing: `channel_not_found`."""
    coded = evidence.status is None and any(code.endswith("_not_found") for code in evidence.codes)
    return Verdict(code="TOOL_FILE_NOT_FOUND", weak=True) if coded else None


_FAILED = late_phrases(_LISTED["failed"])


def failed_here(evidence: Evidence) -> Verdict | None:
    """A short text says that something could not be done, and names no reason to expect better next time."""
    plain = evidence.source is Source.TEXT and evidence.status is None and evidence.rpc_code is None
    unspecific = plain and not evidence.matches(FORBIDS_A_RETRY | _ABSENT) and len(evidence.text) < LONGEST
    named = unspecific and find_late(evidence.text) & _FAILED
    return Verdict(code="TOOL_EXECUTION_FAILED", weak=True) if named else None


_WRITTEN = frozenset({Source.TEXT, Source.EXCEPTION})
_DENIES = late_phrases(_LISTED["denies"])


_MISTAKEN = late_phrases(_LISTED["mistaken"])
_WITHOUT_SUCCESS = late_phrases(_LISTED["without_success"])


def told(evidence: Evidence) -> Verdict | None:
    """A sentence says what is not so, must be so or is wrong, and names nothing that passes: it is not retried."""
    plain = evidence.source is Source.TEXT and evidence.status is None and evidence.rpc_code is None
    if not plain or len(evidence.text) > LONGEST or len(evidence.text.split(maxsplit=2)) <= 2:
        return None
    late = find_late(evidence.text)
    if late & _MISTAKEN or evidence.matches(LIMIT):
        return Verdict(code="PROVIDER_BAD_REQUEST", weak=True)
    return Verdict(code="TOOL_EXECUTION_FAILED", weak=True) if late & (_DENIES | _WITHOUT_SUCCESS) else None


def explained(evidence: Evidence) -> Verdict | None:
    """An exception says what is not so or must be so, and names nothing that passes: it is not retried.

    "The gripper lost item 7" only says what happened. That may go well the next time.
    """
    if evidence.raised is None or evidence.source not in _WRITTEN or len(evidence.text.split(maxsplit=2)) <= 2:
        return None
    return (
        Verdict(code="TOOL_EXECUTION_FAILED", weak=True)
        if find_late(evidence.text) & (_DENIES | _FAILED | _MISTAKEN)
        else None
    )


_ANSWERED_NO = re.compile(r"['\"]ok['\"]: ?false\b")


@applies_when(local=True)
def answered_no(evidence: Evidence) -> Verdict | None:
    """A web service answered `{"ok": false, "error": …}` with a code that no table lists. It did not accept the call."""
    return Verdict(code="PROVIDER_BAD_REQUEST", weak=True) if _ANSWERED_NO.search(evidence.text) else None


@applies_when(FORBIDS_A_RETRY | _ABSENT)
def cautious(evidence: Evidence) -> Verdict | None:
    """The text names a limit, a login or an invalidity, and no rule knows more: it is not retried."""
    if evidence.matches(INVALID) and not evidence.matches(LIMIT | LOGIN) and evidence.raised is None:
        return Verdict(code="PROVIDER_BAD_REQUEST", weak=True)
    if evidence.matches(_ABSENT) and not evidence.matches(FORBIDS_A_RETRY):
        return Verdict(code="TOOL_FILE_NOT_FOUND", weak=True)
    if evidence.raised is not None:
        return Verdict(code="TOOL_EXECUTION_FAILED", weak=True)
    if evidence.matches(LOGIN) and not evidence.matches(LIMIT):
        # Which login is not known. The verdict is about this call, so that it stops no other call with the same key.
        return Verdict(code="AUTH_FORBIDDEN", scope=Scope.REQUEST, weak=True)
    if evidence.matches(_OF_A_PLAN):
        return Verdict(code="PROVIDER_ENTITLEMENT_MISSING", scope=Scope.REQUEST, retryable=False, weak=True)
    if evidence.matches(_OF_A_QUOTA):
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", scope=Scope.REQUEST, retryable=False, weak=True)
    # A size or a number that is too large is one of the request.
    return Verdict(
        code="PROVIDER_BAD_REQUEST" if evidence.matches(_OF_A_SIZE) else "SYS_UNKNOWN", retryable=False, weak=True
    )


_OF_A_SIZE = phrases(_LISTED["of_a_size"])
_OF_A_QUOTA = phrases("quota", "allowance", "tomorrow")
_OF_A_PLAN = phrases(_LISTED["of_a_plan"])

_FILE_WORDS = phrases(_LISTED["file_words"])
_FILE_CALL = re.compile(r"\b(e[a-z0-9]{3,}): [^\n]{0,80}, [a-z]+\b")
_PASSING_ERRNOS = frozenset({"ebusy", "eagain", "emfile", "enfile", "etxtbsy", "eintr", "estale", "etimedout"})


@applies_when(_FILE_WORDS)
def file_call(evidence: Evidence) -> Verdict | None:
    """Node prints the call of the operating system that failed: `EUCLEAN: unknown error, mkdir '/srv'`. Few of them pass."""
    call = _FILE_CALL.search(evidence.text) if evidence.status is None else None
    if call is None or call[1] in _PASSING_ERRNOS:
        return None
    return Verdict(code="TOOL_EXECUTION_FAILED")


EARLY = (file_call, by_meaning)
WORDS = (absent, exited_in_text, of_validator, by_words)
BEFORE = (answered_no,)
LAST = (failed_here, cautious, told, explained)
