"""The attribute names of our spans: those of one version of OpenTelemetry, and our own where it has no name.

The GenAI conventions are not stable yet. A new version of them changes this module and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ERROR_TYPE",
    "INPUT_TOKENS",
    "OUTPUT_TOKENS",
    "RESPONSE_MODEL",
    "SCHEMA_URL",
    "SEMCONV_VERSION",
    "SESSION_ID",
    "Ours",
    "attributes_of",
]

SEMCONV_VERSION = "1.41.0"
"""The version of the OpenTelemetry semantic conventions whose names are used here."""
SCHEMA_URL = f"https://opentelemetry.io/schemas/{SEMCONV_VERSION}"

ERROR_TYPE = "error.type"
SESSION_ID = "session.id"
RESPONSE_MODEL = "gen_ai.response.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
_OPERATION_NAME = "gen_ai.operation.name"
_PROVIDER_NAME = "gen_ai.provider.name"
_REQUEST_MODEL = "gen_ai.request.model"
_TOOL_NAME = "gen_ai.tool.name"
_AGENT_NAME = "gen_ai.agent.name"

_PROVIDERS = {
    "anthropic": "anthropic",
    "claude": "anthropic",
    "openai": "openai",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "vertex": "gcp.vertex_ai",
    "gemini": "gcp.gemini",
    "cohere": "cohere",
    "deepseek": "deepseek",
    "groq": "groq",
    "mistral": "mistral_ai",
    "perplexity": "perplexity",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
    "grok": "x_ai",
}
"""The conventions' value for each provider, by the name people use. Other names are not reported as a provider."""


class Ours:
    """Attributes of our own."""

    OPERATION = "holdfast.operation"
    OUTCOME = "holdfast.outcome"
    """ok, recovered, degraded, failed, cancelled; unknown if the end was never reported."""
    ATTEMPTS = "holdfast.attempts"
    ATTEMPT = "holdfast.attempt"
    VIA = "holdfast.via"
    WAITED = "holdfast.waited_s"
    TURN = "holdfast.turn"
    STEP = "holdfast.step"
    DEGRADED = "holdfast.degraded"
    REQUEST = "holdfast.request"
    COST = "holdfast.cost_usd"


def attributes_of(operation: str) -> Mapping[str, str]:
    """Return the attributes that an operation's name implies: `tool:bash` is a tool, `claude/opus` a provider and a model."""
    # We must use the name, because events have no fields for the provider and the model.
    kind, colon, name = operation.partition(":")
    known: dict[str, str] = {Ours.OPERATION: operation} if operation else {}
    if colon and kind == "tool":
        known |= {_OPERATION_NAME: "execute_tool", _TOOL_NAME: name}
    elif colon and kind == "agent":
        known |= {_OPERATION_NAME: "invoke_agent", _AGENT_NAME: name}
    elif colon and kind == "model":
        known[_REQUEST_MODEL] = name
    else:
        name, _, model = operation.partition("/")
        if (provider := _PROVIDERS.get(name.lower())) is not None:
            known[_PROVIDER_NAME] = provider
            if model:
                known[_REQUEST_MODEL] = model
    return known
