"""Sessions that are opened by address share one store per event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter

import pytest
from sessions_kit import code_of, square

from holdfast.faults import HoldfastError
from holdfast.sessions import Session
from holdfast.stores import SqliteStore, shared
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.postgres import PrivateServer


@pytest.fixture
def opened(monkeypatch):
    """How often stores are opened and closed."""
    seen: Counter[str] = Counter()
    for kind in (SqliteStore, PostgresStore):
        for name in ("__aenter__", "__aexit__"):
            _count(monkeypatch, kind, name, seen)
    return seen


def _count(monkeypatch, kind, name, seen):
    really = getattr(kind, name)

    async def counted(self, *args):
        seen[name] += 1
        return await really(self, *args)

    monkeypatch.setattr(kind, name, counted)


@pytest.fixture(scope="module")
def server():
    with PrivateServer() as running:
        yield running


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_FD8_three_hundred_sessions_by_address_share_one_store(tmp_path, kind, opened, request):
    address = f"sqlite:{tmp_path / 's.db'}" if kind == "sqlite" else request.getfixturevalue("server").url
    threads = []

    async def work(n):
        async with Session.open(f"s{n}", store=address) as session:
            result = await session.step(square, n)
            threads.append(threading.active_count())
            return result

    async def main():
        return await asyncio.gather(*map(work, range(300)))

    before = threading.active_count()
    assert asyncio.run(main()) == [n * n for n in range(300)]
    assert opened == {"__aenter__": 1, "__aexit__": 1}
    assert max(threads) - before < 12


def test_FD8_the_last_user_closes_it_and_the_next_opens_another(tmp_path, opened):
    address = str(tmp_path / "s.db")

    async def main():
        async with Session.open("a", store=address) as first:
            async with Session.open("b", store=tmp_path / "s.db") as second:
                assert first._store is second._store
            assert await first.step(square, 3) == 9
            assert opened == {"__aenter__": 1}
        assert opened == {"__aenter__": 1, "__aexit__": 1}
        async with Session.open("a", store=address):
            assert opened["__aenter__"] == 2
        # Another file, and other options, are another store.
        async with (
            Session.open("a", store=address) as one,
            Session.open("a", store=str(tmp_path / "t.db")) as other,
            Session.open("b", store=f"sqlite:{address}?durability=fast") as third,
        ):
            assert len({id(session._store) for session in (one, other, third)}) == 3

    asyncio.run(main())
    assert opened["__aenter__"] == opened["__aexit__"]


def test_FD8_each_event_loop_has_its_own(tmp_path, opened):
    stores = []
    meeting = threading.Barrier(3)

    def program(n):
        async def main():
            async with Session.open(f"s{n}", store=str(tmp_path / "s.db")) as session:
                stores.append(session._store)
                await asyncio.to_thread(meeting.wait, 20)

        asyncio.run(main())

    threads = [threading.Thread(target=program, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, stores))) == 3
    assert opened == {"__aenter__": 3, "__aexit__": 3}


def test_FD8_a_store_that_cannot_be_opened_fails_each_session_and_the_next_tries_again(tmp_path):
    folder = tmp_path / "folder"

    async def main():
        (tmp_path / "folder").write_text("in the way")
        sessions = [Session.open(f"s{n}", store=str(folder / "s.db")) for n in range(5)]
        results = await asyncio.gather(*(one.__aenter__() for one in sessions), return_exceptions=True)
        assert [code_of(error) for error in results] == ["SESS_STORE_UNAVAILABLE"] * 5
        assert len(set(map(id, results))) == 5
        folder.unlink()
        async with Session.open("s", store=str(folder / "s.db")) as session:
            assert await session.step(square, 3) == 9

    asyncio.run(main())


def test_FD8_a_cancelled_opening_leaves_nothing_open(tmp_path, opened):
    async def main():
        opening = asyncio.ensure_future(Session.open("s", store=str(tmp_path / "s.db")).__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        while opened["__aexit__"] < opened["__aenter__"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert shared._SHARED[asyncio.get_running_loop()] == {}

    asyncio.run(asyncio.wait_for(main(), 20))
    assert opened["__aenter__"] == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_FD8_a_forked_child_opens_its_own(tmp_path):
    address = str(tmp_path / "s.db")

    async def parent():
        async with Session.open("parent", store=address):
            child = os.fork()
            if child == 0:
                # A child of a running loop starts one of its own in a new thread.
                worked: list[int] = []
                thread = threading.Thread(target=lambda: worked.append(asyncio.run(work("child"))))
                thread.start()
                thread.join()
                os._exit(0 if worked == [9] else 1)
            assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - nothing else runs

    async def work(name):
        async with Session.open(name, store=address) as session:
            return await session.step(square, 3)

    asyncio.run(parent())


def test_FD8_a_session_that_another_owns_still_says_so(tmp_path):
    address = str(tmp_path / "s.db")

    async def main():
        async with Session.open("s", store=address) as session:
            with pytest.raises(HoldfastError) as raised:
                await Session.open("s", store=address).__aenter__()
            assert code_of(raised.value) == "SESS_LEASE_LOST"
            assert await session.step(square, 3) == 9

    asyncio.run(main())


def test_FD13_one_who_never_had_the_lease_is_not_said_to_have_lost_it(tmp_path):
    async def main():
        async with Session.open("s", store=tmp_path / "s.db"):
            with pytest.raises(HoldfastError) as raised:
                await Session.open("s", store=tmp_path / "s.db").__aenter__()
        return raised.value.fault

    fault = asyncio.run(main())
    assert fault.message.startswith("Session 's' is owned by ")
    assert "lost" not in f"{fault.message} {fault.for_user()}".lower()
