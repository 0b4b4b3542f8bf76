"""Read an error body, however it is wrapped: arrays, JSON inside strings, Python reprs, SSE and NDJSON lines, HTML.

Only fields that hold the failure are read; what the user wrote and the server echoed is never searched.
Invariant: never raises, bounded in depth and size, and the innermost failure comes first.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

import msgspec

from holdfast.classify.durations import parse_duration, parse_number, parse_rfc3339

__all__ = ["Findings", "read_body", "read_object"]

MAX_CHARS: Final = 65_536
_MAX_DEPTH: Final = 8

_MESSAGE_KEYS = ("message", "Message", "detail", "msg", "error_message", "errorMessage", "error_description",
                 "status_msg", "error_msg", "title", "reasonMessage")  # fmt: skip
_CODE_KEYS = ("code", "type", "status", "reason", "error_type", "errorType", "error_code", "errorCode", "__type", "name",
              "error", "limit_source", "status_code", "finish_reason", "blockReason", "limitName")  # fmt: skip
_NESTED_KEYS = ("error", "errors", "response", "innererror", "inner_error", "metadata", "upstream_error", "cause",
                "details", "detail", "base_resp", "body", "data", "param", "lastError", "promptFeedback",
                "incomplete_details", "violations", "originalError")  # fmt: skip
_STATUS_KEYS = ("status_code", "statusCode", "http_status", "httpStatus", "status", "code")
_RAW_KEYS = ("raw", "message", "error", "body", "detail", "response")
_WAIT_SECONDS = ("resets_in_seconds", "estimated_time", "retry_after", "retryAfter", "retry_after_seconds", "retryAfterSeconds")
_WAIT_MILLISECONDS = ("retry_after_ms", "retryAfterMs")
_RESET_AT = ("resets_at", "reset_at", "resetAt", "quotaResetTimeStamp")

_HTML_TITLE = re.compile(r"<(title|h1|h2)[^>]*>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]{0,500}>")
_SPACE = re.compile(r"\s+")


class Findings:
    """What a body says, gathered while walking it. Lists grow outermost first and are reversed at the end."""

    __slots__ = ("codes", "headers", "html", "messages", "payload", "resets", "status", "waits")

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.messages: list[str] = []
        self.status: int | None = None
        self.waits: list[float] = []
        self.resets: list[float] = []
        self.headers: dict[str, str] = {}
        self.html = False
        self.payload: Any = None


def read_body(raw: str) -> Findings:
    """Return what the text of a body says."""
    found = Findings()
    text = raw[:MAX_CHARS].strip().removeprefix("\ufeff")
    if not text:
        return found
    if text[0] in "{[":
        payload = _json(text)
        if payload is not None:
            found.payload = payload
            _walk(payload, found, _MAX_DEPTH, top=True)
            return found
    if text[0] == "<" or "<html" in text[:500].lower():
        _read_html(text, found)
        return found
    _read_text(text, found, _MAX_DEPTH, top=True)
    return found


def read_object(payload: Any) -> Findings:
    """Return what an already decoded body says; SDKs hand them over so."""
    if isinstance(payload, str):
        return read_body(payload)
    if isinstance(payload, (bytes, bytearray)):
        return read_body(bytes(payload[:MAX_CHARS]).decode("utf-8", "replace"))
    found = Findings()
    found.payload = payload
    if isinstance(payload, (dict, list, tuple)):
        _walk(payload, found, _MAX_DEPTH, top=True)
    return found


def _walk(node: Any, found: Findings, depth: int, *, top: bool = False) -> None:
    if depth == 0:
        return
    if isinstance(node, (list, tuple)):
        for item in node[:16]:
            if isinstance(item, (dict, list)):
                _walk(item, found, depth - 1, top=top)
            elif isinstance(item, str):
                _add_message(item, found, depth)
        return
    if not isinstance(node, dict):
        return
    _take_status(node, found, top=top)
    _take_codes(node, found)
    _take_waits(node, found)
    for key in _MESSAGE_KEYS:
        value = node.get(key)
        if isinstance(value, str):
            _add_message(value, found, depth)
    for key in _NESTED_KEYS:
        value = node.get(key)
        if isinstance(value, (dict, list)):
            if key == "base_resp" and isinstance(value, dict):
                # MiniMax numbers its failures like z.ai does, with other meanings.
                found.codes.append(f"base_resp:{value.get('status_code')}")
                found.messages.append(str(value.get("status_msg", "")))
                continue
            _walk(value, found, depth - 1, top=top and key == "error")
        elif isinstance(value, str) and key in ("error", "upstream_error", "cause"):
            _add_message(value, found, depth)
    raw = node.get("raw")
    if isinstance(raw, str):
        _add_message(raw, found, depth)


def _take_codes(node: dict[str, Any], found: Findings) -> None:
    for key in _CODE_KEYS:
        value = node.get(key)
        if isinstance(value, str):
            if value and len(value) <= 80 and value not in ("None", "null", "error"):
                found.codes.append(value.lower())
        elif isinstance(value, int) and not isinstance(value, bool):
            found.codes.append(str(value))
    quota = node.get("quotaId") or node.get("quota_limit")
    if isinstance(quota, str):
        found.codes.append("quota:" + quota.lower())


def _take_status(node: dict[str, Any], found: Findings, *, top: bool) -> None:
    """A numeric status inside the body: at the top it repeats the real one, deeper it is the wrapped failure's."""
    for key in _STATUS_KEYS:
        value = node.get(key)
        number = parse_number(value) if isinstance(value, str) else value
        if isinstance(number, (int, float)) and not isinstance(number, bool) and 400 <= number < 600:
            if not top or found.status is None:
                found.status = int(number)
            return


