"""Rules for input that is too large for the model or the server. The same request is never sent again (R83).

Rate limits that say "too many tokens" and parameters that are too high are recognised first.
"""

from __future__ import annotations

import re

from holdfast.classify.evidence import Evidence, Verdict, applies_when
from holdfast.classify.phrases import phrases
from holdfast.classify.times import QUANTITY, parse_amount
from holdfast.classify.words import Words

_LISTED = Words("overflow")

# "max_tokens: 999999 > 8192" names a parameter. Compacting the conversation would not help.
_PARAMETER = re.compile(
    r"max_(?:completion_|output_|new_)?tokens['\"]?\s*(?::|is too|must be|should be|specified|=|>|exceeds|\()"
    r"|maximum allowed number of output tokens|at most \d+ completion tokens"
    r"|range of max_tokens|supports at most \d+"
)
_CONTEXT = phrases(_LISTED["context"], "tokens > ")
_LARGE = phrases(_LISTED["large"])
_STRING = re.compile(rf"string too long.{{0,60}}?maximum length ({QUANTITY})", re.DOTALL)
_LONG_STRING = 100_000
"""A limit below this number belongs to a field such as a name or an id. A higher limit belongs to the content."""
# Texts of rate limits also contain "tokens". Envoy's "reset reason: overflow" is about connections.
_NOT_OVERFLOW = phrases(_LISTED["not_overflow"])

_SURE = phrases(_LISTED["sure"])
_MAX_TOKENS = phrases(_LISTED["max_tokens"])
_WITH_INPUT = phrases(_LISTED["with_input"])
_LONG = phrases("string too long")
_SENT = phrases("request", "image", "images", "file")


@applies_when(_MAX_TOKENS | _LONG, not_outage=True, not_defect=True)
def parameter_too_high(evidence: Evidence) -> Verdict | None:
    """A parameter is wrong, not the context: max_tokens is above the model's maximum, or a field is too long."""
    if evidence.matches(_MAX_TOKENS) and not evidence.matches(_WITH_INPUT) and _PARAMETER.search(evidence.text):
        return Verdict(code="PROVIDER_BAD_REQUEST")
    match = _STRING.search(evidence.text) if evidence.matches(_LONG) else None
    if match and (parse_amount(match[1]) or 0.0) < _LONG_STRING:
        return Verdict(code="PROVIDER_BAD_REQUEST")
    return None


@applies_when(_CONTEXT, not_outage=True, not_defect=True)
def context(evidence: Evidence) -> Verdict | None:
    """The conversation does not fit the model's window."""
    return Verdict(code="PROVIDER_CONTEXT_OVERFLOW") if _may_overflow(evidence) else None


@applies_when(_SURE)
def context_in_a_value_error(evidence: Evidence) -> Verdict | None:
    """Local runtimes raise a ValueError with a sentence that only means an overflow."""
    return Verdict(code="PROVIDER_CONTEXT_OVERFLOW") if evidence.named("ValueError") else None


@applies_when(_LARGE, not_outage=True, not_defect=True)
def large(evidence: Evidence) -> Verdict | None:
    """A body, an image or a file is larger than the server accepts."""
    # In an exception, "too large" alone may be about anything. So the text must also name something that was sent.
    sent = evidence.raised is None or evidence.status is not None or evidence.matches(_SENT)
    return Verdict(code="PROVIDER_REQUEST_TOO_LARGE") if sent and _may_overflow(evidence) else None


def _may_overflow(evidence: Evidence) -> bool:
    """Whether this can be an overflow. A 429 is a rate limit; a request larger than the limit was recognised before."""
    return evidence.status != 429 and not evidence.matches(_NOT_OVERFLOW)


RULES = (parameter_too_high, context, context_in_a_value_error, large)
