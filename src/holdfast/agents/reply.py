"""What an agent returns, whatever kind of agent it is."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.policies.models.usage import Usage
from holdfast.providers.messages import Message
from holdfast.sessions.stored_types import storable

__all__ = ["AgentReply"]


@storable
class AgentReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The answer of an agent, and what it took: `reply.text`, `reply.data`, `reply.usd`."""

    text: str = ""
    data: Any = None
    """The answer as a value of `output`, if the agent has one."""
    turns: int = 0
    """The answers of the model that it took."""
    tool_calls: int = 0
    """The tool calls that were made."""
    usage: Usage | None = None
    """The tokens of the whole run; None: unknown."""
    usd: float | None = None
    """What the whole run cost; None: unknown."""
    model: str = ""
    """The model that gave the last answer."""
    session: str = ""
    """The id to go on with: of the session, or of a command-line agent's own conversation."""
    messages: tuple[Message, ...] = ()
    """What was sent and answered in this run, from the prompt to the answer; empty for command-line agents."""
    agent: str = ""
    """The agent that answered. It is another one than was called if that one's understudy answered."""
