"""The stores that work items are kept in, for every test here."""

from __future__ import annotations

import secrets

import pytest

from holdfast.stores import EncryptedStore, MemoryStore, SqliteStore
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.postgres import PrivateServer

KEY = bytes(range(32))


@pytest.fixture(scope="session")
def postgres():
    with PrivateServer(settings={"deadlock_timeout": "20ms"}) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "postgres", "encrypted"])
def make_store(request, tmp_path):
    """Makes a store with a clock, or with its own."""
    if request.param == "postgres":
        server, schema = request.getfixturevalue("postgres"), f"w{secrets.token_hex(6)}"
        return lambda clock=None: PostgresStore(server.url, schema=schema, clock=clock)
    if request.param == "memory":
        return lambda clock=None: MemoryStore(clock=clock)
    path = tmp_path / "work.db"
    if request.param == "sqlite":
        return lambda clock=None: SqliteStore(path, clock=clock)
    return lambda clock=None: EncryptedStore(SqliteStore(path, clock=clock), KEY)
