"""Durable waits of a program: for a time, and for a signal of somebody else.

In a plain program they wait here. A worker gives the place to other work: the run ends with `ParkedError`, and another one begins when the
time has come or the signal is there.

Invariant: the time of a wait is stored before it begins, and counts from then on. A signal ends one wait, once.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.faults import DeadlineError, Fault, InvalidError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import codec
from holdfast.sessions.journal import fresh_id
from holdfast.sessions.log import Signalled, SignalTaken, TimerSet, new_entry
from holdfast.sessions.open_ends import close, waits_for
from holdfast.sessions.parked_runs import ParkedError, shown_time
from holdfast.stores import Claim, Commit, shared
from holdfast.stores.records import WAKE

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.sessions.journal import Journal
    from holdfast.stores import Store

__all__ = ["NEVER", "signal", "sleep_until", "value_of", "wait_for", "wall_of"]

NEVER = 253_402_300_799.0
"""The end of a wait that has none: the last second of the year 9999. JSON has no infinity."""
_SHORT_S = 1.0
"""A worker waits so many seconds in place: beginning the run again costs more."""
_LOOK_S = 60.0
"""The longest sleep at a time: the wall clock may be set."""


def wall_of(when: Any, where: str) -> float:
    """Return a time as seconds since the epoch. Raise `InvalidError` for one without a time zone."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidError.saying(where, "a time with its zone, such as datetime.now(UTC)", repr(when))
        return when.timestamp()
    if isinstance(when, bool) or not isinstance(when, (int, float)) or not 0 <= when <= NEVER:
        raise InvalidError.at(where, "a datetime, or seconds since the epoch", when)
    return float(when)


async def sleep_until(journal: Journal, key: str, until: float) -> None:
    """Wait until a time. `key` names the wait, and is the same in every run of the program."""
    until = await _timer(journal, key, until)
    while (left := until - _now(journal)) > 0:
        _park(journal, key, until, f"Session '{journal.session}' sleeps until {shown_time(until)}")
        await asyncio.sleep(min(left, _LOOK_S))
    close(journal, f"timer {key}")


async def wait_for(journal: Journal, key: str, name: str, timeout: float | None) -> SignalTaken:  # noqa: ASYNC109 - as in `Session`
    """Wait for a signal; return how the wait ended. `key` as in `sleep_until`."""
    options.name("session.wait_for", name)
    if timeout is not None:
        options.seconds("session.wait_for.timeout", timeout, zero=True)
    if (taken := journal.memory.taken.get(key)) is not None:
        return taken
    until = NEVER if timeout is None else await _timer(journal, key, _now(journal) + timeout)
    while True:
        await journal.catch_up()
        left = until - _now(journal)
        waiting = journal.memory.signals.get(name, ())
        first = next((one for one in waiting if one.id not in journal.taking), None)
        if first is not None or left <= 0:
            break
        when = "" if timeout is None else f" until {shown_time(until)}"
        _park(journal, key, until, f"Session '{journal.session}' waits for the signal '{name}'{when}")
        await journal.store.changed(journal.session, journal.seen, min(left, _LOOK_S))
    taken = (
        SignalTaken(key=key, name=name)
        if first is None
        else SignalTaken(key=key, name=name, id=first.id, value=first.value)
    )
    # Another task that waits for this name takes the next one.
    journal.taking.add(taken.id)
    try:
        await journal.write(taken)
    finally:
        journal.taking.discard(taken.id)
    close(journal, f"timer {key}")
    return taken


async def signal(
    session: str,
    name: str,
    value: Any = None,
    *,
    store: Store | str | Path | None = None,
    id: str | None = None,  # noqa: A002 - as in `Session.message`
    by: str = "",
) -> None:
    """Tell the program of a session something that it waits for, or will wait for.

        await signal("refund:o-7", "approved", True)

    The program gets it from `session.wait_for("approved")`, and a worker goes on with it at once. `store` is an open store, or an address; by
    default `stores.default_url()`. With an `id` the same signal is stored once, however often it is sent. `by` says who sent it.

    Raises SESS_NOT_FOUND for an unknown session, SESS_CLOSED for one that has ended, PROTO_DUPLICATE_ID if the id was used for another
    signal, and `InvalidError` for a value that JSON cannot hold.
    """
    options.name("signal.name", name)
    plain = codec.plain(value, f"signal {name}")
    body = Signalled(name=name, id=id or fresh_id(), value=plain, by=by)
    claim = None
    if id is not None:
        digest = sha256(codec.arguments_hash((name, plain), {}, "signal").encode()).digest()
        claim = Claim(client="signal", id=id, body_hash=digest)
    async with shared.opened(store) as opened:
        await opened.commit(Commit(session=session, entries=(new_entry(body, fresh_id()),), claim=claim, work=WAKE))


async def _timer(journal: Journal, key: str, until: float) -> float:
    """Return when a wait ends: as it was stored at its first begin."""
    stored = journal.memory.timers.get(key)
    if stored is None:
        await journal.write(TimerSet(key=key, until=until))
        return until
    return stored


def _park(journal: Journal, key: str, until: float, message: str) -> None:
    """End this run, if a worker runs the program: it begins another one when the wait may be over."""
    left = until - _now(journal)
    if not journal.parks or left <= _SHORT_S:
        return
    context = {"parked_until": until, "session_id": journal.session}
    error = ParkedError(Fault.of("SESS_WAITING", message, retry_after=left, context=context))
    raise waits_for(journal, f"timer {key}", error)


def value_of(journal: Journal, taken: SignalTaken) -> Any:
    """Return the value of the signal that ended a wait. Raise `DeadlineError` if none came in time."""
    if taken.id:
        return taken.value
    message = f"No signal '{taken.name}' came to session '{journal.session}' in time"
    context = {"session_id": journal.session, "signal": taken.name}
    raise DeadlineError(Fault.of("SYS_DEADLINE_EXCEEDED", message, retryable=False, context=context))


def _now(journal: Journal) -> float:
    return (journal.runtime or default_runtime()).clock.wall()
