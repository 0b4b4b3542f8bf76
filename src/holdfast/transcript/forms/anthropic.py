"""Anthropic's Messages: blocks in messages, results first in the user message that follows the calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from holdfast.transcript.changes import Change, result_text
from holdfast.transcript.turns import BEGINNING, HistoryForm, Piece, TranscriptTurn, changed, get, runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.transcript.turns import Place, Role

_THINKING = frozenset({"thinking", "redacted_thinking"})
_SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})
# The provider's own tools whose failed result has the same form for all of them.
_SERVER_TOOLS = frozenset(
    {"web_search", "web_fetch", "code_execution", "bash_code_execution", "text_editor_code_execution"}
)
# Histories from other providers have ids such as "terminal:0".
_ID = re.compile(r"[a-zA-Z0-9_-]+")


class Anthropic(HistoryForm):
    """Messages of the Anthropic SDK: dicts, whose blocks may be the SDK's own objects."""

    place: ClassVar[Place] = "first"
    merges = True

    def is_id(self, id: str) -> bool:  # noqa: A002 - the base class names it
        return _ID.fullmatch(id) is not None

    def read(self, message: Any, where: int) -> TranscriptTurn:
        role = get(message, "role")
        content = get(message, "content")
        blocks = content if isinstance(content, (list, tuple)) else [content]
        speaker: Role = "model" if role == "assistant" else "user" if role == "user" else "other"
        return TranscriptTurn(where, message, speaker, [_piece(block) for block in blocks])

    def write(self, turn: TranscriptTurn) -> Any:
        values = [piece.value for piece in turn.pieces]
        if len(values) != 1 or not isinstance(values[0], str):
            values = [{"type": "text", "text": value} if isinstance(value, str) else value for value in values]
            content: Any = values
        else:
            content = values[0]
        if turn.message is None:
            return {"role": "assistant" if turn.role == "model" else "user", "content": content}
        return changed(turn.message, content=content)

    def renamed(self, piece: Piece, id: str) -> Any:  # noqa: A002 - the base class names it
        return changed(piece.value, **{"id" if piece.kind == "call" else "tool_use_id": id})

    def result(self, call: Piece, text: str, like: Any) -> Any:
        del like
        return {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": True}

    def tidy(self, turns: list[TranscriptTurn]) -> Iterator[Change]:
        yield from _calls_of_users(turns)
        for turn in turns:
            yield from _odd_blocks(turn)
        yield from _server_tools(turns)
        last = turns[-1] if turns else None
        for turn in turns:
            # A message of role `system` between the turns holds settings, and may be empty.
            if turn.role != "other":
                yield from _empty_texts(turn, is_last=turn is last)
        for run in runs([turn for turn in turns if turn.pieces], "model"):
            yield from _thinking_at_the_end(run)
        turns[:] = [turn for turn in turns if turn.pieces or not turn.touched]
        if turns and turns[0].role == "model":
            first = turns[0].where
            turns.insert(0, TranscriptTurn(first, None, "user", [Piece(BEGINNING)], touched=True))
            yield Change(what="message-added", where=first, why="the first message must be the user's")


def _piece(block: Any) -> Piece:
    match get(block, "type"):
        case "tool_use":
            return Piece(block, "call", get(block, "id") or "", get(block, "name") or "", get(block, "input"))
        case "tool_result":
            return Piece(block, "result", get(block, "tool_use_id") or "")
        case _:
            return Piece(block)


def _calls_of_users(turns: list[TranscriptTurn]) -> Iterator[Change]:
    """Give a call in a message of the user a message of the model, so that it keeps its result."""
    parted: list[TranscriptTurn] = []
    for turn in turns:
        if turn.role != "user" or not turn.of("call"):
            parted.append(turn)
            continue
        for is_call, pieces in groupby(turn.pieces, lambda piece: piece.kind == "call"):
            parted.append(TranscriptTurn(turn.where, None, "model" if is_call else "user", list(pieces), touched=True))
        for piece in turn.of("call"):
            why = "a call must stand in a message of the assistant"
            yield Change(what="call-moved", where=turn.where, why=why, id=piece.id)
    turns[:] = parted


def _odd_blocks(turn: TranscriptTurn) -> Iterator[Change]:
    """Mend blocks that the API rejects for themselves: in their fields, not in their places."""
    for piece in list(turn.pieces):
        block = piece.value
        if piece.kind == "call" and not isinstance(piece.arguments, Mapping):
            piece.arguments = _object(piece.arguments)
            yield _change(turn, piece, "the input of a call must be an object", input=piece.arguments)
        elif piece.kind == "result" and (blank := _blank_texts(get(block, "content"))):
            left = [each for each in get(block, "content") if not any(each is text for text in blank)]
            yield _change(turn, piece, "a text must not be blank", content=left or "")
        elif get(block, "type") == "thinking" and not get(block, "signature"):
            # Somebody else's, or cut: its provider alone can sign it.
            turn.remove(piece)
            why = "thinking must have the signature that it came with"
            yield Change(what="block-dropped", where=turn.where, why=why, removed=block)


def _change(turn: TranscriptTurn, piece: Piece, why: str, **fields: Any) -> Change:
    change = Change(what="block-changed", where=turn.where, why=why, id=piece.id, removed=piece.value)
    piece.value = changed(piece.value, **fields)
    turn.touched = True
    return change


def _object(given: Any) -> dict[str, Any]:
    """Return the arguments of a call as an object. Other providers have them as text, which may be cut."""
    if not given:
        return {}
    try:
        found = msgspec.json.decode(given)
    except (msgspec.DecodeError, TypeError):
        found = None
    return found if isinstance(found, dict) else {"invalid_json": given}


def _blank_texts(content: Any) -> list[Any]:
    blocks = content if isinstance(content, (list, tuple)) else ()
    return [each for each in blocks if get(each, "type") == "text" and not (get(each, "text") or "").strip()]


def _empty_texts(turn: TranscriptTurn, *, is_last: bool) -> Iterator[Change]:
    """The API rejects blank texts. Only the last message of the assistant may be empty."""
    if is_last and turn.role == "model" and (not turn.pieces or turn.pieces[0].value == ""):
        return
    for piece in list(turn.pieces):
        block = piece.value
        text = block if isinstance(block, str) else get(block, "text") if get(block, "type") == "text" else None
        if block is None or (isinstance(text, str) and not text.strip()):
            turn.remove(piece)
            yield Change(what="block-dropped", where=turn.where, why="a text must not be blank", removed=block)
    if not turn.pieces and not turn.touched:
        turn.touched = True
        yield Change(what="message-dropped", where=turn.where, why="a message must not be empty", removed=turn.message)


def _thinking_at_the_end(run: list[TranscriptTurn]) -> Iterator[Change]:
    """An answer that was cut while the model was thinking has no end. The API rejects it."""
    # The API takes consecutive messages of the assistant as one.
    for turn in reversed(run):
        while turn.pieces and get(turn.pieces[-1].value, "type") in _THINKING:
            piece = turn.pieces[-1]
            turn.remove(piece)
            why = "an answer must not end with thinking"
            yield Change(what="block-dropped", where=turn.where, why=why, removed=piece.value)
        if turn.pieces:
            return


def _server_tools(turns: list[TranscriptTurn]) -> Iterator[Change]:
    """Mend calls of tools that run at the provider. Their results stand in the answers of the model, maybe in a later one."""
    calls: dict[str, tuple[TranscriptTurn, Piece]] = {}
    answered: set[str] = set()
    for turn in turns:
        if turn.role != "model":
            continue
        for piece in list(turn.pieces):
            kind = get(piece.value, "type")
            if kind in _SERVER_CALLS:
                calls[get(piece.value, "id")] = (turn, piece)
            elif isinstance(kind, str) and kind.endswith("_tool_result"):
                name = get(piece.value, "tool_use_id")
                if name not in calls or name in answered:
                    turn.remove(piece)
                    why = "the call already has a result" if name in calls else "no call in this history has this id"
                    yield Change(what="result-dropped", where=turn.where, why=why, id=name or "", removed=piece.value)
                answered.add(name)
    open_calls = {name: found for name, found in calls.items() if name not in answered}
    for name, (turn, piece) in open_calls.items():
        if not _is_under_way(turns, turn):
            yield _end_server_call(name, turn, piece)


def _is_under_way(turns: list[TranscriptTurn], turn: TranscriptTurn) -> bool:
    """Whether the provider goes on with an answer when it gets it back: it is the last, or only results follow it."""
    at = next(number for number, each in enumerate(turns) if each is turn)
    behind = [each for each in turns[at + 1 :] if each.role != "other"]
    return all(each.role == "user" and len(each.of("result")) == len(each.pieces) for each in behind)


def _end_server_call(name: str, turn: TranscriptTurn, piece: Piece) -> Change:
    tool = get(piece.value, "name") or ""
    if get(piece.value, "type") == "mcp_tool_use":
        content = [{"type": "text", "text": result_text("interrupted", tool)}]
        result: Any = {"type": "mcp_tool_result", "tool_use_id": name, "is_error": True, "content": content}
    elif tool in _SERVER_TOOLS:
        kind = f"{tool}_tool_result"
        error = {"type": f"{kind}_error", "error_code": "unavailable"}
        result = {"type": kind, "tool_use_id": name, "content": error}
    else:
        turn.remove(piece)
        why = "the call of the provider's own tool has no result"
        return Change(what="call-dropped", where=turn.where, why=why, id=name, removed=piece.value)
    turn.pieces.insert(turn.pieces.index(piece) + 1, Piece(result))
    turn.touched = True
    why = "the call of the provider's own tool has no result"
    return Change(what="block-added", where=turn.where, why=why, id=name)
