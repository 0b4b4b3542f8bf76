"""The bare HTTP status, when nothing in the answer says more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Source, Verdict, asked_when
from holdfast.classify.phrases import PAGE, phrases

if TYPE_CHECKING:
    from holdfast.faults import Code

_STATUS: dict[int, Code] = {
    400: "PROVIDER_BAD_REQUEST",
    401: "AUTH_FAILED",
    402: "PROVIDER_BILLING",
    403: "AUTH_FORBIDDEN",
    404: "PROVIDER_ENDPOINT_NOT_FOUND",
    407: "AUTH_FAILED",
    408: "PROVIDER_TIMEOUT",
    410: "PROVIDER_ENDPOINT_NOT_FOUND",
    413: "PROVIDER_REQUEST_TOO_LARGE",
    414: "PROVIDER_REQUEST_TOO_LARGE",
    419: "AUTH_TOKEN_EXPIRED",
    424: "PROVIDER_UNAVAILABLE",
    425: "PROVIDER_UNAVAILABLE",
    429: "PROVIDER_RATE_LIMITED",
    431: "PROVIDER_REQUEST_TOO_LARGE",
    451: "AUTH_REGION_BLOCKED",
    498: "PROVIDER_OVERLOADED",
    499: "SYS_CANCELLED",
    500: "PROVIDER_INTERNAL_ERROR",
    501: "PROVIDER_CAPABILITY_MISSING",
    502: "PROVIDER_UNAVAILABLE",
    503: "PROVIDER_UNAVAILABLE",
    504: "PROVIDER_GATEWAY_TIMEOUT",
    507: "PROVIDER_OUT_OF_MEMORY",
    509: "PROVIDER_RATE_LIMITED",
    520: "PROVIDER_UNAVAILABLE",
    521: "PROVIDER_UNAVAILABLE",
    522: "PROVIDER_UNAVAILABLE",
    523: "PROVIDER_UNAVAILABLE",
    524: "PROVIDER_GATEWAY_TIMEOUT",
    525: "PROVIDER_UNAVAILABLE",
    526: "PROVIDER_UNAVAILABLE",
    527: "PROVIDER_UNAVAILABLE",
    529: "PROVIDER_OVERLOADED",
    530: "PROVIDER_UNAVAILABLE",
    598: "PROVIDER_GATEWAY_TIMEOUT",
    599: "PROVIDER_GATEWAY_TIMEOUT",
}


_CONTENDED = phrases("in progress", "try again", "lock", "concurrent", "another request")


@asked_when(PAGE)
def html_page(evidence: Evidence) -> Verdict | None:
    """A page where JSON belongs, under a status of success."""
    if evidence.status is None or evidence.status < 400:
        return Verdict(code="PROVIDER_MALFORMED_RESPONSE")
    return None


def bare_status(evidence: Evidence) -> Verdict | None:
    """Any other status: 4xx is not retried, 5xx is."""
    status = evidence.status
    if status is None or not 400 <= status < 600:
        return None
    known = _STATUS.get(status)
    if known is not None:
        return Verdict(code=known, weak=True)
    if status == 409 and (evidence.headers.get("x-should-retry") == "true" or evidence.hears(_CONTENDED)):
        return Verdict(code="PROVIDER_UNAVAILABLE")
    return Verdict(code="PROVIDER_BAD_REQUEST" if status < 500 else "PROVIDER_INTERNAL_ERROR", weak=True)


def success_that_failed(evidence: Evidence) -> Verdict | None:
    """Somebody calls a 2xx a failure and nothing in it says why: it could not be read."""
    if evidence.source is Source.HTTP and evidence.status is not None and 200 <= evidence.status < 400:
        return Verdict(code="PROVIDER_MALFORMED_RESPONSE")
    return None


RULES = (html_page, bare_status, success_that_failed)
