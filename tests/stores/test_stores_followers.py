"""Following a log: what is written between two waits is not missed, and the store is not asked after each commit."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.stores import Claim, Commit, MemoryStore, NewEntry, NewSession, SqliteStore
from holdfast.stores.wakeups import follow

pytestmark = pytest.mark.anyio
LONG = 30.0


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Asked(MemoryStore):
    """A store that changes `changed` only, so it has to be asked."""

    asked = 0

    async def changed(self, session, after, seconds):
        self.asked += 1
        return await super().changed(session, after, seconds)


class Counting(SqliteStore):
    """A store that counts how often it is asked for a session."""

    asked = 0

    async def session(self, session):
        self.asked += 1
        return await super().session(session)


@pytest.fixture(params=["memory", "sqlite", "asked"])
def store(request, tmp_path):
    if request.param == "sqlite":
        return SqliteStore(tmp_path / "s.db")
    return MemoryStore() if request.param == "memory" else Asked()


async def made(store, session="s"):
    await store.commit(Commit(session=session, create=NewSession(manifest=b"{}")))


def append(id_, session="s", **more):
    return Commit(session=session, entries=(NewEntry(type="t", body=b"{}", id=id_),), **more)


async def soon(waiting):
    async with asyncio.timeout(5.0):
        return await waiting


async def test_what_is_written_between_two_waits_is_not_missed(store):
    async with store:
        await made(store)
        follower = follow(store, "s")
        await store.commit(append("a"))
        assert await soon(follower.beyond(0, LONG)) >= 1
        await store.commit(append("b"))
        await store.commit(append("c"))
        assert await soon(follower.beyond(1, LONG)) >= 2
        follower.close()


async def test_a_wait_ends_with_the_next_commit_to_its_session_or_with_its_time(store):
    async with store:
        await made(store)
        await made(store, "other")
        follower = follow(store, "s")
        waiting = asyncio.create_task(follower.beyond(0, LONG))
        await store.commit(append("a", "other"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await store.commit(append("a"))
        assert await soon(waiting) >= 1
        assert await follower.beyond(1, 0.01) == 0
        follower.close()


async def test_following_needs_no_read_of_the_file(tmp_path):
    async with Counting(tmp_path / "s.db") as store:
        await made(store)
        follower = follow(store, "s")
        for number in range(1, 20):
            await store.commit(append(f"e-{number}"))
            assert await soon(follower.beyond(number - 1, LONG)) == number
        follower.close()
        assert store.asked == 0


async def test_a_repeated_commit_is_no_news(tmp_path):
    async with SqliteStore(tmp_path / "s.db") as store:
        await made(store)
        claim = Claim(client="c", id="m", body_hash=b"1")
        await store.commit(append("a", claim=claim))
        await store.commit(append("b"))
        follower = follow(store, "s")
        again, _ = await asyncio.gather(store.commit(append("a", claim=claim)), store.commit(append("c")))
        assert again.duplicate
        assert await soon(follower.beyond(2, LONG)) == 3
        follower.close()


async def test_what_another_process_writes_reaches_a_follower(tmp_path):
    async with SqliteStore(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as elsewhere:
        await made(store)
        follower = follow(store, "s")
        await elsewhere.commit(append("a"))
        assert await soon(follower.beyond(0, LONG)) >= 1
        follower.close()


@pytest.mark.parametrize("make", [MemoryStore, SqliteStore])
async def test_a_closed_follower_leaves_nobody_waiting(tmp_path, make):
    async with make(*(() if make is MemoryStore else (tmp_path / "s.db",))) as store:
        await made(store)
        first, second = follow(store, "s"), follow(store, "s")
        first.close()
        assert store._wakeups.waiting == ["s"]
        second.close()
        second.close()
        assert store._wakeups.waiting == []
