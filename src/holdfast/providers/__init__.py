"""Models for our own agents, in words that are no provider's. Private: users keep their SDK's own types.

    words       what is asked and answered: messages, tool calls and results, `Request`, `Reply`
    model       `Model`, what an agent needs of one; `RecoveringModel`, which asks what it can do, then recovers each exchange
    reading     what the adapters share in reading answers: tool arguments, JSON, errors inside good answers
    anthropic   Messages; openai: Responses; xai: Chat Completions
    known       what well-known models can do
    choosing    the configured models, and who would do instead
    chain       several models, one after the other; cached: the same answer to the same request

The negotiation itself is `holdfast.policies.models.capabilities`: values in, a decision out. The adapters import their SDKs, so
they are imported by name, and never import each other.
"""

from __future__ import annotations

from holdfast.policies.models.capabilities import Needs, Offers
from holdfast.providers.cached import CachedModel
from holdfast.providers.chain import ModelChain
from holdfast.providers.choosing import choose
from holdfast.providers.model import Model, RecoveringModel, Wire
from holdfast.providers.words import Assistant, Part, Reply, Request, ToolCall, ToolResult, ToolSpec, User

__all__ = [
    "Assistant",
    "CachedModel",
    "Model",
    "ModelChain",
    "Needs",
    "Offers",
    "Part",
    "RecoveringModel",
    "Reply",
    "Request",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "User",
    "Wire",
    "choose",
]
