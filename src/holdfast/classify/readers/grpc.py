"""A gRPC status as evidence."""

from __future__ import annotations

from holdfast.classify.evidence import Evidence, Source, fold
from holdfast.classify.phrases import codes_in, listen

__all__ = ["GRPC_NAMES", "read_grpc"]

GRPC_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""By number."""


def read_grpc(
    status: str | int,
    details: str = "",
    *,
    headers: dict[str, str] | None = None,
    provider: str = "",
    now: float | None = None,
) -> Evidence:
    """Return the evidence of a call that ended with `status`, by name or number."""
    name = GRPC_NAMES[status] if isinstance(status, int) and 0 <= status < len(GRPC_NAMES) else str(status)
    code = name.rpartition(".")[2].lower()
    return Evidence(
        source=Source.GRPC,
        provider=provider.lower(),
        headers=headers or {},
        codes=(code,),
        message=details,
        text=(folded := fold(details)),
        heard=listen(folded) | codes_in((code,)),
        now=now,
    )
