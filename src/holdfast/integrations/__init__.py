"""Other libraries, recovered: one module or package for each. None of them is imported unless it is used.

    anthropic      clients of the Anthropic SDK; openai: clients of the OpenAI SDK
    httpx          transports for httpx and httpx2
    langchain      LangChain's chat models, runnables and agents, LangGraph's nodes
    litellm        LiteLLM's completion functions, and its Router
    openai_agents  models and providers of the OpenAI Agents SDK
    pydantic_ai    pydantic-ai's models and tools

They never import each other. What they share:

    clients            what the Anthropic and the OpenAI SDK have in common
    calls              calls and streams of a framework, whose own exceptions pass
    recovery_warnings  the warning that other code retries below ours

How a stream recovers is decided in `holdfast.runtime.flow`; an integration adds a dialect. How an operation goes on is
decided in `holdfast.runtime.operation`; an integration adds an adapter.
"""

from __future__ import annotations
