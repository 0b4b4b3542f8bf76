"""`holdfast sessions resolve|retry|unpark|abandon|fork`: repair a session whose program stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.output import confirmed, narrate, show_json
from holdfast.cli.store.history import command, in_doubt_text
from holdfast.cli.store.sessions import person
from holdfast.faults import InvalidError
from holdfast.sessions.admin import (
    abandon_turn,
    find,
    fork_session,
    overview,
    resolve_step,
    retry_turn,
    unpark_runs,
)
from holdfast.sessions.history import history_of
from holdfast.sessions.parked_runs import shown_time

if TYPE_CHECKING:
    from holdfast.stores import Store


def _result_of(text: str | None, *, happened: bool, not_happened: bool) -> Any:
    """Return the result that a person gave for a step. Raises `InvalidError` unless the flags say one thing."""
    if happened == not_happened:
        got = "both" if happened else "neither"
        raise InvalidError.saying("resolve", "either --happened or --not-happened", got)
    if text is None:
        return None
    if not_happened:
        raise InvalidError.saying("--result", "only with --happened", "--not-happened")
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        # A text without quotes is the most common mistake.
        raise InvalidError.saying("--result", f"JSON, such as 7 or '\"{text}\"'", f"{text!r} ({error})") from None


async def sessions_resolve(
    store: Store,
    *,
    session: str,
    key: str,
    happened: bool,
    not_happened: bool,
    result: str | None,
    by: str | None,
    url: str | None,
    as_json: bool,
) -> Exit:
    """Record whether a step of unknown outcome has happened. Its program may be waiting for this, or not run at all."""
    value = _result_of(result, happened=happened, not_happened=not_happened)
    session = await find(store, session)
    resolved = await resolve_step(store, session, key, happened=happened, result=value, by=by or person())
    left = (await overview(store, session)).unknown
    doubt = in_doubt_text(await history_of(store, session), resolved)
    if as_json:
        facts = {
            "session": session,
            "key": resolved,
            "happened": happened,
            "result": value,
            "unknown_steps": list(left),
        }
        show_json({"schema": "holdfast.sessions.resolve/1", **facts})
        return Exit.OK
    again = "" if happened or doubt else ", so it runs again"
    narrate(f"{resolved} has {'' if happened else 'not '}happened{again}")
    if doubt:
        narrate(doubt)
    if left:
        narrate(f"still unknown: {', '.join(left)}; see `{command(url, 'show', session)}`")
    elif not doubt:
        narrate("now start the program of this session: it goes on from there")
    return Exit.OK


async def sessions_unpark(store: Store, *, session: str, agent: str, by: str | None, as_json: bool) -> Exit:
    """Let runs go on that are parked."""
    session = await find(store, session)
    lifted = await unpark_runs(store, session, agent, by=by or person())
    if as_json:
        facts = [{"agent": run.agent, "until": run.until, "code": run.code} for run in lifted]
        show_json({"schema": "holdfast.sessions.unpark/1", "session": session, "lifted": facts})
        return Exit.OK
    for run in lifted:
        narrate(f"{run.agent} of {session} may go on: it was parked until {shown_time(run.until)} ({run.code})")
    narrate("now start its program; one that waits in the session looks once a minute")
    return Exit.OK


async def sessions_abandon(store: Store, *, session: str, reason: str, yes: bool, as_json: bool) -> Exit:
    """Give up the turn in flight. Its stored steps are not used again."""
    session = await find(store, session)
    seen = await overview(store, session)
    if seen.in_flight and not yes:
        question = f"Give up turn {seen.turn} of {session}? Its {seen.steps} stored steps are not used again."
        if not confirmed(question + await _what_happens_again(store, session, seen.turn)):
            return Exit.REFUSED
    number = await abandon_turn(store, session, reason)
    if as_json:
        show_json({"schema": "holdfast.sessions.abandon/1", "session": session, "turn": number})
    else:
        narrate(f"gave up turn {number} of {session}")
        narrate("now start the program of this session: its next turn begins anew, also with the same input")
    return Exit.OK


async def _what_happens_again(store: Store, session: str, turn: int) -> str:
    """Return a sentence about what must not happen twice and happened in a turn; empty if there is nothing."""
    turns = (await history_of(store, session)).turns
    steps = [step for each in turns if each.number == turn for step in each.steps]
    done = [step.call for step in steps if step.effect == "unsafe" and step.state == "done"]
    if not done:
        return ""
    return f" It has done {', '.join(done)}: unless it has a key, a program that makes it once more does that again."


async def sessions_retry(store: Store, *, session: str, as_json: bool) -> Exit:
    """Let the turn in flight begin anew. Unsafe steps that happened, or may have, stay done."""
    session = await find(store, session)
    number, kept = await retry_turn(store, session)
    if as_json:
        show_json({"schema": "holdfast.sessions.retry/1", "session": session, "turn": number, "kept": list(kept)})
        return Exit.OK
    narrate(f"turn {number} of {session} begins anew when its program runs")
    if kept:
        narrate(f"these must not happen twice, and stay done: {', '.join(kept)}")
    return Exit.OK


async def sessions_fork(
    store: Store, *, session: str, new: str, at: int | None, turn: int | None, url: str | None, as_json: bool
) -> Exit:
    """Make a new session from another one: all of it, up to an offset, or up to the beginning of a turn."""
    session = await find(store, session)
    top = await fork_session(store, session, new, at=at, turn=turn)
    if as_json:
        show_json({"schema": "holdfast.sessions.fork/1", "session": new, "from": session, "at": at, "entries": top})
    else:
        narrate(f"made {new} from {session}, with {top} entries of its log")
        narrate(f"open it in a program with Session.open({new!r}); look at it with `{command(url, 'show', new)}`")
    return Exit.OK
