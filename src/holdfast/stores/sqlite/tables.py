"""`Tables`: writes jobs into the tables of the file. Plain commits that follow each other become one batch."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.faults import HoldfastError
from holdfast.stores.errors import missing
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.sql import commits
from holdfast.stores.sql.batch import HEADS, KNOWN, Batch, head_of, is_plain
from holdfast.stores.sql.query import Many

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from holdfast.stores.records import Claim
    from holdfast.stores.sql.batch import Head
    from holdfast.stores.sql.query import Script
    from holdfast.stores.sqlite.writer import Job

__all__ = ["Tables", "run_script"]

MOST_HEADS = 2_000
"""How many sessions' heads are kept in memory."""

T = TypeVar("T")


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

    def __init__(self, connection: sqlite3.Connection, now: Callable[[], float]) -> None:
        self._connection = connection
        self._now = now
        self._heads: dict[str | None, Head] = {}
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
        batch, now, heads = Batch(), self._now(), self._heads
        for job in jobs:
            job.error = None
            try:
                commit = job.commit
                if commit is not None and is_plain(commit, may_claim=True):
                    head = heads.get(job.session) or self._head(job.session or "")
                    if not commit.audit or batch.takes(commit, head):
                        known = None if commit.claim is None else self._known(head.key, commit.claim)
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

    def _run(self, job: Job) -> None:
        if job.session is not None:
            self._heads.pop(job.session, None)
        if job.script is not None:
            script = job.script()
        else:
            assert job.commit is not None
            epoch = "" if job.commit.create is None else new_epoch()
            script = commits.commit_script(job.commit, self._now(), epoch)
        job.result = run_script(self._connection, script)

    def _head(self, session: str) -> Head:
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
        self._execute(commits.CLAIM, list(batch.claims.values()))
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


def new_epoch() -> str:
    """Return a new epoch: a name that no other log has or had."""
    return secrets.token_urlsafe(12)
