"""Durable waits of a program: for a time, and for a signal of somebody else.

In a plain program they wait here. A worker gives the place to other work: the run ends with `ParkedError`, and another one begins when the
time has come or the signal is there.

Invariant: the time of a wait is stored before it begins, and counts from then on. A signal ends one wait, once.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from holdfast import options
from holdfast.faults import DeadlineError, Fault, InvalidError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import codec
from holdfast.sessions.journal import fresh_id
from holdfast.sessions.log import Signalled, SignalTaken, TimerSet, new_entry
from holdfast.sessions.open_ends import close, waits_for
from holdfast.sessions.parked_runs import ParkedError, shown_time
from holdfast.sessions.work_item import HeldWork
from holdfast.stores import Claim, Commit, SessionState, shared
from holdfast.stores.records import WAKE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from holdfast.sessions.journal import Journal
    from holdfast.sessions.log import WorkNoted
    from holdfast.sessions.turn import TurnRunner
    from holdfast.stores import Store

__all__ = ["NEVER", "Waits", "signal", "wall_of"]

T = TypeVar("T")
Numbered: TypeAlias = "Callable[[str, Any, Callable[[str], Any]], Any]"

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


class Waits:
    """The durable waits of a session, and what its worker does with it."""

    __slots__ = ()
    _journal: Journal
    _turns: TurnRunner

    async def numbered(self, name: str, given: Any, work: Callable[[str], Awaitable[T]]) -> T:
        """As `Session.numbered`, which takes its place."""
        raise NotImplementedError

    @property
    def work(self) -> HeldWork:
        """The work item that the session is, for the worker that runs its program: `session.work.submitted`."""
        return HeldWork(self._journal, self._lose, self._close_work)

    async def _close_work(self, noted: WorkNoted) -> None:
        await self._turns.in_order(partial(self._end, SessionState.CLOSED, noted.status, noted))

    def _lose(self, fault: Fault) -> None:
        raise NotImplementedError

    async def _end(self, to: SessionState, reason: str, noted: WorkNoted | None = None) -> None:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds, also across restarts: `await session.sleep(3 * 86_400)`.

        The time at which it ends is stored at the first call, and counts by the wall clock. A wait is known as a step is, by its seconds.
        A program that a worker runs gives its place to other work: the run ends here with `ParkedError`, and another one goes on after
        the wait. In other programs it waits here. Raises `InvalidError` for a number that is none of seconds.
        """
        await _sleep_for(self._journal, self.numbered, seconds)

    async def sleep_until(self, when: datetime | float) -> None:
        """Wait until a time, a `datetime` with its zone or seconds since the epoch, also across restarts: as `sleep`.

            monday = await session.step(next_monday)
            await session.sleep_until(monday)

        The wait is known by its time, so a time that depends on the present one comes from a step: each run of the program gets the same.
        """
        await _sleep_until(self._journal, self.numbered, when)

    async def wait_for(self, name: str, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - it is stored, and survives the process
        """Wait for a signal, and return its value: `reply = await session.wait_for("approved", timeout=3600)`.

        `holdfast.sessions.signal` sends one, from any process. Each ends one wait, and one that came before the wait counts. The first,
        second … wait for a name gets the same signal in each run of the program. A worker gives the place to other work, as in `sleep`.
        Raises `DeadlineError` if none came within `timeout` seconds, across restarts.
        """
        return await _wait_for_signal(self._journal, self.numbered, name, timeout)


async def _sleep_for(journal: Journal, numbered: Numbered, seconds: float) -> None:
    """Wait for so many seconds: see `Session.sleep`. `numbered` is that of the session."""
    options.seconds("session.sleep", seconds, zero=True)
    await numbered("sleep", seconds, lambda key: _sleep(journal, key, _now(journal) + seconds))


async def _sleep_until(journal: Journal, numbered: Numbered, when: Any) -> None:
    """Wait until a time: see `Session.sleep_until`."""
    until = wall_of(when, "session.sleep_until")
    await numbered("sleep_until", until, lambda key: _sleep(journal, key, until))


async def _wait_for_signal(journal: Journal, numbered: Numbered, name: str, timeout: float | None) -> Any:  # noqa: ASYNC109 - as in `Session`
    """Wait for a signal, and return its value: see `Session.wait_for`."""
    options.name("session.wait_for", name)
    if timeout is not None:
        options.seconds("session.wait_for.timeout", timeout, zero=True)
    # The use has ended, also if no signal came: the next call is another wait.
    return _value_of(journal, await numbered("wait_for", name, lambda key: _wait_for(journal, key, name, timeout)))


async def _sleep(journal: Journal, key: str, until: float) -> None:
    """Wait until a time. `key` names the wait, and is the same in every run of the program."""
    until = await _timer(journal, key, until)
    while (left := until - _now(journal)) > 0:
        _park(journal, key, until, f"Session '{journal.session}' sleeps until {shown_time(until)}")
        await asyncio.sleep(min(left, _LOOK_S))
    close(journal, f"timer {key}")


async def _wait_for(journal: Journal, key: str, name: str, timeout: float | None) -> SignalTaken:  # noqa: ASYNC109 - as above
    """Wait for a signal; return how the wait ended. `key` as in `_sleep`."""
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


def _value_of(journal: Journal, taken: SignalTaken) -> Any:
    """Return the value of the signal that ended a wait. Raise `DeadlineError` if none came in time."""
    if taken.id:
        return taken.value
    message = f"No signal '{taken.name}' came to session '{journal.session}' in time"
    context = {"session_id": journal.session, "signal": taken.name}
    raise DeadlineError(Fault.of("SYS_DEADLINE_EXCEEDED", message, retryable=False, context=context))


def _now(journal: Journal) -> float:
    return (journal.runtime or default_runtime()).clock.wall()
