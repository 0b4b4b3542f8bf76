"""Models for our own agents, with types that are the same for all providers. Users of an SDK keep the SDK's own types.

    messages    what agents send and get: messages, tool calls and results, `Request`, `Reply`
    model       `Model`, what an agent needs; `RecoveringModel`, whose exchanges recover; `choose`, a model by its name
    replies     what the adapters share to make a `Reply` from a response
    anthropic   the adapter for Messages; openai: for Responses; xai: for Chat Completions
    offers      what well-known models can do
    chain       several models, one after the other
    cached      the same answer to the same request, from memory

Whether a model can do what a request needs is decided in `holdfast.policies.models.capabilities`. The adapters import their
SDKs, so import only the adapter that you use. The adapters never import each other.
"""

from __future__ import annotations

from holdfast.policies.models.capabilities import Needs, Offers
from holdfast.providers.cached import CachedModel
from holdfast.providers.chain import ModelChain
from holdfast.providers.messages import Assistant, File, Part, Reply, Request, ToolCall, ToolResult, ToolSpec, User
from holdfast.providers.model import Model, RecoveringModel, Wire, choose

__all__ = [
    "Assistant",
    "CachedModel",
    "File",
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
