"""pydantic-ai's messages: `ToolCallPart` in a response, `ToolReturnPart` or `RetryPromptPart` in the requests that follow.

pydantic-ai is not imported here. A program that has its messages has loaded its module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.transcript.changes import Change
from holdfast.transcript.turns import BEGINNING, HistoryForm, Piece, TranscriptTurn, changed, get

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.transcript.turns import Place

MODULE = "pydantic_ai.messages"


class PydanticAI(HistoryForm):
    """`ModelRequest` and `ModelResponse`, as `result.all_messages()` returns them."""

    place: ClassVar[Place] = "within"

    def read(self, message: Any, where: int) -> TranscriptTurn:
        return TranscriptTurn(
            where, message, "model" if message.kind == "response" else "user", [*map(_piece, message.parts)]
        )

    def write(self, turn: TranscriptTurn) -> Any:
        parts = [piece.value for piece in turn.pieces]
        if turn.message is None:
            return sys.modules[MODULE].ModelRequest(parts=parts)
        return changed(turn.message, parts=parts)

    def renamed(self, piece: Piece, id: str) -> Any:  # noqa: A002 - the base class names it
        return changed(piece.value, tool_call_id=id)

    def result(self, call: Piece, text: str, like: Any) -> Any:
        del like
        made = sys.modules[MODULE].ToolReturnPart
        # Older versions have no outcome.
        options = {"outcome": "interrupted"} if "outcome" in made.__dataclass_fields__ else {}
        return made(tool_name=call.name, content=text, tool_call_id=call.id, **options)

    def tidy(self, turns: list[TranscriptTurn]) -> Iterator[Change]:
        """Let a user speak first. Instructions are sent apart from the messages, so they are no beginning."""
        for at, turn in enumerate(turns):
            if turn.role == "model":
                made = sys.modules[MODULE].UserPromptPart(content=BEGINNING)
                turns.insert(at, TranscriptTurn(turn.where, None, "user", [Piece(made)], touched=True))
                why = "the first message must be the user's"
                yield Change(what="message-added", where=turn.where, why=why)
                return
            if any(get(piece.value, "part_kind") != "system-prompt" for piece in turn.pieces):
                return


def _piece(part: Any) -> Piece:
    match part.part_kind:
        case "tool-call":
            return Piece(part, "call", part.tool_call_id or "", part.tool_name, part.args)
        case "tool-return":
            return Piece(part, "result", part.tool_call_id or "", part.tool_name)
        # Without a tool it asks the model to try again, and answers no call.
        case "retry-prompt" if get(part, "tool_name") is not None:
            return Piece(part, "result", part.tool_call_id or "", part.tool_name)
        case _:
            return Piece(part)
