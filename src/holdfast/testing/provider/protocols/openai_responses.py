"""OpenAI's Responses; xAI's are the same but for the errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.testing.provider.protocols import openai
from holdfast.testing.provider.protocols.base import Dialect, Frame, Part, Refusal, event_frame, text_of
from holdfast.testing.provider.replies import Asked, Reply, Tool

if TYPE_CHECKING:
    from holdfast.testing.provider.requests import Request

__all__ = ["OPENAI_RESPONSES", "XAI_RESPONSES"]

_CREATED = 1_735_689_600


def _asked(request: Request) -> Asked:
    given = request.document.get("input")
    items = request.list_of("input")
    said = [given] if isinstance(given, str) else [text_of(each.get("content")) for each in items if each.get("role") == "user"]  # fmt: skip
    last = items[-1] if items else {}
    result = last.get("output") if last.get("type") == "function_call_output" else None
    return Asked(
        said=said[-1] if said else "",
        result=None if result is None else text_of(result),
        turns=sum(each.get("role") == "assistant" or each.get("type") == "function_call" for each in items),
        tools=tuple(Tool(str(tool.get("name", "")), tool.get("parameters") or {}) for tool in request.list_of("tools")),
        tokens=len(request.body) // 4,
    )


def _response(request: Request, number: int, status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"resp_{number:024d}",
        "object": "response",
        "created_at": _CREATED,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": request.document.get("tools") or [],
        **more,
    }


def _usage(reply: Reply) -> dict[str, Any]:
    said, given = reply.output_tokens, reply.input_tokens
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given + said,
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(reply: Reply, number: int, *, done: bool) -> dict[str, Any]:
    status = "completed" if done else "in_progress"
    if reply.tool:
        arguments = reply.arguments if done else ""
        ids = {"id": _item_id(reply, number), "call_id": f"call_{number:024d}"}
        return {**ids, "type": "function_call", "status": status, "name": reply.tool, "arguments": arguments}
    content = [_part(reply.text)] if done else []
    return {
        "id": _item_id(reply, number),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def _item_id(reply: Reply, number: int) -> str:
    return f"{'fc' if reply.tool else 'msg'}_{number:024d}"


def _whole(reply: Reply, request: Request, number: int) -> dict[str, Any]:
    return _response(request, number, "completed", output=[_item(reply, number, done=True)], usage=_usage(reply))


def _frames(reply: Reply, request: Request, number: int) -> list[Frame]:
    middle = _tool_events(reply, number) if reply.tool else _text_events(reply, number)
    begun = _response(request, number, "in_progress")
    events: list[tuple[Part, dict[str, Any]]] = [
        (Part.OPENING, {"type": "response.created", "response": begun}),
        (Part.OPENING, {"type": "response.in_progress", "response": begun}),
        (Part.OPENING, {"type": "response.output_item.added", "output_index": 0, "item": _item(reply, number, done=False)}),
        *middle,
        (Part.CLOSING, {"type": "response.output_item.done", "output_index": 0, "item": _item(reply, number, done=True)}),
        (Part.CLOSING, {"type": "response.completed", "response": _whole(reply, request, number)}),
    ]  # fmt: skip
    return [Frame(part, event_frame({**event, "sequence_number": at})) for at, (part, event) in enumerate(events)]


def _tool_events(reply: Reply, number: int) -> list[tuple[Part, dict[str, Any]]]:
    where = {"item_id": _item_id(reply, number), "output_index": 0}
    kind = "response.function_call_arguments"
    done = {"type": f"{kind}.done", **where, "name": reply.tool, "arguments": reply.arguments}
    return [
        *((Part.TOOL, {"type": f"{kind}.delta", **where, "delta": piece}) for piece in reply.pieces),
        (Part.CLOSING, done),
    ]


def _text_events(reply: Reply, number: int) -> list[tuple[Part, dict[str, Any]]]:
    where = {"item_id": _item_id(reply, number), "output_index": 0, "content_index": 0}
    delta = {"type": "response.output_text.delta", **where, "logprobs": []}
    return [
        (Part.OPENING, {"type": "response.content_part.added", **where, "part": _part("")}),
        *((Part.TEXT, {**delta, "delta": piece}) for piece in reply.pieces),
        (Part.CLOSING, {"type": "response.output_text.done", **where, "text": reply.text, "logprobs": []}),
        (Part.CLOSING, {"type": "response.content_part.done", **where, "part": _part(reply.text)}),
    ]


def _error_frame(refusal: Refusal, request: Request) -> bytes:
    return event_frame({"type": "error", **openai.error(refusal, request)})


OPENAI_RESPONSES = Dialect(
    name="openai-responses",
    asked=_asked,
    whole=_whole,
    frames=_frames,
    refusals=openai.REFUSALS,
    error=openai.error,
    error_frame=_error_frame,
    limits=openai.limits,
    request_id="x-request-id",
)
XAI_RESPONSES = OPENAI_RESPONSES._replace(name="xai-responses", refusals=openai.XAI_REFUSALS, error=openai.xai_error)
