"""How an answer without an error ended: by the book, cut, filtered, at its length limit, or with nothing in it."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["bad_finish", "ending"]

_ENDS = ('"message_stop"', '"response.completed"', '"done":true', '"done": true', '"stop_reason":"', '"finishReason"')
_DONE = re.compile(r"^(?:data:)?[ \t]*\[DONE\][ \t\r]*$", re.MULTILINE)
"""The end as a line of its own: a model may write the word, too."""
_BAD_FINISH = {
    "content_filter": "filtered",
    "safety": "filtered",
    "recitation": "filtered",
    "prohibited_content": "filtered",
    "blocklist": "filtered",
    "spii": "filtered",
    "refusal": "filtered",
    "content_filtered": "filtered",
    "guardrail_intervened": "filtered",
    "error_toxic": "filtered",
    "image_safety": "filtered",
    "language": "filtered",
    "model_context_window_exceeded": "overflow",
    "error_limit": "overflow",
    "insufficient_system_resource": "cut",
    "unexpected_tool_call": "malformed",
    "tool_use_failed": "malformed",
    "max_output_tokens": "length",
    "max_tokens": "length",
    "length": "length",
    "malformed_function_call": "malformed",
    "error": "cut",
}


def bad_finish(frames: list[Any]) -> str:
    """Return the ending that a finish reason tells of, or nothing where none is bad."""
    finishes = {finish.lower() for frame in frames for finish in _finishes(frame)}
    return next((_BAD_FINISH[finish] for finish in sorted(finishes) if finish in _BAD_FINISH), "")


def ending(text: str, frames: list[Any]) -> str:
    """Return how a stream ended, given its text and its decoded frames."""
    bad = bad_finish(frames)
    if bad:
        return bad
    ended = (
        _DONE.search(text) is not None or any(end in text for end in _ENDS) or any(_finishes(frame) for frame in frames)
    )
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
    keys = ("finish_reason", "stop_reason", "finishReason", "stopReason", "blockReason", "reason")
    return [n[k] for n in nodes if isinstance(n, dict) for k in keys if isinstance(n.get(k), str)]


def _has_content(frame: Any) -> bool:
    """Whether any text or tool call arrived in this frame."""
    if not isinstance(frame, dict):
        return False
    for key in ("choices", "candidates"):
        items = frame.get(key)
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and any(item.get(part) for part in ("delta", "message", "content", "text")):
                return True
    return bool(frame.get("delta") or frame.get("content") or frame.get("output_text") or frame.get("message"))
