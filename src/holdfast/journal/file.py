"""`JournalFile`: the file that the runs of processes are written to and read from. SQLite, so any process may do both at the same time.

Invariant: a reader sees whole batches. A journal that is lost or damaged costs nothing but itself.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast import options
from holdfast.events.codec import decode, encode
from holdfast.events.records import Event
from holdfast.faults import Fault, HoldfastError
from holdfast.journal.runs import Minute, RunSummary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.events.records import Unknown

__all__ = ["JournalBatch", "JournalFile"]

EVENTS_S, RUNS_S, MINUTES_S = 7 * 86_400.0, 30 * 86_400.0, 400 * 86_400.0
"""How long events, runs and sums are kept."""
_AT_ONCE = 500
"""Rows that are deleted in one transaction, so that a writer never waits for long."""
_BUSY_S = 5.0
_MOST_ROWS = 50

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (
  run TEXT PRIMARY KEY, root TEXT NOT NULL, began REAL NOT NULL, operation TEXT NOT NULL, outcome TEXT NOT NULL, code TEXT NOT NULL,
  request TEXT NOT NULL, session TEXT NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS run_began ON run (began);
CREATE INDEX IF NOT EXISTS run_root ON run (root);
CREATE INDEX IF NOT EXISTS run_request ON run (request) WHERE request != '';
CREATE INDEX IF NOT EXISTS run_session ON run (session) WHERE session != '';
CREATE TABLE IF NOT EXISTS event (id INTEGER PRIMARY KEY, root TEXT NOT NULL, at REAL NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS event_root ON event (root);
CREATE INDEX IF NOT EXISTS event_at ON event (at);
CREATE TABLE IF NOT EXISTS minute (
  minute INTEGER NOT NULL, operation TEXT NOT NULL, outcome TEXT NOT NULL, calls INTEGER NOT NULL, attempts INTEGER NOT NULL,
  took REAL NOT NULL, waited REAL NOT NULL, usd REAL NOT NULL, extra_usd REAL NOT NULL, tokens INTEGER NOT NULL,
  PRIMARY KEY (minute, operation, outcome)
) WITHOUT ROWID;
"""
_SUMS = ("calls", "attempts", "took", "waited", "usd", "extra_usd", "tokens")
_ADD_MINUTE = (
    f"INSERT INTO minute (minute, operation, outcome, {', '.join(_SUMS)}) VALUES ({', '.join('?' * (3 + len(_SUMS)))}) "  # noqa: S608 - names of columns
    f"ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in _SUMS)}"
)


class JournalBatch(msgspec.Struct):
    """What is written in one transaction."""

    runs: list[RunSummary] = []
    events: list[tuple[str, Event]] = []
    """Each with the outermost run that it belongs to."""
    minutes: list[Minute] = []


