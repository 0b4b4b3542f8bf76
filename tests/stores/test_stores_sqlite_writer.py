"""The thread that writes: its WAL stays within bounds and is used again, and those who write together share a sync."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

from holdfast.stores import Commit, NewEntry, NewSession, SqliteStore
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.sqlite import writer

BOUND = 256 * 1024


@pytest.fixture
def bounded(monkeypatch):
    monkeypatch.setattr(writer, "MOST_WAL_BYTES", BOUND)


@pytest.fixture
def transactions(monkeypatch):
    """What was reached on the way of every transaction."""
    reached: list[str] = []
    monkeypatch.setattr(FAILPOINTS, "hook", reached.append)
    return reached


async def _made(store, session="s"):
    await store.commit(Commit(session=session, create=NewSession(manifest=b"{}")))


async def _append(store, name, session="s", size=3_000):
    entry = NewEntry(type="t", body=b'"' + b"x" * size + b'"', id=name)
    await store.commit(Commit(session=session, entries=(entry,)))


def test_the_wal_is_used_again_from_its_beginning_and_does_not_grow(tmp_path, bounded):
    sizes = []

    async def main():
        async with SqliteStore(tmp_path / "w.db", durability="fast") as store:
            await _made(store)
            for n in range(300):
                await _append(store, f"e{n}")
                sizes.append((tmp_path / "w.db-wal").stat().st_size)

    asyncio.run(main())
    assert 3 * BOUND < 300 * 3_000, "too little was written to prove anything"
    assert sizes == sorted(sizes), "emptied, and grown again: syncing a file that grows takes longer"
    assert max(sizes) <= BOUND


def test_a_wal_that_grew_because_somebody_read_is_emptied_when_nobody_does(tmp_path, bounded):
    wal = tmp_path / "w.db-wal"

    async def main():
        async with SqliteStore(tmp_path / "w.db", durability="fast") as store:
            await _made(store)
            with closing(sqlite3.connect(tmp_path / "w.db", isolation_level=None)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM entry").fetchall()
                for n in range(100):
                    await _append(store, f"e{n}")
                grown = wal.stat().st_size
            await _append(store, "after")
            return grown, wal.stat().st_size, len(await store.read("s"))

    grown, after, entries = asyncio.run(main())
    assert grown > BOUND
    assert after == 0
    assert entries == 101


def test_writers_that_come_back_together_share_a_transaction(tmp_path, monkeypatch, transactions):
    writers, events = 8, 10
    monkeypatch.setattr(writer, "patience", lambda _: 1.0)

    async def main():
        async with SqliteStore(tmp_path / "w.db", durability="fast") as store:
            for n in range(writers):
                await _made(store, f"s{n}")
            transactions.clear()

            async def write(n):
                for k in range(events):
                    await _append(store, f"e{k}", f"s{n}", 10)

            await asyncio.gather(*(write(n) for n in range(writers)))
            shared = transactions.count("written")
            return shared, [len(await store.read(f"s{n}")) for n in range(writers)]

    shared, stored = asyncio.run(main())
    assert stored == [events] * writers
    # The first of all cannot know of the others.
    assert events <= shared <= events + 2


def test_a_single_writer_waits_for_nobody(tmp_path, monkeypatch, transactions):
    waited = []
    monkeypatch.setattr(writer.time, "sleep", waited.append)

    async def main():
        async with SqliteStore(tmp_path / "w.db", durability="fast") as store:
            await _made(store)
            for n in range(20):
                await _append(store, f"e{n}")

    asyncio.run(main())
    assert transactions.count("written") == 21
    assert waited == []


def test_company_that_does_not_come_is_waited_for_less_than_a_transaction_takes():
    assert writer.patience(0.001) == pytest.approx(0.0005)
    assert writer.patience(10.0) < 0.01
