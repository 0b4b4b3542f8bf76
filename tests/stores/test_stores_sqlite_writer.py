"""The thread that writes: its WAL stays within bounds and is used again, and those who write together share a sync."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest

from holdfast.stores import Claim, Commit, MemoryStore, NewEntry, NewSession, SessionState, SqliteStore
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.sqlite import writer
from holdfast.stores.verification import broken_logs

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


@pytest.fixture
def writers(monkeypatch):
    """The threads that wrote, in order."""
    names: list[str] = []
    for name in ("_perform", "_perform_at_once"):
        _note_thread(monkeypatch, name, names)
    return names


def _note_thread(monkeypatch, name, names):
    really = getattr(writer.Writer, name)

    def noted(self, jobs):
        written = really(self, jobs)
        if written is not False:
            names.append(threading.current_thread().name)
        return written

    monkeypatch.setattr(writer.Writer, name, noted)


@pytest.mark.parametrize("quick", [0.0, 60.0])
def test_FD14_the_event_loop_writes_itself_if_the_disk_is_quick(tmp_path, monkeypatch, writers, quick):
    monkeypatch.setattr(writer, "QUICK_S", quick)

    async def main():
        async with SqliteStore(tmp_path / "w.db") as store:
            await _made(store)
            for n in range(30):
                await _append(store, f"e{n}", size=10)
            return [entry.id for entry in await store.read("s")]

    assert asyncio.run(main()) == [f"e{n}" for n in range(30)]
    here = threading.current_thread().name
    assert writers.count(here) == (31 - writer._QUICK_ONES if quick else 0)


def test_FD14_the_event_loop_does_not_wait_for_another_process(tmp_path, monkeypatch, writers):
    monkeypatch.setattr(writer, "QUICK_S", 60.0)
    monkeypatch.setattr(writer, "_QUICK_ONES", 0)
    turns = []

    async def main():
        async with SqliteStore(tmp_path / "w.db") as store:
            await _made(store)
            await _append(store, "before")
            with closing(sqlite3.connect(tmp_path / "w.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                writing = asyncio.ensure_future(_append(store, "meanwhile"))
                for _ in range(20):
                    await asyncio.sleep(0.001)
                    turns.append(writing.done())
                other.execute("ROLLBACK")
            await writing
            return [entry.id for entry in await store.read("s")]

    assert asyncio.run(main()) == ["before", "meanwhile"]
    assert turns == [False] * 20
    assert writers[-1] == "holdfast-sqlite"


def test_FD14_a_loop_that_writes_itself_lets_others_run_and_fails_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "QUICK_S", 60.0)
    monkeypatch.setattr(writer, "_QUICK_ONES", 0)

    async def main():
        async with SqliteStore(tmp_path / "w.db") as store:
            await _made(store)
            others = 0

            async def other():
                nonlocal others
                while True:
                    others += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            for n in range(20):
                await _append(store, f"e{n}")
            task.cancel()
            assert others >= 20
            results = await asyncio.gather(
                _append(store, "x"), _append(store, "y", "gone"), _append(store, "z"), return_exceptions=True
            )
            assert [getattr(result, "fault", None) and result.fault.code for result in results] == [
                None,
                "SESS_NOT_FOUND",
                None,
            ]
            return [entry.id for entry in await store.read("s", after=20)]

    assert asyncio.run(main()) == ["x", "z"]


def _claiming(id_, body, session="s", **more):
    entry = NewEntry(type="t", body=body, id=f"e-{id_}-{len(body)}")
    return Commit(
        session=session, entries=(entry,), claim=Claim(client="c", id=id_, body_hash=body, result=b'"done"'), **more
    )


async def _outcomes(store):
    """What becomes of claims that are made together, and then once more. Times and epochs are each store's own."""
    found = []
    async with store:
        await _made(store)
        await _made(store, "other")
        together = [
            _claiming("a", b"1"),
            _claiming("b", b"22"),
            _claiming("a", b"1"),
            _claiming("a", b"333"),
            _claiming("a", b"1", "other"),
            Commit(session="s", entries=(NewEntry(type="t", body=b"0", id="plain"),)),
            _claiming("b", b"22"),
            _claiming("c", b"1", fence=7),
            _claiming("c", b"1"),
        ]
        for batch in (together, together):
            for outcome in await asyncio.gather(*map(store.commit, batch), return_exceptions=True):
                fault = getattr(outcome, "fault", None)
                found.append(
                    fault.code if fault else (outcome.first, outcome.top, outcome.duplicate, bytes(outcome.result))
                )
        await store.commit(Commit(session="s", state=SessionState.CLOSED))
        closed = await asyncio.gather(store.commit(_claiming("a", b"1")), return_exceptions=True)
        found.append(closed[0].fault.code)
        found.append([(entry.offset, entry.id, bytes(entry.body)) for entry in await store.read("s")])
        found.append([(claim.id, claim.first, claim.top) for claim in await store.claims("s")])
        assert [broken async for broken in broken_logs(store)] == []
    return found


def test_claims_that_are_written_together_are_decided_as_one_after_the_other(tmp_path):
    expected = asyncio.run(_outcomes(MemoryStore()))
    assert expected[:4] == [
        (1, 1, False, b'"done"'),
        (2, 2, False, b'"done"'),
        (1, 1, True, b'"done"'),
        "PROTO_DUPLICATE_ID",
    ]
    assert asyncio.run(_outcomes(SqliteStore(tmp_path / "a.db"))) == expected


def test_claims_of_one_turn_share_a_transaction(tmp_path, transactions):
    async def run():
        async with SqliteStore(tmp_path / "a.db") as store:
            await _made(store)
            transactions.clear()
            await asyncio.gather(*(store.commit(_claiming(f"m-{number}", b"1")) for number in range(40)))

    asyncio.run(run())
    assert transactions.count("committed") == 1
    assert transactions.count("INSERT INTO inbox") == 1


def test_claims_that_were_made_before_cost_no_transaction_of_their_own(tmp_path, transactions):
    """Among many new claims some were made before: they are found, and all of them are still written together."""

    async def run():
        async with SqliteStore(tmp_path / "a.db") as store:
            await _made(store)
            first = await asyncio.gather(*(store.commit(_claiming(f"m-{number}", b"1")) for number in range(10)))
            transactions.clear()
            both = [_claiming(f"m-{number}", b"1") for number in range(5, 120)]
            again = await asyncio.gather(
                *map(store.commit, both),
                store.commit(_claiming("m-0", b"2")),
                _append(store, "x"),
                return_exceptions=True,
            )
            assert [receipt.first for receipt in again[:5]] == [receipt.first for receipt in first[5:]]
            assert [receipt.duplicate for receipt in again[:115]] == [True] * 5 + [False] * 110
            assert again[115].fault.code == "PROTO_DUPLICATE_ID"
            assert [entry.offset for entry in await store.read("s")] == list(range(1, 122))
            assert [broken async for broken in broken_logs(store)] == []

    asyncio.run(run())
    assert transactions.count("committed") == 1