def _take_waits(node: dict[str, Any], found: Findings) -> None:
    for key in ("retryDelay", "quotaResetDelay"):
        value = node.get(key)
        if isinstance(value, str):
            _append(found.waits, parse_duration(value))
        elif isinstance(value, dict):
            _append(found.waits, _number(value.get("seconds")))
    for key in _WAIT_SECONDS:
        value = node.get(key)
        if value is not None:
            seconds = _number(value)
            _append(found.waits, parse_duration(value) if seconds is None and isinstance(value, str) else seconds)
    for key in _WAIT_MILLISECONDS:
        milliseconds = _number(node.get(key))
        _append(found.waits, None if milliseconds is None else milliseconds / 1000)
    for key in _RESET_AT:
        value = node.get(key)
        if isinstance(value, str) and _number(value) is None:
            _append(found.resets, parse_rfc3339(value))
        else:
            at = _number(value)
            _append(found.resets, None if at is None or at < 1e9 else at / 1000 if at >= 1e12 else at)
    headers = node.get("headers")
    if isinstance(headers, dict):
        found.headers |= {str(k).lower(): str(v) for k, v in headers.items() if isinstance(v, (str, int, float))}


def _add_message(text: str, found: Findings, depth: int) -> None:
    """Keep a message; where it holds another failure in JSON, read that too."""
    found.messages.append(text)
    if depth > 1 and "{" in text:
        _read_text(text, found, depth - 1, top=False, keep=False)


def _read_text(text: str, found: Findings, depth: int, *, top: bool, keep: bool = True) -> None:
    if keep:
        found.messages.append(text)
    start = text.find("{")
    if start < 0 or depth <= 0:
        return
    payload = _embedded(text[start:])
    if payload is not None:
        if top:
            found.payload = payload
        _walk(payload, found, depth - 1)


def _embedded(text: str) -> Any:
    """Return the JSON or Python literal at the start of `text`, whatever follows it."""
    whole = _json(text)
    if whole is not None:
        return whole
    end = _balanced_end(text)
    if end is None:
        return None
    part = text[:end]
    for candidate in (part, part.replace('\\"', '"')):
        value = _json(candidate)
        if value is None:
            value = _literal(candidate)
        if isinstance(value, dict):
            return value
    return None


def _balanced_end(text: str) -> int | None:
    depth = 0
    for index, char in enumerate(text[:16_384]):
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return index + 1
    return None


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError):
        return None


def _literal(text: str) -> Any:
    """Read a Python repr, as SDKs print bodies in their messages. Only literals; nothing is evaluated."""
    if "'" not in text:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


def _read_html(text: str, found: Findings) -> None:
    found.html = True
    titles = [_TAG.sub(" ", match[2]) for match in _HTML_TITLE.finditer(text[:MAX_CHARS])]
    plain = _SPACE.sub(" ", " ".join(titles) or _TAG.sub(" ", text[:4_096])).strip()
    rest = _SPACE.sub(" ", _TAG.sub(" ", text[:8_192])).strip()
    found.messages.append(plain[:500] if plain == rest else f"{plain[:500]} {rest[:1_000]}".strip())


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return parse_number(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return parse_number(str(value))


def _append(numbers: list[float], number: float | None) -> None:
    if number is not None:
        numbers.append(number)
