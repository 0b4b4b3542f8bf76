"""Leases: renewed off the event loop, all of a store at once, and taken from nobody who lives."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from sessions_kit import Done, code_of, square

from holdfast import tool
from holdfast.faults import HoldfastError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import Session, admin, lease
from holdfast.sessions.lease import is_gone, this_process
from holdfast.stores import Commit, Lease, MemoryStore, SessionRecord, SqliteStore
from holdfast.stores.errors import unavailable
from holdfast.stores.sqlite import store as sqlite_store
from holdfast.testing import run


class Renewing(MemoryStore):
    """A store that counts how often leases are renewed, and how many at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.threads: set[str] = set()
        self.often = threading.Event()
        self.fails = False

    def renew_all(self, held: Sequence[Lease], ttl: float) -> list[Lease]:
        self.sizes.append(len(held))
        self.threads.add(threading.current_thread().name)
        if len(self.sizes) >= 3:
            self.often.set()
        if self.fails:
            raise unavailable("the disk is full")
        return super().renew_all(held, ttl)


def test_FD13_a_loop_that_is_blocked_does_not_lose_its_lease() -> None:
    async def main() -> None:
        store = Renewing()
        async with Session.open("s", store=store, lease=0.3) as session:
            # Nothing else runs in this loop until the lease was renewed three times.
            assert store.often.wait(20)
            with pytest.raises(HoldfastError) as raised:
                await store.acquire("s", "another", 30)
            assert code_of(raised.value) == "SESS_LEASE_LOST"
            assert await session.step(square, 3) == 9

    asyncio.run(main())


def test_FD11_all_leases_of_a_store_are_renewed_at_once_and_by_one_thread() -> None:
    async def main() -> Renewing:
        store = Renewing()
        opened = [await Session.open(f"s{n}", store=store, lease=0.3).__aenter__() for n in range(50)]
        store.sizes.clear()
        store.often.clear()
        await asyncio.to_thread(store.often.wait, 20)
        for session in opened:
            await session.__aexit__(None, None, None)
        return store

    store = asyncio.run(main())
    assert set(store.sizes[1:3]) == {50}
    assert store.threads == {"holdfast-leases"}


def test_the_thread_ends_with_the_last_session() -> None:
    def running() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "holdfast-leases"]

    async def main() -> None:
        # On a busy machine the thread of another test may not have ended yet.
        before = running()
        async with Session.open("s", store=MemoryStore(), lease=0.3):
            (thread,) = [thread for thread in running() if thread not in before]
        await asyncio.to_thread(thread.join, 20)
        assert thread not in running()

    asyncio.run(main())


def test_a_lease_that_was_taken_over_ends_the_session_also_from_the_thread() -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store, lease=0.3) as session:
                await store.acquire("s", session._keeper.lease("s").owner, 1000.0)
                await asyncio.Event().wait()
        assert code_of(raised.value) == "SESS_LEASE_LOST"

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_store_that_fails_for_longer_than_a_lease_ends_the_session() -> None:
    async def main() -> None:
        store = Renewing()
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store, lease=0.3):
                store.fails = True
                await asyncio.Event().wait()
        assert code_of(raised.value) == "SESS_LEASE_LOST"
        assert len(store.sizes) >= 3, "one failure does not end it"

    asyncio.run(asyncio.wait_for(main(), 20))


def test_FD13_a_process_is_not_locked_out_by_the_lease_that_it_could_not_give_back() -> None:
    class Failing(MemoryStore):
        failing = False

        async def commit(self, commit: Commit) -> Any:
            if self.failing:
                raise unavailable("the disk failed")
            return await super().commit(commit)

        async def release(self, lease: Lease) -> None:
            if self.failing:
                raise unavailable("the disk failed")
            await super().release(lease)

    async def main() -> None:
        store = Failing()
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store, lease=1000) as session:
                store.failing = True
                await session.step(square, 3)
        assert code_of(raised.value) == "SESS_STORE_UNAVAILABLE"
        store.failing = False
        assert (await store.session("s")).owner is not None
        async with Session.open("s", store=store) as session:
            assert await session.step(square, 3) == 9

    run(main())


