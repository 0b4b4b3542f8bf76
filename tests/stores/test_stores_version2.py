"""Version 2 of the tables: stores that version 1 wrote are brought to it, and every entry has a hash from then on.

The files in `version1` were written by the last code with version 1.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psycopg
import pytest

from holdfast.faults import HoldfastError
from holdfast.sessions import Session
from holdfast.sessions.transfer import import_lines
from holdfast.stores import Commit, MemoryStore, NewEntry, SqliteStore, verify_store
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sql.schema import VERSION
from holdfast.stores.sqlite import files
from holdfast.testing.postgres import PrivateServer

OLD = Path(__file__).parent / "version1"
ENTRY = (NewEntry(type="t", body=b"{}", id="new"),)

# Every statement with which version 1 began to write to a session or its log.
OLD_STATEMENTS = (
    "SELECT key, epoch, state, fence, top, last_at FROM session WHERE id = 'done'",
    "INSERT INTO session (id, epoch, state, oldest, top, created_at, last_at, manifest) VALUES ('x', 'e', 'c', 1, 0, 1, 1, '')",
    "SELECT key, fence, owner, lease_until FROM session WHERE id = 'done'",
    "SELECT key, state, oldest, top, checkpoint, fence FROM session WHERE id = 'done'",
)


def square(n: int) -> int:
    raise AssertionError(f"square({n}) was done before")


@asynccontextmanager
async def on_sqlite(tmp_path):
    path = tmp_path / "store.db"
    if not path.exists():
        shutil.copy(OLD / "store.db", path)
        path.chmod(0o600)
    async with SqliteStore(path) as store:
        yield store


@pytest.fixture(scope="module")
def old_server():
    with PrivateServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def old_store(request, tmp_path):
    """Opens a store that version 1 wrote."""
    if request.param == "sqlite":
        return lambda: on_sqlite(tmp_path)
    server = request.getfixturevalue("old_server")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS version1 CASCADE")
        connection.execute((OLD / "postgres.sql").read_bytes())
    return lambda: PostgresStore(server.url, schema="version1")


def test_FD12_what_version_1_wrote_is_read_verified_and_written_to(old_store):
    async def scene():
        async with old_store() as store:
            sessions = {record.id: record.state for record in await store.sessions()}
            old = await store.read("done")
            before = await verify_store(store)
            await store.commit(Commit(session="done", entries=ENTRY * 2))
            await store.commit(Commit(session="asking", entries=ENTRY))
        async with old_store() as store:
            return sessions, old, before, await store.read("done"), await verify_store(store)

    sessions, old, before, new, after = asyncio.run(scene())
    assert sessions == {"asking": "paused", "closed": "closed", "done": "paused", "inflight": "paused"}
    assert [entry.hash for entry in old] == [""] * len(old)
    assert [entry.offset for entry in new] == list(range(1, len(old) + 3))
    assert [bool(entry.hash) for entry in new] == [False] * len(old) + [True, True]
    assert before.sound
    assert before.records > 8
    assert after.sound


def test_a_turn_that_version_1_left_in_flight_is_gone_on_with(old_store):
    async def scene():
        async with old_store() as store, Session.open("inflight", store=store) as session:
            return await session.step(square, 5)

    assert asyncio.run(scene()) == 25


@pytest.mark.parametrize("name", ["done", "inflight"])
def test_an_export_of_version_1_is_imported(name):
    async def scene():
        async with MemoryStore() as store:
            await import_lines(store, (OLD / f"{name}.jsonl").read_bytes().splitlines())
            return (await store.session(name)).top

    assert asyncio.run(scene()) > 0


def test_a_process_with_version_1_that_still_runs_cannot_write_any_more(tmp_path, old_server):
    """Its connections were open before the tables changed."""

    async def scene():
        shutil.copy(OLD / "store.db", tmp_path / "store.db")
        (tmp_path / "store.db").chmod(0o600)
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as old:
            assert old.execute(OLD_STATEMENTS[0]).fetchall()
            async with on_sqlite(tmp_path):
                for statement in OLD_STATEMENTS:
                    with pytest.raises(sqlite3.OperationalError, match=r"\bid\b"):
                        old.execute(statement)
        with psycopg.connect(old_server.url, autocommit=True) as old:
            old.execute("DROP SCHEMA IF EXISTS version1 CASCADE")
            old.execute((OLD / "postgres.sql").read_bytes())
            old.execute("SET search_path = version1")
            old.execute(OLD_STATEMENTS[0])
            async with PostgresStore(old_server.url, schema="version1"):
                for statement in OLD_STATEMENTS:
                    with pytest.raises(psycopg.errors.UndefinedColumn, match="id"):
                        old.execute(statement.encode())

    asyncio.run(scene())


def test_a_migration_that_fails_leaves_version_1_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "store.db"
    shutil.copy(OLD / "store.db", path)
    path.chmod(0o600)
    steps = files.migrations(files.DIALECT)
    monkeypatch.setattr(files, "migrations", lambda _: {2: (*steps[2], "SELECT nonsense")})

    async def opened():
        async with SqliteStore(path):
            pass

    with pytest.raises(HoldfastError):
        asyncio.run(opened())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute(OLD_STATEMENTS[0]).fetchall()
    assert VERSION >= 2


CHANGES = {
    "a result": "UPDATE entry SET body = replace(CAST(body AS TEXT), '9', '8') WHERE type = 'step_ended' AND pos = 4",
    "a time": "UPDATE entry SET at = at - 1 WHERE pos = 4",
    "a type": "UPDATE entry SET type = 'message' WHERE pos = 4",
    "a hash": "UPDATE entry SET hash = NULL WHERE pos = 4",
    "an entry moved": "UPDATE entry SET pos = 99 WHERE pos = 4",
    "the end": "UPDATE session SET head = NULL",
}


@pytest.mark.parametrize("what", CHANGES)
def test_FD12_an_edited_step_result_is_noticed_on_resume_and_by_verify(tmp_path, what):
    path = tmp_path / "store.db"

    async def scene():
        async with SqliteStore(path) as store:
            try:
                async with Session.open("s", store=store) as session:
                    await session.step(pow, 3, 2)
                    raise RuntimeError
            except RuntimeError:
                pass
        statement = CHANGES[what].replace(
            "replace(CAST(body AS TEXT), '9', '8')", "CAST(replace(CAST(body AS TEXT), '9', '8') AS BLOB)"
        )
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            # Without the checkpoint the log is read from its beginning.
            connection.execute("DELETE FROM checkpoint")
            connection.execute("UPDATE session SET checkpoint = NULL")
            changed = connection.execute(
                statement.replace("pos = 4", "pos = (SELECT pos FROM entry WHERE type = 'step_ended')")
            )
            assert changed.rowcount == 1
        async with SqliteStore(path) as store:
            with pytest.raises(HoldfastError, match="Session 's' is damaged") as caught:
                await Session.open("s", store=store).__aenter__()
            return caught.value.fault.code, await verify_store(store)

    code, verified = asyncio.run(scene())
    assert code == "SESS_MANIFEST_DRIFT"
    assert not verified.sound
    assert [broken.chain for broken in verified.broken] == ["log:s"]


def test_FD12_an_edited_checkpoint_is_noticed(tmp_path):
    path = tmp_path / "store.db"

    async def scene():
        async with SqliteStore(path) as store, Session.open("s", store=store) as session:
            session.context["plan"] = "a"
            await session.checkpoint()
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(
                """UPDATE checkpoint SET snapshot = CAST(replace(CAST(snapshot AS TEXT), '"a"', '"b"') AS BLOB)"""
            )
        async with SqliteStore(path) as store:
            with pytest.raises(HoldfastError, match="its checkpoint was changed"):
                await Session.open("s", store=store).__aenter__()
            return await verify_store(store)

    assert [broken.chain for broken in asyncio.run(scene()).broken] == ["log:s"]
