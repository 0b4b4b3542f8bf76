"""Transactions on a pool of connections.

Invariant: when `write` returns, the data is stored. When it raises anything but `DoubtError`, the data is not stored. If a COMMIT
was not answered, we look up its outcome. Every transaction writes its number into a row of its own connection (`slot`). Any other
connection can read that row and see whether the transaction was committed. The transaction locks the row before COMMIT is sent, and
the lookup waits for that lock, so a transaction that still runs does not count as lost.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, AsyncCursor, pq, sql
from psycopg.rows import tuple_row
from psycopg_pool import PoolTimeout

from holdfast.faults import HoldfastError
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.postgres.failures import CONFLICTS, typed
from holdfast.stores.postgres.lanes import LaneJob, Lanes
from holdfast.stores.sql.query import Many

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from psycopg_pool import AsyncConnectionPool

    from holdfast.stores.sql.query import Script, Step

T = TypeVar("T")

SILENT_S = 10.0
"""The server ends a transaction whose client is silent for this long, so that its locks are free again."""
PATIENCE_S = 15.0
"""How long the outcome of a COMMIT is looked up before the caller gets `DoubtError`."""
GRACE_S = 0.5
"""How long a transaction whose client is gone may hold the row's lock before we terminate it."""
MOST_CONFLICTS = 10
_REPEAT_S = 0.1

_NOTE = (
    "INSERT INTO {slot} (name, seq, at) VALUES (%s, %s, extract(epoch FROM clock_timestamp())::float8)"
    " ON CONFLICT (name) DO UPDATE SET seq = excluded.seq, at = excluded.at"
    " RETURNING at, pg_advisory_xact_lock(%s), set_config('search_path', {schema}, true), set_config('lock_timeout', {busy}, true),"
    " set_config('idle_in_transaction_session_timeout', {silent}, true),"
    # A confirmed commit must survive a crash of the machine, even if the role or database has this setting off.
    " set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true)"
)
# An upsert waits for the transaction that holds the row, even if that transaction inserts it.
# If the transaction is not stored, the highest number keeps a statement that is still on its way from being carried out later.
_LOOKUP = (
    "INSERT INTO {slot} AS slot (name, seq, at) VALUES (%s, 9223372036854775807, extract(epoch FROM clock_timestamp())::float8)"
    " ON CONFLICT (name) DO UPDATE SET at = excluded.at,"
    " seq = CASE WHEN slot.seq = %s THEN slot.seq ELSE excluded.seq END RETURNING seq"
)
# The holder of the slot's advisory lock is the lost transaction. A process id alone may belong to another process by now.
_END = (
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND ((classid::bigint << 32) | objid::bigint) = %s"
)
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Doubt(NamedTuple):
    """A transaction whose COMMIT was not answered, and its results if it was committed."""

    slot: str
    lock: int
    seq: int
    result: Any


class SlotRow:
    """A connection's row in the table `slot`."""

    __slots__ = ("lock", "name", "prepared", "seq")

    def __init__(self) -> None:
        self.name = secrets.token_hex(12)
        self.lock = secrets.randbits(63)
        self.seq = 0
        self.prepared = False
        """Whether the row is there, and the statements of groups are prepared on the connection."""


class DoubtError(Exception):
    """The outcome of a transaction could not be looked up in time."""

    def __init__(self, doubt: Doubt, cause: psycopg.Error) -> None:
        super().__init__(str(cause))
        self.doubt = doubt
        self.cause = cause


class _LostError(Exception):
    """The connection was lost. After COMMIT was sent there is a `doubt`. Before COMMIT it is None, and nothing is stored."""

    def __init__(self, doubt: Doubt | None, cause: psycopg.Error) -> None:
        super().__init__(str(cause))
        self.doubt = doubt
        self.cause = cause


