"""Several at one file: opening at once, forking, closing with work under way, event loops that end, readers that stay."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import crash_forks
import pytest
from crash_disks import append, make
from crash_server import Server, serving
from crash_work import Plan

from holdfast.faults import HoldfastError
from holdfast.stores import SqliteStore
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.sqlite import files, writer
from holdfast.stores.sqlite.locks import TurnLock
from holdfast.testing import run


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


@pytest.fixture
def reached() -> Iterator[list[str]]:
    """The points that are reached, in order."""
    names: list[str] = []
    FAILPOINTS.hook = names.append
    yield names
    FAILPOINTS.hook = None


@pytest.mark.parametrize("n", range(4))
def test_processes_that_make_the_same_store_at_once(server: Server, tmp_path: Path, n: int) -> None:
    store = tmp_path / "new" / "folder" / "store.db"
    plans = [
        Plan(store=str(store), journal=str(tmp_path / name), name=name, seed=n, ops=1, durability=durability)
        for name, durability in zip("abcdef", ("full", "fast") * 3, strict=True)
    ]
    assert server.run("crash_work:perform", *plans) == ["done"] * 6
    assert store.stat().st_mode & 0o777 == 0o600
    assert store.parent.stat().st_mode & 0o777 == 0o700
    with closing(sqlite3.connect(store)) as connection:
        # The last to leave left in good order.
        assert connection.execute("SELECT name FROM meta").fetchall() == [("store_id",)]


def test_a_store_that_another_process_is_closing_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    """Found in CI: six processes made one store, and one of them read the file while another moved the WAL into it."""
    store = tmp_path / "store.db"

    async def fill() -> None:
        async with SqliteStore(store) as opened:
            await make(opened, "s", entries=1)

    async def count() -> int:
        async with SqliteStore(store) as opened:
            return len(await opened.read("s"))

    run(fill())
    whole = store.read_bytes()
    turn = TurnLock(tmp_path / "store.db-turn", 1.0)
    try:
        with turn:
            store.write_bytes(whole[: len(whole) // 2])
            with ThreadPoolExecutor(1) as pool:
                opening = pool.submit(run, count())
                # It waits for the turn, whatever the file looks like now.
                assert not wait([opening], 0.05).done
                store.write_bytes(whole)
                turn.release()
        assert opening.result() == 1
    finally:
        turn.close()


def test_a_forked_child_neither_writes_nor_keeps_its_dead_parents_turn(server: Server, tmp_path: Path) -> None:
    """Found here: a write in a child waited for ever, and the turn of a killed parent lasted as long as its children."""
    store, enough = tmp_path / "store.db", tmp_path / "enough"
    plan = crash_forks.Plan(
        store=str(store), answer=str(tmp_path / "answer"), enough=str(enough), point="written", nth=2
    )
    try:
        assert server.run("crash_forks:parent", plan) == ["killed"]
        assert "was opened before this process was forked" in (tmp_path / "answer").read_text()

        async def main() -> None:
            async with SqliteStore(store, busy=0.2) as opened:
                assert (await append(opened, "s", 11)).first == 4

        run(main())
    finally:
        enough.touch()


def test_closing_with_work_under_way_settles_all_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SqliteStore(tmp_path / "store.db").__aenter__()
        await make(store, "s", entries=1)
        stored = 0
        under_way = asyncio.Event()

        async def busy(n: int) -> None:
            nonlocal stored
            with pytest.raises(HoldfastError, match="SESS_STORE_UNAVAILABLE"):
                for k in range(1000):
                    await append(store, "s", n * 1000 + k)
                    stored += 1
                    under_way.set()

        tasks = [asyncio.ensure_future(busy(n)) for n in range(8)]
        await under_way.wait()
        await store.__aexit__()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        with pytest.raises(HoldfastError, match="not open"):
            await store.session("s")
        async with SqliteStore(tmp_path / "store.db") as again:
            assert (await again.session("s")).top == stored + 1

    asyncio.run(main())


def test_a_read_that_comes_while_it_closes_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with SqliteStore(tmp_path / "store.db") as store:
            await make(store, "s")
            store._pool.shutdown()
            with pytest.raises(HoldfastError, match="is closed"):
                await store.session("s")

    run(main())


def test_an_event_loop_that_ends_takes_nothing_with_it(tmp_path: Path) -> None:
    """The store is used from two loops; one of them is gone before its commit is."""
    held = threading.Event()

    async def opened() -> SqliteStore:
        store = await SqliteStore(tmp_path / "store.db").__aenter__()
        await make(store, "s")
        return store

    async def left(store: SqliteStore) -> None:
        waiting = asyncio.ensure_future(store.changed("s", 99, 30))
        await asyncio.sleep(0.05)
        FAILPOINTS.hook = lambda name: name == "written" and held.wait(5)
        task = asyncio.ensure_future(append(store, "s", 10))
        await asyncio.sleep(0)
        task.cancel()
        waiting.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)

    async def after(store: SqliteStore) -> None:
        assert (await append(store, "s", 11)).first == 5
        await store.__aexit__()

    try:
        store = asyncio.run(opened())
        asyncio.run(left(store))
        held.set()
        asyncio.run(after(store))
    finally:
        FAILPOINTS.hook = None


@pytest.mark.parametrize("quick", [0, 1_000])
def test_whatever_fails_in_the_writer_is_raised_and_the_next_is_written(tmp_path: Path, quick: int) -> None:
    class Failing:
        """A turn that cannot be had: the lock's file is on a disk that fails."""

        def __enter__(self) -> None:
            raise OSError(5, "Input/output error")

        def __exit__(self, *_: object) -> None:
            return

        def acquire_at_once(self) -> bool:
            raise OSError(5, "Input/output error")

    async def main() -> None:
        async with SqliteStore(tmp_path / "store.db") as store:
            await make(store, "s")
            assert store._writer is not None
            store._writer._quick = quick
            turns, store._writer._turns = store._writer._turns, Failing()
            with pytest.raises(OSError, match="Input/output error"):
                await asyncio.wait_for(append(store, "s", 10), 5)
            store._writer._turns = turns
            assert (await append(store, "s", 11)).first == 4

    asyncio.run(main())


