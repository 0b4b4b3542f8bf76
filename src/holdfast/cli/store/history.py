"""`holdfast sessions show|resume`: what happened in a session, what is open, and what to do next."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.output import show_facts, show_json, show_table, show_text
from holdfast.cli.store.access import time_of
from holdfast.cli.store.sessions import record_document
from holdfast.faults import visible
from holdfast.sessions import machine
from holdfast.sessions.admin import find, make_resumable, overview
from holdfast.sessions.history import history_of
from holdfast.sessions.questions.question import answer_word
from holdfast.stores import SessionState

if TYPE_CHECKING:
    from holdfast.sessions import Question
    from holdfast.sessions.admin import Overview
    from holdfast.sessions.history import History, StepHistory, TurnHistory
    from holdfast.stores import Store

_SHOWN_ABOVE = frozenset({"sessionId", "createdAt", "updatedAt"})
"""Fields of a manifest that repeat other facts."""
_STEPS = 20
"""How many of the last steps outside of turns, and of each turn, are shown to people. JSON has all."""
_TURNS = 5
"""How many of the last turns are shown to people."""
_WIDTH = 60
"""Characters of a call or a result that people see. JSON has more."""
_COLUMNS = ("time", "state", "step", "took", "attempts", "result")


class NextAction(NamedTuple):
    """What to do next, and the commands that do it."""

    what: str
    commands: tuple[str, ...] = ()


def command(url: str | None, *words: str) -> str:
    """Return a command that a person can copy: `holdfast sessions answer release-42 q-1 --yes`."""
    # The store that the environment names needs no option.
    of_store = () if url is None or url == os.environ.get("HOLDFAST_STORE") else ("--store", url)
    return shlex.join(("holdfast", "sessions", *words, *of_store))


async def sessions_show(store: Store, *, session: str, url: str | None, as_json: bool) -> Exit:
    """Show what happened in a session, what is open, and what to do next."""
    session = await find(store, session)
    seen, history = await overview(store, session), await history_of(store, session)
    document = _overview_document(seen, history)
    actions = next_actions(seen, history, url)
    if as_json:
        story = {"history": _dated(msgspec.to_builtins(history)), "next": [action._asdict() for action in actions]}
        show_json({"schema": "holdfast.sessions.show/1", **document, **story})
        return Exit.OK
    rest = ", nothing is open" if _is_at_rest(seen) else ""
    show_facts(f"{document['session']}  {document['state']}{rest}", _overview_facts(document))
    _show_history(history)
    _show_actions(actions)
    return Exit.OK


async def sessions_resume(store: Store, *, session: str, url: str | None, as_json: bool, accept_set_back: bool) -> Exit:
    """Pause a session whose process died, and show what is left to do. Raises if it cannot be resumed."""
    seen = await make_resumable(store, await find(store, session), accept_set_back=accept_set_back)
    history = await history_of(store, seen.record.id)
    actions = next_actions(seen, history, url)
    if as_json:
        left = {"next": [action._asdict() for action in actions]}
        show_json({"schema": "holdfast.sessions.resume/1", **_overview_document(seen, history), **left})
    else:
        show_text(f"{seen.record.id}  {seen.record.state.value}")
        _show_actions(actions)
    return Exit.OK


def _is_at_rest(seen: Overview) -> bool:
    """Whether its program has ended and left nothing to do: a session that is not closed can always go on."""
    is_open = seen.in_flight or seen.unknown or seen.questions or seen.parked or seen.problem
    return seen.record.state is SessionState.PAUSED and not is_open


# --- what to do next ---


def next_actions(seen: Overview, history: History, url: str | None) -> list[NextAction]:
    """Return what a person can do now, in order. The last one says how the work goes on."""
    session = seen.record.id
    if seen.record.state is SessionState.CLOSED:
        other = command(url, "fork", session, f"{session}-2")
        return [NextAction("It is closed for good. A new session can begin with its work.", (other,))]
    if seen.in_use:
        return [*_open(seen, history, url), NextAction(f"{seen.record.owner} works in it: leave the rest to it.")]
    if seen.problem:
        return [NextAction(f"It cannot be resumed: {seen.problem}.")]
    actions = _open(seen, history, url)
    for run in seen.parked:
        sooner = "If it need not wait" if run.program else "If the limit was raised"
        what = f"{run.agent} is parked until {_clock(run.until)} ({run.code}): wait until then. {sooner}:"
        actions.append(NextAction(what, (command(url, "unpark", session, run.agent),)))
    then = "Then start its program" if actions else "Start its program"
    if _is_at_rest(seen):
        # Whether the program came to its end, or failed between two steps, is not stored.
        then = "Nothing waits for you. If its program has not finished, start it"
    actions.append(NextAction(f"{then}: {_goes_on(seen, history)}"))
    if seen.in_flight:
        turn = f"Or give up turn {seen.turn}, whose stored steps are then not used again:"
        actions.append(NextAction(turn, (command(url, "abandon", session),)))
    return actions


def _open(seen: Overview, history: History, url: str | None) -> list[NextAction]:
    """Return what waits for a person: steps of unknown outcome and questions."""
    session = seen.record.id
    actions: list[NextAction] = []
    for key in seen.unknown:
        call = next((_short(step.call) for step in history.steps() if step.key == key), key)
        name = key.removeprefix(f"{session}/")
        happened = command(url, "resolve", session, name, "--happened", "--result", "JSON")
        did_not = command(url, "resolve", session, name, "--not-happened")
        what = f"Find out whether {call} happened. If it did, with its result; if not, it runs again:"
        if doubt := in_doubt_text(history, key):
            what = f"Find out whether {call} happened, for the record. {doubt}"
        actions.append(NextAction(what, (happened, did_not)))
    for question in seen.questions:
        what = f"Answer: {visible(question.prompt)}"
        actions.append(NextAction(what, (command(url, "answer", session, question.id, answer_word(question.kind)),)))
    return actions


def in_doubt_text(history: History, key: str) -> str:
    """Return what is true about a call whose result, as a model got it, is that the outcome is unknown; empty for every other step."""
    doubt = history.in_doubt(key)
    if not doubt:
        return ""
    since = "and has answered since" if doubt == "answered" else "and its run goes on with that"
    return (
        f"It does not run again: the agent's model knows that the outcome is unknown, {since}. "
        "Say in a new prompt what you found out."
    )


def _goes_on(seen: Overview, history: History) -> str:
    failed = [_short(step.call) for step in history.steps() if step.state == "failed"]
    if seen.in_flight:
        again = f", and does {failed[-1]} again" if failed else ""
        return f"it continues turn {seen.turn} after its last stored step{again}."
    if failed:
        return f"it does {failed[-1]} again, and goes on after it."
    return "it resumes by itself, after its last stored step."


def _show_actions(actions: list[NextAction]) -> None:
    show_text("next")
    for number, action in enumerate(actions, 1):
        show_text(f"  {number}. {action.what}")
        for line in action.commands:
            # A command is one line, so that it can be copied.
            sys.stdout.write(f"       {line}\n")


# --- the story ---


def _show_history(history: History) -> None:
    if history.oldest > 1:
        show_text(f"the log before entry {history.oldest} was dropped")
    if history.outside:
        show_text(f"steps outside of turns  {_hidden(len(history.outside), _STEPS)}".rstrip())
        _show_steps(history.outside)
    hidden = _hidden(len(history.turns), _TURNS)
    if hidden:
        show_text(f"turns  {hidden}")
    for turn in history.turns[-_TURNS:]:
        show_text(_turn_line(turn))
        _show_steps(turn.steps)
    for question in history.questions[-_STEPS:]:
        answered = (
            question.outcome if question.outcome == "open" else f"{question.outcome} by {question.by or 'nobody'}"
        )
        show_text(f"question  {_clock(question.raised_at)}  {visible(question.prompt)}: {answered}")


def _hidden(count: int, limit: int) -> str:
    return f"(the last {limit} of {count}; --json shows all)" if count > limit else ""


def _turn_line(turn: TurnHistory) -> str:
    times = " to ".join(_clock(at) for at in (turn.began_at, turn.ended_at) if at is not None)
    reason = f" ({turn.reason})" if turn.reason else ""
    given = f"  input: {turn.input}" if turn.input else ""
    return f"turn {turn.number}  {turn.outcome}{reason}  {times}{given}"


def _show_steps(steps: list[StepHistory]) -> None:
    if steps:
        show_table(_COLUMNS, [_step_row(step) for step in steps[-_STEPS:]])


def _step_row(step: StepHistory) -> tuple[str, ...]:
    at = step.ended_at if step.ended_at is not None else step.began_at
    took = "-"
    if step.began_at is not None and step.ended_at is not None:
        took = f"{step.ended_at - step.began_at:.3g} s"
    by = f" by {step.resolved_by}" if step.resolved_by else ""
    settled = f"resolved{by}: " if step.resolved else ""
    settled += f"did not happen ({step.evidence}): " if step.evidence else ""
    not_replayed = "not called by a later run; " if step.not_replayed else ""
    result = f"{not_replayed}{settled}{step.result}" or "-"
    return (_clock(at), step.state, _short(step.call), took, str(step.runs + step.retries), _short(result))


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _clock(at: float | None) -> str:
    """Return a time of day in UTC, with its date: a session may live for weeks."""
    return "-" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _dated(value: Any) -> Any:
    """Return a value with every `…_at` written as other times of the command line are."""
    if isinstance(value, list):
        return [_dated(item) for item in value]
    if isinstance(value, dict):
        return {
            name: time_of(kept) if name.endswith("_at") and kept is not None else _dated(kept)
            for name, kept in value.items()
        }
    return value


# --- the facts ---


def _overview_document(seen: Overview, history: History) -> dict[str, Any]:
    record, manifest, checkpoint = seen.record, seen.manifest, seen.checkpoint
    resumable = manifest is not None and manifest.resumable
    return {
        **record_document(record, used=seen.in_use),
        "bridge_state": machine.bridge_view(record.state, resumable=resumable),
        "stud_state": machine.stud_view(record.state).value,
        "can_resume": not seen.problem,
        "problem": seen.problem,
        "owner": record.owner or "",
        "epoch": record.epoch,
        "oldest": record.oldest,
        "turn": seen.turn,
        "turn_in_flight": seen.in_flight,
        # A log that was cut does not have them all any more.
        "steps": max(seen.steps, len(history.steps())),
        "unknown_steps": list(seen.unknown),
        "questions": [_question_document(question) for question in seen.questions],
        "parked": [
            {"agent": run.agent, "until": time_of(run.until), "code": run.code, "reason": run.reason}
            for run in seen.parked
        ],
        "messages": seen.messages,
        "checkpoint_at": None if checkpoint is None else time_of(checkpoint.at),
        "last_message_id": None if checkpoint is None else checkpoint.last_message_id,
        "manifest": None if manifest is None else msgspec.to_builtins(manifest),
    }


def _question_document(question: Question) -> dict[str, Any]:
    return {
        "id": question.id,
        "kind": question.kind,
        "prompt": question.prompt,
        "choices": list(question.choices),
        "expires_at": None if question.expires_at is None else time_of(question.expires_at),
    }


def _overview_facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts of the document for people, the most important first."""
    problem = document["problem"]
    in_flight = ", in flight" if document["turn_in_flight"] else ""
    at = "" if document["checkpoint_at"] is None else f" at {document['checkpoint_at']}"
    manifest = document["manifest"] or {}
    return [
        ("can resume", "yes" if document["can_resume"] else f"no: {problem}"),
        ("in use", f"yes, by {document['owner']}" if document["in_use"] else "no"),
        ("turn", f"{document['turn']}{in_flight}"),
        ("steps", str(document["steps"])),
        ("messages", str(document["messages"])),
        ("last message", document["last_message_id"] or ""),
        ("log", f"entries {document['oldest']} to {document['entries']}, epoch {document['epoch']}"),
        ("checkpoint", "none" if document["checkpoint"] is None else f"entry {document['checkpoint']}{at}"),
        ("created", document["created_at"]),
        ("last used", document["last_at"]),
        ("for clients", f"{document['bridge_state']}, {document['stud_state']}"),
        *((name, _text(value)) for name, value in manifest.items() if name not in _SHOWN_ABOVE),
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
