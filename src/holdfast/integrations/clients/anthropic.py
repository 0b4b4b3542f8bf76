"""The Anthropic SDK's dialect: its clients, and the events of its streams."""

from __future__ import annotations

from typing import Any

from anthropic import (
    Anthropic,
    AnthropicBedrock,
    AnthropicVertex,
    APIError,
    AsyncAnthropic,
    AsyncAnthropicBedrock,
    AsyncAnthropicVertex,
)

from holdfast.integrations.clients.dialect import Dialect, Refused, Used

__all__ = ["ANTHROPIC"]

_OPENING = frozenset({"message_start", "content_block_start", "ping"})
_MESSAGE = frozenset(
    {*_OPENING, "content_block_delta", "content_block_stop", "message_delta", "message_stop"},
)


def _opens(event: Any) -> bool:
    return getattr(event, "type", None) in _OPENING


def _ends(event: Any) -> bool | None:
    kind = getattr(event, "type", None)
    return kind == "message_stop" if kind in _MESSAGE else None


def _no_failure(event: Any, request: Any) -> None:  # noqa: ARG001 - this SDK raises for every failure in a stream
    return None


def _refused(answer: Any, options: Any) -> Refused | None:  # noqa: ARG001 - an error says so, whatever was asked
    if getattr(answer, "type", None) != "error":
        return None
    body = answer.to_dict()
    error = body.get("error")
    return Refused(str(error.get("message") if isinstance(error, dict) else error), body)


def _used(event: Any) -> Used | None:
    """The start tells the model and what was read, each later change of the message what was written so far."""
    kind = getattr(event, "type", None)
    if kind == "message_start":
        return Used(event.message.model, event.message.usage.to_dict())
    return Used(None, event.usage.to_dict()) if kind == "message_delta" else None


ANTHROPIC = Dialect(
    sync=(Anthropic, AnthropicBedrock, AnthropicVertex),
    async_=(AsyncAnthropic, AsyncAnthropicBedrock, AsyncAnthropicVertex),
    names={"api.anthropic.com": "anthropic"},
    opens=_opens,
    ends=_ends,
    failure=_no_failure,
    refused=_refused,
    error=APIError,
    used=_used,
)