class Engine:
    """Runs scripts on the connections of a pool."""

    def __init__(
        self,
        pool: AsyncConnectionPool[Any],
        schema: str,
        busy: float,
        connect: Callable[[], Awaitable[AsyncConnection[Any]]] | None,
    ) -> None:
        self.pool = pool
        self.is_pooled = False
        """Whether each transaction may run in another session of the server."""
        self._busy = busy
        self._connect = connect
        self._own: AsyncConnection[Any] | None = None
        """The connection for groups. A pool of the user's own lends one for each group instead."""
        self._lanes = Lanes(self._perform)
        self._given_back = 0
        """How many connections were given back that still work."""
        self._slots: WeakKeyDictionary[AsyncConnection[Any], SlotRow] = WeakKeyDictionary()
        slot = sql.Identifier(schema, "slot")
        path = sql.Identifier(schema).as_string()
        self._note = sql.SQL(_NOTE).format(
            slot=slot,
            schema=sql.Literal(path),
            busy=sql.Literal(_milliseconds(busy)),
            silent=sql.Literal(_milliseconds(SILENT_S)),
        )
        self._path = sql.SQL("SELECT set_config('search_path', {}, true)").format(sql.Literal(path))
        self._lookup = sql.SQL(_LOOKUP).format(slot=slot)
        self._row = sql.SQL("INSERT INTO {} (name, seq, at) VALUES (%s, 0, 0) ON CONFLICT DO NOTHING").format(slot)
        self._retire = sql.SQL("DELETE FROM {} WHERE name = ANY(%s)").format(slot)

    def begin(self, job: LaneJob) -> asyncio.Future[Any]:
        """Make a job's script with the server's time, and run it in a transaction; return the future of its result.

        It has `DoubtError` if the outcome is unknown.
        """
        return self._lanes.begin(job)

    def is_writing(self, lane: str) -> bool:
        """Whether transactions of a session wait or run."""
        return self._lanes.is_busy(lane)

    def adopt(self, connection: AsyncConnection[Any]) -> None:
        """Use a connection for groups from now on."""
        self._own = connection

    async def make_row(self, connection: AsyncConnection[Any], slot: SlotRow) -> None:
        """Make a connection's row in the table `slot`, unless it has one."""
        await AsyncCursor(connection).execute(self._row, (slot.name,))

    @asynccontextmanager
    async def line(self) -> AsyncIterator[tuple[AsyncConnection[Any], SlotRow]]:
        """Lend the connection for groups, one caller at a time. If an error closes it, the next caller gets a new one."""
        if self._connect is None:
            async with self.connection() as lent:
                yield lent, self._slot(lent)
            return
        if self._own is None:
            self._own = await self._connect()
        own = self._own
        try:
            yield own, self._slot(own)
        except BaseException:
            # The connection may be in any state, also if its user was cancelled.
            self._own = None
            await own.close()
            raise

    async def _perform(self, jobs: list[LaneJob]) -> None:
        """Run jobs in one transaction. If one job makes it fail, run each job in its own transaction."""
        try:
            await self._stored(jobs)
        except DoubtError as error:
            for job in jobs:
                job.error = job.error or DoubtError(error.doubt._replace(result=job.result), error.cause)
        except psycopg.Error as error:
            if len(jobs) > 1 and not is_loss(error):
                for job in jobs:
                    await self._perform([job])
                return
            for job in jobs:
                job.error = typed(error)

    async def _stored(self, jobs: list[LaneJob]) -> None:
        """Run jobs in one transaction; retry after a conflict, or once if the connection was dead."""
        conflicts = losses = 0
        while True:
            try:
                return await self._transact(jobs)
            except CONFLICTS:
                conflicts += 1
                if conflicts > MOST_CONFLICTS:
                    raise
                # Pause for a random time, or the same two transactions would conflict again.
                await asyncio.sleep(random.uniform(0.0, 0.01 * conflicts))  # noqa: S311 - jitter, not a secret
            except _LostError as error:
                if error.doubt is not None and await self.find_out(error.doubt, error.cause):
                    return None
                # Nothing is stored, so a retry is safe.
                losses += 1
                if losses > 1:
                    # One loss means that a connection died in the pool. Two losses mean that the server is down.
                    raise error.cause from None
                await self._weed()

    async def read(self, script: Callable[[], Script[T]]) -> T:
        """Run a script that only reads, on one snapshot."""
        for last in (False, True):
            try:
                async with self.connection() as connection:
                    return await self._read(connection, script())
            except psycopg.OperationalError as error:
                if last or not is_loss(error):
                    raise typed(error) from error
                await self._weed()
            except psycopg.Error as error:
                raise typed(error) from error
        raise AssertionError

    async def find_out(self, doubt: Doubt, cause: psycopg.Error | None = None) -> bool:
        """Return whether a transaction is stored; raise `DoubtError` if that cannot be looked up in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        hangs = False
        while True:
            try:
                return await self._look_up(doubt, hangs=hangs)
            except psycopg.Error as error:
                hangs = isinstance(error, psycopg.errors.LockNotAvailable)
                if loop.time() > end:
                    raise DoubtError(doubt, cause or error) from error
                await asyncio.sleep(_REPEAT_S)

    async def close(self) -> None:
        """Finish what was started, and delete our connections' rows."""
        await self._lanes.close()
        # Read the names first: the slots of connections that are closed are forgotten.
        names = [slot.name for slot in self._slots.values()]
        await self.hang_up()
        async with self.connection() as connection:
            await connection.execute(self._retire, (names,))

    def _slot(self, connection: AsyncConnection[Any]) -> SlotRow:
        slot = self._slots.get(connection)
        if slot is None:
            slot = self._slots[connection] = SlotRow()
        return slot

    async def hang_up(self) -> None:
        """Close the connection for groups."""
        if self._own is not None:
            own, self._own = self._own, None
            await own.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Lend a connection whose transactions are started by hand. It returns to the pool unchanged, or closed."""
        connection = await self._lent()
        own, threshold = connection.autocommit, connection.prepare_threshold
        try:
            if self.is_pooled:
                connection.prepare_threshold = None
            if not own:
                await connection.set_autocommit(True)
            yield connection
        finally:
            try:
                if connection.info.transaction_status not in {pq.TransactionStatus.IDLE, pq.TransactionStatus.UNKNOWN}:
                    await connection.execute("ROLLBACK")
                connection.prepare_threshold = threshold
                if not own and not connection.closed:
                    await connection.set_autocommit(own)
            except psycopg.Error:
                # The state of the connection is not known, so nobody else may get it.
                await connection.close()
            finally:
                self._given_back += not connection.closed
                await self.pool.putconn(connection)

    async def _lent(self) -> AsyncConnection[Any]:
        """Wait for a connection, as long as now and then one is given back: then it is our own jobs that are before us."""
        while True:
            before = self._given_back
            try:
                connection: AsyncConnection[Any] = await self.pool.getconn(timeout=self._busy)
            except PoolTimeout:
                if self._given_back == before:
                    raise
            else:
                return connection

    async def _transact(self, jobs: list[LaneJob]) -> None:
        async with self.connection() as connection:
            # Every transaction gets a new number, even if it fails: the row must never match an older transaction.
            slot = self._slot(connection)
            slot.seq += 1
            sent: Doubt | None = None
            try:
                talk = _Talk(connection)
                await talk.run("BEGIN")
                ((now, *_),) = await talk.rows(self._note, (slot.name, slot.seq, slot.lock))
                for job in jobs:
                    await _attempt(talk, job, now)
                FAILPOINTS.reach("written")
                sent = Doubt(slot.name, slot.lock, slot.seq, None)
                ended = await talk.run("COMMIT")
                # If a transaction has failed before, the server answers COMMIT with ROLLBACK and no error.
                if ended.statusmessage != "COMMIT":
                    raise psycopg.OperationalError(f"COMMIT was answered with {ended.statusmessage}")
            except psycopg.Error as error:
                if not connection.closed and not is_loss(error):
                    # The server answered, so the transaction is rolled back. A FATAL during shutdown is not such an answer: it does not prove
                    # a rollback.
                    raise
                raise _LostError(sent, error) from error
            FAILPOINTS.reach("committed")

    async def _read(self, connection: AsyncConnection[Any], script: Script[T]) -> T:
        talk = _Talk(connection)
        await talk.run(_BEGIN_READING)
        await talk.run(self._path)
        result = await _follow(talk, script)
        await talk.run("COMMIT")
        return result

    async def _look_up(self, doubt: Doubt, *, hangs: bool) -> bool:
        async with self.connection() as connection:
            talk = _Talk(connection)
            if hangs:
                await talk.rows(_END, (doubt.lock,))
            await talk.run("BEGIN")
            await talk.run("SELECT set_config('lock_timeout', %s, true)", (_milliseconds(GRACE_S),))
            ((seq,),) = await talk.rows(self._lookup, (doubt.slot, doubt.seq))
            await talk.run("COMMIT")
        return bool(seq == doubt.seq)

    async def _weed(self) -> None:
        """Drop the pool's dead connections. After a restart of the server all connections are dead."""
        try:
            await self.pool.check()
        except psycopg.Error:
            # The next attempt raises the error.
            return


