"""Gemini's protocol. Vertex AI speaks it too, and answers for Anthropic's models with Google's words for limits."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.testing.provider.anthropic import ANTHROPIC
from holdfast.testing.provider.dialect import ErrorReply, Part, ProviderDialect, SseFrame, as_json, errors_of, no_limits
from holdfast.testing.provider.history import gemini_mistake
from holdfast.testing.provider.replies import Calls, OfferedTool, ReplyContent, RequestContent, WrittenCall, only

if TYPE_CHECKING:
    from holdfast.testing.provider.http import Headers, Request
    from holdfast.testing.provider.limits import LimitReason

_RPC = "type.googleapis.com/google.rpc."
_EXHAUSTED = "RESOURCE_EXHAUSTED"
_QUOTA = (
    "You exceeded your current quota, please check your plan and billing details. For more information on this error, head to: "
    "https://ai.google.dev/gemini-api/docs/rate-limits."
)
_KEY_INVALID = {
    "@type": f"{_RPC}ErrorInfo",
    "reason": "API_KEY_INVALID",
    "domain": "googleapis.com",
    "metadata": {"service": "generativelanguage.googleapis.com"},
}


def _violation(quota_id: str, metric: str, limit: int, model: str) -> dict[str, Any]:
    violation = {
        "quotaMetric": f"generativelanguage.googleapis.com/{metric}",
        "quotaId": quota_id,
        "quotaDimensions": {"location": "global", "model": model},
        "quotaValue": str(limit),
    }
    return {"@type": f"{_RPC}QuotaFailure", "violations": [violation]}


_ERRORS = errors_of("gemini")
_ERRORS |= {name: _ERRORS[name]._replace(details=(_KEY_INVALID,)) for name in ("auth", "expired")}
_DAILY = _violation("GenerateRequestsPerDayPerProjectPerModel", "generate_requests_per_model_per_day", 1000, "{model}")
_ERRORS["quota"] = _ERRORS["quota"]._replace(details=(_DAILY,))


def _parts(content: dict[str, Any]) -> list[dict[str, Any]]:
    parts = content.get("parts")
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _text(parts: list[dict[str, Any]]) -> str:
    return " ".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _prompt(request: Request) -> RequestContent:
    contents = request.list_of("contents")
    texts = [text for each in contents if each.get("role", "user") == "user" and (text := _text(_parts(each)))]
    results = [found for part in _parts(contents[-1]) if (found := _field(part, "functionResponse"))] if contents else []  # fmt: skip
    result = _field(results[-1], "response") if results else None
    tools, calls = _tools(request)
    return RequestContent(
        text=texts[-1] if texts else "",
        result=None if not results else result if isinstance(result, str) else msgspec.json.encode(result).decode(),
        turns=sum(each.get("role") == "model" for each in contents),
        tools=tools,
        calls=calls,
        schema=_schema(_field(request.document, "generationConfig")),
        tokens=len(request.body) // 4,
        limit=_field(_field(request.document, "generationConfig"), "maxOutputTokens"),
    )


def _tools(request: Request) -> tuple[tuple[OfferedTool, ...], Calls]:
    listed = [_field(tool, "functionDeclarations") for tool in request.list_of("tools")]
    offered = [each for declared in listed if isinstance(declared, list) for each in declared if isinstance(each, dict)]
    tools = tuple(
        OfferedTool(str(each.get("name", "")), _field(each, "parametersJsonSchema") or each.get("parameters") or {})
        for each in offered
    )
    config = _field(_field(request.document, "toolConfig"), "functionCallingConfig")
    allowed = _field(config, "allowedFunctionNames")
    if isinstance(allowed, list) and allowed:
        tools = only(tools, allowed)
    mode = str(_field(config, "mode") or "AUTO").upper()
    return tools, "must" if mode == "ANY" else "never" if mode == "NONE" else "may"


def _field(document: Any, name: str) -> Any:
    """Return a field. Google's servers read each name in both spellings, and its own SDK mixes them."""
    if not isinstance(document, dict):
        return None
    found = document.get(name)
    return document.get(re.sub(r"(?=[A-Z])", "_", name).lower()) if found is None else found


def _schema(config: Any) -> dict[str, Any] | None:
    schema = _field(config, "responseJsonSchema") or _field(config, "responseSchema")
    if isinstance(schema, dict):
        return schema
    return {} if _field(config, "responseMimeType") == "application/json" else None


