"""Writes of a session: begun without a task where the store can, and made again if the store fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.runtime import Runtime
from holdfast.sessions import Session
from holdfast.sessions.journal import fresh_id, memory_of
from holdfast.sessions.log import Message, new_entry
from holdfast.stores import Commit, Entry, MemoryStore, Receipt, SqliteStore
from holdfast.stores.errors import unavailable
from holdfast.stores.store import PAGE_BYTES, PAGE_ENTRIES
from holdfast.testing import run


class Slow(MemoryStore):
    """Its commits end when the test says so, some of them with a failure."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[Commit, asyncio.Future[Receipt]]] = []
        self.failures: list[BaseException] = []
        self.began = asyncio.Event()
        self.held = False
        self.commits = 0

    async def commit(self, commit: Commit) -> Receipt:
        self.commits += 1
        return await super().commit(commit)

    def submit(self, commit: Commit) -> asyncio.Future[Receipt]:
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self.failures:
            future.set_exception(self.failures.pop())
        elif self.held:
            self.begun.append((commit, future))
            self.began.set()
        else:
            future.set_result(self._make(commit))
        return future

    def end(self) -> None:
        for commit, future in self.begun:
            future.set_result(self._make(commit))
        self.begun, self.held = [], False


def test_a_step_needs_no_commit_of_its_own_task() -> None:
    async def main() -> int:
        store = Slow()
        async with Session.open("s", store=store) as session:
            before = store.commits
            assert await session.step(str, 1) == "1"
            return store.commits - before

    assert run(main()) == 0


def test_a_write_whose_first_attempt_fails_is_made_again() -> None:
    async def main() -> tuple[Any, list[str]]:
        store = Slow()
        async with Session.open("s", store=store, runtime=Runtime()) as session:
            await session.step(str, 0)
            store.failures = [unavailable("the disk is full")]
            assert await session.step(str, 1) == "1"
            assert store.commits, "the second attempt is a plain commit"
            entries = await store.read("s")
            again = await session.step(str, 1)
        return again, [entry.type for entry in entries]

    again, types = run(main())
    assert again == "1"
    assert types.count("step_ended") == 2


def test_a_write_that_fails_for_good_reaches_the_caller() -> None:
    class Broken(Slow):
        async def commit(self, commit: Commit) -> Receipt:
            if self.held:
                raise unavailable("the disk is full")
            return await super().commit(commit)

        def submit(self, commit: Commit) -> asyncio.Future[Receipt]:
            if self.held:
                raise unavailable("the disk is full")
            return super().submit(commit)

    async def main() -> str:
        store = Broken()
        session = Session.open("s", store=store, runtime=Runtime())
        await session.__aenter__()
        store.held = True
        with pytest.raises(Exception, match="SESS_STORE_UNAVAILABLE"):
            await session.step(str, 1)
        return str(session.state)

    assert run(main()) == "error"


def test_a_write_whose_caller_is_cancelled_is_made_and_known() -> None:
    ran: list[int] = []

    async def work(item: int) -> int:
        ran.append(item)
        return item

    async def main() -> int:
        store = Slow()
        async with Session.open("s", store=store) as session:
            await session.step(work, 0)
            store.held = True
            task = asyncio.ensure_future(session.step(work, 1))
            await store.began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            store.end()
            await asyncio.sleep(0)
            return await session.step(work, 1)

    assert run(main()) == 1
    assert ran == [0, 1]


def test_a_class_that_changes_only_commit_gets_every_commit() -> None:
    class Counting(MemoryStore):
        types: list[str] = []

        async def commit(self, commit: Commit) -> Receipt:
            self.types += [entry.type for entry in commit.entries]
            return await super().commit(commit)

    async def main() -> list[str]:
        store = Counting()
        async with Session.open("s", store=store) as session:
            await session.step(str, 1)
        return store.types

    assert "step_ended" in run(main())