class _Talk:
    """Runs statements on a connection, one after the other. psycopg's pipelines cost more processor time than they save in waiting."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    async def run(self, statement: Any, args: tuple[Any, ...] | None = None) -> AsyncCursor[Any]:
        cursor: AsyncCursor[Any] = AsyncCursor(self._connection, row_factory=tuple_row)
        await cursor.execute(statement, args, binary=True)
        return cursor

    async def rows(self, statement: Any, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return await (await self.run(statement, args)).fetchall()

    async def many(self, statement: Any, rows: Sequence[tuple[Any, ...]]) -> None:
        await AsyncCursor(self._connection).executemany(statement, rows)


async def _attempt(talk: _Talk, job: LaneJob, now: float) -> None:
    """Run a job's script. A script that raises has written nothing, so the other scripts of its transaction continue."""
    job.error = None
    try:
        job.result = await _follow(talk, job.script(now))
    except HoldfastError as rejection:
        job.error = rejection


async def _follow(talk: _Talk, script: Script[T]) -> T:
    """Run a script's statements in the current transaction; return its result."""
    rows: Any = None
    while True:
        try:
            step = script.send(rows)
        except StopIteration as end:
            result: T = end.value
            return result
        rows = await _perform(talk, step)


async def _perform(talk: _Talk, step: Step) -> list[tuple[Any, ...]]:
    statement, answers = _translated(step.sql)
    if isinstance(step, Many):
        await talk.many(statement, step.rows)
        return []
    if answers:
        return await talk.rows(statement, step.args)
    await talk.run(statement, step.args)
    return []


@lru_cache(256)
def _translated(statement: str) -> tuple[bytes, bool]:
    """Return a statement with psycopg's placeholders, and whether it returns rows."""
    return statement.replace("?", "%s").encode(), statement.startswith("SELECT") or "RETURNING" in statement


def is_loss(error: psycopg.Error) -> bool:
    """Whether the connection was lost, or was dead when the pool lent it."""
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1_000)))
