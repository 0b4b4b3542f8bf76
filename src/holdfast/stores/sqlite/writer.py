"""The one thread that writes. While one transaction is written to disk, jobs wait for the next transaction.

Invariant: a future is completed only after its transaction is on disk, or after it is certain that nothing was written. A script
that raises does not affect the other scripts of its transaction.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.faults import HoldfastError
from holdfast.stores.errors import missing, unavailable
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.sql import commits
from holdfast.stores.sql.batch import HEADS, Batch, head_of, is_plain
from holdfast.stores.sql.query import Many
from holdfast.stores.sqlite.failures import typed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from holdfast.stores.records import Commit
    from holdfast.stores.sql.batch import Head
    from holdfast.stores.sql.query import Script
    from holdfast.stores.sqlite.files import Identity

__all__ = ["Job", "Tables", "Writer", "run_script", "tidy"]

MOST_JOBS = 512
"""The most jobs in one transaction. More jobs would delay the first of them too much."""
MOST_WAL_BYTES = 8 << 20
"""The size to which the WAL may grow. At half of this size SQLite moves the WAL into the file and reuses it from the start, because
a file that does not grow is synced faster. A reader can block this. Beyond this size the WAL is emptied as soon as nobody reads."""

MOST_HEADS = 20_000
"""How many sessions' heads are kept in memory."""

_POLL_S = 0.0001
_MOST_PATIENCE_S = 0.002

T = TypeVar("T")


def patience(took: float) -> float:
    """Return how long to wait for more jobs after a transaction that took `took` seconds.

    It is half of that time: waiting must cost less than another transaction.
    """
    return min(took / 2, _MOST_PATIENCE_S)


def run_script(connection: sqlite3.Connection, script: Script[T]) -> T:
    """Run a script's statements in the current transaction; return its result."""
    rows: Any = None
    while True:
        try:
            step = script.send(rows)
        except StopIteration as end:
            result: T = end.value
            return result
        if FAILPOINTS.hook is not None and not step.sql.startswith("SELECT"):
            FAILPOINTS.reach(" ".join(step.sql.split()[:3]))
        if isinstance(step, Many):
            connection.executemany(step.sql, step.rows)
            rows = []
        else:
            rows = connection.execute(step.sql, step.args).fetchall()


