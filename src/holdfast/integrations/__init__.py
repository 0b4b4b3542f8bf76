"""Other people's libraries, recovered: one module for each, none of them imported unless it is used.

    anthropic   clients of the Anthropic SDK; openai: clients of the OpenAI SDK
    httpx       transports for httpx and httpx2
    openai_agents  models and providers of the OpenAI Agents SDK
    litellm     LiteLLM's completion, and its Router
    clients     what both SDKs have in common: they come from one generator
    inner       retries that others make below ours, and the warning about them

Integrations never import each other.
"""

from __future__ import annotations
