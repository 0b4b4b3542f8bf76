"""Rules for the bare status of an HTTP or gRPC response, when nothing else in it is more exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.classify.concepts import meant
from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.phrases import PAGE, class_names, codes, phrases
from holdfast.classify.words import Words
from holdfast.faults import CATALOG

if TYPE_CHECKING:
    from collections.abc import Container

    from holdfast.faults import Code, Fault

_LISTED = Words("status")

# The table lists every status that providers, gateways and CDNs send. An unknown 4xx is not retried, an unknown 5xx is.
_STATUS: dict[int, Code] = _LISTED.numbers("status")
# RESOURCE_EXHAUSTED is missing here. Google sends it for four different failures, so the rules for Google read it.
_GRPC: dict[str, Code] = _LISTED.lookup("grpc")
_IN_TEXT = codes(" ".join(f"grpc:{name}" for name in _GRPC))
_OUT_OF_RANGE = phrases("is not in [ | out of range | out of bounds | index out of\n")
_GRPC_CLASSES = class_names("RpcError _InactiveRpcError AioRpcError _MultiThreadedRendezvous")
_TAKEN = phrases("already exists | duplicate key | unique constraint | foreign key constraint\n")
# 409 is a bad request, unless it reports a lock that another client will release.
_CONTENDED = phrases(_LISTED["contended"])


@applies_when(codes(" ".join(_GRPC)))
def grpc_status(evidence: Evidence) -> Verdict | None:
    """The gRPC status decides if there is no HTTP status."""
    if evidence.status is not None:
        return None
    if evidence.source is not Source.GRPC and not evidence.named_in(_GRPC_CLASSES) and not evidence.matches(_IN_TEXT):
        return None
    if evidence.matches(_OUT_OF_RANGE) and not {"internal", "unknown"}.isdisjoint(evidence.codes):
        # The server's own code met a value that it cannot take. The same request brings it again.
        return Verdict(code="PROVIDER_BAD_REQUEST")
    return next((Verdict(code=_GRPC[code]) for code in evidence.codes if code in _GRPC), None)


@applies_when(PAGE)
def html_page(evidence: Evidence) -> Verdict | None:
    """The server sent a web page instead of JSON, with a success status."""
    if evidence.status is None or evidence.status < 400:
        return Verdict(code="PROVIDER_MALFORMED_RESPONSE")
    return None


def bare_status(evidence: Evidence) -> Verdict | None:
    """Any other status decides by its class: 4xx is not retried, 5xx is."""
    status = evidence.status
    if status is None or not 400 <= status < 600:
        return None
    if status == 500 and evidence.matches(_TAKEN):
        # The server calls it its own failure, but the same call meets the same thing again.
        return Verdict(code="PROVIDER_BAD_REQUEST", weak=True)
    known = _STATUS.get(status)
    if known is not None:
        # A 500 only says that something failed on the other side. What it wraps may be clearer.
        return Verdict(code=known, weak=True, carrier=status == 500)
    if status in (409, 423) and (evidence.headers.get("x-should-retry") == "true" or evidence.matches(_CONTENDED)):
        return Verdict(code="PROVIDER_UNAVAILABLE")
    return Verdict(code="PROVIDER_BAD_REQUEST" if status < 500 else "PROVIDER_INTERNAL_ERROR", weak=True)


def success_that_failed(evidence: Evidence) -> Verdict | None:
    """The caller reports a 2xx as a failure and nothing in it explains why. So the response could not be read."""
    if evidence.source is Source.HTTP and evidence.status is not None and 200 <= evidence.status < 400:
        # A service that reports success for the transfer and a wrong request for the rest.
        if evidence.matches(_REQUEST_IS_WRONG):
            return Verdict(code="PROVIDER_BAD_REQUEST")
        # GraphQL and many web services send 200 with everything that they do not accept.
        return Verdict(code=meant(evidence) or "PROVIDER_MALFORMED_RESPONSE", carrier=True)
    return None


_REQUEST_IS_WRONG = phrases(_LISTED["request_is_wrong"])


def permanent_by_status(fault: Fault, statuses: Container[int]) -> Fault:
    """Return the fault that the bare status means if it is one of `statuses` and the words of the response promised a retry."""
    status = fault.context.get("status")
    if not fault.retryable or not isinstance(status, int) or status not in statuses:
        return fault
    code = _STATUS[status]
    return replace(
        fault, code=code, retryable=False, retry_after=None, scope=CATALOG[code].scope, rule="status.permanent"
    )


EARLY = (grpc_status,)
LATE = (html_page, bare_status, success_that_failed)
