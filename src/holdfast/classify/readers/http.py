"""An HTTP answer as evidence: status, headers and whatever the body says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.classify.body import read_body, read_object
from holdfast.classify.endings import bad_finish
from holdfast.classify.evidence import Evidence, Source
from holdfast.classify.readers.gathering import gather, lower_headers
from holdfast.classify.readers.jsonrpc import read_jsonrpc

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["read_http"]


def read_http(
    status: int | None,
    headers: Mapping[str, Any] | None = None,
    body: Any = "",
    *,
    provider: str = "",
    now: float | None = None,
) -> Evidence:
    """Return the evidence of one HTTP answer; `body` may be text, bytes or the decoded object."""
    found = read_body(body) if isinstance(body, str) else read_object(body)
    lowered = lower_headers(headers) if headers else {}
    payload = found.payload
    if isinstance(payload, dict) and "jsonrpc" in payload:
        # An MCP server over HTTP: its numbers mean more than the status.
        return read_jsonrpc(payload, status=status, headers=lowered, provider=provider, now=now)
    # A success that was filtered or cut says so in its finish reason.
    stream = bad_finish([payload]) if status is not None and status < 300 and payload is not None else ""
    return gather(found, Source.HTTP, status=status, headers=lowered, provider=provider, now=now, stream=stream)
