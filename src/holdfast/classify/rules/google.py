"""Google: Gemini, Vertex, Cloud Code. One status, RESOURCE_EXHAUSTED, for four different failures; the details tell."""

from __future__ import annotations

from holdfast.classify.delays import stated_delay
from holdfast.classify.evidence import Evidence, Verdict, asked_when, says
from holdfast.classify.phrases import codes, phrases
from holdfast.faults import Scope

_DAILY = ("perday", "per day", "per_day", "daily", "/day")
_MINUTE = ("perminute", "per minute", "per_minute", "/min")

_EXHAUSTED = codes("resource_exhausted resourceexhausted")
_GOOGLE = phrases("ai.google.dev", "googleapis.com")
_MESSAGE_SIZE = phrases("received message larger", "message larger than max", "trying to send message")
_CAPACITY = phrases("no capacity available", "high demand")
_MONEY = phrases("""
    credits are depleted | prepayment credits | billing account | spending cap | spend cap
""")
_WINDOW = phrases("quota will reset", "exhausted your capacity")
_EMPTY = phrases("exceeded your current quota")
_PLACE = phrases("location is not supported", "not available in your", "country")
_PAID = phrases("billing", "free tier is not available")
_KEY = phrases("api key not valid", "api_key_invalid", "api key not found")
_KEY_EXPIRED = phrases("api key expired")


@asked_when(_EXHAUSTED | _GOOGLE)
def resource_exhausted(evidence: Evidence) -> Verdict | None:
    """A quota id or metric with a window, capacity, or the bare sentence (R82)."""
    if not evidence.hears(_EXHAUSTED) and evidence.status != 429:
        return None
    if evidence.hears(_MESSAGE_SIZE):
        return Verdict(code="PROVIDER_REQUEST_TOO_LARGE")
    if "model_capacity_exhausted" in evidence.codes or evidence.hears(_CAPACITY):
        return Verdict(code="PROVIDER_OVERLOADED", scope=Scope.MODEL)
    if evidence.hears(_MONEY):
        return Verdict(code="PROVIDER_BILLING")
    quotas = " ".join(code for code in evidence.codes if code.startswith("quota:")) + evidence.text
    if says(quotas, _DAILY):
        # Whatever RetryInfo says: it counts the minute, the day stays empty.
        return Verdict(code="PROVIDER_DAILY_LIMIT", scope=Scope.MODEL)
    if "quota_exhausted" in evidence.codes:
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", scope=Scope.MODEL)
    if evidence.hears(_WINDOW):
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", scope=Scope.MODEL, only_if_told=True)
    if says(quotas, ("limit: 0",)) and not says(quotas, _MINUTE):
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED")
    if evidence.hears(_EMPTY) and not says(quotas, _MINUTE) and stated_delay(evidence) is None:
        # The very words of OpenAI's empty account; with a delay it is a limit that refills.
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED")
    return Verdict(code="PROVIDER_RATE_LIMITED")


@asked_when(codes("failed_precondition"))
def failed_precondition(evidence: Evidence) -> Verdict | None:
    """Where the caller stands: location, billing."""
    if evidence.hears(_PLACE):
        return Verdict(code="AUTH_REGION_BLOCKED")
    if evidence.hears(_PAID):
        return Verdict(code="PROVIDER_BILLING")
    return None


@asked_when(_KEY | _KEY_EXPIRED)
def api_key(evidence: Evidence) -> Verdict | None:
    """A bad key is a 400 here, with a reason."""
    return Verdict(code="AUTH_TOKEN_EXPIRED" if evidence.hears(_KEY_EXPIRED) else "AUTH_FAILED")


RULES = (resource_exhausted, failed_precondition, api_key)