@pytest.mark.parametrize("affected", [True, False])
def test_who_opens_waits_for_who_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: list[str], *, affected: bool
) -> None:
    """Found here: with a SQLite that needs no turns, one that closed could remove the mark of a fast one that opened."""
    monkeypatch.setattr(files, "is_affected", lambda _: affected)
    path = tmp_path / "store.db"

    async def open_and_stay() -> None:
        # As a process that is killed: never closed in good order.
        stays.append(await SqliteStore(path, durability="fast").__aenter__())

    stays: list[SqliteStore] = []
    opener = threading.Thread(target=lambda: asyncio.run(open_and_stay()))

    def hook(name: str) -> None:
        reached.append(name)
        if name == "closing":
            opener.start()
            # Time for it to come in between, if it could.
            opener.join(0.1)

    async def main() -> None:
        async with SqliteStore(path, durability="fast") as store:
            await make(store, "s")
            FAILPOINTS.hook = hook

    asyncio.run(main())
    opener.join(5)
    FAILPOINTS.hook = None
    assert reached.index("ended") < reached.index("opening", reached.index("closing"))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT value FROM meta WHERE name = 'fast_in_use'").fetchall() == [("1",)]
    asyncio.run(stays[0].__aexit__())


def test_a_reader_that_stays_does_not_hold_up_writing_and_the_wal_is_emptied_once_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MOST_WAL_BYTES", 64 * 1024)
    path = tmp_path / "store.db"
    wal = tmp_path / "store.db-wal"

    async def main() -> None:
        async with SqliteStore(path) as store:
            await make(store, "s")
            with closing(sqlite3.connect(path, isolation_level=None)) as reader:
                reader.execute("BEGIN")
                assert reader.execute("SELECT count(*) FROM entry").fetchall() == [(3,)]
                for n in range(40):
                    await append(store, "s", 10 + n, size=4000)
                assert wal.stat().st_size > 64 * 1024
                assert reader.execute("SELECT count(*) FROM entry").fetchall() == [(3,)]
                reader.execute("COMMIT")
            await append(store, "s", 100)
            assert wal.stat().st_size < 64 * 1024
            assert (await store.session("s")).top == 44

    run(main())
