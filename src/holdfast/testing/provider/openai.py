"""OpenAI's two protocols, Chat Completions and Responses. xAI speaks both of them with its own error messages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from holdfast.testing.provider.dialect import (
    ErrorReply,
    Part,
    ProviderDialect,
    SseFrame,
    data_frame,
    errors_of,
    event_frame,
    text_of,
)
from holdfast.testing.provider.history import chat_mistake, responses_mistake
from holdfast.testing.provider.replies import Calls, OfferedTool, ReplyContent, RequestContent, WrittenCall, only

if TYPE_CHECKING:
    from holdfast.testing.provider.http import Headers, Request
    from holdfast.testing.provider.limits import LimitReason, Standing

_ERRORS = errors_of("openai")
# xAI sends plain texts in its own envelope, and 400 for a wrong key.
_XAI_ERRORS = _ERRORS | errors_of("xai")


def _error(error: ErrorReply) -> dict[str, Any]:
    """Write an error as OpenAI does."""
    inner = {"message": error.message, "type": error.kind or None, "param": None, "code": error.code}
    return {"error": inner}


def _xai_error(error: ErrorReply) -> dict[str, Any]:
    """Write an error as xAI does."""
    return {"code": error.code or error.kind, "error": error.message}


def _limits(standings: tuple[Standing, ...], _wall: float) -> Headers:
    """Write the rate limit headers as OpenAI does: they carry a duration, not a time."""
    headers: list[tuple[str, str]] = []
    for standing in standings:
        headers += [
            (f"x-ratelimit-limit-{standing.kind}", str(standing.limit)),
            (f"x-ratelimit-remaining-{standing.kind}", str(standing.remaining)),
            (f"x-ratelimit-reset-{standing.kind}", _duration(standing.seconds)),
        ]
    return tuple(headers)


def _limited(rejection: LimitReason, model: str) -> tuple[ErrorReply, Headers]:
    error = _ERRORS["rate-limit"]._replace(kind="tokens" if rejection.kind == "tokens" else "requests")
    if rejection.kind == "concurrency":
        return error._replace(message=_CONCURRENCY.format(model=model, limit=rejection.limit)), ()
    unit = "tokens per min (TPM)" if rejection.kind == "tokens" else "requests per min (RPM)"
    where = f"{model} in organization org-XXXX on {unit}: Limit {rejection.limit}"
    if rejection.too_large:
        message = f"Request too large for {where}, Requested {rejection.requested}. {_SMALLER}"
        return error._replace(message=f"{message} {_VISIT}"), ()
    message = f"Rate limit reached for {where}, Used {rejection.used}, Requested {rejection.requested}."
    if rejection.seconds is None:
        return error._replace(message=f"{message} {_VISIT}"), ()
    # OpenAI writes the delay three times: in two headers and in the message.
    again = f"{message} Please try again in {_duration(rejection.seconds)}. {_VISIT}"
    milliseconds = math.ceil(rejection.seconds * 1000 - _SLACK)
    headers = (("retry-after-ms", str(milliseconds)), ("retry-after", str(math.ceil(milliseconds / 1000))))
    return error._replace(message=again), headers


def _duration(seconds: float) -> str:
    """Write a duration as OpenAI does: 174ms, 6.596s, 1m30s, 1h12m0s."""
    milliseconds = math.ceil(seconds * 1000 - _SLACK)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    written = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{written}{rest / 1000:g}s"


_VISIT = "Visit https://platform.openai.com/account/rate-limits to learn more."
_SMALLER = "The input or output tokens must be reduced in order to run successfully."
_CONCURRENCY = "Rate limit reached for {model} in organization org-XXXX on concurrent requests: Limit {limit}. Please try again later."
# A sum of floats may lie a little above a whole number, and rounding up would add one.
_SLACK = 1e-6


def _xai_limited(rejection: LimitReason, model: str) -> tuple[ErrorReply, Headers]:
    used = f"{rejection.used + rejection.requested}/{rejection.limit}"
    unit = {"requests": "Requests per Minute", "tokens": "Tokens per Minute", "concurrency": "Concurrent Requests"}
    message = f"Too many requests for team 00000000-0000-0000-0000-000000000000 and model {model}. Your team's rate limit is — {unit[rejection.kind]} (actual/limit): {used}."
    return _XAI_ERRORS["rate-limit"]._replace(message=message), _limited(rejection, model)[1]


_CREATED = 1_735_689_600
"""The date is fixed, so that replies are the same in every run."""


def _chat_prompt(request: Request) -> RequestContent:
    messages = request.list_of("messages")
    texts = [text_of(each.get("content")) for each in messages if each.get("role") == "user"]
    last = messages[-1] if messages else {}
    # Other kinds of tools, such as custom tools, have no schema to make arguments from.
    offered = [tool["function"] for tool in request.list_of("tools") if isinstance(tool.get("function"), dict)]
    tools, calls = _choose(request.document.get("tool_choice"), offered)
    return RequestContent(
        text=texts[-1] if texts else "",
        result=text_of(last.get("content")) if last.get("role") == "tool" else None,
        turns=sum(each.get("role") == "assistant" for each in messages),
        tools=tools,
        calls=calls,
        schema=_schema(request.dict_of("response_format")),
        tokens=len(request.body) // 4,
        limit=request.document.get("max_completion_tokens", request.document.get("max_tokens")),
    )


def _choose(choice: Any, offered: list[dict[str, Any]]) -> tuple[tuple[OfferedTool, ...], Calls]:
    """Return the tools that may be called, and whether one must be. Both protocols write the choice almost alike."""
    tools = tuple(OfferedTool(str(tool.get("name", "")), tool.get("parameters") or {}) for tool in offered)
    if not isinstance(choice, dict):
        return tools, "must" if choice == "required" else "never" if choice == "none" else "may"
    # Chat Completions has the names one level deeper than Responses.
    inner = choice.get("function") or choice.get("allowed_tools") or choice
    if not isinstance(inner, dict):
        return tools, "may"
    if choice.get("type") == "allowed_tools":
        allowed = inner.get("tools")
        listed = [each.get("function", each) for each in allowed if isinstance(each, dict)] if isinstance(allowed, list) else []  # fmt: skip
        names = [each.get("name") for each in listed if isinstance(each, dict)]
        return only(tools, names), "must" if inner.get("mode") == "required" else "may"
    named = only(tools, [inner.get("name")])
    return (named, "must") if named else (tools, "may")


def _schema(form: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of a response format. JSON without a schema is an object."""
    if form.get("type") == "json_object":
        return {}
    inner = form.get("json_schema") or form
    schema = inner.get("schema") if form.get("type") == "json_schema" and isinstance(inner, dict) else None
    return schema if isinstance(schema, dict) else None


