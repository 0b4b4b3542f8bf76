"""What is PostgreSQL's own: schemas and their versions, pools, notifications, the server's clock, conflicts."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from stores_postgres_kit import behind_a_proxy, new_schema

from holdfast.faults import HoldfastError, InvalidError
from holdfast.stores import Commit, NewAudit, NewEntry, NewSession, SessionState, verify_store
from holdfast.stores.postgres import PostgresStore

CREATE = Commit(session="s1", create=NewSession(manifest=b"{}"), state=SessionState.ACTIVE)


def append(id_: str, **more) -> Commit:
    return Commit(session="s1", entries=(NewEntry(type="t", body=b"{}", id=id_),), **more)


def run_sql(server, statement, *args):
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(statement, args or None)
        return cursor.fetchall() if cursor.description else []


def test_those_who_open_a_new_schema_at_once_make_it_once(postgres):
    async def scene():
        schema = new_schema()

        async def opened():
            async with PostgresStore(postgres.url, schema=schema) as store:
                return store.id

        assert len(set(await asyncio.gather(*(opened() for _ in range(4))))) == 1

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE {}.meta SET value = '99' WHERE name = 'version'", "newer Holdfast .version 99"),
        ("DELETE FROM {}.meta WHERE name = 'version'", "does not say which version"),
        ("DROP TABLE {}.slot", "another program"),
    ],
)
def test_B103_what_a_newer_holdfast_or_another_program_wrote_is_rejected_untouched(postgres, change, reason):
    schema = new_schema()

    async def opened():
        async with PostgresStore(postgres.url, schema=schema):
            pass

    asyncio.run(opened())
    run_sql(postgres, change.format(schema))
    tables = "SELECT relname, relfilenode FROM pg_class WHERE relnamespace = %s::regnamespace ORDER BY 1"
    content = f"SELECT xmin::text, * FROM {schema}.meta ORDER BY name"
    before = run_sql(postgres, tables, schema), run_sql(postgres, content)
    with pytest.raises(HoldfastError, match=reason) as caught:
        asyncio.run(opened())
    assert caught.value.fault.code == "SESS_MANIFEST_INVALID"
    assert (run_sql(postgres, tables, schema), run_sql(postgres, content)) == before


@pytest.mark.parametrize("releases", [True, False])
def test_a_connection_is_waited_for_as_long_as_others_are_given_back(postgres, releases):
    busy = 0.4

    async def scene():
        async with PostgresStore(postgres.url, schema=new_schema(), connections=1, busy=busy) as store:
            engine, began = store._engine, asyncio.Event()

            async def hold(seconds):
                async with engine.connection():
                    began.set()
                    await asyncio.sleep(seconds)

            # Four jobs of three quarters of the time, or one that never ends.
            others = [asyncio.ensure_future(hold(busy * 0.75)) for _ in range(4)] if releases else []
            forever = [] if releases else [asyncio.ensure_future(hold(600))]
            await began.wait()
            try:
                await store.commit(CREATE)
            finally:
                for task in forever:
                    task.cancel()
                await asyncio.gather(*others, *forever, return_exceptions=True)
            return await asyncio.gather(*others)

    if releases:
        assert asyncio.run(scene()) == [None] * 4
    else:
        with pytest.raises(HoldfastError, match="no connection became free in time"):
            asyncio.run(scene())


def test_a_wrong_schema_name_is_rejected():
    for schema in ("", "a b", 'a"b', "x" * 51):
        with pytest.raises(InvalidError):
            PostgresStore("postgresql:///db", schema=schema)


def test_ids_are_in_the_order_of_their_bytes_in_a_database_of_any_language(postgres):
    run_sql(postgres, "CREATE DATABASE lang TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en' LOCALE 'C'")
    names = ["a", "B", "b", "A", "a-1", "a_1"]

    async def scene():
        async with PostgresStore(postgres.url.replace("/postgres", "/lang")) as store:
            for name in names:
                await store.commit(Commit(session=name, create=NewSession(manifest=b"{}")))
            return [record.id for record in await store.sessions()]

    assert asyncio.run(scene()) == sorted(names)


def test_a_pool_of_the_users_own_is_used_and_left_as_it_was(postgres):
    async def scene():
        async with AsyncConnectionPool(postgres.url, min_size=1, max_size=2, open=False) as pool:
            async with PostgresStore(pool, schema=new_schema()) as store:
                await store.commit(CREATE)
                await asyncio.gather(*(store.commit(append(f"e{n}")) for n in range(5)))
                assert len(await store.read("s1")) == 5
            async with pool.connection() as connection:
                assert not connection.autocommit
                path = await (await connection.execute("SHOW search_path")).fetchone()
                assert path == ('"$user", public',)

    asyncio.run(scene())


def test_a_commit_in_one_process_wakes_those_who_wait_in_another(postgres):
    async def scene():
        options = {"schema": new_schema(), "poll": 60.0}
        async with PostgresStore(postgres.url, **options) as one, PostgresStore(postgres.url, **options) as other:
            await one.commit(CREATE)
            await other._listener.listening.wait()
            waiting = asyncio.create_task(other.changed("s1", 0, 60))
            await asyncio.sleep(0.05)
            await one.commit(append("a"))
            async with asyncio.timeout(10):
                assert await waiting

    asyncio.run(scene())


def test_a_lost_notification_costs_the_time_until_it_looks_by_itself(postgres):
    async def scene():
        options = {"schema": new_schema(), "poll": 0.05}
        async with PostgresStore(postgres.url, **options) as one, PostgresStore(postgres.url, **options) as other:
            await one.commit(CREATE)
            await other._listener.close()
            waiting = asyncio.create_task(other.changed("s1", 0, 60))
            await asyncio.sleep(0.02)
            await one.commit(append("a"))
            async with asyncio.timeout(10):
                assert await waiting

    asyncio.run(scene())


def test_who_listens_does_so_again_after_its_connection_broke(postgres):
    async def scene():
        async with behind_a_proxy(postgres, poll=60.0) as (proxy, store, plain):
            await plain.commit(CREATE)
            await store._listener.listening.wait()
            waiting = asyncio.create_task(store.changed("s1", 0, 60))
            await asyncio.sleep(0.02)
            proxy.away = True
            proxy.cut()
            await plain.commit(append("a"))
            proxy.away = False
            async with asyncio.timeout(20):
                assert await waiting

    asyncio.run(scene())


def test_times_are_the_servers(postgres, monkeypatch):
    async def scene():
        async with PostgresStore(postgres.url, schema=new_schema()) as store:
            # This machine's clock is an hour behind; nothing of it shows.
            real = time.time()
            monkeypatch.setattr(time, "time", lambda: real - 3_600)
            receipt = await store.commit(CREATE)
            lease = await store.acquire("s1", "me", 30)
            assert abs(receipt.at - real) < 60
            assert abs(lease.until - 30 - real) < 60
            with pytest.raises(HoldfastError, match="owned by me"):
                await store.acquire("s1", "other", 30)

    asyncio.run(scene())


def test_connections_that_died_in_the_pool_are_no_failure(postgres):
    async def scene():
        async with behind_a_proxy(postgres, connections=3) as (proxy, store, _):
            await store.commit(CREATE)
            await asyncio.gather(*(store.session("s1") for _ in range(9)))
            proxy.cut()
            assert (await store.commit(append("a"))).top == 1
            proxy.cut()
            assert (await store.session("s1")).top == 1

    asyncio.run(scene())


def test_a_server_that_is_away_is_typed_and_the_store_goes_on_when_it_is_back(postgres):
    async def scene():
        async with behind_a_proxy(postgres, busy=0.1) as (proxy, store, _):
            await store.commit(CREATE)
            proxy.away = True
            proxy.cut()
            for call in (store.commit(append("a")), store.session("s1"), store.acquire("s1", "me", 1)):
                with pytest.raises(HoldfastError) as caught:
                    await call
                assert caught.value.fault.code == "SESS_STORE_UNAVAILABLE"
                assert caught.value.fault.retryable
            proxy.away = False
            async with asyncio.timeout(20):
                while True:
                    try:
                        receipt = await store.commit(append("a"))
                        break
                    except HoldfastError:
                        await asyncio.sleep(0.05)
            assert receipt.top == 1

    asyncio.run(scene())


def test_a_deadlock_is_tried_again(postgres):
    async def scene():
        schema = new_schema()
        # Both must be waiting when we look, and only we look in time, so we are the one that gives way.
        ours = psycopg.conninfo.make_conninfo(postgres.url, options="-c deadlock_timeout=2s")
        async with PostgresStore(ours, schema=schema, busy=30) as store:
            await store.commit(CREATE)
            await store.commit(Commit(chain="shared", audit=(record(),)))
            async with await psycopg.AsyncConnection.connect(postgres.url) as rival:
                await rival.execute("SET deadlock_timeout = '60s'")
                await rival.execute(f"SELECT 1 FROM {schema}.chain WHERE name = 'shared' FOR UPDATE")
                committing = asyncio.create_task(store.commit(append("a", chain="shared", audit=(record(),))))
                await held(postgres, schema)
                await rival.execute(f"SELECT 1 FROM {schema}.session WHERE name = 's1' FOR UPDATE")
                await rival.commit()
                receipt = await committing
            assert (receipt.first, receipt.top) == (1, 1)
            assert [(name, seq) for name, seq, _ in await store.chains()] == [("shared", 2)]

    asyncio.run(scene())


def record() -> NewAudit:
    return NewAudit(kind="Turn", correlation="r", payload=b"{}")


async def held(server, schema):
    """Wait until somebody waits for the chain's row."""
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%chain%'"
    async with asyncio.timeout(10):
        while not await asyncio.to_thread(run_sql, server, waits):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_a_row_that_another_holds_too_long_is_typed(postgres):
    async def scene():
        schema = new_schema()
        # Long enough for a connection on a busy machine: the wait for one has the same limit.
        async with PostgresStore(postgres.url, schema=schema, busy=0.5) as store:
            await store.commit(CREATE)
            async with await psycopg.AsyncConnection.connect(postgres.url) as rival:
                await rival.execute(f"SELECT 1 FROM {schema}.session FOR UPDATE")
                with pytest.raises(HoldfastError, match="another process holds the row") as caught:
                    await store.commit(append("a"))
            assert caught.value.fault.code == "SESS_STORE_UNAVAILABLE"
            assert (await store.commit(append("a"))).top == 1

    asyncio.run(scene())


