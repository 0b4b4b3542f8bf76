"""Group commit: the plain commits of all sessions that wait, in one statement that is its own transaction.

The statement computes nothing. It holds the rows as this process computed them from each session's head as it knows it. It locks the
sessions, and writes only if every head is still so. If one is not, or somebody else holds its row, it writes nothing: then those
sessions' heads are read again, and their commits are written with the next group, or each with its own transaction.

Invariant: a group is written whole or not at all, so one number (`slot`) shows the outcome of a statement that was not answered. A
commit that is rejected, or whose session somebody else writes to, delays its neighbours, and never fails them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import AsyncConnection, AsyncCursor, generators, pq, sql
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.rows import tuple_row

from holdfast.faults import HoldfastError
from holdfast.stores.errors import missing
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.postgres.arrays import (
    BYTES,
    FLOATS,
    INTS,
    TEXTS,
    byte_array,
    float_array,
    int_array,
    ints_of,
    text_array,
)
from holdfast.stores.postgres.engine import Doubt, DoubtError, is_loss
from holdfast.stores.sql.batch import HEADS, Batch, SessionHead, head_of, is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg.pq.abc import PGresult

    from holdfast.stores.postgres.engine import Engine, SlotRow
    from holdfast.stores.postgres.lanes import LaneJob

MOST_JOBS = 256
"""The most commits in one group. More would delay the first of them too much."""
MOST_HEADS = 4_000
_MOST_TURNS = 12
"""How many turns of the event loop a group waits for commits that are on their way."""

_INT, _FLOAT, _TEXT, _BYTES = 20, 701, 25, 17
_NUMBER, _TIME = Struct("!q"), Struct("!d")

_TURN = (
    "WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock($3), set_config('synchronous_commit',"
    # A confirmed commit must survive a crash of the machine, even if the role or database has this setting off.
    " coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true)"
    # The row of this connection is locked first. Who looks up the outcome waits for it, and then takes the turn for good.
    " FROM {slot} WHERE name = $1 AND seq < $2 FOR UPDATE)"
)
_SESSIONS = (
    ", want AS (SELECT * FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::bigint[], $9::float8[],"
    " $10::text[], $11::bytea[]) AS w (key, was, fence, before, top, at, state, head)),"
    " held AS MATERIALIZED (SELECT s.key, s.top, s.fence, s.state, s.last_at FROM {session} s"
    " WHERE s.key = ANY ($4) AND EXISTS (SELECT FROM turn) ORDER BY s.key FOR UPDATE SKIP LOCKED),"
    " fit AS (SELECT h.key FROM held h JOIN want w ON w.key = h.key AND w.was = h.top AND w.fence = h.fence"
    " AND w.before = h.state AND w.at >= h.last_at)"
)
_ENTRIES = (
    ", moved AS (UPDATE {session} s SET top = w.top, last_at = w.at, state = w.state, head = w.head FROM want w"
    " WHERE s.key = w.key AND (SELECT ok FROM verdict)),"
    " added AS (INSERT INTO {entry} (session, pos, id, at, type, body, hash) SELECT * FROM unnest($12::bigint[],"
    " $13::bigint[], $14::text[], $15::float8[], $16::text[], $17::bytea[], $18::bytea[]) WHERE (SELECT ok FROM verdict)),"
    " note AS (UPDATE {slot} SET seq = $2, at = extract(epoch FROM clock_timestamp())::float8 WHERE name = $1"
    " AND (SELECT ok FROM verdict))"
)
_RESULT = (
    " SELECT extract(epoch FROM clock_timestamp())::float8, v.ok, CASE WHEN NOT v.ok THEN"
    " ARRAY(SELECT key FROM fit) END FROM verdict v"
)
_VERDICT = ", verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM fit) = cardinality($4) AS ok)"
_GROUP = f"{_TURN}{_SESSIONS}{_VERDICT}{_ENTRIES}{_RESULT}"
_CHAINS = (
    ", chains AS (SELECT * FROM unnest($19::bigint[], $20::bigint[], $21::bigint[], $22::bytea[]) AS c (key, was, seq, hash)),"
    " ends AS MATERIALIZED (SELECT c.key, c.seq FROM {chain} c WHERE c.key = ANY ($19) AND EXISTS (SELECT FROM turn)"
    " ORDER BY c.key FOR UPDATE SKIP LOCKED),"
    " verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM fit) = cardinality($4) AND (SELECT count(*) FROM ends e"
    " JOIN chains c ON c.key = e.key AND c.was = e.seq) = cardinality($19) AS ok)"
)
_AUDITS = (
    ", sealed AS (INSERT INTO {audit} (chain, seq, at, kind, correlation, payload, hash) SELECT * FROM unnest($23::bigint[],"
    " $24::bigint[], $25::float8[], $26::text[], $27::text[], $28::bytea[], $29::bytea[]) WHERE (SELECT ok FROM verdict)),"
    " longer AS (UPDATE {chain} c SET seq = n.seq, hash = n.hash FROM chains n WHERE c.key = n.key"
    " AND (SELECT ok FROM verdict))"
)
# If every session fits, it was a chain that did not. Then all heads are read again.
_UNFIT = _RESULT.replace("FROM fit)", "FROM fit WHERE (SELECT count(*) FROM fit) < cardinality($4))")
_AUDITED = f"{_TURN}{_SESSIONS}{_CHAINS}{_ENTRIES}{_AUDITS}{_UNFIT}"
# A group of one entry, without arrays and joins: a third of the server's time. Most programs have one session that writes at a time.
_ONE = (
    ", held AS MATERIALIZED (SELECT s.key FROM {session} s WHERE s.key = $4 AND s.top = $5 AND s.fence = $6"
    " AND s.state = $7 AND s.last_at <= $9 AND EXISTS (SELECT FROM turn) FOR UPDATE SKIP LOCKED),"
    " moved AS (UPDATE {session} s SET top = $8, last_at = $9, state = $10, head = $11 WHERE s.key = (SELECT key FROM held)),"
    " added AS (INSERT INTO {entry} (session, pos, id, at, type, body, hash) SELECT $4, $8, $12, $9, $13, $14, $11"
    " WHERE EXISTS (SELECT FROM held)),"
    " note AS (UPDATE {slot} SET seq = $2, at = extract(epoch FROM clock_timestamp())::float8 WHERE name = $1"
    " AND EXISTS (SELECT FROM held))"
    " SELECT extract(epoch FROM clock_timestamp())::float8, EXISTS (SELECT FROM held), NULL::bigint[]"
)
_ONE_TYPES = (_TEXT, _INT, _INT, _INT, _INT, _INT, _TEXT, _INT, _FLOAT, _TEXT, _BYTES, _TEXT, _TEXT, _BYTES)
_TYPES = (
    *(_TEXT, _INT, _INT),
    *(INTS, INTS, INTS, TEXTS, INTS, FLOATS, TEXTS, BYTES),
    *(INTS, INTS, TEXTS, FLOATS, TEXTS, BYTES, BYTES),
)
_AUDIT_TYPES = (INTS, INTS, INTS, BYTES, INTS, INTS, FLOATS, TEXTS, TEXTS, BYTES, BYTES)
_STATEMENTS = {
    b"holdfast_one": (f"{_TURN}{_ONE}", _ONE_TYPES),
    b"holdfast_group": (_GROUP, _TYPES),
    b"holdfast_group_audit": (_AUDITED, _TYPES + _AUDIT_TYPES),
}


class _Verdict(NamedTuple):
    """The server's answer to a group: whether it was written, and if not, the sessions that were as expected."""

    ok: bool
    fit: Sequence[int] = ()


