"""A conversation that was too long for its model, made shorter: by leaving messages out, by a summary, or by a function of the application.

Invariant: what was made is stored with the run. So a run that is repeated goes on with the same messages, whatever became of the earlier ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.agents.conversation import is_valid, shorten, with_summary
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.policies.models.usage import Usage
from holdfast.providers.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Compact", "Compaction", "Summarise", "Summary", "can_compact", "compacted"]

Compact: TypeAlias = "str | Callable[[tuple[Message, ...]], Any] | None"
"""How a conversation that is too long is made shorter: `drop`, `summarise`, a function of the messages, or not at all."""


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the request for a summary."""

    text: str = ""
    """Empty if there is none."""
    fault: Fault | None = None
    """Why there is none."""
    usage: Usage | None = None
    usd: float | None = None
    is_answered: bool = False
    """Whether the model answered, and so whether it was paid for."""


Summarise: TypeAlias = Callable[["Sequence[Message]"], Awaitable[Summary]]


class Compaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation after it was made shorter."""

    messages: tuple[Message, ...]
    prompt: int
    """The place of the request that the run is about; the first message if it was left out."""
    summary: Summary | None = None


def can_compact(compact: Compact, messages: Sequence[Message], prompt: int) -> bool:
    """Whether the conversation can be made shorter."""
    return callable(compact) or (compact is not None and shorten(messages, prompt) is not None)


async def compacted(compact: Compact, messages: Sequence[Message], prompt: int, summarise: Summarise) -> Compaction:
    """Return the conversation made shorter. Raise PROVIDER_CONTEXT_OVERFLOW if it cannot be."""
    summary: Summary | None = None
    if callable(compact):
        kept: Sequence[Message] = await _by_function(compact, messages)
    else:
        shortened = None if compact is None else shorten(messages, prompt)
        if shortened is None:
            raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW", "The conversation cannot be made shorter"))
        kept = shortened.messages
        if compact == "summarise" and shortened.dropped:
            summary = await summarise(shortened.dropped)
            kept = with_summary(shortened, summary.text) if summary.text else kept
    if list(kept) == list(messages):
        # The identical request would fail in the identical way.
        raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW", "compact returned the conversation unchanged"))
    return Compaction(messages=tuple(kept), prompt=_place(messages[prompt], kept), summary=summary)


def _place(prompt: Message, kept: Sequence[Message]) -> int:
    # From the end: earlier runs may have had the same request.
    return next((place for place in range(len(kept) - 1, -1, -1) if kept[place] == prompt), 0)


async def _by_function(compact: Callable[[tuple[Message, ...]], Any], messages: Sequence[Message]) -> list[Message]:
    returned = compact(tuple(messages))
    given = await returned if inspect.isawaitable(returned) else returned
    try:
        kept = msgspec.convert(msgspec.to_builtins(list(given)), list[Message])
    except (TypeError, msgspec.ValidationError) as error:
        raise InvalidError.saying("agent.compact", "a function that returns messages", str(error)) from error
    if not kept or not is_valid(kept):
        raise InvalidError.saying(
            "agent.compact",
            "messages in which each tool call has its result",
            "a conversation in which one has none",
        )
    return kept
