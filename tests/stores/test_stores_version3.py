"""Version 3 of the tables: stores that version 2 wrote get the tables of work, and keep what they have."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
import pytest

from holdfast.stores import Commit, NewSession, SqliteStore, verify_store
from holdfast.stores.postgres import PostgresStore, tables
from holdfast.stores.records import NewWork
from holdfast.stores.sqlite import files
from holdfast.testing.postgres import PrivateServer

pytestmark = pytest.mark.anyio
OLD = Path(__file__).parent / "version1"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def old_server():
    with PrivateServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
async def version2(request, tmp_path, monkeypatch):
    """Opens a store that was brought to version 2, and no further."""
    if request.param == "sqlite":
        path = tmp_path / "store.db"
        shutil.copy(OLD / "store.db", path)
        path.chmod(0o600)
        place, module = (lambda: SqliteStore(path)), files
    else:
        server = request.getfixturevalue("old_server")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS version1 CASCADE")
            connection.execute((OLD / "postgres.sql").read_bytes())
        place, module = (lambda: PostgresStore(server.url, schema="version1")), tables
    with monkeypatch.context() as patch:
        patch.setattr(module, "VERSION", 2)
        async with place() as store:
            await store.commit(Commit(session="of-version-2", create=NewSession(manifest=b"{}")))
    return place


async def test_what_version_2_wrote_is_there_and_work_can_be_added(version2):
    async with version2() as store:
        assert "of-version-2" in {record.id for record in await store.sessions()}
        assert await store.work() == []
        create = NewSession(manifest=b"{}")
        await store.commit(Commit(session="item", create=create, work=NewWork(program="p")))
    async with version2() as store:
        assert [item.session for item in await store.work()] == ["item"]
        assert (await verify_store(store)).sound