class Overtaken(SqliteStore):
    """Another connection to the same file adds a message just before each commit of these entries."""

    def __init__(self, path: Path, other: SqliteStore, types: frozenset[str]) -> None:
        super().__init__(path)
        self.other, self.types = other, types
        self.messages = 0

    async def commit(self, commit: Commit) -> Receipt:
        return await self.submit(commit)

    def submit(self, commit: Commit) -> asyncio.Future[Receipt]:
        if self.types.isdisjoint(entry.type for entry in commit.entries):
            return super().submit(commit)
        return asyncio.ensure_future(self._second(commit))

    async def _second(self, commit: Commit) -> Receipt:
        self.messages += 1
        message = new_entry(Message(content=f"message {self.messages}"), fresh_id())
        await self.other.commit(Commit(session=commit.session, entries=(message,)))
        return await super().submit(commit)


@pytest.mark.parametrize("overtaken", ["turn_started", "turn_ended", "step_ended", "all"])
def test_a_message_of_another_writer_just_before_a_write_of_the_session_changes_nothing(
    tmp_path: Path, overtaken: str
) -> None:
    types = frozenset({"turn_started", "turn_ended", "step_ended"})
    types = types if overtaken == "all" else frozenset({overtaken})

    async def work(n: int) -> int:
        return n

    async def main() -> tuple[list[Any], int, int, list[str]]:
        path, inputs = tmp_path / "s.db", list[Any]()
        async with SqliteStore(path) as other, Overtaken(path, other, types) as store:
            async with Session.open("s", store=store) as session:
                for n in range(3):
                    async with session.turn({"n": n}) as turn:
                        inputs.append(turn.input["n"])
                        assert await session.step(work, n) == n
                    assert session.in_flight is None
                count = session._journal.memory.message_count
            log = await store.read("s", after=0)
            return inputs, count, store.messages, [e.type for e in log if e.type.startswith("turn")]

    inputs, count, messages, turns = asyncio.run(main())
    assert inputs == [0, 1, 2]
    assert count == messages >= 3
    assert turns == ["turn_started", "turn_ended"] * 3


class Pages(MemoryStore):
    """Its pages hold a few bytes only, as if entries were large."""

    def __init__(self, page_bytes: int) -> None:
        super().__init__()
        self.page_bytes = page_bytes

    async def read(
        self, session: str, *, after: int = 0, limit: int = PAGE_ENTRIES, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        return await super().read(session, after=after, limit=limit, max_bytes=min(max_bytes, self.page_bytes))


@given(
    page_bytes=st.integers(1, 2_000),
    rounds=st.lists(st.lists(st.integers(0, 2_000), max_size=4), min_size=1, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_a_session_reads_what_others_have_written_whatever_fits_a_page(
    page_bytes: int, rounds: list[list[int]]
) -> None:
    async def main() -> None:
        store = Pages(page_bytes)
        async with Session.open("s", store=store) as session:
            for number, sizes in enumerate(rounds):
                async with session.turn(number):
                    for size in sizes:
                        message = Message(content="x" * size, role="user", id=fresh_id(), client="phone")
                        await store.commit(Commit(session="s", entries=(new_entry(message, fresh_id()),)))
                    assert await session.step(str, number) == str(number)
        read = await memory_of(store, "s")
        assert (read.turn, read.in_flight) == (len(rounds), False)
        assert read.message_count == sum(map(len, rounds))

    run(main())


def test_two_entries_that_do_not_fit_one_page_do_not_end_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        large = "x" * (PAGE_BYTES // 2 + 1)
        async with SqliteStore(tmp_path / "s.db") as store, Session.open("s", store=store) as session:
            for number in (1, 2):
                async with session.turn(number):
                    for _ in range(2):
                        message = Message(content=large, role="user", id=fresh_id(), client="phone")
                        await store.commit(Commit(session="s", entries=(new_entry(message, fresh_id()),)))
                    await session.step(str, number)

    asyncio.run(main())
