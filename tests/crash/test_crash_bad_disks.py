"""Disks that are full, fail, or hold something else: typed faults that help, earlier data intact, never "no sessions"."""

# ruff: noqa: ASYNC240 - nothing else runs in these loops
from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from crash_disks import NOBODY, Plan, append, as_nobody, hashes, make, wal_replaced
from crash_server import Server, serving

from holdfast.faults import HoldfastError
from holdfast.stores import Commit, NewCheckpoint, NewEntry, NewSession, SqliteStore
from holdfast.stores.sqlite.files import APPLICATION_ID
from holdfast.stores.sqlite.writer import tidy
from holdfast.testing import run


async def refused(doing: object) -> HoldfastError:
    with pytest.raises(HoldfastError) as raised:
        await doing  # type: ignore[misc]
    return raised.value


async def opening(path: Path) -> HoldfastError:
    return await refused(SqliteStore(path).__aenter__())


async def offsets(store: SqliteStore, session: str) -> list[int]:
    return [entry.offset for entry in await store.read(session)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "held" / "store.db"


@pytest.mark.parametrize(
    ("by", "flags", "says"),
    [("/dev/full", os.O_RDWR, "the disk is full"), ("", os.O_RDONLY, "the disk failed")],
    ids=["ENOSPC", "EIO"],
)
def test_B98_a_disk_that_refuses_writes_and_recovers(path: Path, by: str, flags: int, says: str) -> None:
    async def main() -> None:
        async with SqliteStore(path) as store:
            await make(store, "s")
            # What was written is in the file, so that nothing has to be read from the disk that fails.
            tidy(store._opened.connection)
            with wal_replaced(store, by, flags):
                failures = await asyncio.gather(*(refused(append(store, "s", 10 + n)) for n in range(5)))
                for failure in failures:
                    assert failure.fault.code == "SESS_STORE_UNAVAILABLE"
                    assert failure.fault.retryable
                    assert says in failure.fault.message
                    assert str(path) in failure.fault.message
            # The disk is back: nothing has to be opened again, nothing that failed is there.
            assert (await append(store, "s", 20)).first == 4
            assert await offsets(store, "s") == [1, 2, 3, 4]
        async with SqliteStore(path) as store:
            assert await offsets(store, "s") == [1, 2, 3, 4]

    run(main())


def test_what_is_there_can_be_read_while_the_disk_is_full(path: Path) -> None:
    async def main() -> None:
        async with SqliteStore(path) as store:
            await make(store, "s")
            assert await offsets(store, "s") == [1, 2, 3]
            with closing(sqlite3.connect(path)) as other:
                pages = other.execute("PRAGMA page_count").fetchone()[0]
            store._opened.connection.execute(f"PRAGMA max_page_count = {pages}")
            # One too large for the disk fails alone; those beside it are stored.
            small = [append(store, "s", 30 + n) for n in range(3)]
            large = refused(append(store, "s", 40, size=200_000))
            failure, *_ = await asyncio.gather(large, *small)
            assert failure.fault.code == "SESS_STORE_UNAVAILABLE"
            assert "the disk is full" in failure.fault.message
            assert await offsets(store, "s") == [1, 2, 3, 4, 5, 6]
            store._opened.connection.execute("PRAGMA max_page_count = 1000000")
            await append(store, "s", 41, size=200_000)

    run(main())


def test_a_locked_database_raises_once_for_all_that_wait(path: Path) -> None:
    """Found here: each of the waiting commits used to wait for the lock by itself, one after the other."""

    async def main() -> None:
        async with SqliteStore(path, busy=0.1) as store:
            await make(store, "s")
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                begun = time.monotonic()
                failures = await asyncio.gather(*(refused(append(store, "s", 10 + n)) for n in range(50)))
                assert time.monotonic() - begun < 2.0
                assert {failure.fault.code for failure in failures} == {"SESS_STORE_UNAVAILABLE"}
                assert "another process holds the file" in failures[0].fault.message
                assert await offsets(store, "s") == [1, 2, 3]
                other.execute("COMMIT")
            assert (await append(store, "s", 99)).first == 4

    run(main())


def test_a_store_that_others_may_write_is_refused(path: Path) -> None:
    async def main() -> None:
        async with SqliteStore(path) as store:
            await make(store, "s")
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        for place in (path, path.parent):
            mode = place.stat().st_mode & 0o777
            place.chmod(mode | 0o020)
            failure = await opening(path)
            assert failure.fault.code == "SESS_STORE_UNAVAILABLE"
            assert not failure.fault.retryable
            assert "chmod go-w" in failure.fault.message
            place.chmod(mode)
        async with SqliteStore(path) as store:
            assert await offsets(store, "s") == [1, 2, 3]

    run(main())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that nobody may reach, which the tests' own folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("file_mode", "folder_mode"), [(0o400, 0o700), (0o600, 0o500), (0o000, 0o700)], ids=["file", "folder", "unreadable"]
)
def test_a_store_that_may_not_be_written(server: Server, shared: Path, file_mode: int, folder_mode: int) -> None:
    assert callable(as_nobody)
    held, answers = shared / "held", shared / "answers"
    path = held / "store.db"

    async def prepare() -> None:
        async with SqliteStore(path) as store:
            await make(store, "s")

    run(prepare())
    answers.mkdir()
    if os.geteuid() == 0:
        for place in (held, answers, *held.iterdir()):
            os.chown(place, NOBODY, NOBODY)
    before = hashes(held)
    path.chmod(file_mode)
    held.chmod(folder_mode)
    plan = Plan(store=str(path), answer=str(answers / "first"))
    assert server.run("crash_disks:as_nobody", plan) == ["done"]
    held.chmod(0o700)
    path.chmod(0o600)
    error = msgspec.json.decode((answers / "first").read_bytes())
    assert error["code"] == "SESS_STORE_UNAVAILABLE", error
    assert str(path) in error["message"]
    assert hashes(held) == before
    assert server.run("crash_disks:as_nobody", Plan(store=str(path), answer=str(answers / "then"))) == ["done"]
    assert msgspec.json.decode((answers / "then").read_bytes()) == {"ok": True}


