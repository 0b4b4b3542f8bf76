"""Rules for identifiers, SQLSTATEs and SMTP replies: names and numbers that mean one failure, in a text or in a body."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.identifiers import IDENTIFIERS, identified
from holdfast.classify.phrases import class_names, codes, phrases
from holdfast.classify.words import Words

if TYPE_CHECKING:
    from holdfast.faults import Code

_LISTED = Words("identifiers")

_SQLSTATE = re.compile(r"\bsqlstate\W{1,4}([0-9a-z]{5})\b|\berror \d{4} \(([0-9a-z]{5})\)")
_SQLSTATES: dict[str, Code] = _LISTED.lookup("sqlstates")
_SQLSTATE_CLASSES: dict[str, Code] = {
    "08": "CONN_RESET",
    "28": "AUTH_FAILED",
    "40": "TOOL_RESOURCE_BUSY",
    "53": "TOOL_RESOURCE_BUSY",
}
"""The first two characters of a SQLSTATE name its class. Every other class means that the statement or the data is wrong."""


@applies_when(phrases("sqlstate", "error 1", "error 2", "error 3") | phrases(_LISTED["sql_state"]))
def sql_state(evidence: Evidence) -> Verdict | None:
    """A database printed a SQLSTATE. Its class decides; MySQL's HY000 says nothing."""
    found = _SQLSTATE.search(evidence.text)
    state = (found[1] or found[2]) if found else "hy000"
    if state == "hy000":
        return None
    if state == "08s01" and "packet" in evidence.text and "packets" not in evidence.text:
        # MySQL sends the class of lost connections for a statement that is too large.
        return Verdict(code="TOOL_INPUT_TOO_LARGE")
    code = _SQLSTATES.get(state) or _SQLSTATE_CLASSES.get(state[:2])
    return Verdict(code=code or "TOOL_EXECUTION_FAILED")


_ORACLE = re.compile(r"\bora-(\d{5})\b")
_ORACLES: dict[str, Code] = _LISTED.lookup("oracles")  # fmt: skip


@applies_when(phrases("ora"))
def oracle(evidence: Evidence) -> Verdict | None:
    """Oracle printed its number. Every number that is not listed means that the statement or the data is wrong."""
    found = _ORACLE.search(evidence.text) if evidence.status is None else None
    return None if found is None else Verdict(code=_ORACLES.get(found[1], "TOOL_EXECUTION_FAILED"))


@applies_when(codes(" ".join(_SQLSTATES)))
def sql_code(evidence: Evidence) -> Verdict | None:
    """A web service in front of PostgreSQL passes its SQLSTATE on as the code of the body."""
    if evidence.status is not None:
        return None
    return next((Verdict(code=_SQLSTATES[code]) for code in evidence.codes if code in _SQLSTATES), None)


_MYSQL = re.compile(r"(?:\berror |^\(|: \()(\d{4})(?: \(|: |, ['\"])")
_MYSQLS: dict[str, Code] = _LISTED.lookup("mysqls")
"""MySQL's numbers for what passes. Every other number means that the statement, the data or the account is wrong."""


@applies_when(phrases(_LISTED["mysql"]))
def mysql(evidence: Evidence) -> Verdict | None:
    """MySQL printed a number that passes, in words that no other rule knows."""
    found = _MYSQL.search(evidence.text) if evidence.status is None else None
    code = None if found is None else _MYSQLS.get(found[1])
    return None if code is None else Verdict(code=code)


_SMTP = re.compile(r"\((\d{3}), ")
_REPLY = re.compile(r"(?:^|[\n:] ?)([45]\d\d)[ -](?:([45]\.\d{1,3}\.\d{1,3})\b|[a-z<'])")
"""A reply of a mail or file server at the beginning of a line: `451 4.7.1 Greylisting`, `530 Login incorrect`."""
_LOGIN_REPLIES = frozenset({"530", "532", "534", "535", "538"})
_SIZE_REPLIES = frozenset({"552", "523"})
_REPLIES = phrases(_LISTED["replies"])
_MAIL = phrases(_LISTED["mail"])
_FTP_CLASSES = class_names("error_perm error_temp error_reply error_proto")


@applies_when(_REPLIES)
def server_reply(evidence: Evidence) -> Verdict | None:
    """A mail or file server replied with a number. Unlike in HTTP, 4xx passes and 5xx does not."""
    raised = evidence.raised
    if raised is not None and raised.type.startswith("SMTP"):
        reply = _SMTP.search(evidence.message)
    else:
        reply = None if evidence.source in _ANSWERS else _REPLY.search(evidence.text)
        # Without the second number it may be a status of HTTP.
        if reply and not reply[2] and not evidence.named_in(_FTP_CLASSES) and not evidence.matches(_MAIL):
            return None
    if reply is None:
        return None
    if reply[1] in _LOGIN_REPLIES:
        return Verdict(code="AUTH_FAILED")
    if reply[1] in _SIZE_REPLIES:
        return Verdict(code="PROVIDER_REQUEST_TOO_LARGE")
    if reply[1].startswith("4"):
        return Verdict(code="PROVIDER_UNAVAILABLE")
    return Verdict(code="TOOL_FILE_NOT_FOUND" if evidence.matches(_NO_FILE) else "PROVIDER_BAD_REQUEST")


