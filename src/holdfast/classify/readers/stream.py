"""A stream's text as evidence: the error event in it, or how it ended without one (SSE and NDJSON)."""

from __future__ import annotations

from typing import Any

from holdfast.classify.body import Findings, read_object
from holdfast.classify.embedded import MAX_DECODED, decode_json, decode_lines
from holdfast.classify.endings import ending
from holdfast.classify.evidence import Evidence, Source
from holdfast.classify.readers.gathering import gather

__all__ = ["read_stream"]


def read_stream(
    text: str,
    *,
    status: int | None = 200,
    headers: dict[str, str] | None = None,
    provider: str = "",
    now: float | None = None,
) -> Evidence:
    """Return the evidence of a stream as it arrived; a decoded event may be passed as its text too."""
    # The end tells: an error event is the last thing a stream says.
    text = text[-MAX_DECODED:]
    frames = _frames(text)
    found = _failure(frames)
    stream = "" if found is not None else ending(text, frames)
    return gather(
        found or Findings(),
        Source.SSE,
        # The stream began with success; only what came after it counts.
        status=None if status is None or status < 400 else status,
        headers=headers or {},
        provider=provider,
        now=now,
        stream=stream,
    )


def _frames(text: str) -> list[Any]:
    """Return the decoded frames: one JSON document (an array of events too), SSE `data:` lines, or NDJSON lines."""
    whole = decode_json(text) if text.lstrip()[:1] in ("{", "[") else None
    values = decode_lines(text) if whole is None else [whole]
    # Gemini streams an array of events, and some relays put an array into an event.
    return [event for value in values for event in (value if isinstance(value, list) else [value])]


def _failure(frames: list[Any]) -> Findings | None:
    for frame in frames:
        if isinstance(frame, dict) and _is_failure(frame):
            return read_object(frame)
    return None


def _is_failure(frame: dict[str, Any]) -> bool:
    if frame.get("error") or frame.get("type") in ("error", "response.failed"):
        return True
    if any(name.endswith("Exception") for name in frame):
        # AWS event streams name the failure in the key.
        return True
    response = frame.get("response")
    return isinstance(response, dict) and bool(response.get("error"))