async def two_sessions(path: Path) -> None:
    async with SqliteStore(path) as store:
        await make(store, "bad", "good", entries=60, size=900)


def page_of(path: Path, marker: bytes) -> int:
    """Return where the page begins that holds a text first."""
    return path.read_bytes().index(marker) // 4096 * 4096


def test_a_damaged_page_of_one_session_leaves_the_others(path: Path) -> None:
    async def main() -> None:
        await two_sessions(path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE entry SET body = replace(body, 'xxxx', 'bad!') WHERE session = 1 AND pos = 30")
            connection.commit()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as file:
            file.seek(page_of(path, b"bad!"))
            file.write(b"\xff" * 4096)
        async with SqliteStore(path) as store:
            assert [record.id for record in await store.sessions()] == ["bad", "good"]
            failure = await refused(store.read("bad"))
            assert failure.fault.code == "SESS_MANIFEST_INVALID"
            assert "damaged" in failure.fault.message
            assert len(await store.read("good")) == 60
            assert (await append(store, "good", 100)).first == 61
            assert (await store.session("bad")).top == 60

    run(main())


def test_C25_a_session_whose_row_makes_no_sense_is_listed_as_in_error(path: Path) -> None:
    async def main() -> None:
        await two_sessions(path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE session SET state = 'sleeping' WHERE name = 'bad'")
            connection.commit()
        async with SqliteStore(path) as store:
            assert [(record.id, record.state.value) for record in await store.sessions()] == [
                ("bad", "error"),
                ("good", "created"),
            ]
            failure = await refused(store.session("bad"))
            assert failure.fault.code == "SESS_MANIFEST_DRIFT"
            assert "sleeping" in failure.fault.message
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT state FROM session WHERE name = 'bad'").fetchall() == [("sleeping",)]

    run(main())


@pytest.mark.parametrize("left", [0.5, 0.05])
def test_B99_a_truncated_file_is_damaged_not_empty(path: Path, left: float) -> None:
    async def main() -> None:
        await two_sessions(path)
        os.truncate(path, int(path.stat().st_size * left) // 4096 * 4096 or 4096)
        before = hashes(path.parent)
        try:
            store = await SqliteStore(path).__aenter__()
        except HoldfastError as error:
            failure = error
        else:
            failure = await refused(store.read("good"))
            await store.__aexit__()
        assert failure.fault.code == "SESS_MANIFEST_INVALID"
        assert "damaged" in failure.fault.message
        assert hashes(path.parent) == before

    run(main())


def test_an_emptied_file_is_not_taken_for_a_new_one(path: Path) -> None:
    async def main() -> None:
        await two_sessions(path)
        os.truncate(path, 0)
        before = hashes(path.parent)
        failure = await opening(path)
        assert failure.fault.code == "SESS_MANIFEST_INVALID"
        assert "restore the file" in failure.fault.message
        assert hashes(path.parent) == before
        # Somebody who removes it wants a new one.
        path.unlink()
        async with SqliteStore(path) as store:
            assert await store.sessions() == []

    run(main())


@pytest.mark.parametrize("with_wal", [False, True], ids=["closed", "in use"])
@pytest.mark.parametrize("whose", ["garbage", "another program's", "a newer version's"])
def test_B103_a_file_that_is_not_ours_is_left_as_it_is(path: Path, whose: str, *, with_wal: bool) -> None:
    path.parent.mkdir(mode=0o700)
    if whose == "garbage":
        path.write_bytes(b"This is no database.\n" * 500)
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE things (name TEXT)")
            if whose == "a newer version's":
                connection.execute("PRAGMA user_version = 99")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            if with_wal:
                # As a killed process leaves it.
                for file in list(path.parent.iterdir()):
                    shutil.copy(file, file.with_name(f"kept{file.name.removeprefix('store.db')}"))
        if with_wal:
            for file in list(path.parent.iterdir()):
                if file.name.startswith("kept"):
                    file.rename(file.with_name(f"store.db{file.name.removeprefix('kept')}"))
    path.chmod(0o600)
    before = hashes(path.parent)
    failure = run(opening(path))
    assert failure.fault.code == "SESS_MANIFEST_INVALID"
    expected = {"garbage": "damaged", "another program's": "another program", "a newer version's": "newer Holdfast"}
    assert expected[whose] in failure.fault.message
    assert str(path) in failure.fault.message
    assert hashes(path.parent) == before


def test_without_its_wal_the_file_holds_what_was_moved(path: Path) -> None:
    """Removing a WAL removes what is in it, and SQLite cannot tell (docs/explanation/what-survives.md): no more than that."""

    async def main() -> None:
        await two_sessions(path)
        store = await SqliteStore(path).__aenter__()
        await append(store, "good", 100)
        kept = path.parent.with_name("kept")
        kept.mkdir(mode=0o700)
        shutil.copy(path, kept / "store.db")
        await store.__aexit__()
        async with SqliteStore(kept / "store.db") as store:
            assert len(await store.read("good")) == 60
            assert (await append(store, "good", 101)).first == 61

    run(main())


def test_a_refused_commit_leaves_nothing(path: Path) -> None:
    """Found here: a session whose first checkpoint was refused was made all the same."""

    async def main() -> None:
        async with SqliteStore(path) as store:
            beyond = NewCheckpoint(message_count=1, last_message_id=None, snapshot=b"{}", offset=9)
            first = NewEntry(type="did", id="e", body=b"{}")
            await refused(
                store.commit(
                    Commit(session="s", create=NewSession(manifest=b"{}"), entries=(first,), checkpoint=beyond)
                )
            )
            assert await store.sessions() == []

    run(main())
