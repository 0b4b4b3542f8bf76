"""Rules for machine-readable codes that mean the same in every response. They are more exact than status and prose."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Verdict, applies_when
from holdfast.classify.phrases import codes, phrases
from holdfast.classify.words import Words

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_LISTED = Words("codes")

# The most serious code comes first: a body with `rate_limit_error` and `1113` is about an empty account.
_CODES: tuple[tuple[Code, str], ...] = _LISTED.table("codes", str)


_TABLES: tuple[tuple[Code, Phrases], ...] = tuple((code, codes(written)) for code, written in _CODES)
_WORDED = codes(" ".join(word for _, written in _CODES for word in written.split() if not word.isdecimal()))
"""All codes that are words, not numbers."""
# In a plain text, only the codes that are clearly no words of a sentence: `context_length_exceeded`, not `overloaded`.
_IN_TEXT: tuple[tuple[Code, Phrases], ...] = tuple(
    (code, phrases(" | ".join(word for word in written.split() if word.count("_") > 1) + "\n"))
    for code, written in _CODES
)


@applies_when(reduce(or_, (group for _, group in _TABLES)))
def exact_code(evidence: Evidence) -> Verdict | None:
    """The code is exact, such as insufficient_quota, content_filter, context_length_exceeded or model_not_found."""
    code = evidence.first_match(_TABLES)
    if (evidence.status or 0) >= 500 and not evidence.matches(_WORDED):
        # A number means something else for each vendor. A server that reports its own failure is more exact.
        return None
    return None if code is None else Verdict(code=code)


@applies_when(reduce(or_, (group for _, group in _IN_TEXT)))
def code_in_text(evidence: Evidence) -> Verdict | None:
    """A text without a status quotes an exact code: "stop reason: model_context_window_exceeded"."""
    if evidence.status is not None and evidence.status >= 400:
        return None
    code = evidence.first_match(_IN_TEXT)
    return None if code is None else Verdict(code=code)


RULES = (exact_code, code_in_text)
