"""The streams of libraries that `recover(…).stream` knows by their items. No library is imported.

A stream of another library passes every item on, and every end counts as complete. That is wrong for two of them: Gemini's
streams end in silence when the connection breaks, and a run of the Claude Agent SDK reports its failure as its last item.
"""

from __future__ import annotations

import sys
from typing import Any

from holdfast import classify
from holdfast.faults import HoldfastError
from holdfast.runtime.streams.flow import StreamDialect, Used

__all__ = ["ANY_STREAM"]


def _recognise(item: Any) -> StreamDialect | None:
    """Return the dialect of the stream that begins with this item; None if it is not known."""
    module = type(item).__module__
    if module.startswith("google.genai"):
        return _GEMINI
    return _CLAUDE_AGENT if module.partition(".")[0] == "claude_agent_sdk" else None


# --- google-genai ---


def _candidates(chunk: Any) -> list[Any]:
    return getattr(chunk, "candidates", None) or []


def _gemini_opens(chunk: Any) -> bool:
    return not _is_blocked(chunk) and not any(_has_content(candidate) for candidate in _candidates(chunk))


def _has_content(candidate: Any) -> bool:
    return bool(candidate.finish_reason or (candidate.content and candidate.content.parts))


def _is_blocked(chunk: Any) -> bool:
    """Return whether the prompt was blocked: such an answer has no candidates, and it is complete."""
    return bool(getattr(getattr(chunk, "prompt_feedback", None), "block_reason", None))


def _gemini_ends(chunk: Any) -> bool | None:
    if not hasattr(chunk, "candidates"):
        return None
    return _is_blocked(chunk) or any(candidate.finish_reason for candidate in _candidates(chunk))


def _gemini_used(chunk: Any) -> Used | None:
    usage = getattr(chunk, "usage_metadata", None)
    if usage is None:
        return None
    cached = usage.cached_content_token_count or 0
    tokens = {
        "input_tokens": max(0, (usage.prompt_token_count or 0) - cached),
        "output_tokens": (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
        "cache_read_input_tokens": cached,
    }
    return Used(chunk.model_version, tokens)


def _is_gemini_call(chunk: Any) -> bool:
    parts = (part for each in _candidates(chunk) if each.content for part in each.content.parts or ())
    return any(getattr(part, "function_call", None) for part in parts)


_GEMINI = StreamDialect(opens=_gemini_opens, ends=_gemini_ends, used=_gemini_used, fragment=_is_gemini_call)


# --- claude-agent-sdk ---

_BEFORE_CONTENT = frozenset({"SystemMessage", "RateLimitEvent", "HookEventMessage", "ConversationResetMessage"})


def _kind(message: Any) -> str:
    return type(message).__name__


def _agent_opens(message: Any) -> bool:
    # A request that failed for good arrives as a message of the assistant too. The result after it has the details.
    return _kind(message) in _BEFORE_CONTENT or bool(_kind(message) == "AssistantMessage" and message.error)


def _agent_ends(message: Any) -> bool:
    return _kind(message) == "ResultMessage"


def _agent_failure(message: Any, source: Any) -> Exception | None:  # noqa: ARG001 - a dialect's signature
    """Return the exception that the SDK would raise after the consumer has taken the result for an answer."""
    if _kind(message) != "ResultMessage" or not message.is_error:
        return None
    status = getattr(message, "api_error_status", None)
    errors = getattr(message, "errors", None) or []
    text = str(message.result or "; ".join(map(str, errors)) or message.subtype)
    own = getattr(sys.modules.get("claude_agent_sdk"), "ResultError", None)
    if own is None:
        return HoldfastError(
            classify.from_text(text) if status is None else classify.from_http(status, {}, text, provider="anthropic")
        )
    error: Exception = own(f"Claude Code returned an error result: {text}", data=dict(vars(message)))
    if status is not None:
        # The classifier reads this attribute of every exception.
        error.status_code = status  # type: ignore[attr-defined]
    return error


def _runs_a_tool(message: Any) -> bool:
    blocks = getattr(message, "content", None)
    return isinstance(blocks, list) and any(
        _kind(block).endswith(("ToolUseBlock", "ToolResultBlock")) for block in blocks
    )


_CLAUDE_AGENT = StreamDialect(
    opens=_agent_opens,
    ends=_agent_ends,
    failure=_agent_failure,
    raises_failures=True,
    fragment=_runs_a_tool,
)


ANY_STREAM = StreamDialect(recognise=_recognise)
"""The dialect of a stream that nothing is known about yet. Its first item may show what it is."""
