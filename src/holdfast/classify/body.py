"""Read an error body, however it is wrapped: arrays, JSON inside strings, Python reprs, SSE and NDJSON lines, HTML.

Only fields that describe the failure are read. A server may echo the user's own text. That text is never searched,
because it may contain any word.
Invariant: never raises, never evaluates anything, is bounded in depth and size, and puts the innermost failure first.
"""

from __future__ import annotations

import re
from enum import IntFlag, auto
from typing import Any, Final

import msgspec

from holdfast.classify.times import parse_delay, parse_number, parse_rfc3339

MAX_CHARS: Final = 65_536
MAX_DECODED: Final = 1_048_576
"""A longer text is not decoded: an error body of a megabyte repeats the request."""
# Bounds against hostile bodies: depth, nodes, items of a list, fields of an object.
_MAX_DEPTH: Final = 8
_MAX_NODES: Final = 200
_MAX_ITEMS: Final = 32
_MAX_FIELDS: Final = 64


class _Field(IntFlag):
    """What a field of an error body may contain."""

    CODE = auto()
    MESSAGE = auto()
    NESTED = auto()
    STATUS = auto()
    SECONDS = auto()
    MILLISECONDS = auto()
    INSTANT = auto()
    HEADERS = auto()
    QUOTA = auto()
    VENDOR_CODE = auto()


def _named(field: _Field, *names: str) -> dict[str, _Field]:
    return dict.fromkeys(names, field)


_C, _M, _N = _Field.CODE, _Field.MESSAGE, _Field.NESTED
_FIELDS: Final[dict[str, int]] = {
    name: int(field)
    for name, field in (
        _named(_C, "error_type", "errorType", "error_code", "errorCode", "__type", "name", "limit_source", "limitName",
               "finish_reason", "blockReason")
        | _named(_C | _Field.STATUS, "code", "Code", "status", "status_code")
        | _named(_C, "type", "reason")
        | _named(_Field.STATUS, "statusCode", "http_status", "httpStatus")
        | _named(_M, "message", "Message", "msg", "error_message", "errorMessage", "error_description", "status_msg", "error_msg",
                 "title", "raw")
        | _named(_C | _M | _N, "error")
        | _named(_M | _N, "detail", "upstream_error", "cause")
        | _named(_N, "errors", "response", "innererror", "inner_error", "metadata", "details", "body", "data", "param", "lastError",
                 "promptFeedback", "incomplete_details", "violations", "originalError", "extensions")
        | _named(_Field.VENDOR_CODE, "base_resp")
        | _named(_Field.SECONDS, "retryDelay", "quotaResetDelay", "resets_in_seconds", "estimated_time", "retry_after", "retryAfter",
                 "retry_after_seconds", "retryAfterSeconds")
        | _named(_Field.MILLISECONDS, "retry_after_ms", "retryAfterMs")
        | _named(_Field.INSTANT, "resets_at", "reset_at", "resetAt", "quotaResetTimeStamp")
        | _named(_Field.HEADERS, "headers")
        | _named(_Field.QUOTA, "quotaId", "quota_limit")
    ).items()
}  # fmt: skip
# These are plain numbers. Enum flags are slow, and they would be used for every field of every body.
_CODE, _MESSAGE, _NESTED, _STATUS = int(_C), int(_M), int(_N), int(_Field.STATUS)
_HEADERS, _QUOTA = int(_Field.HEADERS), int(_Field.QUOTA)
_INSTANT, _MILLISECONDS = int(_Field.INSTANT), int(_Field.MILLISECONDS)
_UNKNOWN = 0
_TIMES = int(_Field.SECONDS | _Field.MILLISECONDS | _Field.INSTANT)

_HTML_CHARS: Final = 8_192
_HTML_WORDS: Final = 600


_REPR = re.compile(
    r"<[A-Za-z_][\w.]*(?:Error|Exception|Fault|Warning|Rendezvous|Call)\b(?!>)|<[A-Za-z_][\w.]* (?:object|of RPC)\b"
)
"""An exception that prints itself in angle brackets, such as `<MilvusException: (code=100, …)>`, is no page."""
_PAGE = re.compile(
    r"<(?:!doctype|!--|\?xml|(?:html|head|body|title|meta|link|style|script|h[1-6]|p|div|span|center|pre|br|hr|table|ul|svg|b|font)"
    r"\b[^<]*(?:>|$))",
    re.IGNORECASE,
)
"""How a page begins. Node's `<--- Last few GCs --->`, `<stdin>:1:` and `<nil>` only begin with the same character."""
_ELEMENT = re.compile(r"<([A-Za-z][\w:.-]*)(?:\s[^<>]*)?>")
_CODE_ELEMENT = re.compile(r"<(?:Code|code|ErrorCode|errorCode)>\s*([\w.:-]{1,80})\s*</")


