"""A conversation with a model: what must hold for it, and how it is made shorter.

Invariant: after each answer of the model with tool calls stand the results of exactly these calls, in their order. What shortens a
conversation keeps this. Nothing here does I/O.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.providers.messages import Assistant, Message, ToolResult, User

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from holdfast.providers.messages import Reply, ToolCall

__all__ = [
    "CallIds",
    "Messages",
    "Shortened",
    "is_valid",
    "shorten",
    "size",
    "summary_prompt",
    "with_own_ids",
    "with_summary",
]

Messages: TypeAlias = tuple[Message, ...]

_KEPT = 0.5
"""The share of the conversation that stays when it is shortened."""
_LONGEST_RESULT = 2_000
"""Characters that stay of a tool's result if leaving messages out is not enough."""
_LONGEST_SUMMARISED = 4_000
"""Characters of one message that the model gets to summarise."""


_NOT_IN_AN_ID = re.compile(r"[^a-zA-Z0-9_-]")
"""What Anthropic does not accept in the id of a call. Servers that speak OpenAI's protocol send ids such as `functions.look:0`."""


class Shortened(msgspec.Struct, frozen=True):
    """A conversation, without what was left out."""

    messages: Messages
    dropped: Messages = ()
    """What was left out. It may be summarised."""
    notes: tuple[int, ...] = ()
    """The places of the messages that say that something was left out there."""


def is_valid(messages: Sequence[Message]) -> bool:
    """Whether every tool call has exactly one result, in order, directly after the answer with the calls."""
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolResult):
            if not waiting or waiting.pop(0) != message.id:
                return False
        elif waiting:
            return False
        elif isinstance(message, Assistant):
            waiting = [call.id for call in message.calls]
    return not waiting


class CallIds:
    """The ids of the calls in a conversation that grows. Each message is read once."""

    def __init__(self) -> None:
        self._messages: Sequence[Message] | None = None
        self._read = 0
        self._ids: set[str] = set()

    def of(self, messages: Sequence[Message]) -> set[str]:
        """Return the ids. A conversation in another list is another one."""
        if self._messages is not messages or len(messages) < self._read:
            self._messages, self._read, self._ids = messages, 0, set()
        for place in range(self._read, len(messages)):
            message = messages[place]
            if isinstance(message, Assistant):
                self._ids.update(call.id for call in message.calls)
        self._read = len(messages)
        return self._ids


def with_own_ids(reply: Reply, known: AbstractSet[str]) -> Reply:
    """Return the reply with call ids that every provider accepts, and that are not `known` in the conversation that it continues.

    Ids that are valid and new stay as they are. The same reply after the same messages always gets the same ids.
    """
    if not reply.calls:
        return reply
    taken: set[str] = set()
    calls = []
    for call in reply.calls:
        wanted = _NOT_IN_AN_ID.sub("_", call.id) or "call"
        own, number = wanted, 1
        while own in taken or own in known:
            number += 1
            own = f"{wanted}_{number}"
        taken.add(own)
        calls.append(call if own == call.id else msgspec.structs.replace(call, id=own))
    if all(one is other for one, other in zip(calls, reply.calls, strict=True)):
        return reply
    return msgspec.structs.replace(reply, calls=tuple(calls), blocks=_with_ids(reply.blocks, calls))


def _with_ids(blocks: Sequence[dict[str, Any]], calls: Sequence[ToolCall]) -> tuple[dict[str, Any], ...]:
    """Return a provider's own form of an answer, with the ids of these calls."""
    ids = iter(call.id for call in calls)
    fields = {"tool_use": "id", "function_call": "call_id"}
    named = ((block, fields.get(str(block.get("type")))) for block in blocks)
    return tuple(block if name is None else {**block, name: next(ids, block.get(name))} for block, name in named)


def size(messages: Sequence[Message]) -> int:
    """Return about how long a conversation is, in bytes."""
    return sum(_size(message) for message in messages)


