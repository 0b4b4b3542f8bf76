"""Word groups that are combined: what a sentence is about, and what happened to it.

A program may say "your balance has run out" in a hundred ways, but nearly all of them contain a word for money and a word for
its end. Each row of the table names the groups that must all occur. The rows run after every exact rule, on short texts only,
and the failures that never heal come first. A row that leads to a retry needs words that leave little doubt.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.classify.phrases import find_late, late_phrases, phrases
from holdfast.classify.times import UNIT
from holdfast.classify.words import Words

if TYPE_CHECKING:
    from holdfast.classify.evidence import Evidence
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_LISTED = Words("concepts")

LONGEST: Final = 600
"""In a longer text the words of two groups often stand in different sentences."""

# A failure with one of these words is not known, but it names a limit, a login or an invalidity. The same call would
# meet it again, and a retry could lock an account.
SUBSCRIPTION = phrases("subscription")
LIMIT = phrases(_LISTED["limit"]) | SUBSCRIPTION
LOGIN = phrases(_LISTED["login"])
INVALID = phrases(_LISTED["invalid"])
FORBIDS_A_RETRY = LIMIT | LOGIN | INVALID

# What a sentence is about.
_PERSON = late_phrases(_LISTED["person"])
_ACTION = late_phrases(_LISTED["action"])
_MONEY = late_phrases(_LISTED["money"])
_PATCH = late_phrases(_LISTED["patch"])
_WORK = late_phrases(_LISTED["work"])
_PLACE = late_phrases("region | country | territory | location\n")
_MACHINE = late_phrases(_LISTED["machine"])
_PLAN = late_phrases(_LISTED["plan"])
_LIMIT = late_phrases(_LISTED["limited"])
_STEPS = late_phrases(_LISTED["steps"])
_LENGTH = late_phrases(_LISTED["length"])
_SENT = late_phrases(_LISTED["sent"])
# "The limit of requests was reached" is about their number, not about the size of one.
_REQUEST = late_phrases("request\n")
_IDENTITY = late_phrases(_LISTED["identity"])
_PERMISSION = late_phrases(_LISTED["permission"])
_MODEL = late_phrases("model | models | deployment | engine\n")
_OUTPUT = late_phrases(_LISTED["output"])
_SETTINGS = late_phrases(_LISTED["settings"])
_OTHER_SIDE = late_phrases(_LISTED["other_side"])
# A container, a runner or a port that is not well is on this machine, and somebody has to look at it.
_REMOTE = late_phrases(_LISTED["remote"])
_LINE = late_phrases(_LISTED["line"])
_LOCK = late_phrases(_LISTED["lock"])

_WHO = late_phrases(_LISTED["who"])
"""Who asks, in words that a text about a network rarely has."""

# What happened to it.
_TURNED_AWAY = late_phrases(_LISTED["turned_away"])
"""Words about somebody who lacks permission."""
_STOPPED = late_phrases(_LISTED["stopped"])
_REFUSED = late_phrases(_LISTED["refused"])
_SPENT = late_phrases(_LISTED["spent"])
_REACHED = late_phrases(_LISTED["reached"])
_OVER = late_phrases(_LISTED["over"])
UNACCEPTED = late_phrases(_LISTED["unaccepted"])
_NOT_ALLOWED = late_phrases(_LISTED["not_allowed"])
_POLICY = late_phrases(_LISTED["policy"])
_NOT_POLICY = late_phrases(_LISTED["not_policy"])
_GONE = late_phrases(_LISTED["gone"])
_UNREADABLE = late_phrases(_LISTED["unreadable"])
_WRONG = late_phrases(_LISTED["wrong"])
_BROKEN = late_phrases(_LISTED["broken"])
_ILL = late_phrases(_LISTED["ill"])
_DIED = late_phrases(_LISTED["died"])
_STALLED = late_phrases(_LISTED["stalled"])
_NOT_IN_TIME = late_phrases(_LISTED["not_in_time"])
_TIME_BUDGET = late_phrases("time budget", "latency budget")
_SPAN = re.compile(rf"\b\d[\d,.]* ?-?{UNIT}")
SETTING_OF_TIME = phrases(_LISTED["setting_of_time"])
"""A time limit is named, but none ran out."""
_ENDED = late_phrases(_LISTED["ended"])
_HELD = late_phrases(_LISTED["held"])
_ABSENT = late_phrases(_LISTED["absent"])
# What a parser of JSON prints in Go, Rust, Python, JavaScript, Java and .NET. The text that it read came from the other side.
_PARSERS = late_phrases(_LISTED["parsers"])
_UNAPPLIED = late_phrases(_LISTED["unapplied"])
_ENDED_EARLY = late_phrases("cancelled | canceled | aborted\n")
_NOT_SERVED = late_phrases(_LISTED["not_served"])
_DISK = late_phrases(_LISTED["disk"])
_FULL = late_phrases(_LISTED["full"])

_RANGE = late_phrases(_LISTED["range"])

_COUNTED = late_phrases(_LISTED["counted"])
_USED_UP = late_phrases(_LISTED["used_up"])

_Row = tuple["Code", "tuple[Phrases, ...]"]
_NEVER: tuple[_Row, ...] = (
    ("TOOL_APPROVAL_DENIED", (_PERSON, _REFUSED, _ACTION)),
    ("SYS_CANCELLED", (_PERSON, _STOPPED)),
    ("TOOL_APPROVAL_DENIED", (_ACTION, _REFUSED)),
    ("TOOL_EXECUTION_FAILED", (_PATCH, _UNAPPLIED)),
    ("SYS_CANCELLED", (_WORK, _ENDED_EARLY)),
    # A cloud lacks a kind of machine in a place. Nobody is turned away.
    ("PROVIDER_CAPABILITY_MISSING", (_PLACE, _NOT_SERVED, _MACHINE)),
    ("AUTH_REGION_BLOCKED", (_PLACE, _NOT_SERVED)),
    ("TASK_LOOP_BOUND", (_STEPS, _REACHED)),
    ("PROVIDER_BILLING", (_MONEY, _SPENT)),
    ("PROVIDER_ENTITLEMENT_MISSING", (_PLAN, _SPENT)),
    ("SYS_RESOURCE_EXHAUSTED", (_DISK, _FULL)),
    ("PROVIDER_QUOTA_EXHAUSTED", (_COUNTED, _USED_UP)),
    # "The value must be greater than or equal to 8000" names a range, not something that is too large.
    ("PROVIDER_BAD_REQUEST", (_RANGE,)),
    ("PROVIDER_CONTEXT_OVERFLOW", (_LENGTH, _OVER)),
    ("PROVIDER_REQUEST_TOO_LARGE", (_SENT, _OVER)),
    ("PROVIDER_QUOTA_EXHAUSTED", (_LIMIT, _REACHED)),
)
_ACCESS: tuple[_Row, ...] = (
    ("AUTH_FAILED", (_IDENTITY, UNACCEPTED)),
    ("AUTH_FORBIDDEN", (_PERMISSION, _NOT_ALLOWED)),
)
_WRONG_INPUT: tuple[_Row, ...] = (
    ("PROVIDER_MODEL_NOT_FOUND", (_MODEL, _GONE)),
    ("TOOL_FILE_NOT_FOUND", (_ABSENT,)),
    ("PROVIDER_UNAVAILABLE", (_OTHER_SIDE, _ILL)),
    ("PROVIDER_BAD_REQUEST", (_SETTINGS | _SENT | _REQUEST | _LENGTH | _MODEL, _WRONG)),
)
_HEALS: tuple[_Row, ...] = (
    ("CONN_RESET", (_LINE, _BROKEN)),
    ("TOOL_CRASHED", (_OTHER_SIDE, _DIED)),
    ("PROVIDER_UNAVAILABLE", (_OTHER_SIDE, _ILL)),
    ("TOOL_RESOURCE_BUSY", (_LOCK, _HELD)),
)
_ROWS = (*_NEVER, *_ACCESS, *_WRONG_INPUT, *_HEALS)


def _row(evidence: Evidence, rows: tuple[_Row, ...]) -> Code | None:
    matched = evidence.matched
    for code, groups in rows:
        for group in groups:
            if not matched & group:
                break
        else:
            return code
    return None


def _ran_out(evidence: Evidence) -> bool:
    """Whether a time ran out: a word for it, or a span of time and a word for its end."""
    if evidence.matches(SETTING_OF_TIME):
        return False
    if evidence.matches(_STALLED):
        return True
    return evidence.matches(_ENDED) and _SPAN.search(evidence.text) is not None


def turned_away(evidence: Evidence) -> bool:
    """Whether a short text names who asks and that they may not."""
    if len(evidence.text) > LONGEST:
        return False
    late = find_late(evidence.text)
    return late & _WHO != 0 and late & _TURNED_AWAY != 0


def passing(evidence: Evidence) -> Code | None:
    """Return what a text of a program means that passes: a time that ran out, a server that is not well; None otherwise."""
    evidence = msgspec.structs.replace(evidence, matched=evidence.matched | find_late(evidence.text))
    if evidence.matches(_ABSENT | _GONE):
        return None
    if evidence.matches(_NOT_IN_TIME) and not evidence.matches(SETTING_OF_TIME):
        return "TOOL_TIMEOUT"
    return "PROVIDER_UNAVAILABLE" if evidence.matches(_REMOTE) and evidence.matches(_ILL) else None


def meant(evidence: Evidence) -> Code | None:
    """Return the code of the first meaning; None for a long text.

    The order: who stopped it, what a parser printed, time, policy, limits, access, input, what passes.
    """
    if len(evidence.text) > LONGEST:
        return None
    evidence = msgspec.structs.replace(evidence, matched=evidence.matched | find_late(evidence.text))
    if evidence.matches(_PERSON) and (code := _row(evidence, _NEVER[:2])) is not None:
        return code
    if evidence.matches(_OUTPUT) and evidence.matches(_OUTPUT_LIMIT):
        # The output reached its limit. The same request would reach it again.
        return "PROVIDER_CONTEXT_OVERFLOW"
    if evidence.matches(_NO_TOOL):
        return "TOOL_NOT_FOUND"
    if evidence.matches(_PARSERS) or (evidence.matches(_OUTPUT) and evidence.matches(_UNREADABLE)):
        if evidence.matches(_OF_A_REQUEST):
            return "PROVIDER_BAD_REQUEST"
        return None if evidence.matches(_OF_A_FILE) else "PROVIDER_MALFORMED_RESPONSE"
    if _ran_out(evidence) and (evidence.matches(_TIME_BUDGET) or not evidence.matches(_MONEY | _PLAN | _ABSENT)):
        return "PROVIDER_TIMEOUT"
    used_up = evidence.matches(_LIMIT) and evidence.matches(_REACHED)
    if evidence.matches(_POLICY) and not evidence.matches(_NOT_POLICY) and not used_up:
        return "PROVIDER_CONTENT_POLICY"
    return _row(evidence, _ROWS)


_OUTPUT_LIMIT = late_phrases(_LISTED["output_limit"])
_NO_TOOL = late_phrases(_LISTED["no_tool"])
_OF_A_REQUEST = late_phrases(_LISTED["of_a_request"])
_OF_A_FILE = late_phrases(_LISTED["of_a_file"])
