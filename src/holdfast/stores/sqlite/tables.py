"""`Tables`: writes jobs into the tables of the file. Plain commits that follow each other become one batch."""

from __future__ import annotations

import secrets
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.faults import Fault, HoldfastError
from holdfast.stores.errors import missing
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.sql import commits
from holdfast.stores.sql.batch import HEADS, KNOWN, Batch, head_of, is_plain
from holdfast.stores.sql.query import Many

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from holdfast.stores.records import Claim
    from holdfast.stores.sql.batch import SessionHead
    from holdfast.stores.sql.query import Script
    from holdfast.stores.sqlite.high_water import HighWater
    from holdfast.stores.sqlite.writer import WriteJob

MOST_HEADS = 2_000
"""How many sessions' heads are kept in memory."""

_GROUPS = (64, 16, 4, 1)
"""How many rows one statement inserts. There are few sizes, so that SQLite keeps the prepared statements."""
_NEW_CLAIM = commits.CLAIM.replace("INSERT", "INSERT OR IGNORE", 1)
"""Makes a claim unless it was made before."""

T = TypeVar("T")


class _KnownClaimError(Exception):
    """A claim was made before."""


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


class Tables:
    """Writes jobs into the tables, in the present transaction.

    It keeps the heads of the sessions that it wrote, so that most commits read nothing. They are right as long as nobody else has
    written to the file.
    """

    def __init__(self, connection: sqlite3.Connection, now: Callable[[], float], high_water: HighWater) -> None:
        self._connection = connection
        self._now = now
        self._high_water = high_water
        self.last: tuple[str, int, bytes] | None = None
        """The last session that the transaction wrote to, the end of its log and its hash."""
        self._heads: dict[str | None, SessionHead] = {}
        self._version = -1
        """Changes when another connection has written to the file."""

    def forget(self) -> None:
        """Forget all heads, because the transaction was rolled back."""
        self._heads.clear()

    def write(self, jobs: list[WriteJob], *, may_begin_anew: bool) -> None:
        """Run the jobs. A job that is rejected gets its error, and the others go on.

        may_begin_anew: whether the transaction may be rolled back and begun a second time.
        """
        if not may_begin_anew or len(jobs) == 1:
            self._write(jobs, looks_up=True)
            return
        try:
            # Nearly all claims are new. Looking each of them up takes longer than writing it.
            self._write(jobs, looks_up=False)
        except _KnownClaimError:
            self._connection.execute("ROLLBACK")
            self.forget()
            self._connection.execute("BEGIN IMMEDIATE")
            self._write(jobs, looks_up=True)

    def _write(self, jobs: list[WriteJob], *, looks_up: bool) -> None:
        """Run the jobs. looks_up: look for each claim among those of earlier batches; otherwise raise if one is there."""
        ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
        if version != self._version or len(self._heads) > MOST_HEADS:
            self._heads.clear()
            if version != self._version and (lost := self._high_water.lost(self._connection)):
                raise _set_back(lost)
            self._version = version
        batch, now, heads = Batch(), self._now(), self._heads
        for job in jobs:
            job.error = None
            try:
                commit = job.commit
                if commit is not None and is_plain(commit, may_claim=True):
                    head = heads.get(job.session) or self._head(job.session or "")
                    if not commit.audit or batch.takes(commit, head):
                        known = self._known(head.key, commit.claim) if looks_up and commit.claim is not None else None
                        job.result = batch.add(commit, head, now, known)
                        continue
                # The script reads what the batch writes.
                self._flush(batch)
                batch = Batch()
                self._run(job)
            except HoldfastError as rejection:
                # A script raises only before its first write, so the transaction can continue.
                job.error = rejection
        self._flush(batch)
        self.last = self._last(jobs)

    def _last(self, jobs: list[WriteJob]) -> tuple[str, int, bytes] | None:
        for job in reversed(jobs):
            if job.commit is None or not job.session or job.error is not None or job.result.duplicate:
                continue
            # The session may have been removed in this same transaction.
            with suppress(HoldfastError):
                head = self._heads.get(job.session) or self._head(job.session)
                return job.session, head.top, head.hash
        return None

    def _run(self, job: WriteJob) -> None:
        if job.session is not None:
            self._heads.pop(job.session, None)
        if job.script is not None:
            script = job.script()
        else:
            assert job.commit is not None
            epoch = "" if job.commit.create is None else new_epoch()
            script = commits.commit_script(job.commit, self._now(), epoch)
        job.result = run_script(self._connection, script)

    def _head(self, session: str) -> SessionHead:
        rows = self._connection.execute(f"{HEADS} = ?", (session,)).fetchall()
        if not rows:
            raise missing(session)
        head = self._heads[session] = head_of(rows[0][1:])
        return head

    def _known(self, session: int, claim: Claim) -> Any:
        """Return the row of a claim that an earlier batch has made, or None."""
        return self._connection.execute(KNOWN, (session, claim.client, claim.id)).fetchone()

    def _flush(self, batch: Batch) -> None:
        if not batch.after:
            return
        if self._insert(_NEW_CLAIM, list(batch.claims.values())) != len(batch.claims):
            raise _KnownClaimError
        self._insert(commits.APPEND, batch.entries)
        self._execute(commits.MOVE, batch.moves())
        if batch.audits:
            self._insert(commits.SEAL, batch.audits)
            self._execute(commits.LENGTHEN, batch.lengthened())
        self._heads.update(batch.after)

    def _insert(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Insert rows; return how many were inserted.

        `executemany` hands the interpreter to another thread and gets it back for each row, which takes longer than the row itself.
        """
        self._reach(sql, rows)
        place = inserted = 0
        for size in _GROUPS:
            while len(rows) - place >= size:
                values = tuple(chain.from_iterable(rows[place : place + size])) if size > 1 else rows[place]
                inserted += self._connection.execute(_for_rows(sql, size), values).rowcount
                place += size
        return inserted

    def _execute(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._reach(sql, rows)
        # For a single row `executemany` is slower than `execute`.
        if len(rows) == 1:
            self._connection.execute(sql, rows[0])
        elif rows:
            self._connection.executemany(sql, rows)

    @staticmethod
    def _reach(sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if FAILPOINTS.hook is not None and rows:
            FAILPOINTS.reach(" ".join(sql.replace(" OR IGNORE", "").split()[:3]))


def _set_back(session: str) -> HoldfastError:
    reason = (
        f"it was set back while it was open, and lacks what was stored last in session {session}: a backup was restored into it;"
        " open it again"
    )
    message = f"The session store failed: {reason}"
    return HoldfastError(
        Fault.of("SESS_STORE_UNAVAILABLE", message, retryable=False, context={"session_id": session, "reason": reason})
    )


@cache
def _for_rows(sql: str, count: int) -> str:
    """Return the statement that inserts so many rows."""
    into, _, row = sql.partition(" VALUES ")
    # If one of several rows cannot be inserted, the transaction is rolled back. Without FAIL, SQLite would copy each page that it
    # changes, to take back the rows before it.
    if count > 1 and not into.startswith("INSERT OR"):
        into = into.replace("INSERT", "INSERT OR FAIL", 1)
    return f"{into} VALUES {', '.join([row] * count)}"


def new_epoch() -> str:
    """Return a new epoch: a name that no other log has or had."""
    return secrets.token_urlsafe(12)
