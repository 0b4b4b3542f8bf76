"""The PostgreSQL store behind the real PgBouncer: nothing it does needs a session of the server for itself."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from stores_postgres_kit import new_schema

from holdfast import tool
from holdfast.faults import InvalidError
from holdfast.sessions import Session
from holdfast.stores import Commit, NewEntry, NewSession, SessionState, open_store
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.postgres import PrivatePooler


@tool(effect="unsafe")
async def work(n):
    return n * n


async def _sessions(store, count=20):
    async def one(n):
        async with Session.open(f"s{n}", store=store, lease=3.0) as session:
            async with session.turn("go", key="go"):
                results = await asyncio.gather(*(session.step(work, k) for k in range(5)))
            session.context["n"] = n
            return [*results, await session.step(work, n)]

    return await asyncio.gather(*(one(n) for n in range(count)))


EXPECTED = [[0, 1, 4, 9, 16, n * n] for n in range(20)]


def test_XD7_sessions_work_behind_a_pooler_in_transaction_mode(pooler):
    async def scene():
        schema = new_schema()
        async with PostgresStore(pooler.url, schema=schema) as one, PostgresStore(pooler.url, schema=schema) as other:
            assert one.is_pooled
            assert await _sessions(one) == EXPECTED
            assert await _sessions(other) == EXPECTED

    asyncio.run(scene())


@pytest.mark.parametrize("pool", ["auto", "session", "transaction"])
def test_XD7_a_pooler_in_session_mode_may_have_all_of_it(postgres, pool):
    async def scene(url):
        async with PostgresStore(url, schema=new_schema(), pool=pool) as store:
            # Only the server knows which mode it is: without being told, the store needs no session.
            assert store.is_pooled is (pool != "session")
            assert await _sessions(store) == EXPECTED

    with PrivatePooler(postgres, "session") as pooler:
        asyncio.run(scene(pooler.url))


def test_XD7_without_a_pooler_nothing_is_given_up(postgres):
    async def scene():
        async with PostgresStore(postgres.url, schema=new_schema()) as store:
            assert not store.is_pooled
        async with open_store(f"{postgres.url}&pool=transaction&schema={new_schema()}") as store:
            assert store.is_pooled
            assert await _sessions(store) == EXPECTED

    asyncio.run(scene())


def test_XD7_a_pool_of_ones_own_works_behind_a_pooler(pooler):
    async def scene():
        async with AsyncConnectionPool(pooler.url, min_size=1, max_size=4, open=False) as pool:
            async with PostgresStore(pool, schema=new_schema()) as store:
                assert store.is_pooled
                assert await _sessions(store) == EXPECTED
            async with pool.connection() as connection:
                assert connection.prepare_threshold == 5

    asyncio.run(scene())


def test_XD7_leases_are_renewed_and_waiting_readers_see_news_behind_a_pooler(pooler):
    async def scene():
        schema = new_schema()
        options = {"schema": schema, "poll": 0.05}
        async with PostgresStore(pooler.url, **options) as one, PostgresStore(pooler.url, **options) as other:
            await one.commit(Commit(session="s", create=NewSession(manifest=b"{}"), state=SessionState.ACTIVE))
            lease = await one.acquire("s", "me", 10)
            (renewed,) = await asyncio.to_thread(one.renew_all, [lease], 60)
            assert renewed.until > lease.until
            # Settings of a transaction do not stay with the server's session, which the next client gets.
            async with await psycopg.AsyncConnection.connect(pooler.url, autocommit=True) as any_:
                for name, value in (
                    ("search_path", '"$user", public'),
                    ("lock_timeout", "0"),
                    ("plan_cache_mode", "auto"),
                ):
                    ((found,),) = await (await any_.execute("SELECT current_setting(%s)", (name,))).fetchall()
                    assert found == value, name
            waiting = asyncio.create_task(other.changed("s", 0, 30))
            await asyncio.sleep(0)
            await one.commit(Commit(session="s", entries=(NewEntry(type="t", body=b"{}", id="e"),)))
            assert await waiting

    asyncio.run(scene())


def test_XD7_an_unknown_kind_of_pool_is_named():
    with pytest.raises(InvalidError, match=r"store\.pool"):
        PostgresStore("postgresql://x@y/z", pool="statement")
