"""Rules for input that is too large for the model or the server. The same request is never sent again (R83).

Rate limits that say "too many tokens" and parameters that are too high are recognised first.
"""

from __future__ import annotations

import re

from holdfast.classify.evidence import Evidence, Verdict, applies_when
from holdfast.classify.phrases import phrases
from holdfast.classify.times import QUANTITY, parse_amount

# "max_tokens: 999999 > 8192" names a parameter. Compacting the conversation would not help.
_PARAMETER = re.compile(
    r"max_(?:completion_|output_|new_)?tokens['\"]?\s*(?::|is too|must be|should be|specified|=|>|exceeds|\()"
    r"|maximum allowed number of output tokens|at most \d+ completion tokens"
    r"|range of max_tokens|supports at most \d+"
)
_CONTEXT = phrases(
    """
    context length | context window | context size | context limit | maximum context | context shift
    context the overflows | prompt is too long | prompt too long | input is too long | input too long
    too many tokens | too many input tokens | maximum number of tokens | number of tokens | token limit
    tokens limit | token count | exceed context | input tokens exceed | max_new_tokens' must be <=
    tokens + 'max_new_tokens' | reduce the length | reduce your prompt | shorten your prompt | input length
    prompt length | less than max_seq_len | conversation too long | 上下文长度 | 输入过长 | 超过最大长度 | conversation is too long
    sequence length | maximum model length | max model len | max_model_len | prompt exceeds | prompt token
    exceeds the available context | greater than the context | n_ctx | prompt contains
    exceeds the model's | kv cache size | kv size | context_length | max tokens | maximum tokens exceeded
    exceeded max tokens | maximum input | exceeds maximum length | tokens in request
    上下文过长 | 上下文超出 | 最大上下文 | 超出上下文 | 上下文窗口 | 输入太长 | 超出最大长度 | 内容过长
    messages is too long | messages are too long | context overflow | exceeds context | exceeded context | exceeds token limit | exceeded token limit | prompt too large
    must have less than | must have at most
""",
    "tokens > ",
)
_LARGE = phrases("""
    too large to process | request too large | request entity too large | payload too large | content too large
    body too large | image exceeds | exceeds 5 mb | mb maximum | exceeds the maximum size | maximum allowed size
    file too large | file is too large | image is too large | too many images | image dimensions exceed
    exceeds the maximum allowed | exceeds the limit of | exceeds size limit | exceeds the maximum number of pages
    maximum of 100 pdf pages | pdf pages | string too long | entity too large | too large
    request exceeds the maximum | exceeds the maximum length | larger than the maximum | size exceeds
    exceeds the maximum | images may be provided | image(s) may be provided | too many documents | number of images
    number of documents | file size limit | exceeds the size limit | maximum file size
""")
_STRING = re.compile(rf"string too long.{{0,60}}?maximum length ({QUANTITY})", re.DOTALL)
_LONG_STRING = 100_000
"""A limit below this number belongs to a field such as a name or an id. A higher limit belongs to the content."""
# Texts of rate limits also contain "tokens". Envoy's "reset reason: overflow" is about connections.
_NOT_OVERFLOW = phrases("""
    reset reason: overflow | rate limit | throttled | throttling | per minute | per day | quota
    please wait before trying
""")

_SURE = phrases("""
    exceed context window | exceeds context window | exceeds the context | exceed the context | kv cache size
    maximum context length | longer than the maximum model length | is too long and exceeds | exceeds token limit
    exceeds the token limit | token count exceeds | tokens exceed | exceeds n_ctx | prompt is too long | context length exceeded
    context window exceeded | context window of | maximum sequence length | input is too long | input too long
""")
_MAX_TOKENS = phrases("""
    max_tokens | max_completion_tokens | max_output_tokens | max_new_tokens | output tokens | completion tokens
""")
_WITH_INPUT = phrases("context", "input tokens", "'inputs' tokens", "input length", "prompt")
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