def _chunk(request: Request, number: int, parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if "finishReason" in more:
        candidate["finishReason"] = more.pop("finishReason")
    return {"candidates": [candidate], **more, "modelVersion": request.model, "responseId": f"response-{number:024d}"}


def _call_part(call: WrittenCall) -> dict[str, Any]:
    return {"functionCall": {"name": call.name, "args": call.json}}


def _usage(reply: ReplyContent) -> dict[str, Any]:
    sent, made = reply.input_tokens, reply.output_tokens
    return {"promptTokenCount": sent, "candidatesTokenCount": made, "totalTokenCount": sent + made}


def _whole(reply: ReplyContent, request: Request, number: int) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": reply.text}] if reply.has_text else []
    parts += [_call_part(call) for call in reply.calls]
    return _chunk(
        request, number, parts, finishReason="MAX_TOKENS" if reply.is_cut else "STOP", usageMetadata=_usage(reply)
    )


def _chunks(reply: ReplyContent, request: Request, number: int) -> list[tuple[Part, dict[str, Any]]]:
    """Return the chunks of a stream. A function call is never split."""
    middle = [(Part.TEXT, _chunk(request, number, [{"text": piece}])) for piece in reply.pieces]
    middle += [(Part.TOOL, _chunk(request, number, [_call_part(call)])) for call in reply.calls]
    last = _chunk(
        request,
        number,
        [{"text": ""}],
        finishReason="MAX_TOKENS" if reply.is_cut else "STOP",
        usageMetadata=_usage(reply),
    )
    return [*middle, (Part.CLOSING, last)]


def _event(document: Any) -> bytes:
    return b"data: " + as_json(document) + b"\r\n\r\n"


def _frames(reply: ReplyContent, request: Request, number: int) -> list[SseFrame]:
    return [SseFrame(part, _event(chunk)) for part, chunk in _chunks(reply, request, number)]


def _array_frames(reply: ReplyContent, request: Request, number: int) -> list[SseFrame]:
    """Without `alt=sse` a stream is one JSON array that arrives piece by piece."""
    chunks = _chunks(reply, request, number)
    listed = [SseFrame(part, (b",\r\n" if at else b"[") + as_json(chunk)) for at, (part, chunk) in enumerate(chunks)]
    return [*listed, SseFrame(Part.CLOSING, b"\n]\n")]


def _error(error: ErrorReply) -> dict[str, Any]:
    written: dict[str, Any] = {"code": error.status, "message": error.message, "status": error.kind}
    if error.details:
        written["details"] = list(error.details)
    return {"error": written}


def _error_frame(error: ErrorReply, _sequence: int) -> bytes:
    return _event(_error(error))


def _array_error_frame(error: ErrorReply, sequence: int) -> bytes:
    return (b",\r\n" if sequence else b"[") + as_json(_error(error)) + b"\n]\n"


def _hinted(error: ErrorReply, hint: str) -> ErrorReply:
    """Announce a delay as Google does: in the message, and as a detail."""
    retry = {"@type": f"{_RPC}RetryInfo", "retryDelay": hint}
    return error._replace(message=f"{error.message}\nPlease retry in {hint}.", details=(*error.details, retry))


def _limited(rejection: LimitReason, model: str) -> tuple[ErrorReply, Headers]:
    if rejection.kind == "concurrency":
        return _ERRORS["rate-limit"], ()
    metric, quota = {
        "requests": ("generate_requests_per_model", "GenerateRequestsPerMinutePerProjectPerModel"),
        "tokens": ("generate_content_paid_tier_input_token_count", "GenerateContentPaidTierInputTokensPerModelPerMinute"),
    }[rejection.kind]  # fmt: skip
    message = f"{_QUOTA} \n* Quota exceeded for metric: generativelanguage.googleapis.com/{metric}, limit: {rejection.limit}, model: {model}"
    details = (_violation(quota, metric, rejection.limit, model),)
    error = ErrorReply(429, _EXHAUSTED, None, message, details)
    if rejection.seconds is None:
        return error, ()
    return _hinted(error, f"{math.ceil(rejection.seconds * 1000 - 1e-6) / 1000:g}s"), ()


def counted(tokens: int) -> dict[str, Any]:
    """Return the answer to `countTokens`."""
    return {"totalTokens": tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]}


GEMINI = ProviderDialect(
    name="gemini",
    prompt=_prompt,
    whole=_whole,
    frames=_frames,
    errors=_ERRORS,
    error=_error,
    error_frame=_error_frame,
    limits=no_limits,
    limited=_limited,
    request_id="x-goog-request-id",
    hinted=_hinted,
    mistake=gemini_mistake,
)
GEMINI_ARRAY = GEMINI._replace(
    name="gemini-array",
    frames=_array_frames,
    error_frame=_array_error_frame,
    stream_type="application/json; charset=UTF-8",
)


def _vertex_error(error: ErrorReply) -> dict[str, Any]:
    """Write Google's own errors as Google does, and the others as Anthropic does."""
    return _error(error) if error.kind.isupper() else ANTHROPIC.error(error)


def _vertex_limited(rejection: LimitReason, model: str) -> tuple[ErrorReply, Headers]:
    base = f"base model: {model}"
    what = "tokens" if rejection.kind == "tokens" else "requests"
    message = f"Quota exceeded for aiplatform.googleapis.com/online_prediction_{what}_per_minute_per_base_model with {base}. Please submit a quota increase request. https://cloud.google.com/vertex-ai/docs/generative-ai/quotas-genai."
    return ErrorReply(429, _EXHAUSTED, None, message), ()


VERTEX_ANTHROPIC = ANTHROPIC._replace(
    name="vertex-anthropic",
    errors={**ANTHROPIC.errors, "rate-limit": _ERRORS["rate-limit"]},
    error=_vertex_error,
    limits=no_limits,
    limited=_vertex_limited,
)
