"""AWS: Bedrock and botocore name their failures with exception types, in headers, bodies and texts alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Verdict, says
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.faults import Code

_TYPES: dict[str, Code] = {
    "accessdeniedexception": "AUTH_FORBIDDEN",
    "accessdenied": "AUTH_FORBIDDEN",
    "unauthorizedoperation": "AUTH_FORBIDDEN",
    "optinrequired": "AUTH_FORBIDDEN",
    "resourcenotfoundexception": "PROVIDER_MODEL_NOT_FOUND",
    "modeltimeoutexception": "PROVIDER_TIMEOUT",
    "modelnotreadyexception": "PROVIDER_MODEL_LOADING",
    "modelerrorexception": "PROVIDER_INTERNAL_ERROR",
    "modelstreamerrorexception": "PROVIDER_STREAM_CUT",
    "internalserverexception": "PROVIDER_INTERNAL_ERROR",
    "internalfailure": "PROVIDER_INTERNAL_ERROR",
    "serviceunavailableexception": "PROVIDER_UNAVAILABLE",
    "serviceunavailable": "PROVIDER_UNAVAILABLE",
    "servicequotaexceededexception": "PROVIDER_QUOTA_EXHAUSTED",
}
_THROTTLES = frozenset({"throttlingexception", "throttling", "toomanyrequestsexception", "requestlimitexceeded",
                        "provisionedthroughputexceededexception", "slowdown", "throttledexception"})  # fmt: skip


def throttled(evidence: Evidence) -> Verdict | None:
    """ThrottlingException: a rate, unless it names the day. Never an overflow, although it says 'too many tokens'."""
    if _THROTTLES.isdisjoint(evidence.codes) and not evidence.named("ThrottlingException", "TooManyRequestsException"):
        return None
    if says(evidence.text, ("per day", "daily")):
        return Verdict(code="PROVIDER_DAILY_LIMIT")
    return Verdict(code="PROVIDER_RATE_LIMITED")


def signature_expired(evidence: Evidence) -> Verdict | None:
    """A signature from another time: this machine's clock, or stale credentials."""
    if says(evidence.text, ("signature expired", "signature not yet current", "request timestamp is too skewed")):
        return Verdict(code="AUTH_CLOCK_SKEW")
    return None


def inference_profile(evidence: Evidence) -> Verdict | None:
    """A model that must be called through a profile says 'retry your request': it will not help."""
    if "on-demand throughput" in evidence.text and "support" in evidence.text:
        return Verdict(code="PROVIDER_CAPABILITY_MISSING")
    return None


def model_access(evidence: Evidence) -> Verdict | None:
    """Model access is granted per account and region."""
    if says(evidence.text, ("don't have access to the model with the specified model id",)):
        return Verdict(code="AUTH_FORBIDDEN")
    if says(evidence.text, ("provided model identifier is invalid", "end of its life", "marked by provider as legacy")):
        return Verdict(code="PROVIDER_MODEL_NOT_FOUND")
    if says(evidence.text, ("not available from unsupported", "unsupported countries, regions, or territories")):
        return Verdict(code="AUTH_REGION_BLOCKED")
    return None


def exception_type(evidence: Evidence) -> Verdict | None:
    """Every other exception type of the runtime API."""
    for code in (*evidence.codes, evidence.raised.type.lower() if evidence.raised else ""):
        known = _TYPES.get(code)
        if known is not None:
            return Verdict(code=known, scope=Scope.MODEL if known == "PROVIDER_MODEL_LOADING" else None)
    return None


RULES = (throttled, signature_expired, inference_profile, model_access, exception_type)
