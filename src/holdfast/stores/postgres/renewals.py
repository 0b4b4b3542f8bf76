"""`Renewals`: renews leases from a thread, on a connection that blocks, because the event loop and its connections may be busy."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from psycopg import sql

from holdfast.stores.postgres.failures import typed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.stores.records import Lease

AT_ONCE = 500
"""The most leases in one transaction. Meanwhile other commits of these sessions have to wait for their rows."""

# The order of the names is the order of the locks, so two statements cannot wait for each other.
_RENEW = (
    "WITH held AS MATERIALIZED (SELECT s.key FROM {session} s JOIN unnest(%s::text[], %s::bigint[], %s::text[])"
    " AS l (name, fence, owner) ON s.name = l.name AND s.fence = l.fence AND s.owner = l.owner ORDER BY s.key"
    " FOR UPDATE OF s) UPDATE {session} s SET lease_until = {now} + %s FROM held WHERE s.key = held.key"
    " RETURNING s.name, s.lease_until"
)
# For the transaction only: behind a pooler, the next one may be somebody else's.
_SETTINGS = "SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', %s, true)"


class Renewals:
    """The connection on which leases are renewed. It is opened when the first lease is."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], schema: str, busy: float) -> None:
        self._connect = connect
        self._busy = f"{max(1, round(busy * 1_000))}"
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()
        session = sql.Identifier(schema, "session")
        server = sql.SQL("extract(epoch FROM clock_timestamp())::float8")
        self._by_server = sql.SQL(_RENEW).format(session=session, now=server)
        self._by_clock = sql.SQL(_RENEW).format(session=session, now=sql.SQL("%s::float8"))

    def renew(self, leases: Sequence[Lease], ttl: float, now: float | None) -> list[Lease]:
        """Extend leases by the server's time, or from `now`; return those that were renewed."""
        renewed: list[Lease] = []
        with self._lock:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._connect()
                for start in range(0, len(leases), AT_ONCE):
                    renewed += self._some(self._connection, leases[start : start + AT_ONCE], ttl, now)
            except psycopg.Error as error:
                self._hang_up()
                raise typed(error) from error
        return renewed

    def _some(
        self, connection: psycopg.Connection[Any], leases: Sequence[Lease], ttl: float, now: float | None
    ) -> list[Lease]:
        columns = ([one.session for one in leases], [one.fence for one in leases], [one.owner for one in leases])
        with connection.transaction():
            # A renewal that a crash of the server loses only makes the lease end earlier.
            connection.execute(_SETTINGS, (self._busy,))
            if now is None:
                rows = connection.execute(self._by_server, (*columns, ttl)).fetchall()
            else:
                rows = connection.execute(self._by_clock, (*columns, now, ttl)).fetchall()
        until = dict(rows)
        return [
            msgspec.structs.replace(lease, until=until[lease.session]) for lease in leases if lease.session in until
        ]

    def close(self) -> None:
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):  # a broken connection is closed already
                self._connection.close()
            self._connection = None
