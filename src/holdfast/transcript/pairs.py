"""Calls and their results: which belong together, and where the results must stand.

The steps, each on the turns as the step before left them:
1. a message of the model that is there twice in a row goes; messages of one turn are merged where the form needs it
2. every result finds its call; a result without a call, or a second one for the same call, goes
3. an id that occurs twice is changed, in the call and in its result
4. results that stand in the wrong place move; a call without a result gets one

Invariant: after `pair`, every call has exactly one result, in its place. A history in which this holds is not touched.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, NamedTuple

from holdfast.transcript.changes import Change, OpenCall, result_text
from holdfast.transcript.turns import Piece, TranscriptTurn, runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.transcript.changes import OutcomeOf
    from holdfast.transcript.turns import HistoryForm


class _Result(NamedTuple):
    turn: TranscriptTurn
    piece: Piece


@dataclass(slots=True, eq=False)
class _Call:
    turn: TranscriptTurn
    piece: Piece
    run: int
    """The number of the run of model messages. Calls of one run are made at the same time."""
    result: _Result | None = None


def pair(form: HistoryForm, turns: list[TranscriptTurn], outcome: OutcomeOf) -> Iterator[Change]:
    """Mend the calls and the results of these turns, in place. Yield the changes."""
    yield from _drop_repeated_messages(turns)
    if form.merges:
        yield from _merge(turns)
    calls = _calls(turns)
    yield from _match(turns, calls, strays=form.knows_all_calls(turns))
    yield from _make_unique(form, calls)
    _sweep(turns)
    yield from _answer(form, turns, calls, outcome)
    _sweep(turns)


def _drop_repeated_messages(turns: list[TranscriptTurn]) -> Iterator[Change]:
    """A program that stores an answer twice leaves equal messages in a row."""
    gone: set[int] = set()
    for run in runs(turns, "model"):
        for at, turn in enumerate(run):
            if turn.of("call") and any(turn.message == other.message for other in run[:at]):
                gone.add(id(turn))
                why = "the same message is already there"
                yield Change(what="message-dropped", where=turn.where, why=why, removed=turn.message)
    turns[:] = [turn for turn in turns if id(turn) not in gone]


def _merge(turns: list[TranscriptTurn]) -> Iterator[Change]:
    """Results must follow the message with their calls, so no other message of the model may stand between."""
    gone: set[int] = set()
    for run in runs(turns, "model"):
        first, *others = run
        if any(turn.of("call") for turn in run[:-1]):
            first.pieces = [piece for turn in run for piece in turn.pieces]
            first.touched = True
            gone |= {id(turn) for turn in others}
            for turn in others:
                why = "results must follow the message with their calls, and here another answer follows"
                yield Change(what="messages-merged", where=turn.where, why=why)
    turns[:] = [turn for turn in turns if id(turn) not in gone]


def _calls(turns: list[TranscriptTurn]) -> list[_Call]:
    numbers = {id(turn): number for number, run in enumerate(runs(turns, "model")) for turn in run}
    return [
        _Call(turn, piece, numbers[id(turn)]) for turn in turns if turn.role == "model" for piece in turn.of("call")
    ]


def _match(turns: list[TranscriptTurn], calls: list[_Call], *, strays: bool) -> Iterator[Change]:
    """Find the result of every call. Results that belong to no call are taken out."""
    by_piece = {id(call.piece): call for call in calls}
    known: defaultdict[str, list[_Call]] = defaultdict(list)
    early: list[_Result] = []
    spare: list[_Result] = []
    for turn in turns:
        for piece in turn.pieces:
            if (call := by_piece.get(id(piece))) is not None:
                known[piece.id].append(call)
            elif piece.kind == "result":
                found = _Result(turn, piece)
                if (call := _waiting(known[piece.id])) is not None:
                    call.result = found
                else:
                    (spare if known[piece.id] else early).append(found)
    # A result before its call is used only if no result follows the call.
    for found in early:
        if (call := _waiting(known[found.piece.id])) is not None:
            call.result = found
        elif known[found.piece.id] or strays:
            spare.append(found)
    for turn, piece in spare:
        turn.remove(piece)
        why = "the call already has a result" if known[piece.id] else "no call in this history has this id"
        yield Change(what="result-dropped", where=turn.where, why=why, id=piece.id, removed=piece.value)


def _waiting(calls: list[_Call]) -> _Call | None:
    """Return the call that a result belongs to: where an id is used again, the first of the latest run."""
    still = [call for call in calls if call.result is None]
    return next((call for call in still if call.run == still[-1].run), None)


def _make_unique(form: HistoryForm, calls: list[_Call]) -> Iterator[Change]:
    taken = {call.piece.id for call in calls}
    used: dict[tuple[int, str], _Call] = {}
    for call in list(calls):
        scope = 0 if form.unique == "history" else id(call.turn)
        name = call.piece.id
        twin = used.get((scope, name))
        if twin is None and form.is_id(name):
            used[scope, name] = call
            continue
        if twin is not None and twin.run == call.run and _same(twin.piece, call.piece):
            calls.remove(call)
            yield from _drop_call(call, "the same call is already there")
            continue
        fresh = _fresh(name, taken)
        taken.add(fresh)
        used[scope, fresh] = call
        yield _rename(form, call, fresh)


def _same(one: Piece, other: Piece) -> bool:
    return (one.name, one.arguments) == (other.name, other.arguments)


def _fresh(name: str, taken: set[str]) -> str:
    """Return an id that no call has, with characters that every provider allows."""
    base = re.sub(r"[^a-zA-Z0-9_-]", "-", name) or "call"
    if base not in taken:
        return base
    return next(fresh for number in count(2) if (fresh := f"{base}-{number}") not in taken)


def _rename(form: HistoryForm, call: _Call, fresh: str) -> Change:
    was = call.piece.id
    for piece, turn in ((call.piece, call.turn), *([(call.result.piece, call.result.turn)] if call.result else [])):
        piece.value = form.renamed(piece, fresh)
        piece.id = fresh
        turn.touched = True
    why = f"a call must have an id of its own that the provider accepts; it is now {fresh}"
    return Change(what="id-changed", where=call.turn.where, why=why, id=was)


def _drop_call(call: _Call, why: str) -> Iterator[Change]:
    call.turn.remove(call.piece)
    yield Change(what="call-dropped", where=call.turn.where, why=why, id=call.piece.id, removed=call.piece.value)
    if call.result is not None:
        turn, piece = call.result
        turn.remove(piece)
        yield Change(what="result-dropped", where=turn.where, why=why, id=piece.id, removed=piece.value)


def _answer(form: HistoryForm, turns: list[TranscriptTurn], calls: list[_Call], outcome: OutcomeOf) -> Iterator[Change]:
    """Put every result into its place, and make those that are missing."""
    at = {id(turn): number for number, turn in enumerate(turns)}
    damaged: list[tuple[TranscriptTurn, list[_Call], list[_Call]]] = []
    # Look at all of them before anything moves: the places in `at` hold only until then.
    for end, unit in _units(form, turns, calls):
        home = set() if form.place == "later" else {id(turn) for turn in _home(form, turns, at[id(end)])}
        misplaced = [call for call in unit if call.result is None or not _is_home(form, home, call, call.result, at)]
        if misplaced:
            damaged.append((end, unit, misplaced))
    for end, unit, misplaced in damaged:
        for call in misplaced:
            yield from _found_or_made(form, call, outcome)
        _place(form, turns, end, unit, misplaced)


def _units(
    form: HistoryForm, turns: list[TranscriptTurn], calls: list[_Call]
) -> list[tuple[TranscriptTurn, list[_Call]]]:
    """Return the calls whose results stand together, with the turn that these results follow."""
    # Runs are read again: a result that went may have stood between two of them.
    last = {id(turn): run[-1] for run in runs(turns, "model") for turn in run}
    units: dict[int, tuple[TranscriptTurn, list[_Call]]] = {}
    for call in calls:
        # Where results are messages of their own, each message with calls has its results right behind it.
        end = call.turn if form.place == "after" else last[id(call.turn)]
        units.setdefault(id(end), (end, []))[1].append(call)
    return list(units.values())


def _home(form: HistoryForm, turns: list[TranscriptTurn], end: int) -> list[TranscriptTurn]:
    """Return the turns right behind the calls in which their results may stand."""
    role = "result" if form.place == "after" else "user"
    home: list[TranscriptTurn] = []
    for turn in islice(turns, end + 1, None):
        # Anthropic's messages of role `system` stand between the turns and belong to none of them.
        if form.place == "first" and turn.role == "other":
            continue
        if turn.role != role:
            break
        home.append(turn)
        if form.place == "first":
            break
    return home


def _is_home(form: HistoryForm, home: set[int], call: _Call, result: _Result, at: dict[int, int]) -> bool:
    if form.place == "later":
        return at[id(result.turn)] > at[id(call.turn)]
    if id(result.turn) not in home:
        return False
    before = result.turn.pieces[: result.turn.pieces.index(result.piece)]
    return form.place != "first" or all(piece.kind == "result" for piece in before)


def _found_or_made(form: HistoryForm, call: _Call, outcome: OutcomeOf) -> Iterator[Change]:
    """Give a call without a result a new one. A result in the wrong place only changes its place."""
    where, name = call.turn.where, call.piece.id
    if call.result is not None:
        why = "a result must follow its call in the place that the provider expects"
        yield Change(what="result-moved", where=call.result.turn.where, why=why, id=name)
        return
    facts = OpenCall(id=name, name=call.piece.name, arguments=call.piece.arguments, where=where)
    ending = outcome(facts)
    value = form.result(call.piece, result_text(ending, call.piece.name), call.turn.message)
    if value is None:
        yield from _drop_call(call, "the call has no result, and no text can stand in place of it")
        return
    call.result = _Result(
        TranscriptTurn(where, None, "result", touched=True), Piece(value, "result", name, call.piece.name)
    )
    call.result.turn.pieces.append(call.result.piece)
    yield Change(what="result-added", where=where, why=f"the call has no result: {ending}", id=name)


def _place(
    form: HistoryForm, turns: list[TranscriptTurn], end: TranscriptTurn, unit: list[_Call], misplaced: list[_Call]
) -> None:
    """Put the results behind their calls, in the order of the calls."""
    ordered = unit if form.place in {"first", "after"} else misplaced
    results = [call.result for call in ordered if call.result is not None]
    if form.place in {"first", "within"}:
        _place_inside(form, turns, end, results)
        return
    # Each result is a turn of its own, and moves as a whole.
    moving = {id(turn) for turn, _ in results}
    turns[:] = [turn for turn in turns if id(turn) not in moving]
    behind = turns.index(end) + 1
    turns[behind:behind] = [turn for turn, _ in results]


def _place_inside(form: HistoryForm, turns: list[TranscriptTurn], end: TranscriptTurn, results: list[_Result]) -> None:
    for turn, piece in results:
        turn.remove(piece)
    pieces = [piece for _, piece in results]
    behind = turns.index(end)
    home = _home(form, turns, behind)
    if home:
        home[0].pieces = [*pieces, *home[0].pieces]
        home[0].touched = True
    elif pieces:
        turns.insert(behind + 1, TranscriptTurn(end.where, None, "user", pieces, touched=True))


def _sweep(turns: list[TranscriptTurn]) -> None:
    """Leave out messages of which nothing is left."""
    turns[:] = [turn for turn in turns if turn.pieces or not turn.touched]
