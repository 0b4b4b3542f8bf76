"""Amazon Bedrock: Anthropic's protocol in AWS's event stream, and the Converse protocol."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.testing.provider.anthropic import ANTHROPIC
from holdfast.testing.provider.dialect import (
    ErrorReply,
    Part,
    ProviderDialect,
    SseFrame,
    as_json,
    errors_of,
    no_limits,
    text_of,
)
from holdfast.testing.provider.history import converse_mistake
from holdfast.testing.provider.replies import Calls, OfferedTool, ReplyContent, RequestContent, WrittenCall, only

if TYPE_CHECKING:
    from holdfast.testing.provider.http import Headers, Request
    from holdfast.testing.provider.limits import LimitReason

_EVENT_STREAM = "application/vnd.amazon.eventstream"
_STRING = 7
_ERRORS = errors_of("bedrock")


def _frame(headers: dict[str, str], payload: bytes) -> bytes:
    """Return a message of AWS's event stream."""
    written = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", _STRING, len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(written) + len(payload), len(written))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + written + payload
    return message + struct.pack("!I", zlib.crc32(message))


def _event(kind: str, document: Any) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return _frame(headers, as_json(document))


def _error(error: ErrorReply) -> dict[str, Any]:
    return {"message": error.message}


def _error_frame(error: ErrorReply, _sequence: int) -> bytes:
    # In a stream the names of the errors begin with a small letter.
    kind = error.kind[:1].lower() + error.kind[1:]
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return _frame(headers, as_json(_error(error)))


def _error_headers(error: ErrorReply) -> Headers:
    return (("x-amzn-errortype", f"{error.kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"),)


def _limited(rejection: LimitReason, _model: str) -> tuple[ErrorReply, Headers]:
    """AWS never announces when to come back."""
    what = "tokens" if rejection.kind == "tokens" else "requests"
    return _ERRORS["rate-limit"]._replace(message=f"Too many {what}, please wait before trying again."), ()


def _anthropic_frames(reply: ReplyContent, request: Request, number: int) -> list[SseFrame]:
    """Return Anthropic's events, each as the bytes of an event of AWS's stream."""
    frames = []
    for part, event in ANTHROPIC.frames(reply, request, number):
        document = event.partition(b"data: ")[2].strip()
        # Bedrock sends no pings.
        if not document.startswith(b'{"type":"ping"'):
            frames.append(SseFrame(part, _event("chunk", {"bytes": base64.b64encode(document).decode()})))
    return frames


BEDROCK_ANTHROPIC = ANTHROPIC._replace(
    name="bedrock-anthropic",
    frames=_anthropic_frames,
    errors=_ERRORS,
    error=_error,
    error_frame=_error_frame,
    error_headers=_error_headers,
    limits=no_limits,
    limited=_limited,
    request_id="x-amzn-requestid",
    stream_type=_EVENT_STREAM,
)


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _prompt(request: Request) -> RequestContent:
    messages = request.list_of("messages")
    texts = [text for each in messages if each.get("role") == "user" and (text := text_of(each.get("content")))]
    results = [part["toolResult"] for part in _parts(messages[-1]) if "toolResult" in part] if messages else []
    result = results[-1].get("content") if results and isinstance(results[-1], dict) else None
    tools, calls = _tools(request.dict_of("toolConfig"))
    return RequestContent(
        text=texts[-1] if texts else "",
        result=(text_of(result) or msgspec.json.encode(result).decode()) if results else None,
        turns=sum(each.get("role") == "assistant" for each in messages),
        tools=tools,
        calls=calls,
        tokens=len(request.body) // 4,
        limit=request.dict_of("inferenceConfig").get("maxTokens"),
    )


def _tools(config: dict[str, Any]) -> tuple[tuple[OfferedTool, ...], Calls]:
    listed = config.get("tools")
    specs = [tool["toolSpec"] for tool in listed if isinstance(tool, dict) and isinstance(tool.get("toolSpec"), dict)] if isinstance(listed, list) else []  # fmt: skip
    tools = tuple(OfferedTool(str(spec.get("name", "")), _input_schema(spec)) for spec in specs)
    choice = config.get("toolChoice")
    choice = choice if isinstance(choice, dict) else {}
    if isinstance(choice.get("tool"), dict):
        return only(tools, [choice["tool"].get("name")]), "must"
    return tools, "must" if "any" in choice else "may"


def _input_schema(spec: dict[str, Any]) -> dict[str, Any]:
    schema = spec.get("inputSchema")
    inner = schema.get("json") if isinstance(schema, dict) else None
    return inner if isinstance(inner, dict) else {}


def _usage(reply: ReplyContent) -> dict[str, int]:
    sent, made = reply.input_tokens, reply.output_tokens
    return {"inputTokens": sent, "outputTokens": made, "totalTokens": sent + made}


def _stop_reason(reply: ReplyContent) -> str:
    if reply.is_cut:
        return "max_tokens"
    return "tool_use" if reply.calls else "end_turn"


def _call_start(call: WrittenCall, number: int) -> dict[str, Any]:
    return {"toolUseId": f"tooluse_{number:022d}{call.suffix}", "name": call.name}


def _whole(reply: ReplyContent, _request: Request, number: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"text": reply.text}] if reply.has_text else []
    content += [{"toolUse": {**_call_start(call, number), "input": call.json}} for call in reply.calls]
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": _stop_reason(reply),
        "usage": _usage(reply),
        "metrics": {"latencyMs": 1},
    }


def _frames(reply: ReplyContent, _request: Request, number: int) -> list[SseFrame]:
    frames = [SseFrame(Part.OPENING, _event("messageStart", {"role": "assistant"}))]
    at = {"contentBlockIndex": 0}
    # Only a call announces its block; a text begins with its first delta.
    frames += [
        SseFrame(Part.TEXT, _event("contentBlockDelta", {"delta": {"text": each}, **at})) for each in reply.pieces
    ]
    for index, call in enumerate(reply.calls, reply.has_text):
        if index:
            frames.append(SseFrame(Part.BETWEEN, _event("contentBlockStop", at)))
        at = {"contentBlockIndex": index}
        start = {"start": {"toolUse": _call_start(call, number)}, **at}
        frames.append(SseFrame(Part.BETWEEN if index else Part.OPENING, _event("contentBlockStart", start)))
        fragments = [{"delta": {"toolUse": {"input": piece}}, **at} for piece in call.pieces]
        frames += [SseFrame(Part.TOOL, _event("contentBlockDelta", each)) for each in fragments]
    closing = {
        "contentBlockStop": at,
        "messageStop": {"stopReason": _stop_reason(reply)},
        "metadata": {"usage": _usage(reply), "metrics": {"latencyMs": 1}},
    }
    return [*frames, *(SseFrame(Part.CLOSING, _event(kind, event)) for kind, event in closing.items())]


BEDROCK_CONVERSE = ProviderDialect(
    name="bedrock-converse",
    prompt=_prompt,
    whole=_whole,
    frames=_frames,
    errors=_ERRORS,
    error=_error,
    error_frame=_error_frame,
    error_headers=_error_headers,
    limits=no_limits,
    limited=_limited,
    request_id="x-amzn-requestid",
    mistake=converse_mistake,
    stream_type=_EVENT_STREAM,
)