class Job:
    """A script to run in a transaction, and the future of its result."""

    __slots__ = ("commit", "done", "error", "future", "loop", "result", "script", "session")

    def __init__(
        self,
        script: Callable[[], Script[Any]],
        session: str | None = None,
        commit: Commit | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.script = script
        self.session = session
        """The session that it changes."""
        self.commit = commit
        """The commit that the script writes, if it writes one. A batch writes a plain commit without its script."""
        self.loop = loop
        """The event loop that waits for it; None: a thread waits."""
        self.future: asyncio.Future[Any] | Future[Any] = Future() if loop is None else loop.create_future()
        self.done = False
        """Whether its transaction has ended: the script was rejected, or its writes are on disk."""
        self.result: Any = None
        self.error: BaseException | None = None


class Tables:
    """Writes jobs into the tables, in the present transaction. Plain commits that follow each other become one batch.

    It keeps the heads of the sessions that it wrote, so that most commits read nothing. They are right as long as nobody else has
    written to the file.
    """

    def __init__(self, connection: sqlite3.Connection, now: Callable[[], float]) -> None:
        self._connection = connection
        self._now = now
        self._heads: dict[str, Head] = {}
        self._version = -1
        """Changes when another connection has written to the file."""

    def forget(self) -> None:
        """Forget all heads, because the transaction was rolled back."""
        self._heads.clear()

    def write(self, jobs: list[Job]) -> None:
        """Run the jobs. A job that is rejected gets its error, and the others go on."""
        ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
        if version != self._version or len(self._heads) > MOST_HEADS:
            self._heads.clear()
            self._version = version
        batch, now = Batch(), self._now()
        for job in jobs:
            job.error = None
            try:
                if job.commit is not None and is_plain(job.commit):
                    head = self._head(job.commit.session or "")
                    if batch.takes(job.commit, head):
                        job.result = batch.add(job.commit, head, now)
                        continue
                # The script reads what the batch writes.
                self._flush(batch)
                batch = Batch()
                self._run(job)
            except HoldfastError as rejection:
                # A script raises only before its first write, so the transaction can continue.
                job.error = rejection
        self._flush(batch)

    def _run(self, job: Job) -> None:
        if job.session is not None:
            self._heads.pop(job.session, None)
        job.result = run_script(self._connection, job.script())

    def _head(self, session: str) -> Head:
        head = self._heads.get(session)
        if head is None:
            rows = self._connection.execute(f"{HEADS} = ?", (session,)).fetchall()
            if not rows:
                raise missing(session)
            head = self._heads[session] = head_of(rows[0][1:])
        return head

    def _flush(self, batch: Batch) -> None:
        if not batch.after:
            return
        self._execute(commits.APPEND, batch.entries)
        self._execute(commits.MOVE, batch.moves())
        if batch.audits:
            self._execute(commits.SEAL, batch.audits)
            self._execute(commits.LENGTHEN, batch.lengthened())
        self._heads.update(batch.after)

    def _execute(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if FAILPOINTS.hook is not None and rows:
            FAILPOINTS.reach(" ".join(sql.split()[:3]))
        # For a single row `executemany` is slower than `execute`.
        if len(rows) == 1:
            self._connection.execute(sql, rows[0])
        elif rows:
            self._connection.executemany(sql, rows)


class Writer:
    """Runs jobs in the order they arrive."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        *,
        turns: AbstractContextManager[None],
        identity: Identity,
        on_commit: Callable[[Iterable[str]], None],
        now: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._path = path
        self._turns = turns
        self._identity = identity
        self._on_commit = on_commit
        self._tables = Tables(connection, now)
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._wal = Path(f"{path}-wal")
        self._closed = False
        self._closing = threading.Lock()
        self._company = 0
        """How many jobs the last transaction had, plus the jobs that were queued at its end."""
        self._until = 0.0
        """Until when the next transaction waits for this many jobs."""
        _reuse_wal(connection)
        # The thread is a daemon: a program that forgets to close the store must still be able to end.
        self._thread = threading.Thread(target=self._run, name="holdfast-sqlite", daemon=True)
        self._thread.start()

    def do(self, job: Job) -> Any:
        """Write a job with the next transaction; return the future of its result."""
        # Hold the lock, because no job may be queued after the None that ends the thread.
        with self._closing:
            if self._closed:
                raise unavailable(f"{self._path} is closed")
            self._queue.put(job)
        return job.future

    def close(self) -> None:
        """Write the queued jobs, then stop. Block until the thread has ended."""
        with self._closing:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            jobs: list[Job] = []
            first = self._queue.get()
            last = first is None or not self._fill(jobs, first)
            if jobs:
                self._perform(jobs)
            if last:
                return

    def _fill(self, jobs: list[Job], job: Job | None) -> bool:
        """Take the queued jobs, and wait a moment for more; return whether the thread continues.

        Callers whose writes were just completed are likely to write again soon. One sync for all of them takes no longer than a sync
        for half of them. While their event loop runs, this thread would only compete with it.
        """
        while job is not None:
            jobs.append(job)
            while self._queue.empty() and len(jobs) < self._company and time.monotonic() < self._until:
                time.sleep(_POLL_S)
            if len(jobs) >= MOST_JOBS or self._queue.empty():
                return True
            job = self._queue.get()
        return False

    def _perform(self, jobs: list[Job]) -> None:
        FAILPOINTS.reach("taken")
        began = time.monotonic()
        try:
            with self._turns:
                self._write(jobs)
                FAILPOINTS.reach("committed")
                self._tidy()
        except BaseException as error:  # noqa: BLE001 - the waiting callers must get the error, and the thread must live on
            for job in jobs:
                if not job.done:
                    job.error = error
        FAILPOINTS.reach("settling")
        self._company = len(jobs) + self._queue.qsize()
        now = time.monotonic()
        self._until = now + patience(now - began)
        self._on_commit({job.session for job in jobs if job.commit and job.session and job.error is None})
        # Do this last: the callers run at once, and this thread would only compete with them.
        _settle(jobs)
        FAILPOINTS.reach("settled")

    def _write(self, jobs: list[Job]) -> None:
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

    def _transact(self, jobs: list[Job]) -> bool:
        """Run jobs in the current transaction, and end it; return whether it was committed."""
        FAILPOINTS.reach("begun")
        connection = self._connection
        failure: BaseException
        try:
            self._tables.write(jobs)
            FAILPOINTS.reach("written")
            connection.execute("COMMIT")
            # Check after COMMIT: it must not be acknowledged if it went into a file that nobody can find.
            self._identity.check()
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
            if self._wal.stat().st_size > MOST_WAL_BYTES:
                tidy(self._connection)
        except (sqlite3.Error, OSError):
            # The commits are safe in the WAL. The next commit raises if the disk fails.
            return


def _reuse_wal(connection: sqlite3.Connection) -> None:
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    connection.execute(f"PRAGMA wal_autocheckpoint = {MOST_WAL_BYTES // 2 // page}")


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


def _settle(jobs: list[Job]) -> None:
    """Complete the futures, with only one wake-up for all jobs of an event loop."""
    if len(jobs) == 1:
        _send(jobs[0].loop, jobs)
        return
    by_loop: defaultdict[asyncio.AbstractEventLoop | None, list[Job]] = defaultdict(list)
    for job in jobs:
        by_loop[job.loop].append(job)
    for loop, its in by_loop.items():
        _send(loop, its)


def _send(loop: asyncio.AbstractEventLoop | None, jobs: list[Job]) -> None:
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


def _deliver(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is None:
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