def _shell(request: Request, number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number:024d}", "object": kind, "created": _CREATED, "model": request.model}


def _chat_usage(reply: ReplyContent) -> dict[str, int]:
    prompt, completion = reply.input_tokens, reply.output_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _finish_reason(reply: ReplyContent) -> str:
    if reply.is_cut:
        return "length"
    return "tool_calls" if reply.calls else "stop"


def _call_id(call: WrittenCall, number: int) -> str:
    return f"call_{number:024d}{call.suffix}"


def _call(call: WrittenCall, number: int, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"id": _call_id(call, number), "type": "function", "function": function}


def _chat_whole(reply: ReplyContent, request: Request, number: int) -> dict[str, Any]:
    content = reply.text if reply.has_text else None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [_call(call, number, call.arguments) for call in reply.calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
    return {**_shell(request, number, "chat.completion"), "choices": [choice], "usage": _chat_usage(reply)}


def _chat_frames(reply: ReplyContent, request: Request, number: int) -> list[SseFrame]:
    shell = _shell(request, number, "chat.completion.chunk")

    def chunk(part: Part, delta: dict[str, Any], finish_reason: str | None = None) -> SseFrame:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return SseFrame(part, data_frame({**shell, "choices": [choice]}))

    first: dict[str, Any] = {"role": "assistant", "content": "" if reply.has_text else None}
    frames = [chunk(Part.TEXT, {"content": piece}) for piece in reply.pieces]
    for index, call in enumerate(reply.calls):
        began = {"tool_calls": [{"index": index, **_call(call, number, "")}]}
        # A call that is the first part of the answer begins in the first chunk.
        if index == 0 and not reply.has_text:
            first |= began
        else:
            frames.append(chunk(Part.BETWEEN, began))
        deltas = [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in call.pieces]
        frames += [chunk(Part.TOOL, delta) for delta in deltas]
    frames = [chunk(Part.OPENING, first), *frames, chunk(Part.CLOSING, {}, _finish_reason(reply))]
    # OpenAI sends usage only if the request wants it.
    if _wants_usage(request):
        frames.append(SseFrame(Part.CLOSING, data_frame({**shell, "choices": [], "usage": _chat_usage(reply)})))
    # This marker ends the stream. A stream that ends without it was cut.
    return [*frames, SseFrame(Part.CLOSING, b"data: [DONE]\n\n")]


def _wants_usage(request: Request) -> bool:
    options = request.document.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _chat_error_frame(error: ErrorReply, _sequence: int) -> bytes:
    return data_frame(_error(error))


OPENAI_CHAT = ProviderDialect(
    name="openai-chat",
    prompt=_chat_prompt,
    whole=_chat_whole,
    frames=_chat_frames,
    errors=_ERRORS,
    error=_error,
    error_frame=_chat_error_frame,
    limits=_limits,
    limited=_limited,
    request_id="x-request-id",
    mistake=chat_mistake,
)
XAI_CHAT = OPENAI_CHAT._replace(name="xai-chat", errors=_XAI_ERRORS, error=_xai_error, limited=_xai_limited)


def _azure_limited(rejection: LimitReason, _model: str) -> tuple[ErrorReply, Headers]:
    what = "token" if rejection.kind == "tokens" else "call"
    message = f"Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded {what} rate limit of your current OpenAI S0 pricing tier."
    error = ErrorReply(429, "", "429", message)
    if rejection.seconds is None:
        return error, ()
    milliseconds = math.ceil(rejection.seconds * 1000 - _SLACK)
    seconds = math.ceil(milliseconds / 1000)
    again = f"{message} Please retry after {seconds} seconds."
    headers = (("x-ms-retry-after-ms", str(milliseconds)), ("retry-after", str(seconds)))
    return error._replace(message=again), headers


AZURE_CHAT = OPENAI_CHAT._replace(name="azure-chat", limited=_azure_limited)


def _responses_prompt(request: Request) -> RequestContent:
    given = request.document.get("input")
    items = request.list_of("input")
    texts = [given] if isinstance(given, str) else [text_of(each.get("content")) for each in items if each.get("role") == "user"]  # fmt: skip
    last = items[-1] if items else {}
    # Tools without a name run at the provider, such as a web search.
    offered = [tool for tool in request.list_of("tools") if tool.get("type", "function") == "function"]
    tools, calls = _choose(request.document.get("tool_choice"), offered)
    result = last.get("output") if last.get("type") == "function_call_output" else None
    return RequestContent(
        text=texts[-1] if texts else "",
        result=None if result is None else text_of(result),
        turns=_turns(items),
        tools=tools,
        calls=calls,
        schema=_schema(form if isinstance(form := request.dict_of("text").get("format"), dict) else {}),
        tokens=len(request.body) // 4,
        limit=request.document.get("max_output_tokens"),
    )


def _turns(items: list[dict[str, Any]]) -> int:
    """Count the assistant's turns. A turn may be several items, and its calls may stand apart, each before its own result."""
    turns, inside = 0, False
    answers: set[str] = set()
    for item in items:
        is_call = item.get("type") == "function_call"
        if is_call or item.get("role") == "assistant":
            # The calls of one answer have one id, and a suffix that differs.
            answer = "_".join(str(item.get("call_id")).split("_")[:2]) if is_call else ""
            turns += not inside and answer not in answers
            inside = True
            answers |= {answer} if is_call else set()
        else:
            inside = False
    return turns


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


def _responses_usage(reply: ReplyContent) -> dict[str, Any]:
    return {
        "input_tokens": reply.input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.input_tokens + reply.output_tokens,
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message_item(reply: ReplyContent, number: int, *, done: bool) -> dict[str, Any]:
    status = "completed" if done else "in_progress"
    content = [_part(reply.text)] if done else []
    return {
        "id": f"msg_{number:024d}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def _call_item(call: WrittenCall, number: int, *, done: bool) -> dict[str, Any]:
    return {
        "id": f"fc_{number:024d}{call.suffix}",
        "call_id": _call_id(call, number),
        "type": "function_call",
        "status": "completed" if done else "in_progress",
        "name": call.name,
        "arguments": call.arguments if done else "",
    }


def _items(reply: ReplyContent, number: int, *, done: bool) -> list[dict[str, Any]]:
    message = [_message_item(reply, number, done=done)] if reply.has_text else []
    return [*message, *(_call_item(call, number, done=done) for call in reply.calls)]


def _responses_whole(reply: ReplyContent, request: Request, number: int) -> dict[str, Any]:
    output, usage = _items(reply, number, done=True), _responses_usage(reply)
    if reply.is_cut:
        output[-1]["status"] = "incomplete"
        why = {"reason": "max_output_tokens"}
        return _response(request, number, "incomplete", output=output, usage=usage, incomplete_details=why)
    return _response(request, number, "completed", output=output, usage=usage)


def _responses_frames(reply: ReplyContent, request: Request, number: int) -> list[SseFrame]:
    # The first two events carry the same document, the response without any output.
    begun = _response(request, number, "in_progress")
    events: list[tuple[Part, dict[str, Any]]] = [
        (Part.OPENING, {"type": "response.created", "response": begun}),
        (Part.OPENING, {"type": "response.in_progress", "response": begun}),
    ]
    items = list(zip(_items(reply, number, done=False), _items(reply, number, done=True), strict=True))
    for at, (added, done) in enumerate(items):
        last = Part.CLOSING if at == len(items) - 1 else Part.BETWEEN
        middle = _call_events(done, at, last) if done["type"] == "function_call" else _text_events(done, at, last)
        events += [
            (Part.BETWEEN if at else Part.OPENING, {"type": "response.output_item.added", "output_index": at, "item": added}),
            *middle,
            (last, {"type": "response.output_item.done", "output_index": at, "item": done}),
        ]  # fmt: skip
    whole = _responses_whole(reply, request, number)
    events.append((Part.CLOSING, {"type": f"response.{whole['status']}", "response": whole}))
    return [SseFrame(part, event_frame({**event, "sequence_number": at})) for at, (part, event) in enumerate(events)]


def _call_events(item: dict[str, Any], at: int, last: Part) -> list[tuple[Part, dict[str, Any]]]:
    where = {"item_id": item["id"], "output_index": at}
    kind = "response.function_call_arguments"
    call = WrittenCall(item["name"], item["arguments"], "")
    return [
        *((Part.TOOL, {"type": f"{kind}.delta", **where, "delta": piece}) for piece in call.pieces),
        (last, {"type": f"{kind}.done", **where, "name": call.name, "arguments": call.arguments}),
    ]


def _text_events(item: dict[str, Any], at: int, last: Part) -> list[tuple[Part, dict[str, Any]]]:
    where = {"item_id": item["id"], "output_index": at, "content_index": 0}
    text = item["content"][0]["text"]
    delta = {"type": "response.output_text.delta", **where, "logprobs": []}
    return [
        (Part.OPENING, {"type": "response.content_part.added", **where, "part": _part("")}),
        *((Part.TEXT, {**delta, "delta": piece}) for piece in ReplyContent(text, (), 0).pieces),
        (last, {"type": "response.output_text.done", **where, "text": text, "logprobs": []}),
        (last, {"type": "response.content_part.done", **where, "part": _part(text)}),
    ]


def _responses_error_frame(error: ErrorReply, sequence: int) -> bytes:
    return event_frame({"type": "error", "sequence_number": sequence, **_error(error)})


def _failed(error: ErrorReply, request: Request, number: int) -> dict[str, Any]:
    code = error.code or _FAILED_CODES.get(error.status, "server_error")
    return _response(request, number, "failed", error={"code": code, "message": error.message})


def _failed_frame(error: ErrorReply, request: Request, number: int, sequence: int) -> bytes:
    response = _failed(error, request, number)
    return event_frame({"type": "response.failed", "sequence_number": sequence, "response": response})


_FAILED_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
"""Codes of errors that have none in their body."""


OPENAI_RESPONSES = OPENAI_CHAT._replace(
    name="openai-responses",
    prompt=_responses_prompt,
    whole=_responses_whole,
    frames=_responses_frames,
    error_frame=_responses_error_frame,
    failed=_failed,
    failed_frame=_failed_frame,
    mistake=responses_mistake,
)
XAI_RESPONSES = OPENAI_RESPONSES._replace(
    name="xai-responses", errors=_XAI_ERRORS, error=_xai_error, limited=_xai_limited
)
AZURE_RESPONSES = OPENAI_RESPONSES._replace(name="azure-responses", limited=_azure_limited)
