"""The Anthropic SDK: its clients, and the events of its streams."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic import (
    Anthropic,
    AnthropicBedrock,
    AnthropicVertex,
    APIConnectionError,
    APIError,
    APITimeoutError,
    AsyncAnthropic,
    AsyncAnthropicBedrock,
    AsyncAnthropicVertex,
    RateLimitError,
)

from holdfast.integrations.clients.sdk import ErrorInResponse, Sdk, reread, wire_text
from holdfast.policies.models.quote import text_tokens
from holdfast.runtime.streams.flow import Opening, StreamDialect, Used

__all__ = ["ANTHROPIC"]

_OPENING = frozenset({"message_start", "content_block_start", "ping"})
_RUN_BY_PROVIDER = frozenset({"server_tool_use", "mcp_tool_use"})
"""Blocks of tools that the provider runs itself. A second request would run them again."""
_MESSAGE = frozenset(
    {*_OPENING, "content_block_delta", "content_block_stop", "message_delta", "message_stop"},
)


def _opens(event: Any) -> bool:
    block = getattr(event, "content_block", None)
    return getattr(event, "type", None) in _OPENING and getattr(block, "type", None) not in _RUN_BY_PROVIDER


def _announces(event: Any) -> Opening:
    if event.type != "content_block_start":
        return Opening(event.type)
    block = event.content_block
    return Opening(f"{event.index} {block.type} {getattr(block, 'name', '')}", binds=True)


def _ends(event: Any) -> bool | None:
    kind = getattr(event, "type", None)
    if kind == "message_delta":
        # The reason to stop is the last thing that a message says. Some servers send no `message_stop` after it.
        return event.delta.stop_reason is not None
    return kind == "message_stop" if kind in _MESSAGE else None


def _used(event: Any) -> Used | None:
    # The start has the model and the input tokens. Each later change of the message has the output tokens so far.
    kind = getattr(event, "type", None)
    if kind == "message_start":
        return Used(event.message.model, event.message.usage.to_dict())
    return Used(None, event.usage.to_dict()) if kind == "message_delta" else None


def _said(event: Any) -> int:
    delta = getattr(event, "delta", None)
    if getattr(event, "type", None) != "content_block_delta" or delta is None:
        return 0
    texts = (getattr(delta, name, None) for name in ("text", "partial_json", "thinking"))
    return sum(text_tokens(text) for text in texts if isinstance(text, str))


def _error_in(response: Any, options: Any) -> ErrorInResponse | None:  # noqa: ARG001 - an error says so by its type
    if getattr(response, "type", None) != "error":
        return None
    body = response.to_dict()
    error = body.get("error")
    return ErrorInResponse(str(error.get("message") if isinstance(error, dict) else error), body)


def _mantle(name: str) -> tuple[type, ...]:
    """Return a client for Bedrock's newer endpoint, which older versions of the SDK do not have."""
    found = getattr(anthropic, name, None)
    return () if found is None else (found,)


ANTHROPIC = Sdk(
    sync=(Anthropic, AnthropicBedrock, AnthropicVertex, *_mantle("AnthropicBedrockMantle")),
    async_=(AsyncAnthropic, AsyncAnthropicBedrock, AsyncAnthropicVertex, *_mantle("AsyncAnthropicBedrockMantle")),
    protocol="anthropic",
    names={"api.anthropic.com": "anthropic"},
    # This SDK raises for every failure in a stream, so no event reports a failure.
    events=StreamDialect(
        opens=_opens,
        announces=_announces,
        ends=_ends,
        used=_used,
        said=_said,
        wire=wire_text,
        reread=reread,
        timeout_is_silence=True,
    ),
    error_in=_error_in,
    error=APIError,
    unreachable=APIConnectionError,
    late=APITimeoutError,
    limited=RateLimitError,
)
