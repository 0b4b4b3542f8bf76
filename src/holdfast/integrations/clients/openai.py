"""The OpenAI SDK: its clients, and the events of its two protocols' streams."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from openai import APIConnectionError, APIError, APITimeoutError, AsyncOpenAI, OpenAI, RateLimitError

from holdfast.integrations.clients.sdk import ErrorInResponse, Sdk, reread, wire_text
from holdfast.policies.models.quote import text_tokens, tokens_of
from holdfast.runtime.streams.flow import Opening, StreamDialect, Used

__all__ = ["OPENAI"]

_OPENING = frozenset(
    {
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    }
)
_OWN_ITEMS = frozenset({"message", "reasoning", "function_call", "custom_tool_call"})
"""Items that the model only says. The provider runs the others."""
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_CHUNKS = frozenset({"chat.completion.chunk", "text_completion"})


def _opens(event: Any) -> bool:
    kind = getattr(event, "type", None)
    if kind is not None:
        return kind in _OPENING and not _is_at_work(event)
    return getattr(event, "object", None) in _CHUNKS and not any(_has_content(choice) for choice in event.choices)


def _is_at_work(event: Any) -> bool:
    """Return whether the provider begins to run a tool itself. A second request would run it again."""
    item = getattr(event, "item", None)
    return item is not None and getattr(item, "type", None) not in _OWN_ITEMS


def _has_content(choice: Any) -> bool:
    """Return whether a choice of a chunk holds more than the role that begins it."""
    if choice.finish_reason is not None:
        return True
    delta = getattr(choice, "delta", None)
    if delta is None:
        return bool(getattr(choice, "text", True))
    # Fields that the SDK's types do not have yet, such as reasoning, count as well.
    fields = delta.to_dict() if hasattr(delta, "to_dict") else vars(delta)
    calls = fields.pop("tool_calls", None) or ()
    return any(value for field, value in fields.items() if field != "role") or any(map(_has_arguments, calls))


def _has_arguments(call: dict[str, Any]) -> bool:
    """Return whether a part of a tool call holds more than its name: the name alone is not content yet."""
    function = call.get("function")
    return not isinstance(function, dict) or bool(function.get("arguments"))


def _announces(event: Any) -> Opening | None:
    # A response has an id that callers store, and the SDK's helper raises if it changes. No other response can take its place.
    if getattr(event, "type", None) is not None:
        return None
    names = [f"{choice.index} {_named_in(choice)}" for choice in event.choices]
    return Opening(", ".join(names), binds=any(_calls_in(choice) for choice in event.choices))


def _named_in(choice: Any) -> str:
    role = getattr(getattr(choice, "delta", None), "role", None) or ""
    return f"{role} {[(call.index, call.function and call.function.name) for call in _calls_in(choice)]}"


def _calls_in(choice: Any) -> Sequence[Any]:
    return getattr(getattr(choice, "delta", None), "tool_calls", None) or ()


def _ends(event: Any) -> bool | None:
    kind = getattr(event, "type", None)
    if isinstance(kind, str) and (kind.startswith("response.") or kind == "error"):
        return kind in _LAST
    if getattr(event, "object", None) in _CHUNKS:
        return any(choice.finish_reason is not None for choice in event.choices)
    return None


def _marked(source: Any) -> bool:
    # Many servers that speak this protocol end every stream with `[DONE]` and send no `finish_reason`.
    return getattr(source, "is_done", False)


def _failure(event: Any, source: Any) -> Exception | None:
    # The Responses protocol reports a failure in an event, and this SDK yields it like any other.
    kind = getattr(event, "type", None)
    error = event if kind == "error" else getattr(getattr(event, "response", None), "error", None)
    if kind not in ("error", "response.failed") or error is None:
        return None
    body = {"code": getattr(error, "code", None), "message": error.message, "type": getattr(error, "code", None)}
    request: Any = getattr(getattr(source, "response", None), "request", None)
    return APIError(error.message, request=request, body=body)


def _used(event: Any) -> Used | None:
    # A chunk reports usage only if the request wants it. The last event of a response always reports it.
    report = getattr(event, "response", event)
    usage = getattr(report, "usage", None)
    if usage is None:
        return None
    return Used(
        getattr(report, "model", None), {**usage.to_dict(), "service_tier": getattr(report, "service_tier", None)}
    )


def _said(event: Any) -> int:
    kind = getattr(event, "type", None)
    if kind is not None:
        # The last events of each part repeat it as a whole.
        return text_tokens(event.delta) if isinstance(getattr(event, "delta", None), str) else 0
    return sum(_said_in(choice) for choice in getattr(event, "choices", ()))


def _said_in(choice: Any) -> int:
    delta = getattr(choice, "delta", None)
    if delta is None:
        return text_tokens(getattr(choice, "text", None) or "")
    fields = delta.to_dict() if hasattr(delta, "to_dict") else vars(delta)
    return tokens_of([value for field, value in fields.items() if field != "role"])


def _is_usage_only(event: Any) -> bool:
    """Return whether a chunk holds nothing but the usage. It comes last, and only if the request wants it."""
    return getattr(event, "object", None) in _CHUNKS and not event.choices and getattr(event, "usage", None) is not None


def _with_usage(options: Any, host: str) -> Any | None:
    """Return a request for a stream that also reports its usage, or None if it does already or the service may not know how."""
    body = options.json_data
    if not options.url.endswith("/completions") or not isinstance(body, Mapping):
        return None
    given = body.get("stream_options")
    if not _reports_usage(host) or (given is not None and (not isinstance(given, Mapping) or "include_usage" in given)):
        return None
    options = copy.copy(options)
    options.json_data = {**body, "stream_options": {**(given or {}), "include_usage": True}}
    return options


def _reports_usage(host: str) -> bool:
    return host in ("api.openai.com", "api.x.ai") or host.endswith(".api.openai.com")


def _error_in(response: Any, options: Any) -> ErrorInResponse | None:
    """Return the error that a response contains, or None.

    An answer may have a field for errors too, but only an answer has an `object` field. If the request created a response
    and that response failed, this is an error. If the request only retrieves a failed response, it is an answer.
    """
    named = getattr(response, "object", None)
    failed = named == "response" and response.status == "failed" and options.url.endswith("/responses")
    if (named and not failed) or not getattr(response, "error", None):
        return None
    error = response.to_dict()["error"]
    return ErrorInResponse(str(error.get("message") if isinstance(error, dict) else error), error)


OPENAI = Sdk(
    sync=(OpenAI,),
    async_=(AsyncOpenAI,),
    protocol="openai",
    names={"api.openai.com": "openai", "api.x.ai": "xai"},
    events=StreamDialect(
        opens=_opens,
        announces=_announces,
        ends=_ends,
        marked=_marked,
        failure=_failure,
        used=_used,
        said=_said,
        wire=wire_text,
        reread=reread,
        timeout_is_silence=True,
    ),
    with_usage=_with_usage,
    is_usage_only=_is_usage_only,
    error_in=_error_in,
    error=APIError,
    unreachable=APIConnectionError,
    late=APITimeoutError,
    limited=RateLimitError,
)
