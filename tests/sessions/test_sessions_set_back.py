"""A store that is set back under a running session, or between two starts: nobody works on with what only memory knows."""

from __future__ import annotations

import asyncio
import copy
import shutil
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from sessions_kit import Done, code_of

from holdfast import tool
from holdfast.faults import HoldfastError
from holdfast.sessions import Session
from holdfast.sessions.admin import make_resumable, overview
from holdfast.sessions.log import Message, new_entry
from holdfast.stores import Commit, MemoryStore, NewSession, SessionState, SqliteStore
from holdfast.testing import run

PAID = Done()


@tool(effect="unsafe")
def pay(who: str) -> str:
    PAID.append(who)
    return f"paid {who}"


class SetBack(MemoryStore):
    """A memory store that can be set back to what it was, as a stale replica that takes over does."""

    def keep(self) -> None:
        self._earlier = copy.deepcopy((self._sessions, self._chains))

    def restore(self) -> None:
        self._sessions, self._chains = copy.deepcopy(self._earlier)


class Unaware(SetBack):
    """A store of somebody else, which does not look at what the writer has seen."""

    async def commit(self, commit: Commit) -> Any:
        return await super().commit(Commit(**{**_fields(commit), "after": None}))


def _fields(commit: Commit) -> dict[str, Any]:
    return {name: getattr(commit, name) for name in commit.__struct_fields__}


async def _from_others(store: MemoryStore, count: int) -> None:
    for n in range(count):
        entry = new_entry(Message(content=f"m{n}"), f"other-{n}")
        await store.commit(Commit(session="s", entries=(entry,)))


@pytest.mark.parametrize("kind", [SetBack, Unaware])
@pytest.mark.parametrize("others", [0, 1, 5])
def test_XD5_a_store_set_back_under_a_session_stops_it_at_its_next_write(kind: type[SetBack], others: int) -> None:
    async def main() -> None:
        PAID.clear()
        async with kind() as store:
            with pytest.raises(HoldfastError) as raised:
                async with Session.open("s", store=store) as session:
                    await session.step(pay, "ada")
                    store.keep()
                    await session.step(pay, "bob")
                    store.restore()
                    await _from_others(store, others)
                    held = (await store.session("s")).top
                    with pytest.raises(HoldfastError) as first:
                        await session.step(pay, "cyd")
                    assert code_of(first.value) == "SESS_MANIFEST_DRIFT"
                    assert "set back" in str(first.value)
                    assert PAID == ["ada", "bob"]
                    if kind is SetBack and others < 2:
                        assert (await store.session("s")).top == held
                    top = (await store.session("s")).top
                    with pytest.raises(HoldfastError) as second:
                        await session.step(pay, "dan")
                    assert code_of(second.value) == "SESS_MANIFEST_DRIFT"
                    raise second.value
            assert code_of(raised.value) == "SESS_MANIFEST_DRIFT"
            assert (await store.session("s")).top == top
            assert PAID == ["ada", "bob"]

    run(main())


def test_XD5_a_session_that_reads_notices_that_its_log_is_shorter() -> None:
    async def main() -> None:
        async with SetBack() as store:
            with pytest.raises(HoldfastError):
                async with Session.open("s", store=store) as session:
                    await session.step(pay, "ada")
                    store.keep()
                    await session.step(pay, "bob")
                    store.restore()
                    with pytest.raises(HoldfastError) as raised:
                        await session._journal.catch_up()
                    assert code_of(raised.value) == "SESS_MANIFEST_DRIFT"
                    await session.step(pay, "cyd")

    run(main())


def test_XD5_a_lease_from_after_the_set_back_state_is_no_lease_of_another_owner() -> None:
    async def main() -> None:
        async with SetBack() as store:
            async with Session.open("s", store=store) as session:
                await session.step(pay, "ada")
            store.keep()
            with pytest.raises(HoldfastError) as raised:
                async with Session.open("s", store=store) as session:
                    await session.step(pay, "ada")
                    store.restore()
                    await session.step(pay, "bob")
            assert code_of(raised.value) == "SESS_MANIFEST_DRIFT"

    run(main())


def _restore(path: Any, backup: Any) -> None:
    with closing(sqlite3.connect(backup)) as source, closing(sqlite3.connect(path)) as target:
        source.backup(target)


def _save(path: Any, backup: Any) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)


def test_XD5_a_backup_that_is_restored_into_an_open_sqlite_file_is_noticed(tmp_path: Any) -> None:
    path, backup = tmp_path / "s.db", tmp_path / "backup.db"

    async def main() -> None:
        async with SqliteStore(path) as store:
            async with Session.open("other", store=store) as other:
                await other.step(pay, "eve")
            with pytest.raises(HoldfastError) as raised:
                async with Session.open("s", store=store) as session:
                    await session.step(pay, "ada")
                    _save(path, backup)
                    await session.step(pay, "bob")
                    _restore(path, backup)
                    await session.step(pay, "cyd")
            assert "set back" in str(raised.value)
            assert not raised.value.fault.retryable

    asyncio.run(main())