def shorten(messages: Sequence[Message], prompt: int) -> Shortened | None:
    """Return the conversation made shorter, or None if that is not possible.

    `prompt` is the place of the request that the run is about. The first message, that request, and the last answer with its results
    always stay. Of the others the oldest are left out, until half of the conversation is left. If nothing can be left out, long results are cut.
    """
    groups = _groups(messages)
    whole = size(messages)
    always = {0, len(groups) - 1, _group_at(groups, prompt)}
    kept, left = set(always), sum(size(groups[number]) for number in always)
    for number in range(len(groups) - 1, -1, -1):
        if number in kept:
            continue
        left += size(groups[number])
        if left > whole * _KEPT:
            break
        kept.add(number)
    if len(kept) == len(groups) or not any(groups[number] for number in range(len(groups)) if number not in kept):
        return _cut_results(messages)
    dropped = tuple(message for number, group in enumerate(groups) if number not in kept for message in group)
    stays: list[Message] = []
    notes: list[int] = []
    for number, group in enumerate(groups):
        if number in kept:
            stays += group
        elif number - 1 in kept:
            notes.append(len(stays))
            stays.append(User(text="[Earlier messages were left out here, because the conversation was too long.]"))
    if size(stays) >= whole:
        return _cut_results(messages)
    return Shortened(tuple(stays), dropped, tuple(notes))


def _cut_results(messages: Sequence[Message]) -> Shortened | None:
    cut = tuple(_cut(message) for message in messages)
    return Shortened(cut) if size(cut) < size(messages) else None


def _cut(message: Message) -> Message:
    if not isinstance(message, ToolResult) or len(message.text) <= _LONGEST_RESULT:
        return message
    half = _LONGEST_RESULT // 2
    gone = len(message.text) - 2 * half
    text = f"{message.text[:half]}\n[{gone} characters were cut, because the conversation was too long]\n{message.text[-half:]}"
    return msgspec.structs.replace(message, text=text)


def summary_prompt(dropped: Sequence[Message]) -> str:
    """Return the request for a summary of messages that are left out."""
    shown = "\n\n".join(_as_text(message) for message in dropped)
    return (
        "Summarise the following part of a conversation between a user, an assistant and its tools, so that the assistant can go on "
        "without it. Keep every decision, result, name, number and open question. Answer with the summary only.\n\n"
        + shown
    )


def with_summary(shortened: Shortened, summary: str) -> Messages:
    """Return the shortened conversation with a summary in place of the first note about what was left out, and without the others."""
    messages: list[Message] = []
    for place, message in enumerate(shortened.messages):
        if place not in shortened.notes:
            messages.append(message)
        elif place == shortened.notes[0]:
            messages.append(User(text=f"[Summary of earlier messages that were left out]\n{summary}"))
    return tuple(messages)


def _as_text(message: Message) -> str:
    match message:
        case User():
            text = f"User: {message.text}"
        case ToolResult():
            text = f"Tool result{' (failed)' if message.failed else ''}: {message.text}"
        case Assistant():
            calls = "".join(
                f"\n[calls {call.name}({msgspec.json.encode(call.arguments).decode()})]" for call in message.calls
            )
            text = f"Assistant: {message.text}{calls}"
    return text if len(text) <= _LONGEST_SUMMARISED else f"{text[:_LONGEST_SUMMARISED]}…"


def _groups(messages: Sequence[Message]) -> list[list[Message]]:
    """Return the messages in groups that stay together: an answer with the results of its calls, or one message of the user."""
    groups: list[list[Message]] = []
    for message in messages:
        if isinstance(message, ToolResult) and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def _group_at(groups: list[list[Message]], place: int) -> int:
    for number, group in enumerate(groups):
        place -= len(group)
        if place < 0:
            return number
    return len(groups) - 1


def _size(message: Message) -> int:
    match message:
        case Assistant():
            return len(message.text) + (len(msgspec.json.encode(message.calls)) if message.calls else 0)
        case User(files=files):
            return len(message.text) + sum(len(file.data) for file in files)
        case _:
            return len(message.text)
