"""Rules for Google: Gemini, Vertex, Cloud Code.

They send RESOURCE_EXHAUSTED for four different failures; the details decide.
"""

from __future__ import annotations

from holdfast.classify.evidence import Evidence, Verdict, applies_when, contains_any
from holdfast.classify.hints import requested_delay
from holdfast.classify.phrases import codes, phrases
from holdfast.classify.words import Words
from holdfast.faults import Scope

_LISTED = Words("google")

# Quota ids are written without spaces (`PerDay`), so they are searched as substrings, not as phrases.
_DAILY = ("perday", "per day", "per_day", "daily", "/day")
_MINUTE = ("perminute", "per minute", "per_minute", "/min")

_EXHAUSTED = codes("resource_exhausted resourceexhausted")
_GOOGLE = phrases("ai.google.dev", "googleapis.com")
_MESSAGE_SIZE = phrases("received message larger", "message larger than max", "trying to send message")
_CAPACITY = phrases("no capacity available", "high demand")
_MONEY = phrases(_LISTED["money"])
_WINDOW = phrases("quota will reset", "exhausted your capacity")
_EMPTY = phrases("exceeded your current quota")
_PLACE = phrases("location is not supported", "not available in your", "country")
_PAID = phrases("billing", "free tier is not available")
_KEY = phrases("api key not valid", "api_key_invalid", "api key not found")
_KEY_EXPIRED = phrases("api key expired")


@applies_when(_EXHAUSTED | _GOOGLE)
def resource_exhausted(evidence: Evidence) -> Verdict | None:
    """RESOURCE_EXHAUSTED means a used-up quota, missing capacity, no money, or a plain rate limit (R82)."""
    if not evidence.matches(_EXHAUSTED) and evidence.status != 429:
        return None
    # gRPC uses the same status for a message that is too large.
    if evidence.matches(_MESSAGE_SIZE):
        return Verdict(code="PROVIDER_REQUEST_TOO_LARGE")
    if "model_capacity_exhausted" in evidence.codes or evidence.matches(_CAPACITY):
        return Verdict(code="PROVIDER_OVERLOADED", scope=Scope.MODEL)
    # Money is checked before limits: an empty account does not refill by itself.
    if evidence.matches(_MONEY):
        return Verdict(code="PROVIDER_BILLING")
    quotas = " ".join(code for code in evidence.codes if code.startswith("quota:")) + evidence.text
    if contains_any(quotas, _DAILY):
        # RetryInfo is ignored: it gives the delay for the limit per minute, but the daily quota stays empty.
        return Verdict(code="PROVIDER_DAILY_LIMIT", scope=Scope.MODEL)
    if "quota_exhausted" in evidence.codes:
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", scope=Scope.MODEL)
    if evidence.matches(_WINDOW):
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", scope=Scope.MODEL, only_with_delay=True)
    if contains_any(quotas, ("limit: 0",)) and not contains_any(quotas, _MINUTE):
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED")
    if evidence.matches(_EMPTY) and not contains_any(quotas, _MINUTE) and requested_delay(evidence) is None:
        # OpenAI uses the same sentence for an empty account. If a delay is given, it is a limit that refills.
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED")
    return Verdict(code="PROVIDER_RATE_LIMITED")


@applies_when(codes("failed_precondition"))
def failed_precondition(evidence: Evidence) -> Verdict | None:
    """The caller's region is blocked, or billing is off."""
    if evidence.matches(_PLACE):
        return Verdict(code="AUTH_REGION_BLOCKED")
    if evidence.matches(_PAID):
        return Verdict(code="PROVIDER_BILLING")
    return None


@applies_when(_KEY | _KEY_EXPIRED)
def api_key(evidence: Evidence) -> Verdict | None:
    """Google sends a 400 with a reason for a bad key."""
    return Verdict(code="AUTH_TOKEN_EXPIRED" if evidence.matches(_KEY_EXPIRED) else "AUTH_FAILED")


_PLUGIN = phrases("getting metadata from plugin failed")
_ON_THE_WAY = phrases(_LISTED["on_the_way"])


@applies_when(_PLUGIN)
def credentials_plugin(evidence: Evidence) -> Verdict | None:
    """The plugin that brings the credentials failed. gRPC calls that an outage, but only a broken way to them heals."""
    return None if evidence.matches(_ON_THE_WAY) else Verdict(code="AUTH_FAILED")


RULES = (credentials_plugin, resource_exhausted, failed_precondition, api_key)