def test_XD5_every_write_to_a_sqlite_file_that_was_set_back_in_place_fails_until_it_is_opened_again(
    tmp_path: Any,
) -> None:
    path, backup = tmp_path / "s.db", tmp_path / "backup.db"

    async def main() -> None:
        async with SqliteStore(path) as store:
            _save(path, backup)
            await _from_others_in(store, "s1")
            _restore(path, backup)
            # Nothing of this commit says what was seen.
            with pytest.raises(HoldfastError) as raised:
                await _from_others_in(store, "s2")
            assert code_of(raised.value) == "SESS_STORE_UNAVAILABLE"
            assert not raised.value.fault.retryable
            assert "open it again" in str(raised.value)
        async with SqliteStore(path) as store:
            await _from_others_in(store, "s2")

    asyncio.run(main())


async def _paid(path: Any, *whom: str, **options: Any) -> None:
    async with SqliteStore(path) as store, Session.open("s", store=store, **options) as session:
        for who in whom:
            await session.step(pay, who)


def _without_wal(path: Any, folder: Any) -> None:
    """What a person leaves who deletes the WAL of a program that was killed: the file alone."""
    for old in folder.iterdir():
        if old.name.endswith(("-wal", "-shm")):
            old.unlink()


@pytest.mark.parametrize("how", ["backup", "backup from before the session", "WAL deleted"])
def test_XD5_a_sqlite_file_that_was_set_back_between_two_starts_is_noticed(
    tmp_path: Any, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, backup = tmp_path / "s.db", tmp_path / "backup.db"

    async def main() -> None:
        PAID.clear()
        async with SqliteStore(path):
            pass
        if how != "backup from before the session":
            await _paid(path, "ada")
        _save(path, backup)
        if how == "WAL deleted":
            # The process is killed: what it has stored is in the WAL.
            store = SqliteStore(path)
            await store.__aenter__()
            session = Session.open("s", store=store)
            await session.__aenter__()
            await session.step(pay, "ada")
            await session.step(pay, "bob")
            for name in ("s.db", "s.db-use", "s.db-turn"):
                shutil.copy(tmp_path / name, tmp_path / f"killed-{name}")
            await session.__aexit__(None, None, None)
            await store.__aexit__(None, None, None)
            _without_wal(path, tmp_path)
            for name in ("s.db", "s.db-use", "s.db-turn"):
                shutil.move(tmp_path / f"killed-{name}", tmp_path / name)
        else:
            await _paid(path, "ada", "bob")
            _without_wal(path, tmp_path)
            shutil.copy(backup, path)
        paid = list(PAID)
        if how == "backup from before the session":
            # The session is new there, so only the log says it.
            async with SqliteStore(path) as store:
                assert [name for name, _, _ in await store.chains()] == ["store"]
        else:
            with pytest.raises(HoldfastError) as raised:
                await _paid(path, "ada", "bob")
            assert code_of(raised.value) == "SESS_MANIFEST_DRIFT"
            assert "set back" in str(raised.value)
            assert paid == PAID
            async with SqliteStore(path) as store:
                assert "set back" in (await overview(store, "s")).problem
            if how == "backup":
                async with SqliteStore(path) as store:
                    assert (await make_resumable(store, "s", accept_set_back=True)).problem == ""
            else:
                await _paid(path, "ada", "bob", on_drift="accept")
            await _paid(path, "ada", "bob")
        assert "was set back" in caplog.text

    asyncio.run(main())


def test_XD5_a_sqlite_file_that_was_not_set_back_is_not_noticed(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.db"

    async def main() -> None:
        await _paid(path, "ada")
        # Moved with its data, and opened by another name.
        await _paid(path.rename(tmp_path / "moved.db"), "ada")
        async with SqliteStore(tmp_path / "moved.db") as store, SqliteStore(tmp_path / "moved.db") as other:
            async with Session.open("s", store=store) as session:
                await session.step(pay, "ada")
                await session.close()
            await _from_others_in(other, "s2")
            await store.remove("s")
            await _from_others_in(store, "s3")
            await other.remove("s2")
            await _from_others_in(other, "s4")
        async with SqliteStore(tmp_path / "moved.db"):
            pass
        assert "set back" not in caplog.text

    asyncio.run(main())


async def _from_others_in(store: SqliteStore, name: str) -> None:
    await store.commit(Commit(session=name, create=NewSession(manifest=b"{}"), state=SessionState.CLOSED))