class Groups:
    """Writes commits in groups, in the order they arrive for each session."""

    def __init__(self, engine: Engine, schema: str, now: Callable[[float], float]) -> None:
        self._engine = engine
        self._now = now
        self._queue: deque[LaneJob] = deque()
        self._waiting: Counter[str] = Counter()
        """How many commits of each session are in the queue, or in the group that is being written."""
        self._task: asyncio.Task[None] | None = None
        self._others: set[asyncio.Task[None]] = set()
        self._heads: dict[str, SessionHead] = {}
        self._company = 0
        """How many commits the last group had."""
        self._server = (0.0, 0.0)
        """The server's time, and our monotonic time when we got it."""
        names = {name: sql.Identifier(schema, name) for name in ("slot", "session", "entry", "chain", "audit")}
        self._statements = {
            name: (sql.SQL(text).format(**names).as_string().encode(), types)
            for name, (text, types) in _STATEMENTS.items()
        }
        heads = HEADS.replace("SELECT ", "SELECT extract(epoch FROM clock_timestamp())::float8, ")
        heads = heads.replace("FROM session", "FROM {session}").replace("JOIN chain", "JOIN {chain}")
        self._read = sql.SQL(f"{heads} = ANY(%s)").format(**names)

    def forget(self, session: str) -> None:
        """Forget a session's head, because something else was written."""
        self._heads.pop(session, None)

    def begin(self, job: LaneJob) -> asyncio.Future[Any]:
        """Write a commit with the next group, or alone if it is not plain; return the future of its result."""
        session = job.lane
        if session not in self._waiting and (not _is_plain(job) or self._engine.is_writing(session)):
            self.forget(session)
            return self._engine.begin(job)
        self._queue.append(job)
        self._waiting[session] += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="holdfast-postgres-groups")
        return job.future

    async def close(self) -> None:
        """Wait until everything that was started is done."""
        while self._task is not None or self._others:
            await asyncio.wait([*self._others, *([] if self._task is None else [self._task])])

    async def _run(self) -> None:
        try:
            while self._queue:
                await self._gather()
                taken = [self._queue.popleft() for _ in range(min(len(self._queue), MOST_JOBS))]
                self._company = len(taken)
                # If a caller was cancelled before its transaction, its job is not started.
                jobs = [job for job in taken if not self._is_cancelled(job)]
                try:
                    await self._round(jobs)
                except BaseException as error:  # noqa: BLE001 - the waiting callers must get the error
                    for job in jobs:
                        self._settle(job, error)
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def _gather(self) -> None:
        """Let the tasks run whose commits were just written: they are likely to write again, and one group for all is cheaper."""
        idle = 0
        for _ in range(_MOST_TURNS):
            before = len(self._queue)
            if before >= self._company or idle > 1:
                return
            await asyncio.sleep(0)
            idle = idle + 1 if len(self._queue) == before else 0

    async def _round(self, jobs: list[LaneJob]) -> None:
        """Write what can be written of these jobs now. The others come back to the queue, or are written alone."""
        fresh = {job.lane for job in jobs if job.lane not in self._heads and _is_plain(job)}
        try:
            if fresh:
                await self._read_heads(list(fresh))
        except psycopg.Error:
            for job in jobs:
                self._alone(job)
            return
        batch, now = Batch(), self._time()
        written: list[LaneJob] = []
        again: list[LaneJob] = []
        alone: set[str] = set()
        for job in jobs:
            if not self._is_grouped(job) or job.lane in alone:
                # It must be written after the commits of its session that are in this group.
                if job.lane in batch.after:
                    again.append(job)
                else:
                    self._alone(job)
                    alone.add(job.lane)
            else:
                self._add(job, batch, now, written, again if job.lane not in fresh else None)
        if written:
            again += await self._write(written, batch)
        self._queue.extendleft(reversed(again))

    def _is_grouped(self, job: LaneJob) -> bool:
        """Whether a job can be written with a group: it is plain, its chain exists, and nobody writes to its session."""
        if not _is_plain(job) or job.refused > 1 or self._engine.is_writing(job.lane):
            return False
        head = self._heads.get(job.lane)
        return head is None or job.commit is None or Batch.takes(job.commit, head)

    def _add(self, job: LaneJob, batch: Batch, now: float, written: list[LaneJob], again: list[LaneJob] | None) -> None:
        """Add a job to the batch. If it is rejected by a head that may be old (`again`), it is decided again."""
        head = self._heads.get(job.lane)
        if head is None:
            self._settle(job, missing(job.lane))
            return
        assert job.commit is not None
        try:
            job.result = batch.add(job.commit, head, now)
        except HoldfastError as rejection:
            if again is None:
                self._settle(job, rejection)
            else:
                self.forget(job.lane)
                again.append(job)
        else:
            written.append(job)

    async def _write(self, jobs: list[LaneJob], batch: Batch) -> list[LaneJob]:
        """Send a batch; return the jobs that were not written and are to be tried again."""
        try:
            verdict = await self._stored(batch)
        except (DoubtError, psycopg.Error) as error:
            for session in batch.before:
                self.forget(session)
            for job in jobs:
                self._fail(job, error)
            return []
        if verdict.ok:
            self._keep(batch)
            for job in jobs:
                self._settle(job)
            return []
        for session, head in batch.before.items():
            if head.key not in verdict.fit:
                self.forget(session)
        for job in jobs:
            job.refused += job.lane not in self._heads
        return jobs

    def _keep(self, batch: Batch) -> None:
        if len(self._heads) > MOST_HEADS:
            self._heads.clear()
        self._heads.update(batch.after)

    def _fail(self, job: LaneJob, error: DoubtError | psycopg.Error) -> None:
        if isinstance(error, DoubtError):
            self._settle(job, DoubtError(error.doubt._replace(result=job.result), error.cause))
        else:
            # The group is not stored: the connection had died, or the server did not take it. Alone, each gets its own answer.
            self._alone(job)

    def _alone(self, job: LaneJob) -> None:
        """Write a job with its own transaction."""
        self.forget(job.lane)
        task = asyncio.get_running_loop().create_task(self._perform(job))
        # Keep the task, because asyncio holds only a weak reference to it.
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _perform(self, job: LaneJob) -> None:
        try:
            await self._engine.begin(job)
        except BaseException:  # noqa: BLE001, S110 - its caller gets the error from the job
            pass
        finally:
            self._end(job)

    def _settle(self, job: LaneJob, error: BaseException | None = None) -> None:
        job.error = error
        job.settle()
        self._end(job)

    def _is_cancelled(self, job: LaneJob) -> bool:
        if job.future.done():
            self._end(job)
            return True
        return False

    def _end(self, job: LaneJob) -> None:
        left = self._waiting[job.lane] = self._waiting[job.lane] - 1
        if left <= 0:
            del self._waiting[job.lane]

    def _time(self) -> float:
        server, then = self._server
        return self._now(server + time.monotonic() - then)

    async def _read_heads(self, sessions: list[str]) -> None:
        async with self._engine.line() as (connection, _):
            cursor: AsyncCursor[Any] = AsyncCursor(connection, row_factory=tuple_row)
            await cursor.execute(self._read, (sessions,), binary=True)
            for now, session, *row in await cursor.fetchall():
                self._server = now, time.monotonic()
                self._heads[session] = head_of(row)

    async def _stored(self, batch: Batch) -> _Verdict:
        """Send a batch, and look up its outcome if the answer is lost. Raise `psycopg.Error` if it is not stored."""
        doubt: Doubt | None = None
        try:
            async with self._engine.line() as (connection, slot):
                slot.seq += 1
                await self._prepare(connection, slot)
                doubt = Doubt(slot.name, slot.lock, slot.seq, None)
                verdict = await self._send(connection, slot, batch)
        except psycopg.Error as error:
            if doubt is None or not is_loss(error) or not await self._engine.find_out(doubt, error):
                raise
            return _Verdict(ok=True)
        FAILPOINTS.reach("committed")
        return verdict

    async def _prepare(self, connection: AsyncConnection[Any], slot: SlotRow) -> None:
        if not slot.prepared:
            await self._engine.make_row(connection, slot)
            if not self._engine.is_pooled:
                for name, (statement, types) in self._statements.items():
                    connection.pgconn.send_prepare(name, statement, types)
                    await _answer(connection)
            slot.prepared = True

    async def _send(self, connection: AsyncConnection[Any], slot: SlotRow, batch: Batch) -> _Verdict:
        name, args = _arguments(slot, batch)
        FAILPOINTS.reach("written")
        binary = [pq.Format.BINARY] * len(args)
        if self._engine.is_pooled:
            # The server's session that runs it need not be the one in which it would have been prepared.
            statement, types = self._statements[name]
            connection.pgconn.send_query_params(statement, args, types, binary, pq.Format.BINARY)
        else:
            connection.pgconn.send_query_prepared(name, args, binary, pq.Format.BINARY)
        try:
            result = await _answer(connection)
        except InvalidSqlStatementName:
            # A pool between us and the server gave us another session of the server, or cleared this one.
            slot.prepared = False
            raise
        now, ok, fit = (result.get_value(0, column) for column in range(3))
        assert now is not None
        self._server = _TIME.unpack(now)[0], time.monotonic()
        return _Verdict(ok == b"\1", [] if fit is None else ints_of(bytes(fit)))


