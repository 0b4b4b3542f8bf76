"""The writer: one transaction at a time. While it is written to disk, jobs wait for the next one.

A thread writes, so that a slow disk does not stop the event loop. Handing a job to a thread and back takes longer than a quick disk
needs. So if the last transactions were quick, and only few jobs wait, the event loop itself writes them. It never waits for another
process, and leaves moving the WAL to the thread.

Invariant: a future is completed only after its transaction is on disk, or after it is certain that nothing was written. A script
that raises does not affect the other scripts of its transaction.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from holdfast.faults import HoldfastError
from holdfast.stores.errors import unavailable
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.sqlite.failures import typed
from holdfast.stores.sqlite.tables import Tables

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from holdfast.stores.records import Commit
    from holdfast.stores.sql.query import Script
    from holdfast.stores.sqlite.files import FileIdentity
    from holdfast.stores.sqlite.high_water import HighWater
    from holdfast.stores.sqlite.locks import NoTurns, TurnLock

MOST_JOBS = 512
"""The most jobs in one transaction. More jobs would delay the first of them too much."""
MOST_WAL_BYTES = 8 << 20
"""The size to which the WAL may grow. At half of this size SQLite moves the WAL into the file and reuses it from the start, because
a file that does not grow is synced faster. A reader can block this. Beyond this size the WAL is emptied as soon as nobody reads."""

QUICK_S = 0.001
"""A transaction that takes less is quick: the event loop may write it itself."""
_QUICK_ONES = 8
"""So many more must have been quick than slow."""
_MOST_QUICK = 16
_SLOW_ONE = 4
"""A transaction that was not quick counts as much as this many quick ones: now and then a quick disk is slow for a moment."""
_FEW_JOBS = 8
_PAGES = 16_384
"""About how many bytes a transaction adds to the WAL besides what it stores."""
_POLL_S = 0.0001
_MOST_PATIENCE_S = 0.002


def patience(took: float) -> float:
    """Return how long to wait for more jobs after a transaction that took `took` seconds.

    It is half of that time: waiting must cost less than another transaction.
    """
    return min(took / 2, _MOST_PATIENCE_S)


class WriteJob:
    """A commit or a script to run in a transaction, and the future of its result.

    written: the future of several jobs that are written together. It only says that they have ended; each has its `outcome`.
    """

    __slots__ = ("commit", "done", "error", "future", "is_grouped", "loop", "result", "script", "session")

    def __init__(
        self,
        script: Callable[[], Script[Any]] | None = None,
        session: str | None = None,
        commit: Commit | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        written: asyncio.Future[None] | None = None,
    ) -> None:
        self.script = script
        """What it does; None: it writes `commit`."""
        self.session = session
        """The session that it changes."""
        self.commit = commit
        self.loop = loop
        """The event loop that waits for it; None: a thread waits."""
        self.is_grouped = written is not None
        self.future: asyncio.Future[Any] | Future[Any] = written or (Future() if loop is None else loop.create_future())
        self.done = False
        """Whether its transaction has ended: the script was rejected, or its writes are on disk."""
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def outcome(self) -> Any:
        """Its result, or the error for which nothing was written."""
        return self.result if self.error is None else _own(self.error)


class Writer:
    """Runs jobs in the order they arrive."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        *,
        turns: TurnLock | NoTurns,
        identity: FileIdentity,
        high_water: HighWater,
        on_commit: Callable[[Mapping[str, int]], None],
        now: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._path = path
        self._turns = turns
        self._identity = identity
        self._on_commit = on_commit
        self._high_water = high_water
        self._tables = Tables(connection, now, high_water)
        self._queue: SimpleQueue[list[WriteJob] | None] = SimpleQueue()
        self._arriving: dict[asyncio.AbstractEventLoop, list[WriteJob]] = {}
        """The jobs of the present turn of each event loop. They are written together."""
        self._closed = False
        self._closing = threading.Lock()
        """Held while jobs are queued: no job may come after the None that ends the thread."""
        self._using = threading.Lock()
        """Held by the thread that uses the connection."""
        self._quick = 0
        """How many more of the last transactions were quick than slow, as `_SLOW_ONE` counts them."""
        self._settings = _Settings(connection)
        self._unmoved = 0
        """About how many bytes event loops have added to the WAL since the thread could move it."""
        self._company = 0
        """How many jobs the last transaction had, plus the jobs that were queued at its end."""
        self._until = 0.0
        """Until when the next transaction waits for this many jobs."""
        # The thread is a daemon: a program that forgets to close the store must still be able to end.
        self._thread = threading.Thread(target=self._run, name="holdfast-sqlite", daemon=True)
        self._thread.start()

    def do(self, *jobs: WriteJob) -> Any:
        """Write a job with the next transaction, or several of one event loop; return the future of the last."""
        loop = jobs[-1].loop
        with self._closing:
            if self._closed:
                raise unavailable(f"{self._path} is closed")
            if loop is None:
                self._queue.put([*jobs])
            elif (arriving := self._arriving.get(loop)) is not None:
                arriving += jobs
            else:
                self._arriving[loop] = [*jobs]
                loop.call_soon(self._send, loop)
        return jobs[-1].future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write the jobs that came in one turn of an event loop: here, or in the thread."""
        with self._closing:
            jobs = self._arriving.pop(loop, None)
            if not jobs:
                return
            if len(jobs) > _FEW_JOBS or not self._may_write_here():
                self._queue.put(jobs)
                return
        try:
            written = self._perform_at_once(jobs)
        except BaseException as error:  # noqa: BLE001 - the waiting callers must get the error
            _fail(jobs, error)
            written = True
        finally:
            self._using.release()
        if not written:
            with self._closing:
                if not self._closed:
                    self._queue.put(jobs)
                    return
            _fail(jobs, unavailable(f"{self._path} is closed"))
        _deliver(jobs)
        FAILPOINTS.reach("settled")

    def _may_write_here(self) -> bool:
        """Whether the event loop may write now. If so, the connection is its own until `_using` is released."""
        if self._quick < _QUICK_ONES or not self._queue.empty():
            return False
        if self._unmoved > MOST_WAL_BYTES // 8 or self._identity.wal_bytes > MOST_WAL_BYTES:
            return False
        return self._using.acquire(blocking=False)

    def lend(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Call `work`, which only reads, with the connection; do nothing while this process writes."""
        if self._using.acquire(blocking=False):
            try:
                work(self._connection)
            finally:
                self._using.release()

    def close(self) -> None:
        """Write the queued jobs, then stop. Block until the thread has ended."""
        with self._closing:
            self._closed = True
            for jobs in self._arriving.values():
                self._queue.put(jobs)
            self._arriving.clear()
            self._queue.put(None)
        self._thread.join()
        # An event loop of another thread may still be writing.
        with self._using:
            pass

    def _run(self) -> None:
        while True:
            jobs: list[WriteJob] = []
            first = self._queue.get()
            last = first is None or not self._fill(jobs, first)
            if jobs:
                with self._using:
                    self._perform(jobs)
                # Do this last: the callers run at once, and this thread would only compete with them.
                _settle(jobs)
                FAILPOINTS.reach("settled")
            if last:
                return

    def _fill(self, jobs: list[WriteJob], more: list[WriteJob] | None) -> bool:
        """Take the queued jobs, and wait a moment for more; return whether the thread continues.

        Callers whose writes were just completed are likely to write again soon. One sync for all of them takes no longer than a sync
        for half of them. While their event loop runs, this thread would only compete with it.
        """
        while more is not None:
            jobs += more
            while self._queue.empty() and len(jobs) < self._company and time.monotonic() < self._until:
                time.sleep(_POLL_S)
            if len(jobs) >= MOST_JOBS or self._queue.empty():
                return True
            more = self._queue.get()
        return False

    def _perform(self, jobs: list[WriteJob]) -> None:
        """Write jobs in the thread. It may wait for other processes, and moves the WAL."""
        FAILPOINTS.reach("taken")
        began = time.monotonic()
        try:
            with self._turns:
                self._settings.for_thread()
                self._write(jobs)
                FAILPOINTS.reach("committed")
                self._tidy()
        except BaseException as error:  # noqa: BLE001 - the waiting callers must get the error, and the thread must live on
            _fail(jobs, error)
        FAILPOINTS.reach("settling")
        self._unmoved = 0
        self._note(jobs, began)

    def _perform_at_once(self, jobs: list[WriteJob]) -> bool:
        """Write jobs in the event loop; return whether that was possible without waiting for another process."""
        if not self._turns.acquire_at_once():
            return False
        FAILPOINTS.reach("taken")
        began = time.monotonic()
        try:
            self._settings.for_event_loop()
            if not _begins_at_once(self._connection):
                return False
            if not self._transact(jobs, may_wait=False) and len(jobs) > 1:
                for job in jobs:
                    self._write([job])
            FAILPOINTS.reach("committed")
        except BaseException as error:  # noqa: BLE001 - the waiting callers must get the error
            _fail(jobs, error)
        finally:
            self._turns.release()
        FAILPOINTS.reach("settling")
        self._unmoved += _PAGES + sum(len(entry.body) for job in jobs if job.commit for entry in job.commit.entries)
        self._note(jobs, began)
        return True

    def _note(self, jobs: list[WriteJob], began: float) -> None:
        now = time.monotonic()
        self._company = len(jobs)
        self._until = now + patience(now - began)
        quick = now - began < QUICK_S
        self._quick = min(self._quick + 1, _MOST_QUICK) if quick else max(self._quick - _SLOW_ONE, 0)
        # A repeated commit has written nothing, and has the receipt of the first one.
        self._on_commit(
            {
                job.session: job.result.top
                for job in jobs
                if job.commit and job.session and job.error is None and not job.result.duplicate
            }
        )

    def _write(self, jobs: list[WriteJob]) -> None:
        try:
            # IMMEDIATE takes the write lock now: a later upgrade could fail half-way through the jobs.
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            # No transaction can begin, so running the jobs one by one would fail too.
            raise typed(error, self._path) from error
        if not self._transact(jobs) and len(jobs) > 1:
            # One job made the whole transaction fail. Run each job alone, so that only that job fails.
            for job in jobs:
                self._write([job])

    def _transact(self, jobs: list[WriteJob], *, may_wait: bool = True) -> bool:
        """Run jobs in the current transaction, and end it; return whether it was committed.

        may_wait: whether another process may be waited for, if the transaction has to begin anew.
        """
        FAILPOINTS.reach("begun")
        connection = self._connection
        failure: BaseException
        try:
            self._tables.write(jobs, may_begin_anew=may_wait)
            FAILPOINTS.reach("written")
            connection.execute("COMMIT")
            # Check after COMMIT: it must not be acknowledged if it went into a file that nobody can find.
            self._identity.check()
            if self._tables.last is not None:
                self._high_water.note(*self._tables.last)
        except sqlite3.Error as error:
            failure = typed(error, self._path)
        except BaseException as error:  # noqa: BLE001 - the waiting callers must get the error
            failure = error
        else:
            for job in jobs:
                job.done = True
            return True
        self._roll_back()
        self._tables.forget()
        for job in jobs:
            job.error = failure
        return False

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            # If the file is damaged, the next BEGIN raises that error.
            pass

    def _tidy(self) -> None:
        """Keep the WAL small. If somebody reads at the moment, a later commit does it."""
        try:
            if self._identity.wal_bytes > MOST_WAL_BYTES:
                tidy(self._connection)
        except sqlite3.Error:
            # The commits are safe in the WAL. The next commit raises if the disk fails.
            return