class Findings:
    """The facts of a body. Each list holds the outermost fact first; the readers reverse it."""

    __slots__ = ("codes", "delays", "headers", "html", "left", "messages", "payload", "resets", "status")

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.messages: list[str] = []
        self.status: int | None = None
        self.delays: list[float] = []
        self.resets: list[float] = []
        self.headers: dict[str, str] = {}
        self.html = False
        self.payload: Any = None
        self.left = _MAX_NODES


def read_body(raw: str) -> Findings:
    """Return the findings of a body's text."""
    found = Findings()
    text = without_frame(raw.strip().removeprefix("\ufeff"))
    if not text:
        return found
    if text[0] == '"' and isinstance(inner := decode_json(text), str):
        return read_body(inner)
    if text[0] in "{[":
        _read_json(text, found)
    elif (text[0] == "<" and _is_page(text)) or "<html" in text[:500].lower():
        _read_html(text, found)
    else:
        _read_text(text[:MAX_CHARS], found, _MAX_DEPTH, top=True)
    return found


def without_frame(text: str) -> str:
    """Return the JSON of a text that is one event of a stream (SSE); any other text as it is."""
    framed = _ONE_EVENT.match(text) if text.startswith(_EVENT_FIELDS) else None
    return framed[1] if framed is not None else text


_EVENT_FIELDS = ("event:", "data:", "id:", "retry:")
_ONE_EVENT = re.compile(r"(?:(?:event|id|retry):[^\n]*\n){0,3}data:[ \t]*(\{[^\n]*\})\s*\Z")


def _is_page(text: str) -> bool:
    """Whether a text that begins with `<` is HTML or XML: it begins like a page, or its first element is closed."""
    if _PAGE.match(text):
        return True
    first = None if _REPR.match(text) else _ELEMENT.match(text)
    return first is not None and f"</{first[1]}" in text[:_HTML_CHARS]


def read_object(payload: Any) -> Findings:
    """Return the findings of a body that is already decoded, as SDKs pass it on."""
    if isinstance(payload, str):
        return read_body(payload)
    if isinstance(payload, (bytes, bytearray)):
        return read_body(bytes(payload[:MAX_DECODED]).decode("utf-8", "replace"))
    found = Findings()
    found.payload = payload
    _walk(payload, found, _MAX_DEPTH, top=True)
    return found


def _read_json(text: str, found: Findings) -> None:
    payload = decode_json(text)
    if payload is None:
        lines = decode_lines(text) if len(text) <= MAX_DECODED else []
        payload = lines if len(lines) > 1 else _decode_cut(text)
    if payload is not None:
        found.payload = payload
        _walk(payload, found, _MAX_DEPTH, top=True)
    elif len(text) <= MAX_CHARS:
        # The text is cut off or is not quite JSON. A longer text may repeat the request, so its words mean nothing.
        _read_text(text, found, _MAX_DEPTH, top=True)


def _walk(node: Any, found: Findings, depth: int, *, top: bool = False) -> None:
    if depth == 0 or found.left <= 0:
        return
    found.left -= 1
    if isinstance(node, dict):
        _walk_fields(node, found, depth, top=top)
    elif isinstance(node, (list, tuple)):
        for item in node[:_MAX_ITEMS]:
            if isinstance(item, str):
                _add_message(item, found, depth)
            else:
                _walk(item, found, depth - 1, top=top)


