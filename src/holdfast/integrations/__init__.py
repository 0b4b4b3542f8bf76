"""Recovery for other libraries. Each library has one module or package, which is imported only when it is used.

    anthropic      clients of the Anthropic SDK; openai: clients of the OpenAI SDK
    claude_agent   `query` of the Claude Agent SDK
    genai_prices   prices of many models, for budgets
    httpx          transports for httpx and httpx2
    langchain      LangChain's chat models, runnables and agents, LangGraph's nodes
    litellm        LiteLLM's completion functions, and its Router
    mcp            MCP sessions
    openai_agents  models and providers of the OpenAI Agents SDK
    pydantic_ai    pydantic-ai's models and tools

They never import each other. They may import every room but the bridge, and share these modules:

    clients            what the Anthropic and the OpenAI SDK have in common
    calls              calls and streams of a framework, whose own control-flow exceptions pass unchanged
    errors             our errors as errors of another library too
    store_log          the log of a framework's conversation or thread, as a session of a store
    recovery_warnings  the warning that other code retries below ours

How a stream recovers is decided in `holdfast.runtime.streams.flow`; an integration adds a dialect. How an operation goes on is
decided in `holdfast.runtime.operation.operation`; an integration adds an adapter.
"""

from __future__ import annotations
