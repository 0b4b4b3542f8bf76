"""Rules for identifiers, SQLSTATEs and SMTP replies: names and numbers that mean one failure, in a text or in a body."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.identifiers import IDENTIFIERS, identified
from holdfast.classify.phrases import phrases

if TYPE_CHECKING:
    from holdfast.faults import Code

_SQLSTATE = re.compile(r"\bsqlstate\W{1,4}([0-9a-z]{5})\b|\berror \d{4} \(([0-9a-z]{5})\)")
_SQLSTATES: dict[str, Code] = {
    "57014": "TOOL_TIMEOUT",
    "57p01": "PROVIDER_UNAVAILABLE",
    "57p02": "PROVIDER_UNAVAILABLE",
    "57p03": "PROVIDER_UNAVAILABLE",
    "57p05": "CONN_RESET",
    "55p03": "TOOL_RESOURCE_BUSY",
    "55006": "TOOL_RESOURCE_BUSY",
    "53300": "TOOL_RESOURCE_BUSY",
    "53100": "SYS_RESOURCE_EXHAUSTED",
    "53200": "TOOL_OUT_OF_MEMORY",
    "3d000": "TOOL_FILE_NOT_FOUND",
    "42501": "TOOL_FORBIDDEN",
    "42p01": "TOOL_FILE_NOT_FOUND",
    "42s02": "TOOL_FILE_NOT_FOUND",
}
_SQLSTATE_CLASSES: dict[str, Code] = {
    "08": "CONN_RESET",
    "28": "AUTH_FAILED",
    "40": "TOOL_RESOURCE_BUSY",
    "53": "TOOL_RESOURCE_BUSY",
}
"""The first two characters of a SQLSTATE name its class. Every other class means that the statement or the data is wrong."""


@applies_when(
    phrases("sqlstate", "error 1", "error 2", "error 3") | phrases("42000", "hy000", "28000", "40001", "08s01")
)
def sql_state(evidence: Evidence) -> Verdict | None:
    """A database printed a SQLSTATE. Its class decides; MySQL's HY000 says nothing."""
    found = _SQLSTATE.search(evidence.text)
    state = (found[1] or found[2]) if found else "hy000"
    if state == "hy000":
        return None
    if state == "08s01" and "packet" in evidence.text:
        # MySQL sends the class of lost connections for a statement that is too large.
        return Verdict(code="TOOL_INPUT_TOO_LARGE")
    code = _SQLSTATES.get(state) or _SQLSTATE_CLASSES.get(state[:2])
    return Verdict(code=code or "TOOL_EXECUTION_FAILED")


_SMTP = re.compile(r"\((\d{3}), ")
_SMTP_LOGIN = frozenset({"530", "534", "535", "538"})


@applies_when(local=True)
def smtp_reply(evidence: Evidence) -> Verdict | None:
    """An SMTP server replied with a number. Unlike in HTTP, 4xx passes and 5xx does not."""
    if evidence.raised is None or not evidence.raised.type.startswith("SMTP"):
        return None
    reply = _SMTP.match(evidence.message)
    if reply is None:
        return None
    if reply[1] in _SMTP_LOGIN:
        return Verdict(code="AUTH_FAILED")
    return Verdict(code="PROVIDER_UNAVAILABLE" if reply[1].startswith("4") else "PROVIDER_BAD_REQUEST")


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
    answered = evidence.status is not None and evidence.status >= 400
    if code is None or (answered and not (code in _MORE_EXACT and evidence.status in (400, 403))):
        return None
    return Verdict(code=code, weak=evidence.raised is not None)


_MORE_EXACT = frozenset({"TOOL_QUOTA_EXHAUSTED", "PROVIDER_BILLING"})
"""A status is more exact than a word in its text, but for these: clouds send 400 and 403 for a quota."""

RULES = (smtp_reply, sql_state, in_text)
LATE = (of_exception,)
