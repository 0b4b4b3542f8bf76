"""Rules that guess: two groups of words in a short text or an exception that no other rule knows. They run last and are weak."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.classify.concepts import INVALID, LIMIT, LOGIN
from holdfast.classify.evidence import Evidence, Source, Verdict, fold
from holdfast.classify.guesses import SENTENCE, healing, staying
from holdfast.classify.phrases import find_late, find_phrases, late_phrases
from holdfast.classify.sentences import LONGEST, NONE_FOUND, UNSET
from holdfast.classify.words import Words
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases

_LISTED = Words("guesses")

_WRITTEN = frozenset({Source.TEXT, Source.EXCEPTION})
_CALL = frozenset({"AUTH_FORBIDDEN", "AUTH_REQUIRED", "PROVIDER_QUOTA_EXHAUSTED", "PROVIDER_ENTITLEMENT_MISSING"})
_JOINT = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")
_DEFECTS = ("TypeError", "ValueError", "AttributeError", "KeyError", "AssertionError")


def _words(evidence: Evidence) -> tuple[str, Phrases, Phrases] | None:
    """Return the text with the words of the class, and its phrases; None if it is nothing to guess about."""
    if evidence.source not in _WRITTEN or evidence.rpc_code is not None or (evidence.status or 0) >= 400:
        return None
    if len(evidence.text) > LONGEST or evidence.named(*_DEFECTS):
        return None
    if evidence.raised is None:
        return evidence.text, evidence.matched, find_late(evidence.text)
    text = f"{fold(_JOINT.sub(' ', evidence.raised.type))} {evidence.text}"
    return text, find_phrases(text), find_late(text)


def stays(evidence: Evidence) -> Verdict | None:
    """A short text names something that a person must change, and what is wrong with it."""
    words = _words(evidence)
    if words is None or words[1] & (LIMIT | LOGIN):
        return None
    code = staying(words[0], words[2])
    if code is None:
        return None
    return Verdict(code=code, retryable=False, scope=Scope.REQUEST if code in _CALL else None, weak=True)


def none_found(evidence: Evidence) -> Verdict | None:
    """A short text says that what was looked for is not there."""
    if evidence.source is not Source.TEXT or evidence.status is not None or evidence.matches(LIMIT | LOGIN):
        return None
    missing = len(evidence.text) <= LONGEST and NONE_FOUND.search(evidence.text)
    return Verdict(code="TOOL_FILE_NOT_FOUND", weak=True) if missing else None


def heals(evidence: Evidence) -> Verdict | None:
    """A short text names something that passes, and nothing that would stay."""
    words = _words(evidence)
    code = None if words is None else healing(*words)
    return None if code is None else Verdict(code=code, weak=True)


_OBLIGES = late_phrases(_LISTED["obliges"])


def obliged(evidence: Evidence) -> Verdict | None:
    """A short text says what has to be set or done first. The same call would meet it again."""
    if evidence.source is not Source.TEXT or evidence.status is not None or evidence.rpc_code is not None:
        return None
    if len(evidence.text) > SENTENCE or evidence.matches(LIMIT | LOGIN):
        return None
    told = UNSET.search(evidence.text) or evidence.matches(INVALID) or find_late(evidence.text) & _OBLIGES
    return Verdict(code="PROVIDER_BAD_REQUEST", weak=True) if told else None


RULES = (none_found, stays, heals, obliged)
