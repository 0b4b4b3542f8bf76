"""Opening, resuming and leaving sessions: S0-18..S0-20, S2-17, N2-11..N2-14, C23, C24, B93..B102."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest
from sessions_kit import Crash, FailingStore, code_of, killed, square

from holdfast import Budget
from holdfast.events import Retry
from holdfast.faults import AbortedError, HoldfastError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import DriftWarning, Session
from holdfast.sessions.lease import is_gone, take, this_process
from holdfast.sessions.log import Message, new_entry
from holdfast.sessions.manifest import decode_manifest
from holdfast.stores import Commit, MemoryStore, NewSession, Receipt, SessionState, SqliteStore
from holdfast.stores.records import SessionRecord
from holdfast.testing import Capture, run


async def state_of(store: Any, session: str = "s") -> SessionState:
    return (await store.session(session)).state


async def types_of(store: Any, session: str = "s") -> list[str]:
    return [entry.type for entry in await store.read(session)]


async def open_error(store: Any, **options: Any) -> str:
    with pytest.raises(HoldfastError) as raised:
        async with Session.open("s", store=store, **options):
            raise AssertionError("it was opened")
    return code_of(raised.value)


async def worked(store: Any, **options: Any) -> None:
    async with Session.open("s", store=store, **options) as session:
        await session.step(square, 3)


def test_C24_the_life_of_a_session() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            assert session.state == "created"
            await session.step(square, 3)
            assert session.state == "active" == await state_of(store)
        assert await state_of(store) == "paused"
        async with Session.open("s", store=store) as session:
            assert session.state == "active"
            assert session.resumed
            await session.close("done")
        assert await state_of(store) == "closed"
        assert await types_of(store) == [
            "session_active",
            "step_ended",
            "session_paused",
            "session_resumed",
            "session_closed",
        ]

    run(main())


def test_B93_a_closed_session_rejects_everything() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.close()
            for operation in (
                lambda: session.step(square, 3),
                lambda: session.message("hello"),
                session.checkpoint,
                session.close,
            ):
                with pytest.raises(HoldfastError) as raised:
                    await operation()
                assert code_of(raised.value) == "SESS_CLOSED"
        assert await open_error(store) == "SESS_CLOSED"
        assert await open_error(store, strict=True) == "SESS_CLOSED"

    run(main())


def test_B94_resuming_restores_the_checkpoint_with_one_session_resumed() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(square, 3)
            await session.message("hello")
            session.context["chapter"] = 4
        async with Session.open("s", store=store, strict=True) as session:
            assert session.context == {"chapter": 4}
            assert session.state == "active"
        assert (await types_of(store)).count("session_resumed") == 1
        checkpoint = await store.checkpoint("s")
        assert checkpoint is not None
        assert checkpoint.message_count == 1

    run(main())


def test_B95_what_is_not_paused_and_resumable_is_not_resumed() -> None:
    async def main() -> None:
        store = MemoryStore()
        assert await open_error(store, strict=True) == "SESS_NOT_FOUND"
        async with Session.open("s", store=store):
            pass
        assert await state_of(store) == "created"
        assert await open_error(store, strict=True) == "SESS_NOT_RESUMABLE"
        store = MemoryStore()
        await worked(store, resumable=False)
        assert await state_of(store) == "paused"
        assert await open_error(store) == "SESS_NOT_RESUMABLE"

    run(main())


def test_B96_N2_13_one_owner_at_a_time() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(square, 3)
            assert await open_error(store) == "SESS_LEASE_LOST"
        await worked(store)

    run(main())


def test_B96_who_lost_the_session_writes_nothing_more_and_stops() -> None:
    async def main() -> None:
        store = MemoryStore(clock=default_runtime().clock)
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store, lease=30) as session:
                await session.step(square, 3)
                lease = session._keeper.lease("s")
                await store.acquire("s", lease.owner, 1000.0)  # as somebody who knows it to be dead does
                top = (await store.session("s")).top
                with pytest.raises(HoldfastError) as late:
                    await session.step(square, 4)
                assert code_of(late.value) == "SESS_LEASE_LOST"
                await asyncio.sleep(3600)
        assert code_of(raised.value) == "SESS_LEASE_LOST"
        assert (await store.session("s")).top == top

    run(main())


def test_the_lease_of_a_dead_process_of_this_machine_is_taken_at_once() -> None:
    dead = subprocess.run(
        [sys.executable, "-c", "from holdfast.sessions import lease; print(lease.this_process())"],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout.strip()
    assert is_gone(dead)
    assert not is_gone(this_process())
    host, pid, _, where, _ = this_process().split("/")
    assert is_gone(f"{host}/{pid}/1/{where}/x"), "the number belongs to another process now"
    assert not is_gone(f"elsewhere/{pid}/1/{where}/x"), "another machine's processes cannot be seen"

    async def main() -> None:
        store = MemoryStore()
        await store.commit(Commit(session="s", create=NewSession(manifest=b"{}")))
        old = await store.acquire("s", dead, 1000.0)
        lease = await take(store, "s", 30.0)
        assert lease.fence > old.fence

    run(main())


def test_C23_a_crash_leaves_the_turn_in_flight_and_it_goes_on() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def work(session: Session) -> None:
            async with session.turn("a"):
                await session.step(square, 3)
                raise Crash

        await killed(store, work)
        assert await state_of(store) == "active"
        async with Session.open("s", store=store) as session:
            assert session.in_flight == 1
            async with session.turn("a"):
                assert await session.step(square, 3) == 9
        types = await types_of(store)
        assert types.count("step_ended") == 1
        assert types[3:5] == ["session_paused", "session_resumed"]

    run(main())


def test_N2_14_abandoning_goes_back_to_the_last_checkpoint() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(square, 3)
            session.context["good"] = True

        async def work(session: Session) -> None:
            session.context["good"] = False
            await session.step(square, 4)
            raise Crash

        await killed(store, work)
        async with Session.open("s", store=store, on_crash="abandon") as session:
            assert session.in_flight is None
            assert session.context == {"good": True}
            assert await session.step(square, 5) == 25

    run(main())


def test_N2_12_nothing_saved_is_no_snapshot() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def work(session: Session) -> None:
            await session.step(square, 3)
            raise Crash

        await killed(store, work)
        assert await open_error(store, strict=True, on_crash="abandon") == "SESS_NO_SNAPSHOT"

    run(main())


@pytest.mark.parametrize(
    ("begun", "resumed", "fields"),
    [
        ({"model": "opus"}, {"model": "haiku"}, ["model"]),
        ({"config": {"a": 1}}, {"config": {"a": 2}}, ["config"]),
        ({"tools": {"a": 1, "b": 2}}, {"tools": {"a": 1, "b": 3, "c": 1}}, ["tools.b", "tools.c"]),
        ({"project_root": "/a"}, {"project_root": "/b"}, ["project_root"]),
        ({"mode": "ask"}, {"mode": "yolo"}, ["mode"]),
        ({"model": "opus", "tools": {"a": 1}}, {}, []),
        ({}, {"model": "opus", "tools": {"a": 1}, "config": 3}, []),
    ],
)
def test_drift_is_reported_per_field_and_a_missing_part_never_blocks(
    begun: Any, resumed: Any, fields: list[str]
) -> None:
    async def main() -> None:
        store = MemoryStore()
        await worked(store, **begun)
        if fields:
            assert await open_error(store, on_drift="refuse", **resumed) == "SESS_MANIFEST_DRIFT"
            with pytest.warns(DriftWarning, match=fields[0]):
                await worked(store, **resumed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            async with Session.open("s", store=store, on_drift="accept", **resumed) as session:
                assert [field.field for field in session.drift] == fields
            async with Session.open("s", store=store, on_drift="refuse", **resumed):
                pass
        kinds = [record.kind for record in await store.audit("session:s")]
        assert kinds.count("Integrity") == (3 if fields else 0)

    run(main())


def test_N2_12_the_manifest_says_when_the_session_was_made() -> None:
    async def main() -> None:
        store = MemoryStore(clock=default_runtime().clock)
        began = default_runtime().clock.wall()
        await worked(store, model="opus")
        await asyncio.sleep(100)
        await worked(store, model="haiku", on_drift="accept")
        manifest = decode_manifest("s", bytes((await store.session("s")).manifest))
        assert (manifest.model, manifest.created_at) == ("haiku", began)
        assert manifest.updated_at >= began + 100

    run(main())


class Borrowed(MemoryStore):
    """A store that holds what another store saved."""

    async def session(self, session: str) -> SessionRecord:
        self._id = "another"
        return await super().session(session)


def test_B101_a_session_of_another_store_is_a_resume_mismatch() -> None:
    async def main() -> None:
        store = Borrowed()
        await store.commit(Commit(session="s", create=NewSession(manifest=b'{"sessionId":"s","storeId":"one"}')))
        assert await open_error(store) == "SESS_RESUME_MISMATCH"

    run(main())


@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        (b"[1]", "SESS_MANIFEST_INVALID"),
        (b'{"sessionId":"s","storeId":7}', "SESS_MANIFEST_INVALID"),
        (b'{"sessionId":"s","storeId":""}', "SESS_MANIFEST_DRIFT"),
    ],
)
def test_N2_12_a_manifest_that_cannot_be_read_is_reported_and_left_as_it_is(manifest: bytes, code: str) -> None:
    async def main() -> None:
        store = MemoryStore()
        await store.commit(Commit(session="s", create=NewSession(manifest=manifest)))
        assert await open_error(store) == code
        assert bytes((await store.session("s")).manifest) == manifest

    run(main())


def test_a_store_that_raises_errors_of_its_own_is_called_three_times_too() -> None:
    class CutStore(FailingStore):
        async def commit(self, commit: Commit) -> Receipt:
            if not self.failing(commit):
                return await super().commit(commit)
            self.tried.append(commit)
            raise ConnectionResetError(104, "Connection reset by peer")

    async def main() -> None:
        store = CutStore()
        async with Session.open("s", store=store) as session:
            store.failing = lambda _: True
            store.tried.clear()
            with pytest.raises(ConnectionResetError):
                await session.checkpoint()
            assert len(store.tried) == 3

    run(main())


def test_B98_three_writes_two_and_four_seconds_apart_then_the_session_is_in_error() -> None:
    capture = Capture()

    async def main() -> None:
        store = FailingStore()
        loop = asyncio.get_running_loop()
        default_runtime().on(capture)
        session = Session.open("s", store=store)
        async with session:
            await session.step(square, 3)
            await session.checkpoint()
            before = await store.checkpoint("s")
            store.failing = lambda _: True
            store.tried.clear()
            began = loop.time()
            with pytest.raises(HoldfastError) as raised:
                await session.checkpoint()
            assert code_of(raised.value) == "SESS_STORE_UNAVAILABLE"
            assert loop.time() - began == pytest.approx(6)
            assert len(store.tried) == 3
            assert session.state == "error"
            with pytest.raises(HoldfastError):
                await session.step(square, 4)
            assert len(store.tried) == 3, "nothing more is written"
        assert await store.checkpoint("s") == before

    run(main())
    assert [event.delay for event in capture.events if isinstance(event, Retry)] == [2, 4]


def test_B98_a_store_that_comes_back_in_time_loses_nothing() -> None:
    async def main() -> None:
        store = FailingStore()
        async with Session.open("s", store=store) as session:
            await session.step(square, 3)
            fails = iter([True, True])
            store.failing = lambda _: next(fails, False)
            assert await session.step(square, 4) == 16
        assert await state_of(store) == "paused"

    run(main())


def test_an_exception_of_the_work_is_not_hidden_by_one_of_the_store() -> None:
    async def main() -> None:
        store = FailingStore()
        with pytest.raises(ZeroDivisionError) as raised:
            async with Session.open("s", store=store) as session:
                await session.step(square, 3)
                store.failing = lambda _: True
                raise ZeroDivisionError
        assert "could not be saved: SESS_STORE_UNAVAILABLE" in raised.value.__notes__[0]

    run(main())


def test_no_budget_or_deadline_keeps_the_work_from_being_saved() -> None:
    async def main() -> None:
        store = FailingStore()
        fails = iter([True, True])
        async with Session.open("s", store=store) as session:
            await session.step(square, 3)
            store.failing = lambda _: next(fails, False)
            with Budget(seconds=1, attempts=1):
                await session.checkpoint()

    run(main())


def test_N2_10_turns_are_served_in_order_and_a_failed_one_does_not_block() -> None:
    order: list[str] = []

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:

            async def turn(name: str) -> None:
                async with session.turn(name):
                    order.append(name)
                    await asyncio.sleep(1)
                    if name == "b":
                        raise ValueError(name)

            results = await asyncio.gather(*map(turn, "abcd"), return_exceptions=True)
            assert [type(r) for r in results] == [type(None), ValueError, type(None), type(None)]

    run(main())
    assert order == list("abcd")


def test_N2_10_a_cancelled_turn_is_over_and_the_session_goes_on() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(AbortedError) as raised:
                async with session.turn("a") as turn:
                    asyncio.get_running_loop().call_later(1, turn.cancel)
                    await session.step(asyncio.sleep, 3600)
            assert code_of(raised.value) == "SESS_TURN_CANCELLED"
            assert asyncio.current_task().cancelling() == 0
            async with session.turn("b"):
                await session.step(square, 2)
        ended = [bytes(e.body) for e in await store.read("s") if e.type == "turn_ended"]
        assert b'"outcome":"cancelled"' in ended[0]
        assert b'"outcome":"ok"' in ended[1]

    run(main())


def test_N2_10_cancelling_the_session_cancels_what_is_inside_children_first() -> None:
    order: list[str] = []

    async def tool() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            order.append("tool")

    async def main() -> None:
        with pytest.raises(AbortedError) as raised:
            async with Session.open("s", store=MemoryStore()) as session:
                asyncio.get_running_loop().call_later(1, session.cancel)
                try:
                    async with session.turn("a"):
                        try:
                            await session.step(tool)
                        finally:
                            order.append("turn")
                finally:
                    order.append("session")
        assert code_of(raised.value) == "SESS_CANCELLED"

    run(main())
    assert order == ["tool", "turn", "session"]


def test_an_outer_cancellation_passes_through_a_session() -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), Session.open("s", store=store) as session:
                await session.step(asyncio.sleep, 3600)
        assert await state_of(store) == "paused"

    run(main())


def test_a_turn_inside_a_turn_raises_and_is_no_deadlock() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session, session.turn("a"):
            with pytest.raises(HoldfastError) as raised:
                async with session.turn("b"):
                    pass
            assert code_of(raised.value) == "SESS_TURN_CONCURRENT"

    run(main())


def test_a_turn_that_was_cut_off_is_not_given_something_else() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def work(session: Session) -> None:
            async with session.turn({"say": "one"}):
                await session.step(square, 3)
                raise Crash

        await killed(store, work)
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError) as raised:
                async with session.turn({"say": "two"}):
                    pass
            assert code_of(raised.value) == "SESS_TURN_CONCURRENT"
            async with session.turn({"say": "one"}) as turn:
                assert turn.number == 1
            async with session.turn({"say": "two"}) as turn:
                assert turn.number == 2

    run(main())


def test_the_same_message_is_stored_once() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            first = await session.message("hello", id="m1", client="phone")
            assert await session.message("hello", id="m1", client="phone") == first
            with pytest.raises(HoldfastError) as raised:
                await session.message("other", id="m1", client="phone")
            assert code_of(raised.value) == "PROTO_DUPLICATE_ID"
            assert await session.message("hello", id="m1", client="laptop") == first + 1
            await session.checkpoint()
        checkpoint = await store.checkpoint("s")
        assert checkpoint.message_count == 2

    run(main())


def test_what_others_write_meanwhile_is_neither_lost_nor_counted_twice() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(square, 1)
            for n in range(5):
                await store.commit(Commit(session="s", entries=(new_entry(Message(content=n), f"other-{n}"),)))
                await session.message(n)
                await session.step(square, n)
            await session.checkpoint()
            assert session._journal.memory.message_count == 10
        async with Session.open("s", store=store) as session:
            assert session._journal.memory.message_count == 10

    run(main())


def test_a_session_in_sqlite_survives_reopening(tmp_path: Any) -> None:
    async def main() -> None:
        path = tmp_path / "s.db"
        for n in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                store = SqliteStore(path)
                async with store, Session.open("s", store=store) as session:
                    assert session.context.get("n", 0) == n
                    results = [o.value async for o in session.map(square, range(30))]
                    assert results == [i * i for i in range(30)]
                    session.context["n"] = n + 1

    asyncio.run(main())


def test_the_store_may_be_given_by_its_address_and_there_is_a_default(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "default.db"))
    before = set(threading.enumerate())

    async def main() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for store in (None, tmp_path / "path.db", f"sqlite:{tmp_path / 'url.db'}"):
                for expected in ("created", "active"):
                    async with Session.open("s", store=store) as session:
                        assert session.state == expected
                        assert await session.step(square, 3) == 9
            with pytest.raises(HoldfastError):
                async with Session.open("t", store=tmp_path / "path.db", strict=True):
                    raise AssertionError("it was opened")

    asyncio.run(main())
    assert {path.name for path in tmp_path.glob("*.db")} == {"default.db", "path.db", "url.db"}
    ours = [thread for thread in threading.enumerate() if thread not in before and "holdfast" in thread.name]
    for thread in ours:
        thread.join(10)
    assert [thread.name for thread in ours if thread.is_alive()] == []
