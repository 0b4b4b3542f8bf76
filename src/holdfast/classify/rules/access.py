"""Rules for keys, permissions, accounts and blocked regions."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Verdict, applies_when, contains_any
from holdfast.classify.phrases import codes, phrases
from holdfast.classify.words import Words
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_LISTED = Words("access")

_TABLE: tuple[tuple[Code, Phrases], ...] = _LISTED.table("table", phrases)
_AUTH_CODES: dict[str, Code] = _LISTED.lookup("auth_codes")


@applies_when(reduce(or_, (group for _, group in _TABLE)), not_outage=True)
def in_prose(evidence: Evidence) -> Verdict | None:
    """The text names a bad key, a missing permission, a disabled account or a blocked region."""
    if evidence.rpc_code is not None or (
        evidence.exit_code is not None and evidence.text.endswith("permission denied")
    ):
        # A permission of a tool or a shell is not a permission of the provider.
        return None
    if evidence.status is None and contains_any(evidence.text, ("eacces", "eperm")):
        # The operating system denied it, not a provider.
        return None
    # The order of the table decides: region and account come before key, key comes before permission.
    code = evidence.first_match(_TABLE)
    return None if code is None else Verdict(code=code)


# Sentences that no gateway writes on a page of its own: the server behind it denied this caller.
_DENIED = phrases(_LISTED["denied"])


@applies_when(_DENIED)
def denied_behind_gateway(evidence: Evidence) -> Verdict | None:
    """A gateway reports with 502, 503 or the like that the server behind it denied the caller. That stays."""
    passed_on = evidence.status is not None and evidence.status > 500 and not evidence.html
    return Verdict(code="AUTH_FORBIDDEN") if passed_on else None


@applies_when(codes(" ".join(_AUTH_CODES)))
def by_code(evidence: Evidence) -> Verdict | None:
    """The code is authentication_error, permission_error or similar."""
    return next((Verdict(code=_AUTH_CODES[code]) for code in evidence.codes if code in _AUTH_CODES), None)


_KEY_UNSET = phrases("api_key is not set", "key is not set", "key not set")
_ABSENT = phrases(_LISTED["absent"])
_KEY = re.compile(
    r"(?:\bapi[_ -]?key|\b(?:api|access|auth)[_ -]?token|\bsecret[_ -]?key|\b[a-z0-9_]+_(?:key|token|secret|password|credentials))\b"
)


_NOT_THERE = phrases(_LISTED["not_there"])
_SECRET_NAME = re.compile(r"\b(?:\w+_)?(?:api|access|auth|secret|bearer|refresh|private)[_ -](?:key|token)\b")


@applies_when(_KEY_UNSET | _ABSENT | _NOT_THERE)
def key_missing(evidence: Evidence) -> Verdict | None:
    """A key is not there. A gateway that lacks its key may answer with any status."""
    if evidence.matches(_KEY_UNSET):
        return Verdict(code="AUTH_FAILED")
    if evidence.status is not None or evidence.rpc_code is not None or len(evidence.text) >= _SENTENCE:
        return None
    if evidence.matches(_ABSENT) and _KEY.search(evidence.text):
        return Verdict(code="AUTH_FAILED")
    # "Not found" can be about many things, and a tool's keys may be those of a map.
    if evidence.matches(_NOT_THERE) and not evidence.exit_code and _SECRET_NAME.search(evidence.text):
        return Verdict(code="AUTH_FAILED")
    return None


_SENTENCE = 300
"""A missing key is reported in a sentence. A longer text may name a key for many reasons."""


_FOR_A_PERSON = phrases(_LISTED["for_a_person"])


@applies_when(_FOR_A_PERSON)
def person_awaited(evidence: Evidence) -> Verdict | None:
    """A program waited for a person, who did not come. Another attempt without the person waits again."""
    return Verdict(code="AUTH_REQUIRED") if evidence.status is None and evidence.rpc_code is None else None


_HUMAN = phrases(_LISTED["human"])
_OF_THE_CHECK = phrases("timeout", "timed out", "unavailable", "solver")
_CHECKED = frozenset({None, 200, 202, 403})


@applies_when(_HUMAN)
def human_wanted(evidence: Evidence) -> Verdict | None:
    """A site wants to see a person. A program that asks again only looks more like one."""
    if evidence.status not in _CHECKED or evidence.rpc_code is not None or evidence.exit_code is not None:
        return None
    # The check itself may be slow or down. That passes.
    return None if evidence.matches(_OF_THE_CHECK) else Verdict(code="AUTH_FORBIDDEN", scope=Scope.REQUEST)


RULES = (person_awaited, human_wanted, key_missing, in_prose, denied_behind_gateway, by_code)
