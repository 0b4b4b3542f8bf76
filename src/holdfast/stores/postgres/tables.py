"""Creates the PostgreSQL schema, brings it to our version, and rejects a schema that is not ours.

Invariant: a schema that is not ours, or that a newer Holdfast wrote, raises before anything in it changes.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

from psycopg import sql

from holdfast.faults import Fault, HoldfastError
from holdfast.stores.sql.schema import VERSION, SqlDialect, migrations

if TYPE_CHECKING:
    from psycopg import AsyncCursor

DIALECT = SqlDialect(
    text='TEXT COLLATE "C"',
    blob="BYTEA",
    real="DOUBLE PRECISION",
    integer="BIGINT",
    key="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    clustered="",
    lock=" FOR UPDATE",
)

_OWN_TABLES = {
    1: (
        # The number of each connection's last transaction shows the outcome of an unanswered COMMIT. Rows are updated in
        # place, so each page keeps free space.
        """CREATE TABLE slot (
            name TEXT PRIMARY KEY,
            seq BIGINT NOT NULL,
            at DOUBLE PRECISION NOT NULL
        ) WITH (fillfactor = 50)""",
    )
}
_LOG = logging.getLogger("holdfast")
_FORGOTTEN_AFTER = "7 days"
"""After this time nobody looks up a connection's last transaction any more."""


EPOCH = (
    "SELECT (SELECT system_identifier FROM pg_control_system())::text || '.' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
    " || '.' || to_regclass('session')::oid::text"
)
"""Reads what changes when the data may be older than it was: another cluster, another timeline (a standby took over, or a recovery to
a point in time), or other tables (a dump was restored)."""


async def note_epoch(cursor: AsyncCursor[Any], schema: str) -> str:
    """Return the epoch of the tables, and log that it is another one than the last time."""
    await cursor.execute("SELECT set_config('search_path', quote_ident(%s), true)", (schema,))
    await cursor.execute(EPOCH.encode())
    ((now,),) = await cursor.fetchall()
    await cursor.execute("SELECT value FROM meta WHERE name = 'epoch'")
    row = await cursor.fetchone()
    if row is not None and row[0] != now:
        _LOG.warning(
            "the PostgreSQL schema %s is on another server, timeline or table than before (%s, was %s): a standby took over, or a backup"
            " was restored. What was stored last may be missing",
            schema,
            now,
            row[0],
        )
    if row is None or row[0] != now:
        await _set(cursor, "epoch", str(now))
    return str(now)


async def migrate(cursor: AsyncCursor[Any], schema: str) -> str:
    """Bring the tables to our version, in the current transaction; return the store's id."""
    # Other processes that open the same schema wait here. The lock's number has no meaning, but only Holdfast uses it.
    await cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s), hashtext('holdfast'))", (schema,))
    version = await _version(cursor, schema)
    if version == 0:
        await cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    await cursor.execute("SELECT set_config('search_path', quote_ident(%s), true)", (schema,))
    for step in range(version + 1, VERSION + 1):
        for statement in (*migrations(DIALECT)[step], *_OWN_TABLES.get(step, ())):
            await cursor.execute(statement.encode())
    if version < VERSION:
        await _set(cursor, "version", str(VERSION))
        await cursor.execute(
            "INSERT INTO meta VALUES ('store_id', %s) ON CONFLICT DO NOTHING", (f"postgres-{uuid.uuid4().hex}",)
        )
    await cursor.execute(
        "DELETE FROM slot WHERE at < extract(epoch FROM clock_timestamp() - %s::interval)", (_FORGOTTEN_AFTER,)
    )
    await cursor.execute("SELECT value FROM meta WHERE name = 'store_id'")
    row = await cursor.fetchone()
    assert row is not None
    return str(row[0])


async def _version(cursor: AsyncCursor[Any], schema: str) -> int:
    """Return the version of the tables; 0 if there are none."""
    await cursor.execute(
        "SELECT relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND relkind IN ('r', 'p')",
        (schema,),
    )
    tables = {name for (name,) in await cursor.fetchall()}
    if not tables:
        return 0
    # The schema has tables, but not ours, so another program uses it.
    if not {"meta", "session", "slot"} <= tables:
        raise _invalid(schema, "holds the tables of another program")
    await cursor.execute(sql.SQL("SELECT value FROM {} WHERE name = 'version'").format(sql.Identifier(schema, "meta")))
    row = await cursor.fetchone()
    version = int(row[0]) if row is not None and str(row[0]).isdecimal() else None
    if version is None:
        raise _invalid(schema, "does not say which version its tables have")
    if version > VERSION:
        raise _invalid(
            schema, f"was written by a newer Holdfast (version {version} of the tables; this one knows {VERSION})"
        )
    return version


async def _set(cursor: AsyncCursor[Any], name: str, value: str) -> None:
    statement = "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    await cursor.execute(statement, (name, value))


def _invalid(schema: str, reason: str) -> HoldfastError:
    message = f"The PostgreSQL schema {schema} {reason}. It was left as it is."
    return HoldfastError(Fault.of("SESS_MANIFEST_INVALID", message, context={"schema": schema, "reason": reason}))
