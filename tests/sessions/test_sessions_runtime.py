"""A session that is given a runtime lives by its clock and reports to its readers; the default runtime is not used."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from sessions_kit import FailingStore, code_of

from holdfast import Runtime
from holdfast.events import Failed
from holdfast.faults import HoldfastError
from holdfast.runtime.runtime import use_runtime
from holdfast.sessions import Question, Session, admin, answer
from holdfast.sessions.lease import LeaseKeeper
from holdfast.sessions.manifest import decode_manifest
from holdfast.stores import MemoryStore, SqliteStore, open_store
from holdfast.testing import VirtualClock

PAST, FUTURE = 1_000_000.0, 4_000_000_000.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(wall=PAST)


@pytest.fixture
def runtime(clock):
    """The session's runtime, while the default one lives in another century."""
    with use_runtime(Runtime(clock=VirtualClock(wall=FUTURE))):
        yield Runtime(clock=clock, waits=False)


async def raised(session: Session) -> Question:
    while not session.pending:  # noqa: ASYNC110 - the question is raised by another task, which tells nobody
        await asyncio.sleep(0)
    return session.pending[0]


def test_FD13_the_manifest_is_dated_by_the_sessions_runtime(runtime):
    async def main():
        async with MemoryStore() as store:
            async with Session.open("s", store=store, runtime=runtime):
                pass
            return decode_manifest("s", bytes((await store.session("s")).manifest))

    manifest = asyncio.run(main())
    assert (manifest.created_at, manifest.updated_at) == (PAST, PAST)


def test_without_a_runtime_the_default_one_dates_it(runtime):
    async def main():
        async with MemoryStore() as store:
            async with Session.open("s", store=store):
                pass
            return decode_manifest("s", bytes((await store.session("s")).manifest))

    assert asyncio.run(main()).created_at == FUTURE


@pytest.mark.parametrize("address", ["memory:", "sqlite:{}/work.db"])
def test_a_store_opened_by_its_address_takes_the_clock(runtime, tmp_path, address):
    async def main():
        async with Session.open("s", store=address.format(tmp_path), runtime=runtime, lease=30.0) as session:
            record = await session._store.session("s")
            return record.created_at, record.lease_until, session._keeper.lease("s").until

    assert asyncio.run(main()) == (PAST, PAST + 30.0, PAST + 30.0)


def test_the_machines_own_clock_leaves_a_store_its_own():
    """The clock of a PostgreSQL server is the same for all machines that share its leases; ours is not."""
    session = Session.open("s", store="memory:", runtime=Runtime())
    assert session._store._wall is open_store("memory:")._wall


def test_FD13_questions_expire_by_the_sessions_clock(runtime, clock):
    async def main():
        async with MemoryStore() as store, Session.open("s", store=store, runtime=runtime) as session:
            asking = asyncio.ensure_future(session.approve("Deploy?", expires=60))
            question = await raised(session)
            assert question.expires_at == PAST + 60
            with pytest.raises(HoldfastError) as late:
                await answer(store, "s", question.id, approved=True)
            assert code_of(late.value) == "SESS_INTERACTION_EXPIRED", "the default runtime lives in the future"
            clock.advance(59)
            await answer(store, "s", question.id, approved=True, runtime=runtime)
            return await asking

    assert asyncio.run(main()) is True


def test_a_session_answers_by_its_own_clock(runtime, clock):
    async def main():
        async with MemoryStore() as store, Session.open("s", store=store, runtime=runtime) as session:
            asking = asyncio.ensure_future(session.ask("Name?", expires=60))
            await session.answer((await raised(session)).id, "ann")
            return await asking

    assert asyncio.run(main()) == "ann"


def test_a_question_nobody_answers_expires_when_that_clock_says_so(runtime, clock):
    async def main():
        async with MemoryStore() as store, Session.open("s", store=store, runtime=runtime) as session:
            asking = asyncio.ensure_future(session.approve("Deploy?", expires=60))
            await raised(session)
            clock.advance(61)
            with pytest.raises(HoldfastError) as expired:
                await asking
            return code_of(expired.value)

    assert asyncio.run(main()) == "SESS_INTERACTION_EXPIRED"


def test_FD13_a_lease_in_doubt_ends_by_the_sessions_clock(runtime, clock):
    """While the store fails, a lease is lost only when its time is over by the runtime's clock."""

    class Unreachable(MemoryStore):
        async def renew(self, lease: Any, ttl: float) -> Any:
            raise OSError("no route to the store")

    async def main():
        async with (
            Unreachable(clock=clock) as store,
            Session.open("s", store=store, runtime=runtime, lease=30.0) as session,
        ):
            keeper = session._keeper
            assert isinstance(keeper, LeaseKeeper)
            await keeper._renew("s", keeper._kept["s"])
            assert session._journal.failed is None
            clock.advance(31)
            await keeper._renew("s", keeper._kept["s"])
            assert session._journal.failed is not None

    with pytest.raises(HoldfastError) as lost:
        asyncio.run(main())
    assert code_of(lost.value) == "SESS_LEASE_LOST"


def test_the_owner_of_a_session_is_judged_by_the_clock_of_the_store(runtime, clock, tmp_path):
    async def main():
        async with SqliteStore(tmp_path / "work.db", clock=clock) as store:
            async with Session.open("s", store=store, runtime=runtime):
                ours, default = await admin.overview(store, "s", runtime), await admin.overview(store, "s")
            return ours.in_use, default.in_use

    assert asyncio.run(main()) == (True, True)


def test_without_a_word_of_the_store_the_owner_is_judged_by_the_clock_of_the_runtime(runtime, clock, tmp_path):
    async def main():
        async with (
            SqliteStore(tmp_path / "work.db", clock=clock) as store,
            Session.open("s", store=store, runtime=runtime),
        ):
            record = msgspec.structs.replace(await store.session("s"), lease_left=None)
            return admin.in_use(record, store, runtime), admin.in_use(record, store)

    assert asyncio.run(main()) == (True, False)


def test_the_readers_of_the_runtime_hear_of_failed_writes(runtime):
    given_up: list[Failed] = []
    runtime.on(given_up.append, Failed)

    async def main():
        async with FailingStore() as store, Session.open("s", store=store, runtime=runtime) as session:
            store.failing = lambda _: True
            await session.message("hello")

    with pytest.raises(HoldfastError):
        asyncio.run(main())
    assert given_up
    assert {event.fault.code for event in given_up} == {"SESS_STORE_UNAVAILABLE"}
