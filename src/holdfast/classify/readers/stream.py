"""A stream's text as evidence: the error event in it, or how it ended without one (SSE and NDJSON)."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.classify.body import MAX_CHARS, Findings, read_object
from holdfast.classify.evidence import Evidence, Source
from holdfast.classify.readers.http import gather

__all__ = ["read_stream"]

_ENDS = ('"message_stop"', '"response.completed"', '"done":true', '"done": true', '"stop_reason":"', '"finishReason"')
_BAD_FINISH = {
    "content_filter": "filtered",
    "safety": "filtered",
    "recitation": "filtered",
    "prohibited_content": "filtered",
    "blocklist": "filtered",
    "spii": "filtered",
    "refusal": "filtered",
    "max_output_tokens": "length",
    "max_tokens": "length",
    "length": "length",
    "malformed_function_call": "malformed",
    "error": "cut",
}


def read_stream(
    text: str, *, status: int | None = 200, headers: dict[str, str] | None = None, provider: str = "", now: float | None = None
) -> Evidence:
    """Return the evidence of a stream as it arrived; a decoded event may be passed as its text too."""
    text = text[:MAX_CHARS]
    frames = _frames(text)
    found = _failure(frames)
    stream = "" if found is not None else _ending(text, frames)
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
    response = frame.get("response")
    return isinstance(response, dict) and bool(response.get("error"))


def _ending(text: str, frames: list[Any]) -> str:
    finishes = {finish.lower() for frame in frames for finish in _finishes(frame)}
    for finish in sorted(finishes):
        if finish in _BAD_FINISH:
            return _BAD_FINISH[finish]
    ended = "[DONE]" in text or any(end in text for end in _ENDS) or bool(finishes)
    if not ended:
        return "cut"
    return "done" if any(_has_content(frame) for frame in frames) else "empty"


def _finishes(frame: Any) -> list[str]:
    """Return every reason a frame gives for its end, in any provider's words."""
    if not isinstance(frame, dict):
        return []
    nodes: list[Any] = [frame, frame.get("delta"), frame.get("response"), frame.get("promptFeedback")]
    response = frame.get("response")
    if isinstance(response, dict):
        nodes.append(response.get("incomplete_details"))
    for key in ("choices", "candidates"):
        items = frame.get(key)
        nodes += items if isinstance(items, list) else []
    keys = ("finish_reason", "stop_reason", "finishReason", "blockReason", "reason")
    return [n[k] for n in nodes if isinstance(n, dict) for k in keys if isinstance(n.get(k), str)]


def _has_content(frame: Any) -> bool:
    """Whether any text or tool call arrived in this frame."""
    if not isinstance(frame, dict):
        return False
    for key in ("choices", "candidates"):
        for item in frame.get(key) or ():
            if isinstance(item, dict) and any(item.get(part) for part in ("delta", "message", "content", "text")):
                return True
    return bool(frame.get("delta") or frame.get("content") or frame.get("output_text") or frame.get("message"))
