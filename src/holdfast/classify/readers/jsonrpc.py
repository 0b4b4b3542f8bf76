"""A JSON-RPC or MCP failure as evidence: an error object, or a tool result that says `isError`."""

from __future__ import annotations

from typing import Any

from holdfast.classify.body import Findings, read_body, read_object
from holdfast.classify.evidence import Evidence, Source
from holdfast.classify.readers.gathering import gather

__all__ = ["read_jsonrpc"]

TOOL_RESULT = 0
"""Stands for the code of a tool result that says `isError`: the protocol worked, the tool did not."""


def read_jsonrpc(
    message: Any,
    *,
    status: int | None = None,
    headers: dict[str, str] | None = None,
    provider: str = "",
    now: float | None = None,
) -> Evidence:
    """Return the evidence of one JSON-RPC message, decoded or as text."""
    found = read_body(message) if isinstance(message, str) else read_object(message)
    code = _code(found.payload)
    result = _tool_text(found.payload)
    if result is not None:
        found = Findings()
        found.messages.append(result)
        code = TOOL_RESULT
    return gather(
        found, Source.JSONRPC, status=status, headers=headers or {}, provider=provider, now=now, rpc_code=code
    )


def _code(payload: Any) -> int | None:
    if not isinstance(payload, dict):
        return None
    error = payload.get("error", payload)
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def _tool_text(payload: Any) -> str | None:
    """Return the text of a failed tool result; None for anything else."""
    if not isinstance(payload, dict):
        return None
    result = payload.get("result", payload)
    if not isinstance(result, dict) or result.get("isError") is not True:
        return None
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts)
