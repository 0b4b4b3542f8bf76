"""The OpenAI SDK's dialect: its clients, and the events of its two protocols' streams."""

from __future__ import annotations

from typing import Any

from openai import APIError, AsyncOpenAI, OpenAI

from holdfast.integrations.clients.dialect import Dialect, Refused, Used

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
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_CHUNKS = frozenset({"chat.completion.chunk", "text_completion"})


def _opens(event: Any) -> bool:
    kind = getattr(event, "type", None)
    if kind is not None:
        return kind in _OPENING
    return getattr(event, "object", None) in _CHUNKS and not any(_says_something(choice) for choice in event.choices)


def _says_something(choice: Any) -> bool:
    """Whether a choice of a chunk holds more than the role that begins it."""
    if choice.finish_reason is not None:
        return True
    delta = getattr(choice, "delta", None)
    if delta is None:
        return bool(getattr(choice, "text", True))
    # Fields that are not in the SDK's types yet, such as reasoning, count as well.
    said = delta.to_dict() if hasattr(delta, "to_dict") else vars(delta)
    calls = said.pop("tool_calls", None) or ()
    return any(value for field, value in said.items() if field != "role") or any(_has_arguments(call) for call in calls)


def _has_arguments(call: dict[str, Any]) -> bool:
    """Whether a part of a tool call holds more than its name: that alone is an opening, as in the other protocols."""
    function = call.get("function")
    return not isinstance(function, dict) or bool(function.get("arguments"))


def _ends(event: Any) -> bool | None:
    kind = getattr(event, "type", None)
    if isinstance(kind, str) and (kind.startswith("response.") or kind == "error"):
        return kind in _LAST
    if getattr(event, "object", None) in _CHUNKS:
        return any(choice.finish_reason is not None for choice in event.choices)
    return None


def _failure(event: Any, request: Any) -> Exception | None:
    """The Responses protocol tells a failure in an event, which this SDK hands on like any other."""
    kind = getattr(event, "type", None)
    error = event if kind == "error" else getattr(getattr(event, "response", None), "error", None)
    if kind not in ("error", "response.failed") or error is None:
        return None
    body = {"code": getattr(error, "code", None), "message": error.message, "type": getattr(error, "code", None)}
    return APIError(error.message, request=request, body=body)


def _refused(answer: Any, options: Any) -> Refused | None:
    """Every answer with a field for errors says what object it is; an error says nothing but itself.

    A response that failed while it was made is no answer either; one that is only looked at later is.
    """
    named = getattr(answer, "object", None)
    failed = named == "response" and answer.status == "failed" and options.url.endswith("/responses")
    if (named and not failed) or not getattr(answer, "error", None):
        return None
    told = answer.to_dict()["error"]
    return Refused(str(told.get("message") if isinstance(told, dict) else told), told)


def _used(event: Any) -> Used | None:
    """A chunk that tells it, where the caller asked for one, or the last event of a response."""
    teller = getattr(event, "response", event)
    usage = getattr(teller, "usage", None)
    return None if usage is None else Used(getattr(teller, "model", None), usage.to_dict())


OPENAI = Dialect(
    sync=(OpenAI,),
    async_=(AsyncOpenAI,),
    names={"api.openai.com": "openai", "api.x.ai": "xai"},
    opens=_opens,
    ends=_ends,
    failure=_failure,
    refused=_refused,
    error=APIError,
    used=_used,
)