_NO_FILE = phrases("no such file", "not found", "failed to open file", "failed to change directory")
_ANSWERS = frozenset({Source.HTTP, Source.SSE, Source.GRPC, Source.JSONRPC})


@applies_when(IDENTIFIERS)
def in_text(evidence: Evidence) -> Verdict | None:
    """One word of the text or of the body is the name of a failure."""
    return None if evidence.raised is not None else _named(evidence)


@applies_when(IDENTIFIERS, local=True, not_defect=True)
def of_exception(evidence: Evidence) -> Verdict | None:
    """The class of an exception that no table of classes lists, or a word of its text, is the name of a failure."""
    return None if evidence.raised is None else _named(evidence)


def _named(evidence: Evidence) -> Verdict | None:
    if evidence.source in (Source.GRPC, Source.JSONRPC):
        # gRPC and JSON-RPC have tables of their own.
        return None
    code = identified(evidence)
    if code is None or not _counts_beside(evidence.status, code):
        return None
    return Verdict(code=code, weak=evidence.raised is not None)


def _counts_beside(status: int | None, code: Code) -> bool:
    """Whether a name counts although there is a status, which is usually more exact than a word in its text."""
    if status is None or status < 400:
        return True
    # Clouds send 400 and 403 for a quota. OAuth sends 400 for a login that is over.
    return (code in _MORE_EXACT and status in (400, 403)) or (code.startswith("AUTH_") and status == 400)


_MORE_EXACT = frozenset({"TOOL_QUOTA_EXHAUSTED", "PROVIDER_BILLING"})

_PLACED = re.compile(
    r"\((?:code:? ?)?([A-Z][A-Za-z_]{7,60})\)|\b(?:[eE]rror)?_?[cC]ode(?:Name)?['\"]?\s*[:=]\s*['\"]?([A-Z][A-Za-z_]{7,60})\b"
    r"|^(?:\w*[eE]rror: |\W*)([A-Z][a-z]+(?:[A-Z][a-z]+){1,6}|[A-Z]+(?:_[A-Z]+)+)(?:: | - )",
    re.MULTILINE,
)
_ENDINGS: tuple[tuple[Code, re.Pattern[str]], ...] = (
    ("PROVIDER_BAD_REQUEST", re.compile(r"^(?:illegal|invalid|malformed|missing|noregistered|reserved|unsupported)|(?:notsupported|outofrange|mismatch|violation|invalid|required)$")),
    ("TOOL_FILE_NOT_FOUND", re.compile(r"^(?:nosuch|unknown)|(?<!module)(?:notfound|notexists?)$")),
    # RabbitMQ.
    ("TOOL_RESOURCE_BUSY", re.compile(r"^resourcelocked$")),
    ("CONN_RESET", re.compile(r"^connectionforced$")),
    ("TOOL_EXECUTION_FAILED", re.compile(r"(?:preconditionfailed|already\w+|exists|notempty|inuse|cannotbe\w+|locked|disabled|notenabled|duplicate\w*)$")),
    ("TOOL_FORBIDDEN", re.compile(r"^disallowed|(?:accessrefused|denied|forbidden|unauthorized|notauthorized|notallowed|notpermitted|disallowed)$")),
    ("TOOL_QUOTA_EXHAUSTED", re.compile(r"(?:quotaexceeded|limitexceeded|limitreached)$")),
    ("PROVIDER_RATE_LIMITED", re.compile(r"throttl|toomanyrequests$|ratelimit")),
    ("PROVIDER_TIMEOUT", re.compile(r"(?:timeout|timedout)$")),
    ("PROVIDER_UNAVAILABLE", re.compile(r"(?:unavailable|notready|internal|retryable|preempted|internaloperation|serverbusy|toobusy)$")),
    ("TOOL_RESOURCE_BUSY", re.compile(r"(?:inprogress|beingmodified|beingupdated)$")),
)  # fmt: skip
_SUFFIX = re.compile(r"(?:exception|error|fault|ex)$")


def by_ending(evidence: Evidence) -> Verdict | None:
    """A code that no table lists stands where codes stand: `(SubnetNotFound)`, `Code: ClusterNotReady`. Its ends tell what it means."""
    if evidence.source in _ANSWERS or (evidence.status or 0) >= 400 or len(evidence.message) > _LONGEST:
        return None
    if any(code.startswith("grpc:") for code in evidence.codes):
        return None
    for found in _PLACED.finditer(evidence.message):
        name = _SUFFIX.sub("", (found[1] or found[2] or found[3]).replace("_", "").lower())
        for code, pattern in _ENDINGS:
            if pattern.search(name):
                return Verdict(code=code, weak=True)
    return None


_LONGEST = 2_000

RULES = (server_reply, sql_state, oracle, sql_code, mysql, in_text)
LATE = (of_exception,)
ENDINGS = (by_ending,)