class _Settings:
    """What differs between the thread and an event loop that writes: the event loop never waits.

    It neither waits for another connection, nor for SQLite to move the WAL into the file after a commit. The settings belong to the
    connection and are changed only when another of the two writes, because a statement costs as much as a quick commit's own work.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        (self._busy,) = connection.execute("PRAGMA busy_timeout").fetchone()
        (page,) = connection.execute("PRAGMA page_size").fetchone()
        self._move_at = MOST_WAL_BYTES // 2 // page
        self._in_thread: bool | None = None

    def for_thread(self) -> None:
        if self._in_thread is not True:
            self._set(self._busy, self._move_at)
            self._in_thread = True

    def for_event_loop(self) -> None:
        if self._in_thread is not False:
            self._set(0, 0)
            self._in_thread = False

    def _set(self, busy: int, move_at: int) -> None:
        # If one of them fails, both are set again the next time.
        self._in_thread = None
        self._connection.execute(f"PRAGMA busy_timeout = {busy}")
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {move_at}")


def _begins_at_once(connection: sqlite3.Connection) -> bool:
    """Begin a transaction if no other connection writes; return whether it began."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        # The thread begins again, and reports the error if it was not that.
        return False
    return True


def _fail(jobs: list[WriteJob], error: BaseException) -> None:
    for job in jobs:
        if not job.done:
            job.error = error


