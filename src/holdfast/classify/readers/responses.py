"""Turn what a server sent into evidence: an HTTP response, a stream, a JSON-RPC message, a gRPC status.

Invariant: never raises. A response that wraps another one puts the innermost failure first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from holdfast.classify.body import MAX_DECODED, Findings, decode_json, decode_lines, read_body, read_object
from holdfast.classify.evidence import Evidence, Source, fold
from holdfast.classify.phrases import BEGINNING, ENDED, PAGE, codes_in, find_phrases

if TYPE_CHECKING:
    from collections.abc import Mapping

GRPC_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""The gRPC statuses, indexed by their number."""

TOOL_RESULT = 0
"""The code given to a tool result with `isError`: the protocol worked, the tool did not."""

_NO_HEADERS: dict[str, str] = {}
_CODE_HEADERS = ("x-amzn-errortype", "x-ms-error-code", "x-error-code", "x-error-type")
"""Headers that hold a machine code."""
_SAYS_NOTHING = frozenset({-32603, -32000})
_NESTED_RPC = re.compile(r"\bmcp error:? (-32\d{3})\b", re.IGNORECASE)
"""A server passes on the failure of another one, with its number: `-32603` around `MCP error -32602: …`."""
_REASON = re.compile(r"\breason\W{1,3}([A-Za-z_]{4,60})\b")
"""The reason of an ErrorInfo that a program printed: `reason: "BILLING_DISABLED"`."""
_TEXT_CHARS = 4_096


def read_http(
    status: int | None,
    headers: Mapping[str, Any] | None = None,
    body: Any = "",
    *,
    provider: str = "",
    now: float | None = None,
) -> Evidence:
    """Return the evidence of one HTTP response; `body` may be text, bytes or the decoded object."""
    # Most bodies are text. A body that is already decoded is not parsed again.
    found = read_body(body) if isinstance(body, str) else read_object(body)
    lowered = lower_headers(headers) if headers else {}
    payload = found.payload
    if isinstance(payload, dict) and "jsonrpc" in payload:
        # This is an MCP server over HTTP. Its error numbers are more exact than the status.
        return read_jsonrpc(payload, status=status, headers=lowered, provider=provider, now=now)
    # A response with status 200 that was filtered or cut short has a finish reason.
    stream = bad_finish([payload]) if status is not None and status < 300 and payload is not None else ""
    return gather(found, Source.HTTP, status=status, headers=lowered, provider=provider, now=now, stream=stream)


def read_stream(
    text: str,
    *,
    status: int | None = 200,
    headers: dict[str, str] | None = None,
    provider: str = "",
    now: float | None = None,
) -> Evidence:
    """Return the evidence of a stream (SSE or NDJSON) as it arrived.

    The text may also be one event, already decoded.
    """
    # Only the end is read, because an error event is the last event of a stream.
    text = text[-MAX_DECODED:]
    frames = _frames(text)
    found = _failure(frames) or _error_event(text) or _error_after(text)
    stream = "" if found is not None else ending(text, frames)
    return gather(
        found or Findings(),
        Source.SSE,
        # The stream began with a success status, so only the events after it count.
        status=None if status is None or status < 400 else status,
        headers=headers or {},
        provider=provider,
        now=now,
        stream=stream,
    )


def read_jsonrpc(
    message: Any,
    *,
    status: int | None = None,
    headers: dict[str, str] | None = None,
    provider: str = "",
    now: float | None = None,
) -> Evidence:
    """Return the evidence of one JSON-RPC message, decoded or as text: an error, or a tool result with `isError`."""
    found = read_body(message) if isinstance(message, str) else read_object(message)
    code = _rpc_code(found.payload)
    if (
        code in _SAYS_NOTHING
        and (inner := _NESTED_RPC.search(found.messages[-1] if found.messages else "")) is not None
    ):
        code = int(inner[1])
    if not found.messages:
        _read_params(found)
    result = _tool_text(found.payload)
    if result is not None:
        # Many tools pass on the body that a service answered with. Its fields are more exact than the words in it.
        found = read_body(result) if result[:1] == "{" else Findings()
        if not found.messages:
            found.messages.append(result)
        status = found.status if status is None else status
        code = TOOL_RESULT
    return gather(
        found, Source.JSONRPC, status=status, headers=headers or {}, provider=provider, now=now, rpc_code=code
    )


def read_grpc(
    status: str | int,
    details: str = "",
    *,
    headers: dict[str, str] | None = None,
    provider: str = "",
    now: float | None = None,
) -> Evidence:
    """Return the evidence of a gRPC call that ended with `status`, by name or number."""
    name = GRPC_NAMES[status] if isinstance(status, int) and 0 <= status < len(GRPC_NAMES) else str(status)
    code = name.rpartition(".")[2].lower()
    found = read_body(details)
    message = _join(found.messages) or details
    reason = _REASON.search(details)
    codes = (*reversed(found.codes), *((reason[1].lower(),) if reason else ()), code)
    return Evidence(
        source=Source.GRPC,
        provider=provider.lower(),
        headers=headers or {},
        codes=codes,
        message=message,
        text=(folded := fold(message)),
        matched=find_phrases(folded) | codes_in(codes),
        delays=tuple(found.delays),
        resets=tuple(found.resets),
        now=now,
    )


