"""Recovery for pydantic-ai: models, tools and durable runs (extra `pydantic-ai`).

    from pydantic_ai import Agent
    from holdfast.pydantic_ai import RecoveringModel, recovering_tool

    agent = Agent(RecoveringModel("anthropic:claude-haiku-4-5"))

    @agent.tool_plain
    @recovering_tool(effect="read")
    def weather(city: str) -> str: …

Pass `FALLBACK_ON` to a `FallbackModel` around recovering models. `for_the_model(error)` turns a failure
into a text that the model may see. `SessionDurability` and `durable` make a run go on after a crash; `StoreHistory` keeps a conversation.
"""

from __future__ import annotations

from holdfast.extras import needs_extra
from holdfast.integrations.recovery_warnings import RecoveryWarning

with needs_extra("holdfast.pydantic_ai", "pydantic-ai-slim", "pydantic-ai"):
    from holdfast.integrations.pydantic_ai import (
        FALLBACK_ON,
        RecoveringModel,
        SessionDurability,
        StoreHistory,
        durable,
        for_the_model,
        recovering_tool,
    )

__all__ = [
    "FALLBACK_ON",
    "RecoveringModel",
    "RecoveryWarning",
    "SessionDurability",
    "StoreHistory",
    "durable",
    "for_the_model",
    "recovering_tool",
]
