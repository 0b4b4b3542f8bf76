"""`PostgresStore`: sessions that many processes and machines share."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool

from holdfast import options
from holdfast._platform import need_selector_loop
from holdfast.faults import InvalidError
from holdfast.runtime.secrets import process_redactor
from holdfast.stores.errors import unavailable
from holdfast.stores.postgres.engine import Doubt, DoubtError, Engine
from holdfast.stores.postgres.failures import typed
from holdfast.stores.postgres.groups import Groups
from holdfast.stores.postgres.lanes import LaneJob
from holdfast.stores.postgres.notifications import Listener, Notifier
from holdfast.stores.postgres.renewals import Renewals
from holdfast.stores.postgres.tables import DIALECT, EPOCH, migrate, note_epoch
from holdfast.stores.records import Commit, Lease, Receipt, check_name, may_be_claimed
from holdfast.stores.redaction import Mask, prepared
from holdfast.stores.sql import commits, leases
from holdfast.stores.sql.query import Query
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.wakeups import WORK, Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from holdfast.clock import Clock
    from holdfast.faults import Redactor
    from holdfast.stores.sql.query import Script
    from holdfast.stores.wakeups import Follower

T = TypeVar("T")
_POLL_S, _POOLED_POLL_S = 5.0, 1.0
"""How often a task that waits for news reads the log: beside notifications, and without them."""
_LONGEST_SCHEMA = 50
"""PostgreSQL cuts names at 63 bytes, and the name of the notification channel is longer than the schema's."""