def _arguments(slot: SlotRow, batch: Batch) -> tuple[bytes, list[bytes]]:
    """Return the name of the statement that writes a batch, and its arguments."""
    if len(batch.entries) == len(batch.before) == 1 and not batch.audits:
        return b"holdfast_one", _arguments_of_one(slot, batch)
    before, after = list(batch.before.values()), [batch.after[name] for name in batch.before]
    args = [
        slot.name.encode(),
        _NUMBER.pack(slot.seq),
        _NUMBER.pack(slot.lock),
        int_array([head.key for head in before]),
        int_array([head.top for head in before]),
        int_array([head.fence for head in before]),
        text_array([head.state for head in before]),
        int_array([head.top for head in after]),
        float_array([head.last_at for head in after]),
        text_array([head.state for head in after]),
        byte_array([head.hash for head in after]),
    ]
    keys, offsets, ids, times, types, bodies, hashes = _columns(batch.entries, 7)
    args += (int_array(keys), int_array(offsets), text_array(ids), float_array(times), text_array(types))
    args += (byte_array(bodies), byte_array(hashes))
    if not batch.audits:
        return b"holdfast_group", args
    chains = [
        (head.chain, head.seq, new.seq, new.seal)
        for head, new in zip(before, after, strict=True)
        if new.seq != head.seq
    ]
    keys, was, numbers, seals = _columns(chains, 4)
    args += (int_array(keys), int_array(was), int_array(numbers), byte_array(seals))
    keys, numbers, times, kinds, runs, payloads, seals = _columns(batch.audits, 7)
    args += (int_array(keys), int_array(numbers), float_array(times), text_array(kinds), text_array(runs))
    args += (byte_array(payloads), byte_array(seals))
    return b"holdfast_group_audit", args


def _arguments_of_one(slot: SlotRow, batch: Batch) -> list[bytes]:
    ((name, before),) = batch.before.items()
    after = batch.after[name]
    ((_, _, id_, _, type_, body, _),) = batch.entries
    return [
        slot.name.encode(),
        _NUMBER.pack(slot.seq),
        _NUMBER.pack(slot.lock),
        _NUMBER.pack(before.key),
        _NUMBER.pack(before.top),
        _NUMBER.pack(before.fence),
        before.state.encode(),
        _NUMBER.pack(after.top),
        _TIME.pack(after.last_at),
        after.state.encode(),
        after.hash,
        id_.encode(),
        type_.encode(),
        body,
    ]


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> Sequence[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


async def _answer(connection: AsyncConnection[Any]) -> PGresult:
    """Wait for the answer to the one statement that was sent; raise its error."""
    # A server that ends says so after its answer. Then the answer is not known to be on its disk.
    results: list[PGresult] = await connection.wait(generators.execute(connection.pgconn))
    result = results[-1]
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise error_from_result(result, connection.info.encoding)
    return result


def _is_plain(job: LaneJob) -> bool:
    return job.commit is not None and is_plain(job.commit)
