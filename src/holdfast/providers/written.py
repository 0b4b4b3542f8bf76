"""Conversations as a provider's protocol has them. Each request repeats the one before, so only its new messages are written.

Invariant: what is returned is what writing all messages would give. Nothing that was returned before is changed.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.providers.messages import Message

_REMEMBERED = 8
"""Conversations that are remembered, of agents that run side by side."""


class _Conversation(NamedTuple):
    messages: tuple[Message, ...]
    turns: list[dict[str, Any]]


class Written:
    """Writes conversations, and remembers the last ones."""

    def __init__(self, add: Callable[[list[dict[str, Any]], Message], None]) -> None:
        self._add = add
        """Adds a message to the turns before it. It may replace the last one, and changes none."""
        self._conversations: OrderedDict[int, _Conversation] = OrderedDict()

    def of(self, messages: tuple[Message, ...]) -> list[dict[str, Any]]:
        """Return the turns of a conversation."""
        if not messages:
            return []
        # The messages are kept beside it, so the number cannot become that of another object.
        key = id(messages[0])
        known = self._conversations.get(key)
        if known is None or len(known.messages) > len(messages) or not all(map(is_, known.messages, messages)):
            known = _Conversation((), [])
        turns = known.turns.copy()
        for message in messages[len(known.messages) :]:
            self._add(turns, message)
        self._conversations[key] = _Conversation(messages, turns)
        self._conversations.move_to_end(key)
        if len(self._conversations) > _REMEMBERED:
            self._conversations.popitem(last=False)
        return turns.copy()
