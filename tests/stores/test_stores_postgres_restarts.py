"""PostgreSQL is killed and started again under load: writers go on, nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from stores_postgres_kit import new_schema

from holdfast.faults import HoldfastError
from holdfast.stores import Commit, NewAudit, NewEntry, NewSession, SessionState
from holdfast.stores.chain import verify
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.postgres import PrivateServer

SESSIONS = ("s1", "s2", "s3")
WRITERS = 6


async def write(store, writer, stop, journal):
    """Commit until the test ends, each until it is confirmed; note which were, and where."""
    for n in range(1_000_000):
        if stop.is_set():
            return
        session = SESSIONS[writer % len(SESSIONS)]
        commit = Commit(
            session=session,
            entries=tuple(NewEntry(type="t", body=b"{}", id=f"w{writer}-{n}-{k}") for k in range(1 + n % 2)),
            audit=(NewAudit(kind="Turn", correlation="r", payload=b"{}"),),
        )
        receipt = await until_stored(store, commit)
        journal[session] += [(receipt.first + k, entry.id, writer) for k, entry in enumerate(commit.entries)]


async def until_stored(store, commit):
    while True:
        try:
            return await store.commit(commit)
        except HoldfastError as error:
            if error.fault.code != "SESS_STORE_UNAVAILABLE":
                raise
            await asyncio.sleep(0.02)


async def under_load(server, ways):
    options = {"schema": new_schema(), "busy": 0.5}
    journal, stop = defaultdict(list), asyncio.Event()
    # Two stores, as two processes would have; more writers than connections.
    async with (
        PostgresStore(server.url, connections=2, **options) as one,
        PostgresStore(server.url, connections=2, **options) as other,
    ):
        for session in SESSIONS:
            await one.commit(Commit(session=session, create=NewSession(manifest=b"{}"), state=SessionState.ACTIVE))
        writers = [asyncio.create_task(write((one, other)[n % 2], n, stop, journal)) for n in range(WRITERS)]
        for way in ways:
            await asyncio.sleep(0.15)
            await asyncio.to_thread(server.kill if way == "kill" else lambda: server.stop(immediate=True))
            await asyncio.to_thread(server.start)
            before = sum(map(len, journal.values()))
            async with asyncio.timeout(30):
                while sum(map(len, journal.values())) < before + 3 * WRITERS:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        stop.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*writers)
        logs = {session: await whole(one, session) for session in SESSIONS}
        chains = {session: await trail(one, session) for session in SESSIONS}
    return journal, logs, chains


async def whole(store, session):
    log = []
    while page := await store.read(session, after=len(log)):
        log += page
    return log


async def trail(store, session):
    records = []
    while page := await store.audit(f"session:{session}", after=len(records)):
        records += page
    return records


def check(journal, logs, chains):
    for session in SESSIONS:
        log = logs[session]
        ids = [entry.id for entry in log]
        assert [entry.offset for entry in log] == list(range(1, len(log) + 1))
        assert [entry.at for entry in log] == sorted(entry.at for entry in log)
        # Writers ended in good order, so everything there was acknowledged: none lost, none twice, none that nobody wrote.
        assert [(entry.offset, entry.id) for entry in log] == sorted((at, id_) for at, id_, _ in journal[session])
        assert len(set(ids)) == len(ids)
        for writer in range(WRITERS):
            own = [at for at, _, by in journal[session] if by == writer]
            assert own == sorted(own)
        _, _, broken = verify(chains[session])
        assert broken is None
        assert len(chains[session]) == sum(id_.endswith("-0") for id_ in ids)


def test_writers_go_on_after_the_server_is_killed_and_nothing_is_lost():
    with PrivateServer(durable=True) as server:
        check(*asyncio.run(under_load(server, ("kill", "immediate"))))


@pytest.mark.soak
def test_writers_go_on_after_the_server_is_killed_fifty_times():
    with PrivateServer(durable=True) as server:
        check(*asyncio.run(under_load(server, ("kill", "immediate") * 25)))