def gather(
    found: Findings,
    source: Source,
    *,
    status: int | None = None,
    headers: dict[str, str] = _NO_HEADERS,
    provider: str = "",
    now: float | None = None,
    stream: str = "",
    rpc_code: int | None = None,
) -> Evidence:
    """Return the evidence from the findings of a body and from its envelope."""
    # The innermost message comes first: a gateway writes "provider returned error", the provider writes the reason.
    codes = [*reversed(found.codes)]
    if headers:
        for name in _CODE_HEADERS:
            if name in headers:
                # AWS appends a namespace: `ThrottlingException:http://…`.
                codes.insert(0, headers[name].partition(":")[0].lower())
    message = _join(found.messages)
    if message.isidentifier():
        # The whole message is one word, such as `overloaded_error`: it is a code.
        codes.append(message.lower())
    text = fold(message)
    matched = codes_in(codes) | (find_phrases(text[:BEGINNING]) if text else 0)
    return Evidence(
        source=source,
        provider=provider.lower(),
        status=_deciding_status(status, found.status or (_nested_status(text) if status == 500 else None)),
        headers=found.headers | headers if found.headers else headers,
        codes=tuple(codes),
        message=message,
        text=text,
        matched=matched | (ENDED if stream else 0) | (PAGE if found.html else 0),
        delays=tuple(found.delays),
        resets=tuple(found.resets),
        html=found.html,
        stream=stream,
        rpc_code=rpc_code,
        now=now,
    )


def lower_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    """Return the headers as plain strings, their names in lower case."""
    try:
        # One join shows whether all names and values are strings, and whether any name has to be changed.
        names = "\n".join(headers)
        "\n".join(headers.values())
    except TypeError:
        return _decoded_headers(headers)
    return dict(headers) if names == names.lower() else {name.lower(): value for name, value in headers.items()}


def _decoded_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    lowered: dict[str, str] = {}
    for name, value in headers.items():
        key = name if isinstance(name, str) else name.decode("latin-1") if isinstance(name, bytes) else str(name)
        text = value if isinstance(value, str) else value.decode("latin-1") if isinstance(value, bytes) else str(value)
        lowered[key.lower()] = text
    return lowered


def _deciding_status(outer: int | None, inner: int | None) -> int | None:
    """Return the status of a wrapped failure, if the outer status is a success, a 400 or a 500. Those mean little."""
    if inner is None or inner == outer:
        return outer
    if outer is None or outer < 400 or outer in (400, 500):
        return inner
    return outer


_NESTED = re.compile(r": (?:error:? )?([45]\d\d): ")
"""A server says inside a sentence which status it got itself: `Failed to start the sandbox: 404: No sandbox found`."""


def _nested_status(text: str) -> int | None:
    found = _NESTED.findall(text)
    return int(found[-1]) if found else None


def _join(messages: list[str]) -> str:
    if len(messages) <= 1:
        return messages[0][:_TEXT_CHARS] if messages else ""
    # The innermost message comes first. Each message is kept once, because wrappers repeat the message they wrap.
    kept: list[str] = []
    for message in reversed(messages):
        if not any(message in other for other in kept):
            kept.append(message)
    return "\n".join(kept)[:_TEXT_CHARS]


def _rpc_code(payload: Any) -> int | None:
    if not isinstance(payload, dict):
        return None
    error = payload.get("error", payload)
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def _tool_text(payload: Any) -> str | None:
    """Return the text of a tool result that is reported as failed; None for anything else.

    Some servers leave `isError` out, so only a result that says that it is no error is left alone.
    """
    if not isinstance(payload, dict):
        return None
    result = payload.get("result", payload)
    if not isinstance(result, dict) or result.get("isError", True) is not True:
        return None
    content = result.get("content")
    if "isError" not in result and not isinstance(content, list):
        return None
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts or _texts(result.get("structuredContent")))


def _read_params(found: Findings) -> None:
    """Read a message that is no error itself but reports one: a notification, or the state of a task of another agent."""
    payload = found.payload
    if not isinstance(payload, dict):
        return
    if payload.get("method") == "notifications/cancelled":
        found.codes.append("task:cancelled")
    for part in (payload.get("result"), payload.get("params")):
        if not isinstance(part, dict):
            continue
        status = part.get("status")
        if isinstance(status, dict) and isinstance(status.get("state"), str):
            found.codes.append(f"task:{status['state'].lower()}")
        inside = status if isinstance(status, dict) else part
        described = [inside.get(name) for name in ("reason", "data", "error", "message")]
        described += [part.get("structuredContent")]
        found.messages += [text for value in described for text in _texts(value)]


