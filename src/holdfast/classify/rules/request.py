"""A request the provider will not take: its history, its tools, a feature the model lacks, a file it cannot fetch."""

from __future__ import annotations

from holdfast.classify.evidence import Evidence, Verdict, says

_HISTORY = (
    "tool_use' ids were found without", "tool_result' block", "unexpected 'tool_use_id'", "must be followed by tool messages", "tool_call_ids did not have",
    "no tool output found", "no tool call found", "insufficient tool messages", "roles must alternate", "should alternate with", "must alternate",
    "without its required following item", "without its required", "thought signature", "thought_signature", "signature in thinking block",
    "thinking' or 'redacted_thinking", "thinking blocks", "invalid 'signature'", "function response parts", "function call turn comes immediately",
    "role 'tool' must be a response", "preceding message with 'tool_calls'", "final assistant content", "last message", "first message",
    "at least one message", "messages: text content blocks must be non-empty", "content field is required", "all messages must have non-empty content",
    "reasoning_content", "expected last role", "unexpected role", "conversation must start", "does not support assistant message prefill",
    "tool call id", "tool_call_id", "encrypted content", "duplicate item", "multiple 'tool_result'", "toolresult blocks", "tooluse blocks",
    "expected toolresult", "must end with a user message", "ensure that function call", "missing corresponding",
)  # fmt: skip
_SCHEMA = (
    "invalid schema for function", "invalid schema for response_format", "invalid function name", "input_schema", "function_declarations", "tools[",
    "json schema is invalid", "invalid tool", "tools.", "tool schema", "function parameters", "unsupported schema", "schema is too complex",
    "too many states for serving", "is not a valid tool name", "tool names must be unique", "invalid 'tools", "toolconfig",
)  # fmt: skip
_TOOLS_MISSING = ("does not support tools", "doesn't support tools", "does not support tool", "doesn't support tool", "does not support function",
                  "tool use is not supported", "tool calling is not supported", "support tool use", "tools are not supported",
                  "function calling is not supported", "'tool_choice' is not supported", "enable-auto-tool-choice")  # fmt: skip
_STREAMING = ("streaming is required", "streaming is strongly recommended", "only support stream mode", "only supports streaming", "stream must be set to true",
              "streaming is not supported", "does not support streaming", "verified to stream", "must be set to stream")  # fmt: skip
_CAPABILITY = (
    "does not support", "doesn't support", "not supported", "unsupported", "isn't supported", "is not available for this", "not yet available",
    "must be verified", "not compatible", "is incompatible", "not enabled for", "no endpoints found that support", "not_supported", "cannot be used with",
    "not allowed with this model", "isn't available", "does not exist for this model", "not multimodal", "is not a multimodal", "not implemented", "does not work with",
)  # fmt: skip
_FETCH = ("while downloading", "failed to download", "unable to download", "cannot fetch content", "could not fetch", "failed to fetch image",
          "error downloading", "url_roboted", "unable to fetch", "failed to retrieve", "unable to access the url", "could not download")  # fmt: skip


def remote_fetch(evidence: Evidence) -> Verdict | None:
    """A URL of the request: a timeout while fetching passes, a refusal does not."""
    if ("download" in evidence.text or "fetch" in evidence.text or "url" in evidence.text) and says(evidence.text, _FETCH):
        passing = says(evidence.text, ("timeout", "timed out"))
        return Verdict(code="PROVIDER_REMOTE_FETCH_FAILED", retryable=passing) if not passing else Verdict(code="PROVIDER_TIMEOUT")
    return None


def history(evidence: Evidence) -> Verdict | None:
    """Tool calls without results, roles out of order, changed signatures."""
    if says(evidence.text, _HISTORY):
        return Verdict(code="PROVIDER_HISTORY_INVALID")
    return None


def missing_tools(evidence: Evidence) -> Verdict | None:
    """The model cannot call tools."""
    if "tool" in evidence.text or "function" in evidence.text:
        if says(evidence.text, _TOOLS_MISSING):
            return Verdict(code="PROVIDER_MISSING_TOOL_CALLING")
    return None


def streaming(evidence: Evidence) -> Verdict | None:
    """The call must be streamed, or must not."""
    if "stream" in evidence.text and says(evidence.text, _STREAMING):
        return Verdict(code="PROVIDER_MISSING_STREAMING")
    return None


def tool_schema(evidence: Evidence) -> Verdict | None:
    """A tool's schema the provider does not take."""
    if ("schema" in evidence.text or "tool" in evidence.text or "function" in evidence.text) and says(evidence.text, _SCHEMA):
        return Verdict(code="PROVIDER_TOOL_SCHEMA_INVALID")
    return None


def output_check(evidence: Evidence) -> Verdict | None:
    """The model's own output failed the provider's check: sampling again helps."""
    if says(evidence.text, ("model did not call a tool", "failed to call a function", "failed to generate json", "failed to validate json",
                            "failed_generation", "failed to parse tool call", "attempted to call tool", "not in request.tools")):  # fmt: skip
        return Verdict(code="PROVIDER_OUTPUT_INVALID")
    return None


def missing_capability(evidence: Evidence) -> Verdict | None:
    """A parameter, a modality, a mode the model or account does not have."""
    refused = evidence.status is None or 400 <= evidence.status < 500 or evidence.status == 501
    if refused and evidence.raised is None and says(evidence.text, _CAPABILITY):
        return Verdict(code="PROVIDER_CAPABILITY_MISSING")
    return None


EARLY = (remote_fetch, history, output_check)
LATE = (missing_tools, streaming, tool_schema, missing_capability)
