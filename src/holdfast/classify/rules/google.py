"""Google: Gemini, Vertex, Cloud Code. One status, RESOURCE_EXHAUSTED, for four different failures; the details tell."""

from __future__ import annotations

from holdfast.classify.delays import stated_delay
from holdfast.classify.evidence import Evidence, Verdict, says
from holdfast.faults import Scope

_DAILY = ("perday", "per day", "per_day", "daily", "/day")
_MINUTE = ("perminute", "per minute", "per_minute", "/min")


def resource_exhausted(evidence: Evidence) -> Verdict | None:
    """A quota id or metric with a window, capacity, or the bare sentence (R82)."""
    exhausted = "resource_exhausted" in evidence.codes or "resourceexhausted" in _class(evidence)
    if not exhausted and not (evidence.status == 429 and says(evidence.text, ("ai.google.dev", "googleapis.com"))):
        return None
    if says(evidence.text, ("received message larger", "message larger than max", "trying to send message")):
        return Verdict(code="PROVIDER_REQUEST_TOO_LARGE")
    if "model_capacity_exhausted" in evidence.codes or says(evidence.text, ("no capacity available", "high demand")):
        return Verdict(code="PROVIDER_OVERLOADED", scope=Scope.MODEL)
    if says(evidence.text, ("credits are depleted", "prepayment credits", "billing account", "spending cap", "spend cap")):
        return Verdict(code="PROVIDER_BILLING")
    quotas = " ".join(code for code in evidence.codes if code.startswith("quota:")) + evidence.text
    if says(quotas, _DAILY):
        # Whatever RetryInfo says: it counts the minute, the day stays empty.
        return Verdict(code="PROVIDER_DAILY_LIMIT", scope=Scope.MODEL)
    if "quota_exhausted" in evidence.codes:
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", scope=Scope.MODEL)
    if says(evidence.text, ("quota will reset", "exhausted your capacity")):
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", scope=Scope.MODEL, only_if_told=True)
    if says(quotas, ("limit: 0",)) and not says(quotas, _MINUTE):
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED")
    if says(evidence.text, ("exceeded your current quota",)) and not says(quotas, _MINUTE):
        # The very words of OpenAI's empty account; with a delay it is a limit that refills.
        if stated_delay(evidence) is None:
            return Verdict(code="PROVIDER_QUOTA_EXHAUSTED")
    return Verdict(code="PROVIDER_RATE_LIMITED")


def failed_precondition(evidence: Evidence) -> Verdict | None:
    """Where the caller stands: location, billing."""
    if "failed_precondition" not in evidence.codes:
        return None
    if says(evidence.text, ("location is not supported", "not available in your", "country")):
        return Verdict(code="AUTH_REGION_BLOCKED")
    if says(evidence.text, ("billing", "free tier is not available")):
        return Verdict(code="PROVIDER_BILLING")
    return None


def api_key(evidence: Evidence) -> Verdict | None:
    """A bad key is a 400 here, with a reason."""
    if says(evidence.text, ("api key not valid", "api key expired", "api_key_invalid", "api key not found")):
        return Verdict(code="AUTH_TOKEN_EXPIRED" if "api key expired" in evidence.text else "AUTH_FAILED")
    return None


def _class(evidence: Evidence) -> str:
    return evidence.raised.type.lower() if evidence.raised is not None else ""


RULES = (resource_exhausted, failed_precondition, api_key)