def _texts(value: Any) -> list[str]:
    """Return the text of a value: itself, its message, or its parts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, dict):
        return []
    parts = value.get("parts")
    pieces = [value.get("message"), value.get("error"), value.get("reason")]
    pieces += [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return [piece for piece in pieces if isinstance(piece, str)]


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
        failed = _failed_choice(frame)
        if failed is not None:
            return read_object(failed)
    return None


def _failed_choice(frame: Any) -> dict[str, Any] | None:
    """Return the choice that holds an error of its own, as relays put it there."""
    choices = frame.get("choices") if isinstance(frame, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and isinstance(choice.get("error"), dict):
            return choice
    return None


# An event that is named `error`, or a line of data that begins with the word. The data may be JSON or plain text.
_ERROR_EVENT = re.compile(
    r"^event:[ \t]*(?:error|exception|failed)[ \t\r]*\n(?:id:.*\n)?data:(.*)$|^data:[ \t]*\[?error\]?[: \t]+(.*)$",
    re.MULTILINE | re.IGNORECASE,
)


# The data stream of Vercel's AI SDK: a part that begins with 3 is an error, its text a JSON string.
_ERROR_PART = re.compile(r'^3:(".*")\s*$', re.MULTILINE)


def _error_event(text: str) -> Findings | None:
    event = _ERROR_EVENT.search(text)
    if event is not None:
        return read_body(event[1] or event[2] or "")
    part = _ERROR_PART.search(text)
    return None if part is None else read_body(part[1])


def _error_after(text: str) -> Findings | None:
    """Read an error that is printed over several lines after the events, without `data:`. Gemini's servers send it so."""
    before, brace, rest = text.rpartition("\n{\n")
    payload = decode_json("{" + rest) if before and brace else None
    return read_object(payload) if isinstance(payload, dict) and _is_failure(payload) else None


_FAILED_TYPES = frozenset({"error", "exception", "response.failed", "response.error"})
_FAILED_STATES = frozenset({"error", "failed", "failure"})
_CONTENT = frozenset({"choices", "candidates", "delta", "content", "output", "output_text", "response", "role", "done"})
_NO_FAILURE = frozenset({0, 200, "0", "200", "ok", "OK", "success", "", None})


def _is_failure(frame: dict[str, Any]) -> bool:
    if frame.get("error") or frame.get("event") == "error" or frame.get("object") == "error":
        return True
    if _hashable(frame.get("type")) in _FAILED_TYPES:
        return True
    if _CONTENT.isdisjoint(frame) and _says_failure(frame):
        return True
    if any(name.endswith("Exception") for name in frame):
        # AWS event streams name the failure in the key.
        return True
    response = frame.get("response")
    return isinstance(response, dict) and bool(response.get("error"))


def _says_failure(frame: dict[str, Any]) -> bool:
    """Whether a frame without content describes a failure in fields of its own: a message with a code, a detail, a state."""
    if frame.get("errors") or frame.get("success") is False or isinstance(frame.get("detail"), str):
        return True
    if not isinstance(frame.get("message", frame.get("msg")), str):
        return False
    state = _hashable(frame.get("status"))
    return state in _FAILED_STATES or _hashable(frame.get("code")) not in _NO_FAILURE or len(frame) == 1


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int)) else None


_ENDS = ('"message_stop"', '"response.completed"', '"done":true', '"done": true', '"stop_reason":"', '"finishReason"')
_DONE = re.compile(r"^(?:data:)?[ \t]*\[DONE\][ \t\r]*$", re.MULTILINE)
"""`[DONE]` ends a stream only as a line of its own: a model may also write the word in its text."""
_BAD_FINISH = {
    finish: how
    for how, finishes in {
        "filtered": "content_filter safety recitation prohibited_content blocklist spii refusal content_filtered guardrail_intervened"
        " error_toxic image_safety language",
        "overflow": "model_context_window_exceeded error_limit",
        "length": "max_output_tokens max_tokens length",
        "malformed": "unexpected_tool_call tool_use_failed malformed_function_call",
        "cut": "insufficient_system_resource error",
    }.items()
    for finish in finishes.split()
}


def bad_finish(frames: list[Any]) -> str:
    """Return the ending that a bad finish reason means; an empty string if no finish reason is bad."""
    finishes = {finish.lower() for frame in frames for finish in _finishes(frame)}
    return next((_BAD_FINISH[finish] for finish in sorted(finishes) if finish in _BAD_FINISH), "")


def ending(text: str, frames: list[Any]) -> str:
    """Return how a stream ended, given its text and its decoded frames."""
    bad = bad_finish(frames)
    if bad:
        return bad
    # Providers mark the end in different ways: `[DONE]`, an event, a finish reason.
    ended = (
        _DONE.search(text) is not None or any(end in text for end in _ENDS) or any(_finishes(frame) for frame in frames)
    )
    if not ended:
        return "cut"
    return "done" if any(_has_content(frame) for frame in frames) else "empty"


def _finishes(frame: Any) -> list[str]:
    """Return every finish reason of a frame, in any provider's field."""
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
    """Whether the frame contains any text or tool call."""
    if not isinstance(frame, dict):
        return False
    for key in ("choices", "candidates"):
        items = frame.get(key)
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and any(item.get(part) for part in ("delta", "message", "content", "text")):
                return True
    return bool(frame.get("delta") or frame.get("content") or frame.get("output_text") or frame.get("message"))