def tidy(connection: sqlite3.Connection) -> None:
    """Move the WAL into the file, and empty it if nobody reads at the moment. Never wait for a reader."""
    FAILPOINTS.reach("moving")
    _, log, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    FAILPOINTS.reach("moved")
    if log != moved:
        # A reader still needs the rest of the WAL. Emptying it would have to wait for the reader.
        return
    (busy,) = connection.execute("PRAGMA busy_timeout").fetchone()
    # TRUNCATE would wait for readers, and meanwhile no commit could be written.
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        FAILPOINTS.reach("emptied")
    finally:
        connection.execute(f"PRAGMA busy_timeout = {busy}")


def _settle(jobs: list[WriteJob]) -> None:
    """Complete the futures, with only one wake-up for all jobs of an event loop."""
    if len(jobs) == 1:
        _send(jobs[0].loop, jobs)
        return
    by_loop: defaultdict[asyncio.AbstractEventLoop | None, list[WriteJob]] = defaultdict(list)
    for job in jobs:
        by_loop[job.loop].append(job)
    for loop, its in by_loop.items():
        _send(loop, its)


def _send(loop: asyncio.AbstractEventLoop | None, jobs: list[WriteJob]) -> None:
    if loop is None:
        _deliver(jobs)
        return
    if loop.is_closed():
        return
    try:
        loop.call_soon_threadsafe(_deliver, jobs)
    except RuntimeError:
        # The loop was closed meanwhile, so nobody waits for these jobs any more.
        return


def _deliver(jobs: list[WriteJob]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is None or job.is_grouped:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(_own(job.error))


def _own(error: BaseException) -> BaseException:
    """Return a copy of the error for one caller, because raising the same object several times mixes the tracebacks."""
    if isinstance(error, HoldfastError):
        copy = type(error)(error.fault)
        copy.__cause__ = error.__cause__
        return copy
    return error
