"""The provider refuses the content: the same prompt is refused again."""

from __future__ import annotations

from holdfast.classify.evidence import Evidence, Verdict, asked_when
from holdfast.classify.phrases import ENDED, phrases

_REFUSED = phrases("""
    content filter | content_filter | content management policy | content policy | content policies | usage policy
    usage policies | usage guidelines | safety system | safety settings | safety reasons | safety filter
    safety guidelines | flagged | blocked by content | content exists risk | requires moderation
    inappropriate content | prohibited content | prohibited use | responsible ai | harmful content | unsafe content
    output blocked | prompt was blocked | response was blocked | blocked due to | violates our | violation of our
    violate our | potential violation | sensitive words | sensitive content | sensitive information
    potentially unsafe | acceptable use | refused to answer | refused to generate | guardrail intervened | content violates | recitation
    data may contain | unsafe or sensitive | biological risk | content was flagged | 敏感 | 违规 | 不安全内容
""")

_ACCOUNT_POLICY = phrases("data policy", "settings/privacy")


@asked_when(_REFUSED, refusal=True, limit=True)
def refused(evidence: Evidence) -> Verdict | None:
    """Content filters, moderation, usage policies, safety."""
    # A rate limit quotes the terms of service.
    if evidence.status != 429 and not evidence.hears(_ACCOUNT_POLICY):
        return Verdict(code="PROVIDER_CONTENT_POLICY")
    return None


@asked_when(ENDED)
def filtered_stream(evidence: Evidence) -> Verdict | None:
    """A stream that ends because of a filter."""
    if evidence.stream == "filtered":
        return Verdict(code="PROVIDER_CONTENT_POLICY")
    return None


RULES = (refused, filtered_stream)
