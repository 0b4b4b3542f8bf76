"""OpenAI's Responses: a list of items. The output of a call may stand anywhere after it; reasoning stays with its item."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.transcript.changes import Change
from holdfast.transcript.turns import HistoryForm, Piece, TranscriptTurn, changed, get

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.transcript.turns import Place, Role

CALLS = frozenset(
    {"function_call", "custom_tool_call", "shell_call", "apply_patch_call", "computer_call", "local_shell_call"}
)
_OUTPUTS = frozenset(f"{call}_output" for call in CALLS)
_MODEL = frozenset({"reasoning", "item_reference", "mcp_list_tools", "mcp_approval_request", "compaction", "program"})


class ResponsesItems(HistoryForm):
    """Items of the OpenAI SDK's Responses: dicts, or the objects of `response.output`."""

    place: ClassVar[Place] = "later"

    def read(self, message: Any, where: int) -> TranscriptTurn:
        kind = get(message, "type")
        if kind in CALLS:
            name = get(message, "name") or kind
            arguments = get(message, "arguments", get(message, "input", get(message, "action")))
            piece = Piece(message, "call", get(message, "call_id") or "", name, arguments)
        elif kind in _OUTPUTS:
            # This one names the call in its own id.
            name = "id" if kind == "local_shell_call_output" else "call_id"
            piece = Piece(message, "result", get(message, name) or "")
        else:
            piece = Piece(message)
        return TranscriptTurn(where, message, _role(message, kind), [piece])

    def write(self, turn: TranscriptTurn) -> Any:
        return turn.pieces[0].value

    def renamed(self, piece: Piece, id: str) -> Any:  # noqa: A002 - the base class names it
        name = "id" if get(piece.value, "type") == "local_shell_call_output" else "call_id"
        return changed(piece.value, **{name: id})

    def result(self, call: Piece, text: str, like: Any) -> Any:
        kind = f"{get(like, 'type')}_output"
        match get(like, "type"):
            case "function_call" | "custom_tool_call":
                return {"type": kind, "call_id": call.id, "output": text}
            case "apply_patch_call":
                return {"type": kind, "call_id": call.id, "status": "failed", "output": text}
            case "shell_call":
                ended = {"stdout": "", "stderr": text, "outcome": {"type": "timeout"}}
                return {"type": kind, "call_id": call.id, "output": [ended]}
            case "local_shell_call":
                return {"type": kind, "id": call.id, "output": text}
            case _:
                # The output of a computer call is a picture of the screen.
                return None

    def knows_all_calls(self, turns: list[TranscriptTurn]) -> bool:
        return not any(get(turn.message, "type") == "item_reference" for turn in turns)

    def tidy(self, turns: list[TranscriptTurn]) -> Iterator[Change]:
        yield from _repeated_items(turns)
        yield from _lonely_reasoning(turns)
        turns[:] = [turn for turn in turns if turn.pieces]


def _role(message: Any, kind: Any) -> Role:
    if kind in _OUTPUTS:
        return "result"
    role = get(message, "role")
    if role == "assistant" or kind in _MODEL or (isinstance(kind, str) and kind.endswith("_call")):
        return "model"
    return "user" if role == "user" else "other"


def _repeated_items(turns: list[TranscriptTurn]) -> Iterator[Change]:
    seen: set[str] = set()
    for turn in turns:
        item = turn.pieces[0].value
        # The id of this output is that of its call.
        name = get(item, "id") if get(item, "type") != "local_shell_call_output" else None
        if isinstance(name, str) and name:
            if name in seen:
                turn.remove(turn.pieces[0])
                why = f"an item with the id {name} is already there"
                yield Change(what="message-dropped", where=turn.where, why=why, removed=item)
            seen.add(name)
    turns[:] = [turn for turn in turns if turn.pieces]


def _lonely_reasoning(turns: list[TranscriptTurn]) -> Iterator[Change]:
    """Reasoning without the item that it led to is rejected. It is left over when an answer was cut."""
    has_item = False
    for turn in reversed(turns):
        if get(turn.pieces[0].value, "type") != "reasoning":
            has_item = turn.role == "model"
        elif not has_item:
            turn.remove(turn.pieces[0])
            why = "the item that this reasoning led to is missing"
            yield Change(what="message-dropped", where=turn.where, why=why, removed=turn.message)