def test_a_server_that_takes_no_writes_is_typed(postgres):
    run_sql(postgres, "CREATE DATABASE standby")

    async def scene():
        url = postgres.url.replace("/postgres", "/standby")
        async with PostgresStore(url) as store:
            await store.commit(CREATE)
        run_sql(postgres, "ALTER DATABASE standby SET default_transaction_read_only = on")
        with pytest.raises(HoldfastError, match="takes no writes") as caught:
            async with PostgresStore(url):
                pass
        assert caught.value.fault.code == "SESS_STORE_UNAVAILABLE"

    asyncio.run(scene())


def test_what_was_acknowledged_is_on_disk_whatever_the_role_is_set_to(postgres):
    """The private server's own default is off, for speed."""

    async def scene():
        schema = new_schema()
        async with PostgresStore(postgres.url, schema=schema) as store:
            await store.commit(CREATE)
            run_sql(postgres, f"CREATE TABLE {schema}.seen (setting TEXT)")
            run_sql(
                postgres,
                f"CREATE FUNCTION {schema}.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO"
                f" {schema}.seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$",
            )
            run_sql(
                postgres,
                f"CREATE TRIGGER see AFTER INSERT ON {schema}.entry FOR EACH ROW EXECUTE FUNCTION {schema}.see()",
            )
            await store.commit(append("a"))
            seen = run_sql(postgres, f"SELECT setting FROM {schema}.seen")
        assert run_sql(postgres, "SHOW synchronous_commit") == [("off",)]
        assert seen == [("on",)]

    asyncio.run(scene())


def test_FD12_records_whose_chain_row_was_deleted_are_noticed(postgres):
    async def scene():
        schema = new_schema()
        record = NewAudit(kind="Turn", correlation="run-1", payload=b"{}")
        async with PostgresStore(postgres.url, schema=schema) as store:
            for chain in ("mine", "other"):
                await store.commit(Commit(chain=chain, audit=(record,)))
            assert (await verify_store(store)).sound
            run_sql(postgres, f"DELETE FROM {schema}.chain WHERE name = 'mine'")
            return await verify_store(store)

    result = asyncio.run(scene())
    assert [broken.reason for broken in result.broken] == ["the records are there, but their chain is gone"]
    assert "run-1" in result.broken[0].chain