class JournalFile:
    """The runs of one or several processes: `with JournalFile("holdfast.journal.db") as journal: print(journal.runs())`.

    A journal that cannot be opened or read raises `HoldfastError` (SESS_STORE_UNAVAILABLE), which names the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __enter__(self) -> Self:
        with self._explained():
            # One thread writes, and another may close it.
            self._connection = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            # A crash of the machine may lose the last seconds. A journal is not worth a wait for the disk.
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def write(self, batch: JournalBatch) -> None:
        """Write a batch, whole or not at all."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO run VALUES (?,?,?,?,?,?,?,?,?)", (_row(record) for record in batch.runs)
            )
            connection.executemany(
                "INSERT INTO event (root, at, body) VALUES (?,?,?)",
                ((root, event.at, encode(event)) for root, event in batch.events),
            )
            connection.executemany(_ADD_MINUTE, (msgspec.structs.astuple(minute) for minute in batch.minutes))

    def runs(
        self,
        *,
        operation: str = "",
        outcome: str = "",
        code: str = "",
        request: str = "",
        session: str = "",
        before: float | None = None,
        since: float | None = None,
        limit: int = _MOST_ROWS,
    ) -> list[RunSummary]:
        """Return the outermost runs that fit, the latest first: `journal.runs(operation="claude", outcome="failed")`.

        With `request`, `session` or `code` also runs inside others. `before` and `since` are times at which runs began.
        """
        options.count("journal.limit", limit)
        wanted = {"operation": operation, "outcome": outcome, "code": code, "request": request, "session": session}
        where = [f"{name} = ?" for name, value in wanted.items() if value]
        values: list[Any] = [value for value in wanted.values() if value]
        if not (request or session or code):
            where.append("root = ''")
        for sign, at in (("<", before), (">=", since)):
            if at is not None:
                where.append(f"began {sign} ?")
                values.append(at)
        clause = f"WHERE {' AND '.join(where)} " if where else ""
        rows = self._read(f"SELECT body FROM run {clause}ORDER BY began DESC LIMIT ?", (*values, limit))  # noqa: S608 - names of columns
        return [msgspec.json.decode(body, type=RunSummary) for (body,) in rows]

    def run(self, run: str) -> RunSummary | None:
        """Return one run; None if the journal has none of this id."""
        rows = self._read("SELECT body FROM run WHERE run = ?", (run,))
        return msgspec.json.decode(rows[0][0], type=RunSummary) if rows else None

    def events(self, run: str) -> list[Event | Unknown]:
        """Return the events of the outermost run around this one, and of all runs inside it, in their order."""
        record = self.run(run)
        root = run if record is None else record.root or record.run
        rows = self._read("SELECT body FROM event WHERE root = ? ORDER BY at, id", (root,))
        return [decode(body) for (body,) in rows]

    def around(self, *, since: float = 0.0, limit: int = 1_000) -> list[Event | Unknown]:
        """Return what happened outside of runs, the latest first: circuits, children, warnings."""
        rows = self._read("SELECT body FROM event WHERE root = '' AND at >= ? ORDER BY id DESC LIMIT ?", (since, limit))
        return [decode(body) for (body,) in rows]

    def minutes(self, *, since: float = 0.0, operation: str = "") -> list[Minute]:
        """Return the sums of all runs, also of those whose events are not kept, by minute, operation and outcome."""
        where, values = ("AND operation = ?", (operation,)) if operation else ("", ())
        rows = self._read(
            f"SELECT * FROM minute WHERE minute >= ? {where} ORDER BY minute, operation, outcome",  # noqa: S608 - names of columns
            (int(since // 60), *values),
        )
        return [Minute(**dict(zip(Minute.__struct_fields__, row, strict=True))) for row in rows]

    def prune(self, now: float | None = None) -> int:
        """Delete what is too old: events after 7 days, runs after 30, sums after 400. Return how many rows went."""
        now = time.time() if now is None else now
        old = (
            ("event", "id", "at", now - EVENTS_S),
            ("run", "run", "began", now - RUNS_S),
            ("minute", "minute", "minute", (now - MINUTES_S) // 60),
        )
        return sum(self._delete(*each) for each in old)

    def _delete(self, table: str, key: str, column: str, before: float) -> int:
        deleted = 0
        while True:
            with self._transaction() as connection:
                chosen = f"SELECT {key} FROM {table} WHERE {column} < ? LIMIT {_AT_ONCE}"  # noqa: S608 - names of columns
                count = connection.execute(f"DELETE FROM {table} WHERE {key} IN ({chosen})", (before,)).rowcount  # noqa: S608 - names of columns
            deleted += count
            if count < _AT_ONCE:
                return deleted

    def _read(self, query: str, values: Sequence[Any]) -> list[Any]:
        with self._explained():
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # the connection may be gone, and with it the transaction
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text = f"The journal {self.path} cannot be used: {error}. It may be deleted: a new one is begun, and nothing else is lost"
            raise HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE", text, context={"file": str(self.path)})) from error


def _row(record: RunSummary) -> tuple[Any, ...]:
    return (
        record.run,
        record.root,
        record.began,
        record.operation,
        record.outcome,
        record.code,
        record.request,
        record.session,
        msgspec.json.encode(record),
    )
