"""Rules for AWS. Bedrock and botocore name their failures by exception type, in headers, bodies and texts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Verdict, applies_when, contains_any
from holdfast.classify.phrases import codes, names, phrases
from holdfast.classify.words import Words

if TYPE_CHECKING:
    from holdfast.faults import Code

_LISTED = Words("aws")

_TYPES: dict[str, Code] = _LISTED.lookup("types")
# These codes are not in the table above, because the text decides between a rate limit and a daily limit.
_THROTTLES = codes(_LISTED["throttles"])

_DAILY = phrases("per day", "daily")
# This message comes with the codes of a bad signature. Those codes would wrongly blame the key.
_SKEW = phrases("signature expired", "signature not yet current", "timestamp is too skewed")
_ON_DEMAND = phrases("with on-demand throughput isn't supported", "on-demand throughput is not supported")
_NO_ACCESS = phrases("don't have access to the model with the specified model id")
_RETIRED = phrases(_LISTED["retired"])
_REGION = phrases("not available from unsupported", "unsupported countries, regions, or territories")


@applies_when(_THROTTLES)
def throttled(evidence: Evidence) -> Verdict | None:
    """ThrottlingException is a rate limit, or a daily limit if it names the day.

    It is never an overflow, although it says "too many tokens".
    """
    if evidence.matches(_DAILY):
        return Verdict(code="PROVIDER_DAILY_LIMIT")
    return Verdict(code="PROVIDER_RATE_LIMITED")


@applies_when(_SKEW)
def signature_expired(_: Evidence) -> Verdict | None:
    """The signature is from another time: this machine's clock is wrong, or the credentials are stale."""
    return Verdict(code="AUTH_CLOCK_SKEW")


@applies_when(_ON_DEMAND)
def inference_profile(_: Evidence) -> Verdict | None:
    """The model must be called through a profile. The message advises a retry, which does not help."""
    return Verdict(code="PROVIDER_CAPABILITY_MISSING")


@applies_when(_NO_ACCESS | _RETIRED | _REGION)
def model_access(evidence: Evidence) -> Verdict | None:
    """Model access is granted per account and region."""
    if evidence.matches(_NO_ACCESS):
        return Verdict(code="AUTH_FORBIDDEN")
    if evidence.matches(_RETIRED):
        return Verdict(code="PROVIDER_MODEL_NOT_FOUND")
    return Verdict(code="AUTH_REGION_BLOCKED")


@applies_when(codes(" ".join(_TYPES)))
def exception_type(evidence: Evidence) -> Verdict | None:
    """The table decides for every other exception type of the runtime API."""
    return next((Verdict(code=_TYPES[code]) for code in evidence.codes if code in _TYPES), None)


# The words of which AWS makes its names, for the names that no table lists.
_PARTS: tuple[tuple[Code, frozenset[str]], ...] = _LISTED.table("parts", names)
_NAME = re.compile(r"an error occurred \((\w+)\) when calling")


@applies_when(phrases("an error occurred ("))
def by_parts_of_name(evidence: Evidence) -> Verdict | None:
    """No table lists the name that botocore prints, so the words in it decide."""
    found = _NAME.search(evidence.text) if evidence.status is None else None
    if found is None:
        return None
    return next((Verdict(code=code, weak=True) for code, parts in _PARTS if contains_any(found[1], parts)), None)


@applies_when(codes("validationexception validationerror invalidparametervalue invalidrequestexception"))
def rejected(evidence: Evidence) -> Verdict | None:
    """AWS rejects the request and no sentence says more. A wrapper that lost the status still has the name."""
    # botocore writes "when calling the … operation", the SDK for Rust "unhandled error (ValidationException)".
    named = "when calling the" in evidence.text or "unhandled error (" in evidence.text
    return Verdict(code="PROVIDER_BAD_REQUEST") if named and evidence.status is None else None


RULES = (throttled, signature_expired, inference_profile, model_access, exception_type, by_parts_of_name)
LATE = (rejected,)
