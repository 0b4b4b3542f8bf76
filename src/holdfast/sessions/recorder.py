"""The recorder of a session: keeps what recoveries did inside it until a commit writes that into the session's audit chain.

It never delays a call: records wait in memory, until the end of their step at the latest, or for a second. A crash loses at most that
second; the session's next record says that it crashed.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from holdfast.events import (
    AttemptEnded,
    AttemptStarted,
    SessionActive,
    SessionClosed,
    SessionPersisted,
    SessionResumed,
    SessionTurnEnd,
    SessionTurnStart,
    TaskStateChange,
    WaitBegan,
)
from holdfast.faults import InvalidError
from holdfast.runtime.secrets import process_redactor
from holdfast.runtime.work import WORK, Work, work_in_force
from holdfast.sinks.audit_records import audit_of
from holdfast.stores import NewAudit

if TYPE_CHECKING:
    from contextvars import Token

    from holdfast.events import Event

__all__ = ["MOST_WAITING", "Recorder", "Unwritten"]

MOST_WAITING = 1_000
"""The most records that wait to be written. Later ones are counted, and the count is recorded."""
# The changes of a session's state are in its audit chain already, in the same commit as the state.
_NOT_RECORDED = (
    *(AttemptStarted, AttemptEnded, WaitBegan, SessionTurnStart, SessionTurnEnd, TaskStateChange),
    *(SessionActive, SessionPersisted, SessionResumed, SessionClosed),
)
_LATEST_S = 1.0
"""Seconds after which records are written by themselves, if nothing else is written before."""


class Unwritten(NamedTuple):
    """Records, and events with the keys of their steps, and how many more did not fit."""

    events: tuple[tuple[Event, str] | NewAudit, ...]
    dropped: int


_NOTHING = Unwritten((), 0)


class Flushes(Protocol):
    """Who owns a recorder."""

    def flush(self) -> None:
        """Write what waits. Called in the session's loop."""
        ...


_LISTING = threading.Lock()


class Recorder:
    """The records of a session that wait to be written."""

    __slots__ = ("_dropped", "_journal", "_loop", "_session", "_timer", "_token", "_waiting", "_work")

    def __init__(self, session: str, journal: Flushes) -> None:
        self._session = session
        self._journal = journal
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[Event, str] | NewAudit] | None = None
        self._dropped = 0
        self._work: Work | None = None
        self._token: Token[Work | None] | None = None

    def enter(self) -> None:
        """Begin to record: the events of the caller, and of every task that it starts from now on, belong to the session."""
        self._loop = asyncio.get_running_loop()
        self._work = Work(self._session, self, around=work_in_force())
        self._token = WORK.set(self._work)

    def check_loop(self) -> None:
        """Raise `InvalidError` in another event loop than the session's: its futures would wait there for ever."""
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise InvalidError.saying(
                "session",
                "a call in the event loop that opened the session: from a thread, "
                "`asyncio.run_coroutine_threadsafe(session.step(…), loop).result()`",
                f"a call of session {self._session!r} in another event loop",
            )

    def leave(self) -> None:
        """End recording. What still waits is written by the session's last commit, before this."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        if self._work is not None and self._token is not None:
            token, self._token = self._token, None
            self._work.over = True
            try:
                WORK.reset(token)
            except ValueError:
                # The session is left in another task than it was entered in. `over` ends the scope there too.
                return

    def inside(self, turn: int, step: str = "", key: str = "") -> Work:
        """Return a block whose events carry this turn and step."""
        return Work(self._session, self, turn=turn, step=step, key=key, around=work_in_force())

    def __call__(self, event: Event, work: Work) -> None:
        """Keep an event until the next commit. It may come from any thread."""
        loop = self._loop
        # Attempts are the work itself, and far more than what a person looks for in a trail. A turn has its own records.
        if loop is None or isinstance(event, _NOT_RECORDED):
            return
        waiting = self._list()
        if len(waiting) >= MOST_WAITING:
            self._dropped += 1
            return
        waiting.append((event, work.key))
        if len(waiting) == 1:
            self._wake(loop)

    def add(self, record: NewAudit) -> None:
        """Write a record with the session's next commit, after a second at the latest. Call it in the session's loop."""
        waiting = self._list()
        waiting.append(record)
        if len(waiting) == 1:
            self.schedule()

    def _list(self) -> list[tuple[Event, str] | NewAudit]:
        """Return what waits. It is made with the first record, because most sessions are idle."""
        with _LISTING:
            if self._waiting is None:
                self._waiting = []
            return self._waiting

    @property
    def is_waiting(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._waiting)

    def take(self) -> Unwritten:
        """Return what a commit has to write, and forget it. `put_back` it if the commit fails."""
        if not self._waiting:
            return _NOTHING
        waiting, self._waiting = self._waiting, None
        taken = Unwritten(tuple(waiting), self._dropped)
        self._dropped = 0
        return taken

    def put_back(self, taken: Unwritten) -> None:
        """Keep what a commit did not write for the next one."""
        if taken.events:
            self._list()[:0] = taken.events
            self._dropped += taken.dropped

    def records(self, taken: Unwritten) -> tuple[NewAudit, ...]:
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
            self._timer = self._loop.call_later(_LATEST_S, self._journal.flush)
