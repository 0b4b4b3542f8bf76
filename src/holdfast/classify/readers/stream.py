"""A stream's text as evidence: the error event in it, or how it ended without one (SSE and NDJSON)."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.classify.body import MAX_CHARS, Findings, read_object
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
    text = text[:MAX_CHARS]
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
    """Return the decoded frames, SSE `data:` lines or NDJSON lines."""
    frames: list[Any] = []
    for line in text.splitlines():
        data = line.removeprefix("data:").strip()
        if data[:1] in "{[":
            try:
                frames.append(msgspec.json.decode(data))
            except (msgspec.DecodeError, RecursionError, UnicodeError):
                frames.append(None)
    return frames or [_whole(text)]


def _whole(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


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
