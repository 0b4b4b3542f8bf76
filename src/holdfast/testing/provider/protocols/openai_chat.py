"""OpenAI's Chat Completions; xAI's are the same but for the errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.testing.provider.protocols import openai
from holdfast.testing.provider.protocols.base import Dialect, Frame, Part, Refusal, data_frame, text_of
from holdfast.testing.provider.replies import Asked, Reply, Tool

if TYPE_CHECKING:
    from holdfast.testing.provider.requests import Request

__all__ = ["OPENAI_CHAT", "XAI_CHAT"]

_CREATED = 1_735_689_600
"""A fixed date: replies are the same in every run."""


def _asked(request: Request) -> Asked:
    messages = request.list_of("messages")
    said = [text_of(each.get("content")) for each in messages if each.get("role") == "user"]
    last = messages[-1] if messages else {}
    offered = [tool["function"] for tool in request.list_of("tools") if isinstance(tool.get("function"), dict)]
    return Asked(
        said=said[-1] if said else "",
        result=text_of(last.get("content")) if last.get("role") == "tool" else None,
        turns=sum(each.get("role") == "assistant" for each in messages),
        tools=tuple(Tool(str(tool.get("name", "")), tool.get("parameters") or {}) for tool in offered),
        tokens=len(request.body) // 4,
    )


def _shell(request: Request, number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number:024d}", "object": kind, "created": _CREATED, "model": request.model}


def _usage(reply: Reply) -> dict[str, int]:
    said, given = reply.output_tokens, reply.input_tokens
    return {"prompt_tokens": given, "completion_tokens": said, "total_tokens": given + said}


def _finish_reason(reply: Reply) -> str:
    return "tool_calls" if reply.tool else "stop"


def _call(reply: Reply, number: int, arguments: str) -> dict[str, Any]:
    function = {"name": reply.tool, "arguments": arguments}
    return {"id": f"call_{number:024d}", "type": "function", "function": function}


def _whole(reply: Reply, request: Request, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None if reply.tool else reply.text, "refusal": None}
    if reply.tool:
        message["tool_calls"] = [_call(reply, number, reply.arguments)]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
    return {**_shell(request, number, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def _frames(reply: Reply, request: Request, number: int) -> list[Frame]:
    shell = _shell(request, number, "chat.completion.chunk")

    def chunk(part: Part, delta: dict[str, Any], finish_reason: str | None = None) -> Frame:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return Frame(part, data_frame({**shell, "choices": [choice]}))

    first: dict[str, Any] = {"role": "assistant", "content": None if reply.tool else ""}
    if reply.tool:
        first["tool_calls"] = [{"index": 0, **_call(reply, number, "")}]
    frames = [chunk(Part.OPENING, first)]
    for piece in reply.pieces:
        if reply.tool:
            frames.append(chunk(Part.TOOL, {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}))
        else:
            frames.append(chunk(Part.TEXT, {"content": piece}))
    frames.append(chunk(Part.CLOSING, {}, _finish_reason(reply)))
    if _wants_usage(request):
        frames.append(Frame(Part.CLOSING, data_frame({**shell, "choices": [], "usage": _usage(reply)})))
    return [*frames, Frame(Part.CLOSING, b"data: [DONE]\n\n")]


def _wants_usage(request: Request) -> bool:
    options = request.document.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _error_frame(refusal: Refusal, request: Request) -> bytes:
    return data_frame(openai.error(refusal, request))


OPENAI_CHAT = Dialect(
    name="openai-chat",
    asked=_asked,
    whole=_whole,
    frames=_frames,
    refusals=openai.REFUSALS,
    error=openai.error,
    error_frame=_error_frame,
    limits=openai.limits,
    request_id="x-request-id",
)
XAI_CHAT = OPENAI_CHAT._replace(name="xai-chat", refusals=openai.XAI_REFUSALS, error=openai.xai_error)
