"""The file of a SQLite store: deleted or replaced while it is open, and opened only to be read."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.faults import HoldfastError, InvalidError
from holdfast.stores import Commit, NewAudit, NewEntry, NewSession, SqliteStore, open_store, verify_store
from holdfast.stores.sqlite.open_file import OpenFile
from holdfast.stores.sqlite.readers import IdleReader

OLD = Path(__file__).parent / "version1"
CREATE = Commit(
    session="s",
    create=NewSession(manifest=b"{}"),
    audit=(NewAudit(kind="Turn", correlation="r", payload=b"{}"),),
)


def append(id_: str) -> Commit:
    return Commit(session="s", entries=(NewEntry(type="t", body=b"{}", id=id_),))


def _replace(path):
    Path(shutil.copy(path, f"{path}.new")).replace(path)


CHANGES = {
    "deleted": Path.unlink,
    "replaced": _replace,
    "moved": lambda path: path.rename(f"{path}.old"),
    "its WAL deleted": lambda path: Path(f"{path}-wal").unlink(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_FD9_nothing_is_acknowledged_into_a_file_that_is_gone(tmp_path, what):
    async def scene():
        path = tmp_path / "s.db"
        async with SqliteStore(path) as store:
            await store.commit(CREATE)
            await store.commit(append("before"))
            CHANGES[what](path)
            results = await asyncio.gather(*(store.commit(append(f"e{n}")) for n in range(5)), return_exceptions=True)
            for error in [*results, *(await asyncio.gather(store.commit(append("later")), return_exceptions=True))]:
                assert isinstance(error, HoldfastError), error
                assert error.fault.code == "SESS_STORE_UNAVAILABLE"
                assert not error.fault.retryable
                assert "while it was open" in str(error)

    asyncio.run(scene())


def test_a_wal_that_is_emptied_and_moved_is_still_the_same_file(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.stores.sqlite.writer.MOST_WAL_BYTES", 32 * 1024)

    async def scene():
        async with SqliteStore(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
            await store.commit(CREATE)
            for n in range(60):
                await (store if n % 2 else other).commit(append(f"e{n}"))
            return len(await store.read("s"))

    assert asyncio.run(scene()) == 60


def _made(path):
    async def make():
        async with SqliteStore(path) as store:
            await store.commit(CREATE)
            await store.commit(append("a"))

    asyncio.run(make())


def _files(folder):
    return {entry.name: (entry.stat().st_size, entry.stat().st_mtime_ns) for entry in folder.iterdir()}


def test_FD13_a_parameter_in_an_address_makes_no_file_of_that_name(tmp_path):
    with pytest.raises(InvalidError, match="durability, mode"):
        open_store(f"{tmp_path}/s.db?mod=ro")
    with pytest.raises(InvalidError):
        open_store(f"{tmp_path}/s.db?mode=rx")

    async def scene():
        async with open_store(f"{tmp_path}/s.db?mode=ro"):
            pass

    with pytest.raises(HoldfastError) as caught:
        asyncio.run(scene())
    assert caught.value.fault.code == "SESS_STORE_UNAVAILABLE"
    assert list(tmp_path.iterdir()) == []
    assert open_store(Path("a?mode=ro")).path == Path("a?mode=ro")


@pytest.mark.parametrize("version", [1, 2])
def test_FD12_a_copy_that_may_not_be_written_to_is_read_and_verified(tmp_path, version):
    place = tmp_path / "kept"
    place.mkdir()
    if version == 1:
        shutil.copy(OLD / "store.db", place / "s.db")
    else:
        _made(tmp_path / "s.db")
        shutil.copy(tmp_path / "s.db", place / "s.db")
    (place / "s.db").chmod(0o444)
    place.chmod(0o555)
    before = _files(place)
    name = "done" if version == 1 else "s"

    async def scene():
        async with open_store(f"sqlite:{place}/s.db?mode=ro") as store:
            for work in (
                store.commit(append("b")),
                store.acquire(name, "me", 1),
                asyncio.to_thread(store.renew_all, [], 1),
            ):
                with pytest.raises(HoldfastError, match="for reading only") as caught:
                    await work
                assert not caught.value.fault.retryable
            return await store.read(name), await verify_store(store), store.id

    entries, verified, id_ = asyncio.run(scene())
    assert len(entries) == (11 if version == 1 else 1)
    assert verified.sound
    assert verified.records
    assert id_.startswith("sqlite-")
    assert _files(place) == before
    place.chmod(0o755)


def test_a_store_that_is_being_written_to_can_be_read_meanwhile(tmp_path):
    async def scene():
        async with SqliteStore(tmp_path / "s.db") as store:
            await store.commit(CREATE)
            async with SqliteStore(tmp_path / "s.db", mode="ro") as reading:
                await store.commit(append("a"))
                return [entry.id for entry in await reading.read("s")]

    assert asyncio.run(scene()) == ["a"]


def test_a_store_that_nobody_had_open_shows_what_is_written_later(tmp_path):
    """It used to show the state of the first read for as long as it was open."""

    async def ids(store):
        return [entry.id for entry in await store.read("s")]

    async def scene():
        async with SqliteStore(tmp_path / "s.db") as store:
            await store.commit(CREATE)
        async with SqliteStore(tmp_path / "s.db", mode="ro") as reading:
            assert await ids(reading) == []
            async with SqliteStore(tmp_path / "s.db") as store:
                await store.commit(append("a"))
                assert await ids(reading) == ["a"]
            assert await ids(reading) == ["a"]
            async with SqliteStore(tmp_path / "s.db") as store:
                await store.commit(append("b"))
            assert await ids(reading) == ["a", "b"]

    asyncio.run(scene())


def test_an_idle_file_that_is_changed_during_a_read_is_read_again(tmp_path):
    path = tmp_path / "s.db"

    async def write(*ids):
        async with SqliteStore(path) as store:
            await asyncio.gather(*(store.commit(commit) for commit in ids))

    asyncio.run(write(CREATE, append("a")))
    runs = 0

    def look(connection):
        nonlocal runs
        runs += 1
        if runs == 1:
            asyncio.run(write(append("b")))
            raise ValueError("what was read makes no sense")
        return connection.execute("SELECT count(*) FROM entry").fetchone()

    with closing(IdleReader(path, 1.0)) as reader:
        assert reader.read(look) == (2,)
    assert runs == 2


def test_the_last_of_two_stores_that_close_at_once_leaves_in_good_order(tmp_path, monkeypatch):
    """One took its turn between the end of the other's turn and its leave, and saw that it was not alone. So nobody was the last."""
    path = tmp_path / "s.db"
    first, last = (OpenFile(path, durability="fast", busy=5.0) for _ in range(2))
    release = first.turns.release

    def then_the_other_closes():
        monkeypatch.undo()
        release()
        last.close([])

    monkeypatch.setattr(first._turns, "release", then_the_other_closes)
    first.close([])
    with closing(IdleReader(path, 5.0)) as reader:
        names = reader.read(lambda connection: connection.execute("SELECT name FROM meta").fetchall())
    assert names == [("store_id",)]