def test_FD10_an_owner_in_another_pid_namespace_or_of_another_start_of_the_machine_is_not_known_to_be_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead = "/".join([*this_process().split("/")[:2], "1", this_process().split("/")[3], "x"])
    assert is_gone(dead)
    for where in ("00000000.1", "", "1"):
        elsewhere = "/".join([*dead.split("/")[:3], where, "x"])
        assert not is_gone(elsewhere)
    # What version 1 of the names held is not enough to know.
    assert not is_gone("/".join([*dead.split("/")[:3], "x"]))
    monkeypatch.setattr(lease, "_namespace", lambda: "another")
    assert not is_gone(dead)


def test_FD10_a_killed_owner_whose_parent_has_not_collected_its_exit_status_is_dead() -> None:
    """Such a process, a zombie, keeps its id and its start. In a container whose first process collects nobody it stays for ever."""
    program = "from holdfast.sessions.lease import this_process; print(this_process(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        assert not is_gone(owner)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(owner)
    assert is_gone(owner)


def test_FD10_a_clock_that_is_set_forward_does_not_take_a_lease_from_a_living_owner(tmp_path, monkeypatch) -> None:
    async def main() -> None:
        async with (
            SqliteStore(tmp_path / "s.db") as one,
            SqliteStore(tmp_path / "s.db") as other,
            Session.open("s", store=one),
        ):
            real = time.time()
            monkeypatch.setattr(time, "time", lambda: real + 3_600)
            with pytest.raises(HoldfastError) as raised:
                await other.acquire("s", "another", 30)
            assert code_of(raised.value) == "SESS_LEASE_LOST"
            # After a restart of the machine its monotonic clock says nothing about the lease.
            monkeypatch.setattr(sqlite_store, "boot_id", lambda: "another start")
            assert (await other.acquire("s", "another", 30)).owner == "another"

    if sqlite_store.boot_id() is None:
        pytest.skip("this system does not name its starts")
    asyncio.run(main())


@pytest.mark.parametrize("kind", [MemoryStore, SqliteStore])
def test_FD10_a_clock_that_is_set_neither_ends_a_lease_nor_keeps_it(kind, tmp_path, monkeypatch) -> None:
    async def main() -> tuple[bool, bool, bool]:
        async with kind() if kind is MemoryStore else kind(tmp_path / "s.db") as store:
            session = await Session.open("s", store=store).__aenter__()
            real = time.time()
            seen = [admin.in_use(_elsewhere(await store.session("s")), store)]
            for moved in (3_600, -3_600):
                monkeypatch.setattr(time, "time", lambda moved=moved: real + moved)
                seen.append(admin.in_use(_elsewhere(await store.session("s")), store))
                with pytest.raises(HoldfastError, match="SESS_LEASE_LOST"):
                    await store.acquire("s", "another", 30)
            await session.__aexit__(None, None, None)
            await store.acquire("s", "another", 0.0)
            monkeypatch.setattr(time, "time", lambda: real - 3_600)
            assert not admin.in_use(await store.session("s"), store)
            return tuple(seen)

    if sqlite_store.boot_id() is None:
        pytest.skip("this system does not name its starts")
    assert asyncio.run(main()) == (True, True, True)


def _elsewhere(record: SessionRecord) -> SessionRecord:
    """As if a process of another machine held it: nobody can see whether it lives."""
    return msgspec.structs.replace(record, owner="elsewhere/1/1/1.1/x")


def test_after_a_restart_of_the_machine_nobody_waits_for_a_lease_of_before(tmp_path, monkeypatch) -> None:
    host = this_process().split("/")[0]
    before, now = f"aaaaaaaa.{lease._OF_THE_SYSTEM}", f"bbbbbbbb.{lease._OF_THE_SYSTEM}"

    async def main() -> int:
        async with SqliteStore(tmp_path / "s.db") as store:
            async with Session.open("s", store=store):
                pass
            monkeypatch.setattr(sqlite_store, "boot_id", lambda: "aaaaaaaa")
            await store.acquire("s", f"{host}/1/1/{before}/x", 3_600)
            monkeypatch.setattr(sqlite_store, "boot_id", lambda: "bbbbbbbb")
            monkeypatch.setattr(lease, "_namespace", lambda: now)
            async with Session.open("s", store=store) as session:
                return await session.step(square, 3)

    assert asyncio.run(main()) == 9


