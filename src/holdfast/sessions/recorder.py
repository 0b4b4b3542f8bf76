"""Records what recoveries did inside a session in the session's audit chain: retries, circuits, fallbacks, ignored errors.

Invariant: a call is never delayed. Records wait in memory and are written with the session's next commit, which is the end of their
step at the latest, or after a second. A crash loses at most that second; the session's next record says that it crashed.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.events import AttemptEnded, AttemptStarted
from holdfast.runtime.secrets import process_redactor
from holdfast.runtime.work import WORK, Work, work_in_force
from holdfast.sinks.audit_records import audit_of
from holdfast.stores.records import NewAudit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Token

    from holdfast.events import Event

__all__ = ["Recorder", "Waiting"]

MOST_WAITING = 1_000
"""The most records that wait to be written. Later ones are counted, and the count is recorded."""
LATEST_S = 1.0
"""Seconds after which records are written by themselves, if nothing else is written before."""


class Waiting(NamedTuple):
    """Records, and events with the keys of their steps, and how many more did not fit."""

    events: tuple[tuple[Event, str] | NewAudit, ...]
    dropped: int


_NOTHING = Waiting((), 0)


class Recorder:
    """The records of a session that wait to be written."""

    __slots__ = ("_dropped", "_flush", "_loop", "_session", "_timer", "_waiting", "_work")

    def __init__(self, session: str, flush: Callable[[], object]) -> None:
        self._session = session
        self._flush = flush
        """Writes what waits. Called in the session's loop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[Event, str] | NewAudit] = []
        self._dropped = 0
        self._work: tuple[Work, Token[Work | None]] | None = None

    def enter(self) -> None:
        """Begin to record: the events of the caller, and of every task that it starts from now on, belong to the session."""
        self._loop = asyncio.get_running_loop()
        work = Work(self._session, self.put, around=work_in_force())
        self._work = (work, WORK.set(work))

    def leave(self) -> None:
        """End recording. What still waits is written by the session's last commit, before this."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        if self._work is not None:
            (work, token), self._work = self._work, None
            work.over = True
            try:
                WORK.reset(token)
            except ValueError:
                # The session is left in another task than it was entered in. `over` ends the scope there too.
                return

    @contextmanager
    def inside(self, turn: int, step: str = "", key: str = "") -> Iterator[None]:
        """Events of the block carry this turn and step."""
        work = Work(self._session, self.put, turn=turn, step=step, key=key, around=work_in_force())
        token = WORK.set(work)
        try:
            yield
        finally:
            work.over = True
            WORK.reset(token)

    def put(self, event: Event, work: Work) -> None:
        """Keep an event until the next commit. It may come from any thread."""
        loop = self._loop
        # Attempts are the work itself, and far more than what a person looks for in a trail.
        if loop is None or isinstance(event, (AttemptStarted, AttemptEnded)):
            return
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
            return
        self._waiting.append((event, work.key))
        if len(self._waiting) == 1:
            self._wake(loop)

    def add(self, record: NewAudit) -> None:
        """Write a record with the session's next commit, after a second at the latest. Call it in the session's loop."""
        self._waiting.append(record)
        if len(self._waiting) == 1:
            self.schedule()

    def take(self) -> Waiting:
        """Return what a commit has to write, and forget it. `put_back` it if the commit fails."""
        if not self._waiting:
            return _NOTHING
        taken = Waiting(tuple(self._waiting), self._dropped)
        self._waiting, self._dropped = [], 0
        return taken

    def put_back(self, taken: Waiting) -> None:
        """Keep what a commit did not write for the next one."""
        if taken.events:
            self._waiting[:0] = taken.events
            self._dropped += taken.dropped

    def records(self, taken: Waiting) -> tuple[NewAudit, ...]:
        """Return the audit records of what was taken."""
        redactor = process_redactor()
        records = [
            item if isinstance(item, NewAudit) else audit_of(item[0], redactor, correlation=item[1])
            for item in taken.events
        ]
        if taken.dropped:
            payload = msgspec.json.encode({"event": "records-dropped", "count": taken.dropped})
            records.append(NewAudit(kind="Integrity", correlation=self._session, payload=payload))
        return tuple(records)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self.schedule)
        except RuntimeError:
            # The loop is closed: a thread of the program outlived it, and nothing can be written any more.
            self._loop = None

    def schedule(self) -> None:
        """Write what waits in a second, unless it was written by then. Call it in the session's loop."""
        if self._loop is not None and self._waiting:
            self._timer = self._loop.call_later(LATEST_S, self._flush)
