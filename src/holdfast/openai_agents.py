"""Models and providers with recovery, for the OpenAI Agents SDK (extra `openai-agents`).

    from agents import Agent, OpenAIProvider, RunConfig, Runner
    from holdfast.openai_agents import recovering

    config = RunConfig(model_provider=recovering(OpenAIProvider()))
    await Runner.run(Agent(name="Helper"), "hello", run_config=config)

`StoreSession("customer-7", store)` keeps a conversation in SQLite or PostgreSQL. The models and providers that you pass are not changed.
"""

from __future__ import annotations

from holdfast.extras import needs_extra

with needs_extra("holdfast.openai_agents", "openai-agents", "openai-agents"):
    from holdfast.integrations.openai_agents import RecoveryWarning, StoreSession, recovering, tool_failure

__all__ = ["RecoveryWarning", "StoreSession", "recovering", "tool_failure"]
