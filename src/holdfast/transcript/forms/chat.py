"""Chat Completions: calls in the assistant's message, a message of role `tool` for each result right after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.transcript.changes import Change
from holdfast.transcript.turns import HistoryForm, Piece, Role, TranscriptTurn, changed, get

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.transcript.turns import Place

_ROLES: dict[Any, Role] = {"assistant": "model", "tool": "result", "user": "user"}
# What an assistant's message may consist of. Without any of them the API rejects it.
_CONTENTS = ("content", "tool_calls", "refusal", "audio", "function_call")


class Chat(HistoryForm):
    """Messages of the OpenAI SDK's Chat Completions, and of everybody who speaks this protocol: dicts or objects."""

    place: ClassVar[Place] = "after"
    unique = "message"

    def read(self, message: Any, where: int) -> TranscriptTurn:
        role = _ROLES.get(get(message, "role"), "other")
        if role == "result":
            return TranscriptTurn(where, message, role, [Piece(message, "result", get(message, "tool_call_id") or "")])
        calls = get(message, "tool_calls") or () if role == "model" else ()
        return TranscriptTurn(where, message, role, [Piece(message), *map(_piece, calls)])

    def write(self, turn: TranscriptTurn) -> Any:
        if turn.role == "result":
            return turn.pieces[0].value
        calls = [piece.value for piece in turn.of("call")]
        if calls:
            return changed(turn.message, tool_calls=calls)
        # The API rejects an empty list of calls.
        if isinstance(turn.message, dict):
            return {name: value for name, value in turn.message.items() if name != "tool_calls"}
        return changed(turn.message, tool_calls=None)

    def renamed(self, piece: Piece, id: str) -> Any:  # noqa: A002 - the base class names it
        return changed(piece.value, **{"id" if piece.kind == "call" else "tool_call_id": id})

    def result(self, call: Piece, text: str, like: Any) -> Any:
        del like
        return {"role": "tool", "tool_call_id": call.id, "content": text}

    def tidy(self, turns: list[TranscriptTurn]) -> Iterator[Change]:
        for turn in turns:
            if turn.role != "model" or turn.of("call"):
                continue
            body = turn.pieces[0].value
            if get(body, "tool_calls") is not None and not turn.touched:
                turn.touched = True
                why = "a list of calls must not be empty"
                yield Change(what="block-dropped", where=turn.where, why=why)
            contents = (get(body, name) for name in _CONTENTS if name != "tool_calls")
            if all(each is None for each in contents):
                turn.pieces.clear()
                turn.touched = True
                why = "an answer without text and without calls is not accepted"
                yield Change(what="message-dropped", where=turn.where, why=why, removed=turn.message)
        turns[:] = [turn for turn in turns if turn.pieces]


def _piece(call: Any) -> Piece:
    # Besides functions there are custom tools, whose input is plain text.
    inner = get(call, "function") or get(call, "custom")
    arguments = get(inner, "arguments", get(inner, "input"))
    return Piece(call, "call", get(call, "id") or "", get(inner, "name") or "", arguments)