def _walk_fields(node: dict[Any, Any], found: Findings, depth: int, *, top: bool) -> None:
    """Read the fields of this level, then the nested fields.

    The lists are reversed later, so the innermost comes first.
    """
    nested: list[tuple[Any, bool]] = []
    for name, value in node.items() if len(node) <= _MAX_FIELDS else list(node.items())[:_MAX_FIELDS]:
        field = _FIELDS.get(name, _UNKNOWN)
        if field == _UNKNOWN:
            if not isinstance(value, dict) or not str(name).endswith("Exception"):
                continue
            # AWS event streams: {"throttlingException": {"message": …}}.
            found.codes.append(str(name).lower())
            field = _NESTED
        if isinstance(value, str):
            _take_text(field, value, found, depth)
        elif field & _NESTED and isinstance(value, (dict, list)):
            if name == "errors" and isinstance(value, dict):
                _take_by_field(value, found, depth)
            nested.append((value, top and name == "error"))
        if field & _STATUS:
            _take_status(value, found, top=top)
        elif field >= _FIRST_RARE:
            _take_rare(field, value, found)
    for value, inside_top in nested:
        _walk(value, found, depth - 1, top=inside_top)


def _take_by_field(errors: dict[Any, Any], found: Findings, depth: int) -> None:
    """Read what a form says about each of its fields: `{"errors": {"title": "is required", "tags": ["is empty"]}}`."""
    for name, value in list(errors.items())[:_MAX_ITEMS]:
        if name not in _FIELDS:
            texts = value[:_MAX_ITEMS] if isinstance(value, list) else [value]
            for text in texts:
                if isinstance(text, str):
                    _add_message(text, found, depth)


def _take_text(field: int, value: str, found: Findings, depth: int) -> None:
    if field & _CODE and value and len(value) <= _LONGEST_CODE and value not in _NO_CODE:
        found.codes.append(value.lower())
    if field & _MESSAGE:
        _add_message(value, found, depth)


_LONGEST_CODE: Final = 80
# Values that mean "no code". `error` is the type of every OpenAI-like stream event.
_NO_CODE: Final = frozenset({"None", "null", "error"})
_FIRST_RARE: Final = int(_Field.SECONDS)


def _take_status(value: Any, found: Findings, *, top: bool) -> None:
    """Read a numeric status inside the body.

    At the top it repeats the HTTP status; deeper it belongs to a wrapped failure.
    """
    if isinstance(value, str) and not value[:1].isdecimal():
        # Most codes are words, and a number parser that fails is slow. So the first character is checked before.
        return
    number = _number(value)
    if number is not None and 400 <= number < 600 and (not top or found.status is None):
        found.status = int(number)


def _take_rare(field: int, value: Any, found: Findings) -> None:
    if field & _TIMES:
        _take_time(field, value, found)
    elif field == _HEADERS:
        if isinstance(value, dict):
            found.headers |= {str(k).lower(): _header(v) for k, v in value.items() if isinstance(v, (str, int, float))}
    elif field == _QUOTA:
        if isinstance(value, str):
            found.codes.append("quota:" + value.lower())
    elif isinstance(value, dict):
        # MiniMax and z.ai use the same numbers with different meanings, so the numbers of MiniMax get a prefix.
        found.codes.append(f"base_resp:{value.get('status_code')}")
        found.messages.append(str(value.get("status_msg", "")))


def _header(value: str | float) -> str:
    if isinstance(value, str):
        return value
    number = _number(value)
    return "" if number is None else f"{number:.17g}"


def _take_time(field: int, value: Any, found: Findings) -> None:
    number = _protobuf_seconds(value) if isinstance(value, dict) else _number(value)
    if field == _INSTANT:
        at = parse_rfc3339(value) if number is None and isinstance(value, str) else number
        # A smaller number cannot be a date of our time.
        if at is not None and at >= 1e9:
            found.resets.append(at / 1000 if at >= 1e12 else at)
        return
    unit = 0.001 if field == _MILLISECONDS else 1.0
    delay = parse_delay(value, unit=unit) if number is None and isinstance(value, str) else number
    if delay is not None:
        found.delays.append(delay if number is None else delay * unit)


def _protobuf_seconds(duration: dict[Any, Any]) -> float | None:
    """Read a protobuf Duration: `{"seconds": 26, "nanos": 500000000}`; either field may be missing."""
    seconds, nanos = _number(duration.get("seconds")), _number(duration.get("nanos"))
    return None if seconds is None and nanos is None else (seconds or 0.0) + (nanos or 0.0) / 1e9


def _add_message(text: str, found: Findings, depth: int) -> None:
    """Keep a message; if it contains another failure as JSON, read that too."""
    found.messages.append(text)
    if depth > 1 and "{" in text:
        _read_text(text, found, depth - 1, top=False, keep=False)


