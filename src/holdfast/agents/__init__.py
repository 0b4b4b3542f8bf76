"""Agents: a model with tools in a loop, command-line agents, functions, and roles with their understudies.

reply, parts   what agents return, at once or in parts
kind           what every kind of agent can do
models         models by name: `model_of("claude-sonnet")`
"""

from __future__ import annotations

from holdfast.agents.kind import AnyAgent
from holdfast.agents.models import model_of, opened
from holdfast.agents.parts import (
    AgentPart,
    Asking,
    Compacted,
    Done,
    FellBack,
    Parked,
    Retrying,
    Text,
    ToolCalled,
    ToolReturned,
)
from holdfast.agents.reply import AgentReply

__all__ = [
    "AgentPart",
    "AgentReply",
    "AnyAgent",
    "Asking",
    "Compacted",
    "Done",
    "FellBack",
    "Parked",
    "Retrying",
    "Text",
    "ToolCalled",
    "ToolReturned",
    "model_of",
    "opened",
]
