"""A COMMIT that is not answered: what became of it is found out, whatever it wrote, and it is applied once."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from stores_postgres_kit import behind_a_proxy

from holdfast.faults import HoldfastError
from holdfast.stores import Claim, Commit, NewAudit, NewCheckpoint, NewEntry, NewSession, SessionState
from holdfast.stores.chain import verify
from holdfast.stores.postgres import engine

CREATE = Commit(session="s1", create=NewSession(manifest=b"{}"), state=SessionState.ACTIVE)
AUDIT = (NewAudit(kind="Turn", correlation="r", payload=b"{}"),)
ENTRY = (NewEntry(type="t", body=b"{}", id="e1"),)

COMMITS = {
    "entries": Commit(session="s1", entries=ENTRY),
    "state only": Commit(session="s1", state=SessionState.PAUSED),
    "checkpoint only": Commit(
        session="s1", checkpoint=NewCheckpoint(message_count=1, last_message_id=None, snapshot=b"{}")
    ),
    "claim only": Commit(session="s1", claim=Claim(client="c", id="m", body_hash=b"h", result=b"7")),
    "audit of a session": Commit(session="s1", audit=AUDIT),
    "audit alone": Commit(chain="main", audit=AUDIT),
    "a new session": Commit(session="s2", create=NewSession(manifest=b"{}"), entries=ENTRY),
}


@pytest.fixture(params=["postgres", "pooler"])
def server(request):
    """The server, and PgBouncer before it: there a session of the server outlives the client's connection."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("how", ["before", "after", "late", "ending"])
@pytest.mark.parametrize("kind", COMMITS)
def test_what_became_of_it_is_found_out_and_it_is_applied_once(server, kind, how):
    async def scene():
        async with behind_a_proxy(server) as (proxy, store, plain):
            await plain.commit(CREATE)
            proxy.lose = how
            receipt = await store.commit(COMMITS[kind])
            assert proxy.lost == 1
            assert not receipt.duplicate
            return await state_of(plain), receipt

    (state, logs, chains, checkpoint), receipt = asyncio.run(scene())
    commit = COMMITS[kind]
    assert state == (commit.state if commit.state and commit.session == "s1" else SessionState.ACTIVE)
    assert [ids for ids in logs if ids] == ([["e1"]] if commit.entries else [])
    assert receipt.top == len(commit.entries)
    assert [seq for _, seq, _ in chains] == ([1] if commit.audit else [])
    assert (checkpoint is not None) == (commit.checkpoint is not None)


async def state_of(store):
    sessions = await store.sessions()
    logs = [[entry.id for entry in await store.read(record.id)] for record in sessions]
    state = next(record.state for record in sessions if record.id == "s1")
    return state, logs, await store.chains(), await store.checkpoint("s1")


@pytest.mark.parametrize("how", ["before", "after", "late"])
def test_a_claim_that_was_stored_unheard_is_not_a_duplicate_of_itself(postgres, how):
    async def scene():
        async with behind_a_proxy(postgres) as (proxy, store, plain):
            await plain.commit(CREATE)
            proxy.lose = how
            first = await store.commit(COMMITS["claim only"])
            second = await store.commit(COMMITS["claim only"])
            assert (first.duplicate, second.duplicate) == (False, True)
            assert bytes(first.result) == bytes(second.result) == b"7"

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["before", "after", "late"])
def test_a_lease_is_had_once(postgres, how):
    async def scene():
        async with behind_a_proxy(postgres) as (proxy, store, plain):
            await plain.commit(CREATE)
            proxy.lose = how
            lease = await store.acquire("s1", "me", 60)
            record = await plain.session("s1")
            assert (lease.fence, record.fence, record.owner) == (1, 1, "me")

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["after", "late"])
def test_commits_of_others_in_between_change_nothing(postgres, how):
    """Also where the log has grown, and shrunk again, beyond what was written unheard."""

    async def scene():
        async with behind_a_proxy(postgres, poll=0.01) as (proxy, store, plain):
            await plain.commit(CREATE)
            proxy.lose, proxy.away = how, True
            committing = asyncio.create_task(store.commit(COMMITS["entries"]))
            assert await plain.changed("s1", 0, 10)
            snapshot = NewCheckpoint(message_count=1, last_message_id=None, snapshot=b"{}")
            await plain.commit(
                Commit(
                    session="s1",
                    entries=(NewEntry(type="t", body=b"{}", id="other"),),
                    checkpoint=snapshot,
                    state=SessionState.CLOSED,
                )
            )
            await plain.compact("s1", 3)
            proxy.away = False
            receipt = await committing
            assert (receipt.first, receipt.top) == (1, 1)
            assert (await plain.session("s1")).top == 2

    asyncio.run(scene())