def _read_text(text: str, found: Findings, depth: int, *, top: bool, keep: bool = True) -> None:
    if keep:
        found.messages.append(text)
    if depth <= 0 or "{" not in text:
        return
    lines = decode_lines(text) if top and "\n" in text else []
    payload = lines or _find_object(text)
    if payload is not None:
        if top:
            found.payload = payload
        _walk(payload, found, depth - 1)


def _read_html(text: str, found: Findings) -> None:
    """Keep the words of the page, its title first, without the markup."""
    found.html = True
    if (code := _CODE_ELEMENT.search(text[:_HTML_CHARS])) is not None:
        # Object stores answer with XML: <Error><Code>SlowDown</Code>….
        found.codes.append(code[1].lower())
    # The text is split at the brackets. A regular expression that finds the end of every tag takes three times as long.
    first, *pieces = text[:_HTML_CHARS].split("<")
    kept = [first]
    hidden = ""
    for piece in pieces:
        tag, closed, words = piece.partition(">")
        if hidden:
            # This part is inside a style or a script, so it is left out until the closing tag.
            if not tag.lower().startswith(hidden):
                continue
            hidden = ""
        elif tag.lower().startswith(_NOT_SHOWN):
            hidden = "/s"
            continue
        if closed:
            kept.append(words)
        elif ">" not in text:
            # The text is not a page. It only begins like one.
            kept.append(piece)
    found.messages.append(" ".join(" ".join(kept).split())[:_HTML_WORDS])


_NOT_SHOWN: Final = ("style", "script")


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return parse_number(value) if len(value) <= _LONGEST_NUMBER else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e18 < value < 1e18:
        return None
    return float(value)


_LONGEST_NUMBER: Final = 40


_MAX_LINES: Final = 2_000
_MAX_OBJECT: Final = 16_384
_MAX_OBJECTS: Final = 4
"""The most opening braces that are tried in one text."""

_TOKEN = re.compile(r"[bru]{0,2}('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|\b(True|False|None)\b|([()])", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


def decode_json(text: str) -> Any:
    """Return the value of a JSON text; None if it is not JSON."""
    if len(text) > MAX_DECODED:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError):
        return None


def _decode_cut(text: str) -> Any:
    """Return the value of a JSON text that is cut off or too long to decode, as far as its beginning goes.

    Servers put the error before the request that they echo, so the beginning is enough.
    """
    text = text[:_MAX_OBJECT]
    closers: list[str] = []
    # The last place where a member is complete, with the brackets that are open there.
    complete, open_there = 0, ""
    end = 0
    for token in _JSON_TOKEN.finditer(text):
        end = token.end()
        match token[0]:
            case "{" | "[":
                closers.append("}" if token[0] == "{" else "]")
            case "}" | "]":
                if not closers or closers.pop() != token[0]:
                    return None
            case ",":
                complete, open_there = token.start(), "".join(reversed(closers))
    quote = text.find('"', end)
    if quote >= 0:
        # The text ends inside a string. If the string is a value, such as the message, its beginning counts.
        value = decode_json(text.rstrip("\\") + '"' + "".join(reversed(closers)))
        if value is not None:
            return value
    return decode_json(text[:complete] + open_there) if complete else None


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)


def decode_lines(text: str) -> list[Any]:
    """Return the values of a text's lines, SSE `data:` lines or NDJSON; a line that is not JSON is left out."""
    values: list[Any] = []
    for line in text.splitlines()[-_MAX_LINES:]:
        data = line.removeprefix("data:").strip()
        if data[:1] in ("{", "["):
            value = decode_json(data)
            if value is not None:
                values.append(value)
    return values


def _find_object(text: str) -> dict[str, Any] | None:
    """Return the first JSON object or Python dict in `text`. Other text may stand around it."""
    start = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if start < 0:
            return None
        if text.startswith('{\\"', start):
            # The text holds JSON inside a JSON string, with escaped quotes.
            return _find_object(text[start:].replace('\\"', '"'))
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
    """Return the index of the brace that closes the brace at `start`. Braces inside strings do not count."""
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
    """Return a Python repr as JSON, because SDKs print bodies as a repr.

    It is converted token by token, never evaluated.
    """
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
