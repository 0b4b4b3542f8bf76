"""The parts in which an agent's work arrives: what `stream` yields.

Invariant: the last part of a run that ends well is `Done`. A part is a fact and never changes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from holdfast.agents.reply import AgentReply
from holdfast.faults import Fault

__all__ = [
    "AgentPart",
    "Asking",
    "Compacted",
    "Done",
    "FellBack",
    "Parked",
    "Retrying",
    "Text",
    "ToolCalled",
    "ToolReturned",
]


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", rename="camel"):
    pass


class Text(_Part, frozen=True, kw_only=True, tag="text"):
    """A piece of the answer."""

    text: str


class ToolCalled(_Part, frozen=True, kw_only=True, tag="tool-call"):
    """The model wants a tool run."""

    id: str
    name: str
    arguments: dict[str, Any]


class ToolReturned(_Part, frozen=True, kw_only=True, tag="tool-result"):
    """A tool call has ended, well or not. `content` is what the model gets."""

    id: str
    name: str
    content: str
    is_error: bool = False
    fault: Fault | None = None


class Retrying(_Part, frozen=True, kw_only=True, tag="retrying"):
    """A request or a tool call failed and is made again. `line` is what the live line shows."""

    line: str
    """It counts the attempt that follows: "Retrying... (2/3)" comes with `attempt=1`."""
    attempt: int
    """The attempt that failed, counted from 1."""
    delay: float
    """Seconds until the next attempt."""
    fault: Fault
    """Why the attempt failed."""
    restarts_text: bool = False
    """The pieces of text since the last tool result are void: the answer begins anew."""


class FellBack(_Part, frozen=True, kw_only=True, tag="fell-back", rename={"from_": "from"}):
    """Another model or another agent takes over: `print(part.from_, part.fault.code, part.to)`."""

    from_: str
    """Who failed last: the name of the agent, not of its role, or of the model."""
    to: str
    """Who takes over."""
    fault: Fault | None = None
    """Why the one in `from_` failed."""
    usd: float | None = None
    """What the prompt costs more there than with the first one's warm cache; None: unknown."""


class Compacted(_Part, frozen=True, kw_only=True, tag="compacted"):
    """The conversation was too long for the model and was shortened."""

    before: int
    """Messages before."""
    after: int
    """Messages after."""
    fault: Fault | None = None
    """Why there is no summary of what was left out, if one was wanted."""


class Asking(_Part, frozen=True, kw_only=True, tag="question"):
    """A person is asked. The session's interactors answer, or `session.answer(id, …)`."""

    id: str
    kind: str
    prompt: str
    choices: tuple[str, ...] = ()


class Parked(_Part, frozen=True, kw_only=True, tag="parked"):
    """A usage limit is reached. The run goes on when it ends, also in another process."""

    until: float
    """Wall clock."""
    fault: Fault


class Done(_Part, frozen=True, kw_only=True, tag="done"):
    """The run has ended well."""

    reply: AgentReply


AgentPart: TypeAlias = Text | ToolCalled | ToolReturned | Retrying | FellBack | Compacted | Asking | Parked | Done