def test_several_commits_that_shared_the_transaction_are_all_found(server):
    async def scene():
        async with behind_a_proxy(server) as (proxy, store, plain):
            await plain.commit(CREATE)
            for how in ("after", "before"):
                proxy.lose = how
                commits = [
                    Commit(session="s1", entries=(NewEntry(type="t", body=b"{}", id=f"{how}{n}"),), audit=AUDIT)
                    for n in range(5)
                ]
                rejected = Commit(session="s1", expect=(SessionState.PAUSED,), state=SessionState.ACTIVE)
                results = await asyncio.gather(*map(store.commit, [*commits, rejected]), return_exceptions=True)
                assert isinstance(results.pop(), HoldfastError)
                log = await plain.read("s1")
                assert [log[receipt.first - 1].id for receipt in results] == [f"{how}{n}" for n in range(5)]
            assert len(log) == 10
            last, _, broken = verify(await plain.audit("session:s1"))
            assert (last, broken) == (10, None)

    asyncio.run(scene())


def test_a_transaction_whose_client_fell_silent_is_ended(server, monkeypatch):
    monkeypatch.setattr(engine, "GRACE_S", 0.1)

    async def scene():
        async with behind_a_proxy(server) as (proxy, store, plain):
            await plain.commit(CREATE)
            proxy.lose = "never"
            receipt = await store.commit(COMMITS["entries"])
            assert (receipt.first, receipt.top) == (1, 1)
            assert [entry.id for entry in await plain.read("s1")] == ["e1"]

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("kind", COMMITS)
def test_what_could_not_be_found_out_is_found_out_when_the_same_is_committed_again(postgres, kind, how, monkeypatch):
    monkeypatch.setattr(engine, "PATIENCE_S", 0.0)

    async def scene():
        async with behind_a_proxy(postgres, busy=0.1) as (proxy, store, plain):
            await plain.commit(CREATE)
            proxy.lose, proxy.away = how, True
            for _ in range(2):
                with pytest.raises(HoldfastError, match="it is not known yet") as caught:
                    await store.commit(COMMITS[kind])
                assert caught.value.fault.code == "SESS_STORE_UNAVAILABLE"
                assert caught.value.fault.retryable
                assert caught.value.fault.context["outcome"] == "unknown"
            proxy.away = False
            monkeypatch.setattr(engine, "PATIENCE_S", 10.0)
            receipt = await store.commit(COMMITS[kind])
            assert not receipt.duplicate
            _, logs, chains, _ = await state_of(plain)
            assert [ids for ids in logs if ids] == ([["e1"]] if COMMITS[kind].entries else [])
            assert [seq for _, seq, _ in chains] == ([1] if COMMITS[kind].audit else [])
            # Asked for once more, it is another: what was in doubt is settled.
            if kind == "audit alone":
                await store.commit(COMMITS[kind])
                assert [seq for _, seq, _ in await plain.chains()] == [2]

    asyncio.run(scene())


def test_nothing_is_left_in_the_tables_of_the_connections_that_were(postgres):
    async def scene():
        async with behind_a_proxy(postgres, schema="tidy") as (_, store, plain):
            await plain.commit(CREATE)
            await store.commit(COMMITS["entries"])

    asyncio.run(scene())
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute("SELECT count(*) FROM tidy.slot").fetchone() == (0,)