class PostgresStore(SqlStore):
    """Sessions in one schema of a PostgreSQL database: `async with PostgresStore("postgresql://…") as store`.

    `server` is a connection string, or your own open `AsyncConnectionPool`, which stays open when the store closes. `busy` is the
    number of seconds that a call waits for a connection, or for a row that another process holds. `poll` is how often `changed`
    reads the log if no notification comes: by default every 5 s, and every second behind a pooler.

    `pool="transaction"` needs no session of the server: it uses no prepared statements and no notifications, for a pooler such as
    PgBouncer that gives each transaction another session. By default that is found out; `pool="session"` says that the pooler keeps
    sessions.

    Without a `clock` the store uses the server's time, because all machines must agree on the end of a lease. A store belongs to the
    event loop that opened it: calls from another one raise `InvalidError`.

    Raises `InvalidError` for a wrong name or connection string. Opening raises SESS_STORE_UNAVAILABLE if the server cannot be
    reached, and SESS_MANIFEST_INVALID if the schema is not ours.
    """

    _row_lock = DIALECT.lock
    _server_time = "extract(epoch FROM clock_timestamp())::double precision"

    @options.suggests
    def __init__(
        self,
        server: str | AsyncConnectionPool[Any],
        *,
        schema: str = "holdfast",
        connections: int = 8,
        busy: float = 5.0,
        poll: float | None = None,
        pool: str = "auto",
        clock: Clock | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        check_name("store.schema", schema)
        options.one_of("store.pool", pool, ("auto", "session", "transaction"))
        if len(schema) > _LONGEST_SCHEMA:
            raise InvalidError.at("store.schema", f"at most {_LONGEST_SCHEMA} letters", schema)
        self._server = server if isinstance(server, AsyncConnectionPool) else _checked(server)
        self._schema = schema
        self._connections = connections
        self._busy = busy
        self._poll = poll
        self._mode = pool
        self.is_pooled = pool == "transaction"
        """Whether each transaction may run in another session of the server; known when the store is open."""
        self._clock = clock
        self.mask = Mask(redactor or process_redactor())
        """Knows the secrets that may not be stored."""
        self._wakeups = Wakeups()
        self._doubts: dict[bytes, Doubt] = {}
        self._engine: Engine | None = None
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._epoch: str | None = None

    @property
    def epoch(self) -> str | None:
        """Another one after a failover, or after a backup was restored; as of the last lease. None: the server does not say."""
        return self._epoch

    @property
    def place(self) -> Hashable | None:
        """What stores with the same server and options have in common: sessions that are opened by address share one of them."""
        if not isinstance(self._server, str):
            return None
        return ("postgres", self._server, self._schema, self._mode, self._clock and id(self._clock))

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        # With another kind of loop, psycopg would try to connect until its timeout.
        need_selector_loop("The PostgreSQL store", loop)
        if self._engine is not None and os.getpid() == self._process and not (self._loop and self._loop.is_closed()):
            self._check_loop(loop)
        own = isinstance(self._server, str)
        pool = self._pool(self._server) if isinstance(self._server, str) else self._server
        engine = Engine(pool, self._schema, self._busy, self._writing if own else None)
        self.is_pooled = self._mode == "transaction"
        try:
            if own:
                # Connect without the pool first, because a pool that cannot connect reports only a timeout, not the reason.
                connection = await self._connect()
                engine.adopt(connection)
                await self._find_pooler(connection)
                await self._prepare(connection)
                self._id = await self._migrated(connection)
                await pool.open(wait=False)
            else:
                async with engine.connection() as connection:
                    await self._find_pooler(connection)
                async with engine.connection() as connection:
                    self._id = await self._migrated(connection)
            engine.is_pooled = self.is_pooled
        except BaseException as error:
            if own:
                await engine.hang_up()
                await pool.close()
            if isinstance(error, psycopg.Error):
                raise typed(error) from error
            raise
        channel = f"holdfast.{self._schema}"
        self._engine, self._process, self._loop = engine, os.getpid(), loop
        self._groups = Groups(engine, self._schema, self._now)
        self._renewals = Renewals(await self._blocking(), self._schema, self._busy)
        self._listener = None if self.is_pooled else Listener(self._connect, channel, self._wakeups)
        self._notifier = Notifier(engine, channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._engine is not None and os.getpid() == self._process:
            self._check_loop(asyncio.get_running_loop())
        engine, self._engine = self._engine, None
        # A forked child has copies of the parent's connections. Only the parent may close them.
        if engine is None or os.getpid() != self._process:
            return
        # Close both before the pool, because they use connections.
        if self._listener is not None:
            await self._listener.close()
        await self._notifier.close()
        await self._groups.close()
        await asyncio.get_running_loop().run_in_executor(None, self._renewals.close)
        # If the server is gone, our rows in `slot` are deleted after some days.
        with suppress(psycopg.Error):
            await engine.close()
        if isinstance(self._server, str):
            await engine.pool.close()

    async def commit(self, commit: Commit) -> Receipt:
        """Write all of the commit, or nothing, in one transaction.

        Raises what `Store.commit` lists, and SESS_STORE_UNAVAILABLE if the server cannot be used. If the connection breaks
        during COMMIT, nobody knows yet whether the data is stored: the same commit, made again, finds out first.
        """
        return await self._commit(prepared(commit, self.mask))

    def submit(self, commit: Commit) -> asyncio.Future[Receipt]:
        """Begin a commit; return its future. The commit is made whether or not somebody waits for it; raises as `commit` does."""
        ready = prepared(commit, self.mask)
        if self._doubts:
            return asyncio.get_running_loop().create_task(self._commit(ready))
        return self._begin(ready)

    async def _commit(self, ready: Commit) -> Receipt:
        # This is needed only after an unknown outcome, so normally it costs nothing.
        if self._doubts and (earlier := await self._earlier(ready)) is not None:
            return earlier
        return await self._begin(ready)

    def _begin(self, ready: Commit) -> asyncio.Future[Receipt]:
        self._opened()
        epoch = secrets.token_urlsafe(12) if ready.create is not None else ""
        job = LaneJob(ready.session or ready.chain, partial(self._script, ready, epoch), ready, self._ended)
        return self._groups.begin(job)

    def _ended(self, job: LaneJob) -> None:
        """The transaction of a commit has ended."""
        ready = job.commit
        assert ready is not None
        if isinstance(job.error, DoubtError):
            cause = job.error.cause
            job.error = self._doubtful(job.error, ready)
            job.error.__cause__ = cause
        elif job.error is None and ready.session is not None:
            self._wakeups.wake((ready.session,))
            self._notifier.notify(ready.session)
            if may_be_claimed(ready.work):
                self._work_changed()

    def _acquisition(self, session: str, owner: str, ttl: float, now: leases.Instant) -> Script[Lease]:
        lease = yield from super()._acquisition(session, owner, ttl, now)
        # The server may be another one since the store was opened.
        if self._epoch is not None:
            ((self._epoch,),) = yield Query(EPOCH)
        return lease

    def renew_all(self, held: Sequence[Lease], ttl: float) -> list[Lease]:
        """Extend many leases to `ttl` seconds from now, from another thread; return those that were renewed."""
        self._opened()
        return self._renewals.renew(held, ttl, None if self._clock is None else self._clock.wall())

    async def changed(self, session: str, after: int, seconds: float) -> bool:
        """Wait until the session's log goes beyond `after`, for at most `seconds`; return whether it did."""
        look = (_POOLED_POLL_S if self.is_pooled else _POLL_S) if self._poll is None else self._poll
        return await self._wakeups.beyond(session, after, seconds, self.session, look=look)

    def follow_work(self) -> Follower:
        """Return what waits for work again and again."""
        return self._wakeups.follow(WORK)

    def _work_changed(self) -> None:
        self._wakeups.wake((WORK,))
        self._notifier.notify(WORK)

    def _opened(self) -> Engine:
        if self._engine is None:
            raise unavailable("it is not open: use `async with` (PostgreSQL)")
        # A child would talk over its parent's connections, and each would get answers meant for the other.
        if os.getpid() != self._process:
            raise unavailable("it was opened before this process was forked: open it in this process (PostgreSQL)")
        # A thread that renews leases has no loop, and needs none.
        self._check_loop(_running_loop())
        return self._engine

    def _check_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if loop is not None and loop is not self._loop:
            # Its connections wait in the loop that opened them, and would raise errors of asyncio's.
            raise InvalidError.saying(
                "store",
                "a PostgresStore of this event loop: open a store there, or give the address, and each loop has its own",
                "one that is open in another event loop",
            )

    async def _write(self, session: str, script: Callable[[leases.Instant], Script[T]]) -> T:
        try:
            engine = self._opened()
            try:
                result: T = await engine.begin(LaneJob(session, lambda now: script(self._instant(now))))
            finally:
                self._groups.forget(session)
        except DoubtError as error:
            raise _unknown() from error.cause
        return result

    def _script(self, ready: Commit, epoch: str, now: float) -> Script[Receipt]:
        return commits.commit_script(ready, self._now(now), epoch, self._row_lock)

    async def _read(self, script: Callable[[], Script[T]]) -> T:
        return await self._opened().read(script)

    async def _earlier(self, ready: Commit) -> Receipt | None:
        """Return the receipt of an earlier attempt of this commit, if that attempt was stored after all."""
        digest = _digest(ready)
        doubt = self._doubts.get(digest)
        if doubt is None:
            return None
        try:
            stored = await self._opened().find_out(doubt)
        except DoubtError as error:
            raise _unknown() from error.cause
        self._doubts.pop(digest, None)
        receipt: Receipt = doubt.result
        return receipt if stored else None

    def _doubtful(self, error: DoubtError, ready: Commit) -> Exception:
        self._doubts[_digest(ready)] = error.doubt
        return _unknown()

    async def _migrated(self, connection: AsyncConnection[Any]) -> str:
        async with connection.transaction(), connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            store_id = await migrate(cursor, self._schema)
        # Not every service that speaks PostgreSQL's protocol knows these functions, or lets its users call them.
        with suppress(psycopg.Error):
            async with connection.transaction(), connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
                self._epoch = await note_epoch(cursor, self._schema)
        return store_id

    def _pool(self, server: str) -> AsyncConnectionPool[Any]:
        return AsyncConnectionPool(
            server,
            kwargs=self._settings() | {"application_name": "holdfast"},
            configure=self._configure,
            min_size=1,
            max_size=self._connections,
            timeout=self._busy,
            # Give up early, because the next caller makes the pool reconnect at once.
            reconnect_timeout=self._busy,
            open=False,
            name="holdfast",
        )

    async def _writing(self) -> AsyncConnection[Any]:
        """Return the connection for groups."""
        connection = await self._connect()
        try:
            await self._prepare(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _prepare(self, connection: AsyncConnection[Any]) -> None:
        """Set up the connection for groups. Its statements are prepared, and one plan serves groups of any size."""
        await self._configure(connection)
        if not self.is_pooled:
            await connection.execute("SELECT set_config('plan_cache_mode', 'force_generic_plan', false)")

    async def _find_pooler(self, connection: AsyncConnection[Any]) -> None:
        """Find out whether a pooler is between us and the server. If so, nothing may be left in a session of the server."""
        if self._mode == "auto":
            ((server,),) = await (await connection.execute("SELECT pg_backend_pid()")).fetchall()
            # A pooler answers a client before it has a session for it, so it makes up the number of the process.
            self.is_pooled = server != connection.info.backend_pid

    async def _configure(self, connection: AsyncConnection[Any]) -> None:
        """Let the server notice within half a minute that our machine is down. Until then it keeps our rows locked."""
        if self.is_pooled:
            # The pooler has the connections to the server. It would give the prepared statements and settings to others.
            connection.prepare_threshold = None
            return
        await connection.execute(
            "SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),"
            " set_config('tcp_keepalives_count', '3', false)"
        )

    async def _connect(self) -> AsyncConnection[Any]:
        """Return a connection outside of the pool."""
        if isinstance(self._server, str):
            server, kwargs = self._server, {}
        else:
            server, kwargs = await _resolved(self._server.conninfo), dict(await _resolved(self._server.kwargs) or {})
        return await AsyncConnection.connect(server, **kwargs | self._settings())

    async def _blocking(self) -> Callable[[], psycopg.Connection[Any]]:
        """Return a function that opens a connection that blocks, for another thread."""
        if isinstance(self._server, str):
            server, kwargs = self._server, {}
        else:
            server, kwargs = await _resolved(self._server.conninfo), dict(await _resolved(self._server.kwargs) or {})
        return partial(psycopg.Connection.connect, server, **kwargs | self._settings())

    def _settings(self) -> dict[str, Any]:
        """Return the settings of our connections. Keepalives detect that the network is down."""
        return {
            "autocommit": True,
            "connect_timeout": max(2, round(self._busy)),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 25_000,
            **({"prepare_threshold": None} if self.is_pooled else {}),
        }

    def _instant(self, server: float) -> leases.Instant:
        return leases.Instant(self._now(server))

    def _now(self, server: float) -> float:
        return server if self._clock is None else self._clock.wall()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _resolved(setting: Any) -> Any:
    """Return a setting of the pool: a value, or the result of a function."""
    value = setting() if callable(setting) else setting
    return await value if isawaitable(value) else value


def _digest(commit: Commit) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(commit)).digest()


def _unknown() -> Exception:
    return unavailable(
        "the connection broke during COMMIT, and it is not known yet whether the data is stored;"
        " repeat the same commit: it checks this first",
        outcome="unknown",
    )


def _checked(server: str) -> str:
    try:
        conninfo_to_dict(server)
    except psycopg.ProgrammingError:
        # Leave out the driver's message, because it repeats the string, which may hold a password.
        raise InvalidError.saying(
            "store",
            "a connection string such as postgresql://user@host/database",
            "a string that PostgreSQL cannot read",
        ) from None
    return server
