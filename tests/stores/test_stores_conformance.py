"""The conformance suite on our own stores."""

from __future__ import annotations

import hashlib

import pytest

from holdfast.stores import EncryptedStore, MemoryStore, SqliteStore
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.stores import StoreConformance


class TestMemory(StoreConformance):
    durable = False

    def make(self, place, clock, redactor):
        return MemoryStore(clock=clock, redactor=redactor)


class TestSqlite(StoreConformance):
    def make(self, place, clock, redactor):
        return SqliteStore(place / "sessions.db", clock=clock, redactor=redactor)


class TestSqliteFast(StoreConformance):
    def make(self, place, clock, redactor):
        return SqliteStore(place / "sessions.db", durability="fast", clock=clock, redactor=redactor)


KEY = bytes(range(32))


class TestEncryptedMemory(StoreConformance):
    durable = False

    def make(self, place, clock, redactor):
        return EncryptedStore(MemoryStore(clock=clock), KEY, redactor=redactor)


class TestEncryptedSqlite(StoreConformance):
    def make(self, place, clock, redactor):
        return EncryptedStore(SqliteStore(place / "sessions.db", clock=clock), KEY, redactor=redactor)


class TestPostgres(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, postgres):
        self.server = postgres

    def make(self, place, clock, redactor):
        schema = f"t{hashlib.sha256(str(place).encode()).hexdigest()[:16]}"
        return PostgresStore(self.server.url, schema=schema, clock=clock, redactor=redactor)


class TestEncryptedPostgres(TestPostgres):
    def make(self, place, clock, redactor):
        return EncryptedStore(super().make(place, clock, None), KEY, redactor=redactor)


class TestPooledPostgres(TestPostgres):
    """Behind PgBouncer in transaction mode."""

    @pytest.fixture(autouse=True)
    def _server(self, pooler):
        self.server = pooler
