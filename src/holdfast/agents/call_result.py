"""`CallResult`: what became of a tool call, as the model gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.faults import Fault
from holdfast.policies.models.usage import Usage

if TYPE_CHECKING:
    from holdfast.tools.toolbox import Answer

__all__ = ["CallResult"]


class CallResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a tool call: what the model gets, and what it cost if the tool was an agent."""

    id: str = ""
    """The id of the call."""
    name: str = ""
    """The name of the tool."""
    content: str
    """What the model gets: the result, or the typed shape of the failure."""
    is_error: bool = False
    fault: Fault | None = None
    """Why it failed; None if it did not."""
    usage: Usage | None = None
    usd: float | None = None
    is_agent: bool = False

    @classmethod
    def of(cls, answer: Answer) -> CallResult:
        """Return an answer of a toolbox as the result of a call."""
        return cls(content=answer.content, is_error=answer.is_error, fault=answer.fault)
