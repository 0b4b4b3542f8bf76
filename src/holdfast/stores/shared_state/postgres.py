"""`PostgresState`: what a fleet knows, on PostgreSQL, where Redis is not wanted: `postgresql://user@host/db`.

Each target is one row of an unlogged table, locked while it is changed. A crash of the server empties the table: the fleet learns anew.

Invariant: no statement waits for longer than 50 ms on the server. A server that does not answer at all is noticed by the one that waits
for the thread (`runtime/fleet/link.py`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import psycopg

from holdfast.policies.fleet import KEPT_S, restored, stored
from holdfast.runtime.fleet.shared_state import SharedStateError
from holdfast.stores.address import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.fleet import FleetTarget

__all__ = ["PostgresState", "open_state"]

T = TypeVar("T")

CONNECT_S = 2
"""The smallest number that libpq takes."""
_TABLE = """CREATE UNLOGGED TABLE IF NOT EXISTS holdfast_shared_1 (
    namespace text NOT NULL, target text NOT NULL, state bytea, at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (namespace, target))"""
_TIMEOUT = "SET LOCAL statement_timeout = 50"
"""In milliseconds. A pooler gives the connection to others afterwards, so it holds for one transaction."""
_LOCK = """SELECT CASE WHEN at > now() - make_interval(secs => %s) THEN state END, extract(epoch FROM clock_timestamp())::float8
    FROM holdfast_shared_1 WHERE namespace = %s AND target = %s FOR UPDATE"""
_ADD = "INSERT INTO holdfast_shared_1 (namespace, target) VALUES (%s, %s) ON CONFLICT DO NOTHING"
_WRITE = "UPDATE holdfast_shared_1 SET state = %s, at = now() WHERE namespace = %s AND target = %s"
_ALL = """SELECT target, state, extract(epoch FROM clock_timestamp())::float8 FROM holdfast_shared_1
    WHERE namespace = %s AND at > now() - make_interval(secs => %s) AND state IS NOT NULL"""


class PostgresState:
    """An engine on PostgreSQL.

    For example:
        state = PostgresState("postgresql://app@db/app", "shop")
    """

    def __init__(self, url: str, namespace: str = "holdfast") -> None:
        self.place = shown(url)
        self._url = url
        self._namespace = namespace
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def change(self, name: str, step: Callable[[FleetTarget, float], T]) -> T:
        """See `SharedState.change`."""
        where = (self._namespace, name)
        try:
            connection = self._connected()
            with connection.transaction():
                # Of this transaction only: a pooler gives the connection to others after it.
                connection.execute(_TIMEOUT)
                row = connection.execute(_LOCK, (KEPT_S, *where)).fetchone()
                if row is None:
                    connection.execute(_ADD, where)
                    row = connection.execute(_LOCK, (KEPT_S, *where)).fetchone()
                assert row is not None
                target, now = restored(_bytes(row[0]), float(str(row[1])))
                result = step(target, now)
                connection.execute(_WRITE, (stored(target, now), *where))
        except (psycopg.Error, OSError) as error:
            self.close()
            raise SharedStateError(type(error).__name__) from error
        return result

    def targets(self) -> dict[str, FleetTarget]:
        """See `SharedState.targets`."""
        try:
            rows = self._connected().execute(_ALL, (self._namespace, KEPT_S)).fetchall()
        except (psycopg.Error, OSError) as error:
            self.close()
            raise SharedStateError(type(error).__name__) from error
        return {str(name): restored(_bytes(raw), float(str(now)))[0] for name, raw, now in rows}

    def check(self) -> list[str]:
        """See `SharedState.check`."""
        self.targets()
        return []

    def close(self) -> None:
        """See `SharedState.close`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error, OSError):  # it is gone already
                connection.close()

    def _connected(self) -> psycopg.Connection[tuple[object, ...]]:
        if self._connection is None or self._connection.closed:
            # Nothing is prepared: a pooler gives each transaction another connection.
            made = psycopg.connect(self._url, autocommit=True, connect_timeout=CONNECT_S, prepare_threshold=None)
            try:
                with made.transaction():
                    made.execute(_TABLE)
            except BaseException:
                made.close()
                raise
            self._connection = made
        return self._connection


def _bytes(raw: object) -> bytes | None:
    return raw if isinstance(raw, bytes) else None


def open_state(url: str, namespace: str) -> PostgresState:
    """Return the engine at an address."""
    return PostgresState(url, namespace)