def test_another_start_is_an_earlier_one_only_on_one_machine_and_outside_of_containers(tmp_path, monkeypatch) -> None:
    host, system = this_process().split("/")[0], lease._OF_THE_SYSTEM
    file, memory = SqliteStore(tmp_path / "s.db"), MemoryStore()
    monkeypatch.setattr(lease, "_namespace", lambda: f"bbbbbbbb.{system}")
    assert is_gone(f"{host}/1/1/aaaaaaaa.{system}/x", file)
    # Two machines with one name may use the same server.
    assert not is_gone(f"{host}/1/1/aaaaaaaa.{system}/x", memory)
    assert not is_gone(f"{host}/1/1/aaaaaaaa.{system}/x")
    assert not is_gone(f"elsewhere/1/1/aaaaaaaa.{system}/x", file)
    # A container may have a boot id of its own while the machine goes on.
    assert not is_gone(f"{host}/1/1/aaaaaaaa.4026532999/x", file)
    # A system that does not name its starts.
    assert not is_gone(f"{host}/1/1/.{system}/x", file)
    monkeypatch.setattr(lease, "_namespace", lambda: "bbbbbbbb.4026532999")
    assert not is_gone(f"{host}/1/1/aaaaaaaa.{system}/x", file)


def test_FD13_fencing_prints_nothing_about_tasks() -> None:
    """The write of a step that was cancelled when the lease was lost fails, and nobody waits for it any more."""
    printed: list[dict[str, Any]] = []

    class Slow(MemoryStore):
        async def commit(self, commit: Commit) -> Any:
            if commit.entries:
                await asyncio.sleep(10)
            return await super().commit(commit)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
        store = Slow()
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store, lease=1000) as session:
                working = asyncio.ensure_future(session.step(square, 3))
                await asyncio.sleep(1)
                await store.acquire("s", session._keeper.lease("s").owner, 1000.0)
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
                await asyncio.sleep(100)
                await session.step(square, 4)
        assert code_of(raised.value) == "SESS_LEASE_LOST"
        gc.collect()

    run(main())
    gc.collect()
    assert printed == []


@pytest.mark.parametrize("effect", ["keyed", "idempotent", "read", None])
def test_XD13_a_process_that_was_stopped_while_another_took_over_runs_no_step(effect: Any) -> None:
    """Its renewals stood still, and its clock did not: the step looks at the lease, as nothing is written before it."""

    async def main() -> None:
        done = Done()

        async def charge(what: str) -> str:
            done.append(what)
            return what

        step = charge if effect is None else tool(effect=effect)(charge)
        store = MemoryStore(clock=default_runtime().clock)
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store, lease=10.0) as zombie:
                await zombie.step(step, "one")
                assert zombie._keeper._task is not None
                zombie._keeper._task.cancel()
                await asyncio.sleep(11)
                # Nobody has taken it, so it goes on.
                await zombie.step(step, "two")
                await asyncio.sleep(11)
                await store.acquire("s", "another", 60.0)
                await zombie.keyed("k").step(step, "three")
        assert code_of(raised.value) == "SESS_LEASE_LOST"
        assert done == ["one", "two"]

    run(main())


def test_sessions_of_one_process_that_wait_for_each_other_go_on_at_once() -> None:
    async def main() -> float:
        store = MemoryStore()
        loop = asyncio.get_running_loop()
        started = loop.time()

        async def work(number: int) -> None:
            async with Session.open("s", store=store, wait=600) as session:
                await session.step(square, number)

        async with Session.open("s", store=store):
            tasks = [asyncio.ensure_future(work(number)) for number in range(50)]
            await asyncio.sleep(0.1)
            # One that no longer waits does not keep the others waiting.
            tasks[25].cancel()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks].count(True) == 1
        return loop.time() - started

    # Nobody looked in vain for a second each time.
    assert run(main()) < 5
    assert lease._WAITING == {}
