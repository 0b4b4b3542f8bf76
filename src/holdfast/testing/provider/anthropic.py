"""Anthropic's Messages protocol."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.testing.provider.dialect import (
    ErrorReply,
    Part,
    ProviderDialect,
    SseFrame,
    errors_of,
    event_frame,
    text_of,
)
from holdfast.testing.provider.history import anthropic_mistake
from holdfast.testing.provider.replies import Calls, OfferedTool, ReplyContent, RequestContent, WrittenCall, only

if TYPE_CHECKING:
    from holdfast.testing.provider.http import Headers, Request
    from holdfast.testing.provider.limits import LimitReason, Standing

_ERRORS = errors_of("anthropic")
_LIMITED = (
    "This request would exceed your organization's rate limit of {limit:,} {what} per minute "
    "(org: 00000000-0000-0000-0000-000000000000, model: {model}). For details, refer to: https://docs.claude.com/en/api/rate-limits. "
    "You can see the response headers for current usage. Please reduce the prompt length or the maximum tokens requested, or try again "
    "later. You may also contact sales at https://claude.com/contact-sales to discuss your options for a rate limit increase."
)
_CONCURRENCY = (
    "Number of concurrent connections has exceeded your rate limit. Please try again later or contact sales at "
    "https://www.anthropic.com/contact-sales to discuss your options for a rate limit increase."
)
# A sum of floats may lie a little above a whole second, and rounding up would add a second.
_SLACK = 1e-6


def _prompt(request: Request) -> RequestContent:
    messages = request.list_of("messages")
    last = messages[-1].get("content") if messages else None
    parts = [part for part in last if isinstance(part, dict)] if isinstance(last, list) else []
    results = [part for part in parts if part.get("type") == "tool_result"]
    tools, calls = _tools(request)
    texts = [text for each in messages if each.get("role") == "user" and (text := text_of(each.get("content")))]
    return RequestContent(
        text=texts[-1] if texts else "",
        result=text_of(results[-1].get("content")) if results else None,
        turns=sum(each.get("role") == "assistant" for each in messages),
        tools=tools,
        calls=calls,
        schema=_schema(request),
        # Count about four bytes as a token, which is good enough for usage numbers in tests.
        tokens=len(request.body) // 4,
        limit=request.document.get("max_tokens"),
    )


def _tools(request: Request) -> tuple[tuple[OfferedTool, ...], Calls]:
    """Return the tools that may be called, and whether one must be."""
    tools = tuple(
        OfferedTool(str(tool.get("name", "")), tool.get("input_schema") or {}) for tool in request.list_of("tools")
    )
    choice = request.dict_of("tool_choice")
    kind = choice.get("type")
    if kind == "tool":
        return only(tools, [choice.get("name")]), "must"
    return tools, "must" if kind == "any" else "never" if kind == "none" else "may"


def _schema(request: Request) -> dict[str, Any] | None:
    # The second name is from the time when the feature was a beta.
    form = request.dict_of("output_config").get("format") or request.dict_of("output_format")
    schema = form.get("schema") if isinstance(form, dict) and form.get("type") == "json_schema" else None
    return schema if isinstance(schema, dict) else None


def _message(reply: ReplyContent, request: Request, number: int) -> dict[str, Any]:
    return {
        "id": f"msg_{number:024d}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(reply, 1),
    }


def _stop_reason(reply: ReplyContent) -> str:
    if reply.is_cut:
        return "max_tokens"
    return "tool_use" if reply.calls else "end_turn"


def _whole(reply: ReplyContent, request: Request, number: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.has_text else []
    content += [_opening_call(call, number) | {"input": call.json} for call in reply.calls]
    return _message(reply, request, number) | {
        "content": content,
        "stop_reason": _stop_reason(reply),
        "usage": _usage(reply, reply.output_tokens),
    }


def _usage(reply: ReplyContent, output: int) -> dict[str, int]:
    if reply.cached is None or not any(reply.cached):
        return {"input_tokens": reply.input_tokens, "output_tokens": output}
    # Tokens that were read from the cache or stored in it are not counted as input.
    beside = max(0, reply.input_tokens - sum(reply.cached))
    return {
        "input_tokens": beside,
        "cache_creation_input_tokens": reply.cached.written,
        "cache_read_input_tokens": reply.cached.read,
        "output_tokens": output,
    }


def _opening_call(call: WrittenCall, number: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number:024d}{call.suffix}", "name": call.name, "input": {}}


def _blocks(reply: ReplyContent, number: int) -> list[tuple[dict[str, Any], Part, list[dict[str, Any]]]]:
    """Return the blocks of an answer: how each begins, and its deltas. A block starts empty, and its content follows in deltas."""
    texts = [{"type": "text_delta", "text": piece} for piece in reply.pieces]
    blocks = [({"type": "text", "text": ""}, Part.TEXT, texts)] if reply.has_text else []
    for call in reply.calls:
        fragments = [{"type": "input_json_delta", "partial_json": piece} for piece in call.pieces]
        blocks.append((_opening_call(call, number), Part.TOOL, fragments))
    return blocks


def _frames(reply: ReplyContent, request: Request, number: int) -> list[SseFrame]:
    start = {"type": "message_start", "message": _message(reply, request, number)}
    frames = [SseFrame(Part.OPENING, event_frame(start))]
    blocks = _blocks(reply, number)
    for index, (block, part, deltas) in enumerate(blocks):
        began = {"type": "content_block_start", "index": index, "content_block": block}
        frames.append(SseFrame(Part.BETWEEN if index else Part.OPENING, event_frame(began)))
        if index == 0:
            # Real streams contain pings, and clients must skip them.
            frames.append(SseFrame(Part.OPENING, event_frame({"type": "ping"})))
        frames += [SseFrame(part, _delta_event(index, delta)) for delta in deltas]
        last = index == len(blocks) - 1
        ended = event_frame({"type": "content_block_stop", "index": index})
        frames.append(SseFrame(Part.CLOSING if last else Part.BETWEEN, ended))
    closing: list[dict[str, Any]] = [
        {
            "type": "message_delta",
            "delta": {"stop_reason": _stop_reason(reply), "stop_sequence": None},
            "usage": {"output_tokens": reply.output_tokens},
        },
        {"type": "message_stop"},
    ]
    return [*frames, *(SseFrame(Part.CLOSING, event_frame(event)) for event in closing)]


def _delta_event(index: int, delta: dict[str, Any]) -> bytes:
    return event_frame({"type": "content_block_delta", "index": index, "delta": delta})


def _error(error: ErrorReply) -> dict[str, Any]:
    return {"type": "error", "error": {"type": error.kind, "message": error.message}}


def _error_frame(error: ErrorReply, _sequence: int) -> bytes:
    return event_frame(_error(error))


def _limits(standings: tuple[Standing, ...], wall: float) -> Headers:
    headers: list[tuple[str, str]] = []
    for standing in standings:
        name = f"anthropic-ratelimit-{standing.kind}"
        # The time has whole seconds. Rounding up keeps a client from coming back too early.
        reset = datetime.fromtimestamp(math.ceil(wall + standing.seconds - _SLACK), UTC)
        headers += [
            (f"{name}-limit", str(standing.limit)),
            (f"{name}-remaining", str(standing.remaining)),
            (f"{name}-reset", reset.strftime("%Y-%m-%dT%H:%M:%SZ")),
        ]
    return tuple(headers)


def _limited(rejection: LimitReason, model: str) -> tuple[ErrorReply, Headers]:
    if rejection.kind == "concurrency":
        message = _CONCURRENCY
    else:
        what = "input tokens" if rejection.kind == "tokens" else "requests"
        message = _LIMITED.format(limit=rejection.limit, what=what, model=model)
    error = _ERRORS["rate-limit"]._replace(message=message)
    if rejection.seconds is None:
        return error, ()
    return error, (("retry-after", str(math.ceil(rejection.seconds - _SLACK))),)


ANTHROPIC = ProviderDialect(
    name="anthropic",
    prompt=_prompt,
    whole=_whole,
    frames=_frames,
    errors=_ERRORS,
    error=_error,
    error_frame=_error_frame,
    limits=_limits,
    limited=_limited,
    request_id="request-id",
    mistake=anthropic_mistake,
)
