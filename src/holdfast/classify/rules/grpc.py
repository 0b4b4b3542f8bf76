"""gRPC statuses, by name. RESOURCE_EXHAUSTED is Google's family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Source, Verdict, asked_when
from holdfast.classify.phrases import codes

if TYPE_CHECKING:
    from holdfast.faults import Code

_STATUS: dict[str, Code] = {
    "invalid_argument": "PROVIDER_BAD_REQUEST",
    "deadline_exceeded": "PROVIDER_TIMEOUT",
    "not_found": "PROVIDER_MODEL_NOT_FOUND",
    "already_exists": "PROVIDER_BAD_REQUEST",
    "permission_denied": "AUTH_FORBIDDEN",
    "failed_precondition": "PROVIDER_BAD_REQUEST",
    "aborted": "PROVIDER_UNAVAILABLE",
    "out_of_range": "PROVIDER_BAD_REQUEST",
    "unimplemented": "PROVIDER_CAPABILITY_MISSING",
    "internal": "PROVIDER_INTERNAL_ERROR",
    "unavailable": "PROVIDER_UNAVAILABLE",
    "data_loss": "PROVIDER_STREAM_CUT",
    "unauthenticated": "AUTH_FAILED",
    "unknown": "PROVIDER_INTERNAL_ERROR",
}


@asked_when(codes(" ".join(_STATUS)))
def by_status(evidence: Evidence) -> Verdict | None:
    """The status of the call, where no HTTP status speaks."""
    if evidence.status is not None or (
        evidence.source is not Source.GRPC and not evidence.named("RpcError", "_InactiveRpcError", "AioRpcError")
    ):
        return None
    return next((Verdict(code=_STATUS[code]) for code in evidence.codes if code in _STATUS), None)


RULES = (by_status,)
