"""What another process writes to a SQLite file: a task that waits for a session's log sees it soon, at no cost while nobody waits."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from holdfast.stores import Commit, NewEntry, NewSession, SqliteStore

pytestmark = pytest.mark.anyio
CREATE = Commit(session="s", create=NewSession(manifest=b"{}"))
LONG = 30.0
"""How long a server waits for news of a session."""
SOON = 5.0
"""Far less than that. The wait ends within a second on a machine that is not loaded."""
WRITE = """
import asyncio, sys
from holdfast.stores import Commit, NewEntry, SqliteStore
async def write():
    async with SqliteStore(sys.argv[1]) as store:
        await store.commit(Commit(session="s", entries=(NewEntry(type="t", body=b"{}", id="other"),)))
asyncio.run(write())
"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


def append(id_, session="s"):
    return Commit(session=session, entries=(NewEntry(type="t", body=b"{}", id=id_),))


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-sqlite-watch"]


async def settled(task):
    """Wait until the task waits for a wake-up."""
    await asyncio.sleep(0.05)
    assert not task.done()


async def test_a_commit_of_another_process_wakes_who_waits(tmp_path):
    path = tmp_path / "s.db"
    async with SqliteStore(path) as store:
        await store.commit(CREATE)
        waiting = [asyncio.create_task(store.changed("s", 0, LONG)) for _ in range(3)]
        await settled(waiting[0])
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITE, str(path))
        assert await other.wait() == 0
        async with asyncio.timeout(SOON):
            assert await asyncio.gather(*waiting) == [True] * 3
        assert [entry.id for entry in await store.read("s")] == ["other"]


@pytest.fixture
def quick(monkeypatch):
    """Look at the file more often than a server does."""
    monkeypatch.setattr("holdfast.stores.sqlite.watch._LOOK_S", 0.02)


@pytest.mark.usefixtures("quick")
async def test_a_store_that_only_reads_is_woken_too(tmp_path):
    async with SqliteStore(tmp_path / "s.db") as writer, SqliteStore(tmp_path / "s.db", mode="ro") as reader:
        await writer.commit(CREATE)
        waiting = asyncio.create_task(reader.changed("s", 0, LONG))
        await settled(waiting)
        await writer.commit(append("a"))
        async with asyncio.timeout(SOON):
            assert await waiting


@pytest.mark.usefixtures("quick")
async def test_a_store_that_only_reads_notices_each_writer_of_a_file_that_is_idle_in_between(tmp_path):
    """Such a file is read anew through another connection after each writer: the numbers of two connections do not compare."""
    path = tmp_path / "s.db"
    async with SqliteStore(path) as first:
        await first.commit(CREATE)
    async with SqliteStore(path, mode="ro") as reader:
        for n in range(3):
            waiting = asyncio.create_task(reader.changed("s", n, LONG))
            await settled(waiting)
            async with SqliteStore(path) as writer:
                await writer.commit(append(f"e{n}"))
            async with asyncio.timeout(SOON):
                assert await waiting


@pytest.mark.usefixtures("quick")
async def test_own_commits_to_other_sessions_wake_nobody(tmp_path):
    """What this process writes is known to the session, so the watch need not wake the tasks of all the others."""
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.commit(CREATE)
        await store.commit(Commit(session="busy", create=NewSession(manifest=b"{}")))
        reads = []
        read = store._read

        async def counted(script):
            reads.append(script)
            return await read(script)

        store._read = counted  # type: ignore[method-assign]
        waiting = asyncio.create_task(store.changed("s", 0, LONG))
        await settled(waiting)
        for n in range(40):
            await store.commit(append(f"e{n}", "busy"))
            await asyncio.sleep(0.005)
        assert len(reads) <= 2, "the first, and one after the first look: what was written before it is not known"
        await store.commit(append("a"))
        assert await waiting


@pytest.mark.usefixtures("quick")
async def test_nobody_watches_while_nobody_waits(tmp_path):
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.commit(CREATE)
        assert not watchers()
        waiting = asyncio.create_task(store.changed("s", 0, LONG))
        await settled(waiting)
        assert len(watchers()) == 1
        await store.commit(append("a"))
        assert await waiting
        for thread in watchers():
            await asyncio.to_thread(thread.join, SOON)
        assert not watchers()
        # A later wait is watched again.
        async with SqliteStore(tmp_path / "s.db") as other:
            waiting = asyncio.create_task(store.changed("s", 1, LONG))
            await settled(waiting)
            await other.commit(append("b"))
            async with asyncio.timeout(SOON):
                assert await waiting


async def test_closing_a_store_ends_its_watch(tmp_path):
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.commit(CREATE)
        waiting = asyncio.create_task(store.changed("s", 0, LONG))
        await settled(waiting)
    assert not watchers()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
