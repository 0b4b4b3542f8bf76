"""What a repair did, and what is known of a call that has no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

What: TypeAlias = Literal[
    "result-added",
    "result-moved",
    "result-dropped",
    "call-dropped",
    "call-moved",
    "id-changed",
    "messages-merged",
    "message-added",
    "message-dropped",
    "block-added",
    "block-changed",
    "block-dropped",
]
"""What was changed."""

Outcome: TypeAlias = Literal["interrupted", "unknown", "not-run"]
"""What became of a call that has no result.

interrupted   it was under way when the work stopped; it may have done a part of its work
unknown       it was started, and nobody knows whether it ended
not-run       it was never started, so it has no effect
"""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """One change of a repair: `Change(what="result-added", where=3, id="toolu_1", why="the call has no result")`."""

    what: What
    where: int
    """The index of the message in the history that was given. For an addition: of the message that made it necessary."""
    why: str
    id: str = ""
    """The id of the tool call, if the change concerns one."""
    removed: Any = None
    """What was taken out: a message, a block, a part or a call."""


class OpenCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that has no result."""

    id: str
    name: str
    arguments: Any
    """As the history has them: a dict, or text with JSON."""
    where: int
    """The index of its message in the history that was given."""


OutcomeOf: TypeAlias = Callable[[OpenCall], Outcome]
"""A function that knows more about a call: it may look into a journal, or at the tool's effect."""


class _Shown(msgspec.Struct, frozen=True):
    """What a model reads: the same shape as `fault.for_model()`."""

    failure_class: str
    code: str
    fault: str
    message: str
    retryable: bool
    advice: str


_CHECK = "Find out what it did before you call it again. If you cannot, tell the user."

OUTCOMES: dict[Outcome, _Shown] = {
    "interrupted": _Shown(
        "Cancellation",
        "ToolCancelled",
        "TOOL_CANCELLED",
        "The call was interrupted and has no result. It may have done a part of its work.",
        retryable=False,
        advice=_CHECK,
    ),
    "unknown": _Shown(
        "ToolTransient",
        "ExecutionTimeout",
        "TOOL_OUTCOME_UNKNOWN",
        "The call was started and its end was not recorded. It may have done its work.",
        retryable=False,
        advice=_CHECK,
    ),
    "not-run": _Shown(
        "Cancellation",
        "ToolCancelled",
        "TOOL_CANCELLED",
        "The call was not run. It had no effect.",
        retryable=True,
        advice="Call it again if it is still needed.",
    ),
}


def result_text(outcome: Outcome, tool: str) -> str:
    """Return the text that stands in place of a missing result: JSON that a model can act on."""
    shown = OUTCOMES[outcome]
    context = {
        "fault": shown.fault,
        "outcome": outcome,
        "tool": tool,
        "message": shown.message,
        "retryable": shown.retryable,
        "advice": shown.advice,
    }
    return msgspec.json.encode({"class": shown.failure_class, "code": shown.code, "context": context}).decode()
