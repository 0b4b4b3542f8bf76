"""Find the data in a text: JSON, JSON inside a sentence, a Python repr, one object per line.

Invariant: never raises, never evaluates anything, linear in the text.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

__all__ = ["MAX_DECODED", "decode_json", "decode_lines", "find_object"]

MAX_DECODED: Final = 1_048_576
"""A longer text is not decoded: an error of a megabyte is an echo."""

_MAX_LINES: Final = 2_000
_MAX_OBJECT: Final = 16_384
_MAX_TRIES: Final = 4

_TOKEN = re.compile(r"[bru]{0,2}('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|\b(True|False|None)\b|([()])", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


def decode_json(text: str) -> Any:
    """Return the value of a JSON text; None for what is none."""
    if len(text) > MAX_DECODED:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError):
        return None


def decode_lines(text: str) -> list[Any]:
    """Return the values of a text's lines, SSE `data:` lines or NDJSON; a line that is no JSON is left out."""
    values: list[Any] = []
    for line in text.splitlines()[-_MAX_LINES:]:
        data = line.removeprefix("data:").strip()
        if data[:1] in ("{", "["):
            value = decode_json(data)
            if value is not None:
                values.append(value)
    return values


def find_object(text: str) -> dict[str, Any] | None:
    """Return the first JSON object or Python dict that stands in `text`, whatever is around it."""
    start = text.find("{")
    for _ in range(_MAX_TRIES):
        if start < 0:
            return None
        if text.startswith('{\\"', start):
            # JSON inside a JSON string, its quotes still escaped.
            return find_object(text[start:].replace('\\"', '"'))
        whole = decode_json(text[start:])
        if isinstance(whole, dict):
            return whole
        end = _balanced_end(text, start)
        if end is not None:
            part = text[start:end]
            value = decode_json(part)
            if value is None and "'" in part:
                value = decode_json(_as_json(part))
            if isinstance(value, dict):
                return value
        start = text.find("{", start + 1)
    return None


def _balanced_end(text: str, start: int) -> int | None:
    """Return where the braces opened at `start` are closed, not counting those in strings."""
    depth, quote, position = 0, "", start
    while position < min(len(text), start + _MAX_OBJECT):
        char = text[position]
        if quote:
            if char == "\\":
                position += 1
            elif char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return None


def _as_json(literal: str) -> str:
    """Return a Python repr as JSON, as SDKs print bodies in their messages: by its tokens, nothing is evaluated."""
    return _TOKEN.sub(_token_as_json, literal)


def _token_as_json(match: re.Match[str]) -> str:
    if match[1]:
        return msgspec.json.encode(_ESCAPE.sub(_unescaped, match[1][1:-1])).decode()
    if match[2]:
        return _WORDS[match[2]]
    return "[" if match[3] == "(" else "]"


def _unescaped(match: re.Match[str]) -> str:
    what = match[1]
    if what[0] in "xu" and len(what) > 1:
        code = int(what[1:], 16)
        return "?" if 0xD800 <= code <= 0xDFFF else chr(code)
    return _ESCAPES.get(what, what)
