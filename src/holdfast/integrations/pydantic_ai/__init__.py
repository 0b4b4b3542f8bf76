"""Recovery for pydantic-ai.

    model       `RecoveringModel`: a model whose requests recover, streams included
    streams     its streams: recovered until their first content, then watched to the end
    tools       `recovering_tool`: tool functions, repeated as their effect allows
    durability  `SessionDurability`, `durable`: requests and tool calls as steps of a session
    history     `StoreHistory`: a conversation in a store
    exceptions  exceptions that steer pydantic-ai, exceptions for its `FallbackModel`, failures for the model

Invariant: messages for the model (`ModelRetry`, `ToolFailed`) and other control flow are never a failure.
"""

from __future__ import annotations

from holdfast.integrations.pydantic_ai.durability import SessionDurability, durable
from holdfast.integrations.pydantic_ai.exceptions import FALLBACK_ON, for_the_model
from holdfast.integrations.pydantic_ai.history import StoreHistory
from holdfast.integrations.pydantic_ai.model import RecoveringModel
from holdfast.integrations.pydantic_ai.tools import recovering_tool

__all__ = [
    "FALLBACK_ON",
    "RecoveringModel",
    "SessionDurability",
    "StoreHistory",
    "durable",
    "for_the_model",
    "recovering_tool",
]
