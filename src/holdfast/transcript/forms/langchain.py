"""LangChain's messages: calls in `AIMessage.tool_calls`, a `ToolMessage` for each right after it.

LangChain is not imported here. A program that has its messages has loaded its module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.transcript.turns import HistoryForm, Piece, Role, TranscriptTurn, changed, get

if TYPE_CHECKING:
    from holdfast.transcript.turns import Place

MODULE = "langchain_core.messages"
_ROLES: dict[Any, Role] = {
    "ai": "model",
    "AIMessageChunk": "model",
    "tool": "result",
    "ToolMessageChunk": "result",
    "human": "user",
    "HumanMessageChunk": "user",
}


class LangChain(HistoryForm):
    """Messages of `langchain_core`, as LangGraph's state holds them."""

    place: ClassVar[Place] = "after"

    def read(self, message: Any, where: int) -> TranscriptTurn:
        role = _ROLES.get(get(message, "type"), "other")
        if role == "result":
            return TranscriptTurn(where, message, role, [Piece(message, "result", message.tool_call_id or "")])
        # Calls with arguments that are not JSON are sent to the provider too.
        calls = [*message.tool_calls, *message.invalid_tool_calls] if role == "model" else ()
        return TranscriptTurn(where, message, role, [Piece(message), *map(_piece, calls)])

    def write(self, turn: TranscriptTurn) -> Any:
        if turn.role == "result":
            return turn.pieces[0].value
        calls = turn.of("call")
        extra = {name: value for name, value in turn.message.additional_kwargs.items() if name != "tool_calls"}
        return changed(
            turn.message,
            tool_calls=[piece.value for piece in calls if get(piece.value, "type") != "invalid_tool_call"],
            invalid_tool_calls=[piece.value for piece in calls if get(piece.value, "type") == "invalid_tool_call"],
            content=_content(turn.message, calls),
            # The provider's own form of the calls, which LangChain sends if there are no others.
            additional_kwargs=extra,
        )

    def renamed(self, piece: Piece, id: str) -> Any:  # noqa: A002 - the base class names it
        return changed(piece.value, **{"id" if piece.kind == "call" else "tool_call_id": id})

    def result(self, call: Piece, text: str, like: Any) -> Any:
        del like
        made = sys.modules[MODULE].ToolMessage
        return made(content=text, tool_call_id=call.id, name=call.name, status="error")


def _piece(call: Any) -> Piece:
    return Piece(call, "call", get(call, "id") or "", get(call, "name") or "", get(call, "args"))


# The blocks of a provider that repeat a call, with the field of its id.
_CALL_BLOCKS = {"tool_use": "id", "tool_call": "id", "function_call": "call_id"}


def _content(message: Any, calls: list[Piece]) -> Any:
    """Return the content with the blocks of the calls that are left, under their new ids."""
    if not isinstance(message.content, list):
        return message.content
    known = {get(call, "id") for call in (*message.tool_calls, *message.invalid_tool_calls)}
    waiting = list(calls)
    content: list[Any] = []
    for block in message.content:
        name = _CALL_BLOCKS.get(get(block, "type")) if isinstance(block, dict) else None
        if name is None or block.get(name) not in known:
            content.append(block)
            continue
        call = next((each for each in waiting if each.was == block.get(name)), None)
        if call is not None:
            waiting.remove(call)
            content.append(block if call.id == call.was else {**block, name: call.id})
    return content
