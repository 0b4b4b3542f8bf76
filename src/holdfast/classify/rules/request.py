"""A request the provider will not take: its history, its tools, a feature the model lacks, a file it cannot fetch."""

from __future__ import annotations

from holdfast.classify.evidence import Evidence, Verdict, asked_when
from holdfast.classify.phrases import phrases

_HISTORY = phrases("""
    tool_use' ids were found without | tool_result' block | unexpected 'tool_use_id'
    must be followed by tool messages | tool_call_ids did not have | no tool output found | no tool call found
    insufficient tool messages | roles must alternate | should alternate with | must alternate
    without its required following item | without its required | thought signature | thought_signature
    signature in thinking block | thinking' or 'redacted_thinking | thinking blocks | invalid 'signature'
    function response parts | function call turn comes immediately | role 'tool' must be a response
    preceding message with 'tool_calls' | final assistant content | last message must | last message role | first message must
    at least one message | messages: text content blocks must be non-empty | content field is required
    all messages must have non-empty content | reasoning_content | expected last role | unexpected role
    conversation must start | does not support assistant message prefill | tool call id | tool_call_id
    encrypted content | duplicate item | multiple 'tool_result' | toolresult blocks | tooluse blocks
    expected toolresult | must end with a user message | ensure that function call | missing corresponding
""")
_SCHEMA = phrases("""
    invalid schema for function | invalid schema for response_format | invalid function name | input_schema
    function_declarations | tools[ | json schema is invalid | invalid tool | tools. | tool schema
    function parameters | unsupported schema | schema is too complex | too many states for serving
    is not a valid tool name | tool names must be unique | invalid 'tools | toolconfig
""")
_TOOLS_MISSING = phrases("""
    does not support tools | doesn't support tools | does not support tool | doesn't support tool
    does not support function | tool use is not supported | tool calling is not supported | support tool use
    tools are not supported | function calling is not supported | 'tool_choice' is not supported
    enable-auto-tool-choice
""")
_STREAMING = phrases("""
    streaming is required | streaming is strongly recommended | only support stream mode | only supports streaming
    stream must be set to true | streaming is not supported | does not support streaming | verified to stream
    must be set to stream
""")
_CAPABILITY = phrases("""
    does not support | doesn't support | not supported | unsupported | isn't supported | is not available for this
    not yet available | must be verified | not compatible | is incompatible | not enabled for
    no endpoints found that support | not_supported | cannot be used with | not allowed with this model
    isn't available | does not exist for this model | not multimodal | is not a multimodal | not implemented
    does not work with
""")
_FETCH = phrases("""
    while downloading | failed to download | unable to download | cannot fetch content | could not fetch
    failed to fetch image | error downloading | url_roboted | unable to fetch | failed to retrieve
    unable to access the url | could not download
""")

_IN_TIME = phrases("timeout", "timed out")
_BAD_OUTPUT = phrases("""
    model did not call a tool | failed to call a function | failed to generate json | failed to validate json
    failed_generation | failed to parse tool call | attempted to call tool | not in request.tools
""")


@asked_when(_FETCH)
def remote_fetch(evidence: Evidence) -> Verdict | None:
    """A URL of the request: a timeout while fetching passes, a refusal does not."""
    return Verdict(code="PROVIDER_TIMEOUT" if evidence.hears(_IN_TIME) else "PROVIDER_REMOTE_FETCH_FAILED")


@asked_when(_HISTORY, refusal=True, limit=True)
def history(_: Evidence) -> Verdict | None:
    """Tool calls without results, roles out of order, changed signatures."""
    return Verdict(code="PROVIDER_HISTORY_INVALID")


@asked_when(_TOOLS_MISSING, refusal=True)
def missing_tools(_: Evidence) -> Verdict | None:
    """The model cannot call tools."""
    return Verdict(code="PROVIDER_MISSING_TOOL_CALLING")


@asked_when(_STREAMING, refusal=True)
def streaming(_: Evidence) -> Verdict | None:
    """The call must be streamed, or must not."""
    return Verdict(code="PROVIDER_MISSING_STREAMING")


@asked_when(_SCHEMA, refusal=True)
def tool_schema(_: Evidence) -> Verdict | None:
    """A tool's schema the provider does not take."""
    return Verdict(code="PROVIDER_TOOL_SCHEMA_INVALID")


@asked_when(_BAD_OUTPUT)
def output_check(_: Evidence) -> Verdict | None:
    """The model's own output failed the provider's check: sampling again helps."""
    return Verdict(code="PROVIDER_OUTPUT_INVALID")


@asked_when(_CAPABILITY, refusal=True)
def missing_capability(evidence: Evidence) -> Verdict | None:
    """A parameter, a modality, a mode the model or account does not have."""
    refused = evidence.status is None or 400 <= evidence.status < 500 or evidence.status == 501
    return Verdict(code="PROVIDER_CAPABILITY_MISSING") if refused and evidence.raised is None else None


EARLY = (remote_fetch, history, output_check)
LATE = (missing_tools, streaming, tool_schema, missing_capability)
