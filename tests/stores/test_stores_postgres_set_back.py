"""A PostgreSQL database that is set back: a dump is restored, or a standby that was behind takes over."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
from stores_postgres_kit import new_schema

from holdfast import tool
from holdfast.faults import HoldfastError
from holdfast.sessions import DriftWarning, Session
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.postgres import PrivateServer, binaries

PAID: list[str] = []


@tool(effect="unsafe")
def pay(who):
    PAID.append(who)
    return f"paid {who}"


def _dump(server, schema):
    command = [str(binaries() / "pg_dump"), "--dbname", server.url, "--schema", schema, "--clean", "--if-exists"]
    return subprocess.run(command, capture_output=True, check=True).stdout


def _restore(server, dump):
    command = [
        str(binaries() / "psql"),
        "--dbname",
        server.url,
        "--quiet",
        "--set",
        "ON_ERROR_STOP=1",
        "-o",
        "/dev/null",
    ]
    subprocess.run(command, input=dump, check=True)


def test_XD5_a_dump_that_is_restored_under_a_running_session_stops_it(postgres):
    schema = new_schema()

    async def scene():
        PAID.clear()
        async with PostgresStore(postgres.url, schema=schema) as store:
            with pytest.raises(HoldfastError) as raised:
                async with Session.open("s", store=store) as session:
                    await session.step(pay, "ada")
                    dump = await asyncio.to_thread(_dump, postgres, schema)
                    await session.step(pay, "bob")
                    await asyncio.to_thread(_restore, postgres, dump)
                    await session.step(pay, "cyd")
            assert raised.value.fault.code == "SESS_MANIFEST_DRIFT"
            assert PAID == ["ada", "bob"]
            # The lease of the dump ends in the name of its owner.
            await store.acquire("s", (await store.session("s")).owner or "x", 0.0)
            with pytest.warns(DriftWarning, match="set back"):
                async with Session.open("s", store=store) as session:
                    await session.step(pay, "ada")

    asyncio.run(scene())


def test_XD5_a_restored_dump_is_noticed_when_a_session_is_resumed(postgres, caplog):
    schema = new_schema()

    async def run_program(**options):
        async with (
            PostgresStore(postgres.url, schema=schema) as store,
            Session.open("s", store=store, **options) as session,
        ):
            await session.step(pay, "ada")

    async def scene():
        await run_program()
        await run_program(on_drift="refuse")
        dump = await asyncio.to_thread(_dump, postgres, schema)
        await run_program(on_drift="refuse")
        assert "another server" not in caplog.text
        await asyncio.to_thread(_restore, postgres, dump)
        with pytest.raises(HoldfastError) as raised:
            await run_program(on_drift="refuse")
        assert raised.value.fault.code == "SESS_MANIFEST_DRIFT"
        assert "another server, timeline or table" in caplog.text
        with pytest.warns(DriftWarning):
            await run_program()
        # It was told once.
        await run_program(on_drift="refuse")

    asyncio.run(scene())


def test_XD5_a_store_whose_user_may_not_ask_for_the_timeline_has_no_epoch(postgres):
    schema = new_schema()

    async def scene():
        functions = "pg_control_system(), pg_walfile_name(pg_lsn)"
        async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as admin:
            await admin.execute(f"CREATE ROLE {schema} LOGIN")
            await admin.execute(f"GRANT CREATE ON DATABASE postgres TO {schema}")
            await admin.execute(f"REVOKE EXECUTE ON FUNCTION {functions} FROM PUBLIC")
            try:
                url = postgres.url.replace("holdfast@", f"{schema}@")
                async with PostgresStore(url, schema=schema) as store, Session.open("s", store=store) as session:
                    assert store.epoch is None
                    await session.step(pay, "ada")
            finally:
                await admin.execute(f"GRANT EXECUTE ON FUNCTION {functions} TO PUBLIC")

    asyncio.run(scene())


def _put_back(kept, data):
    owner = data.stat()
    shutil.rmtree(data)
    kept.rename(data)
    for path in (data, *data.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)


def test_XD5_a_server_that_comes_back_with_older_data_stops_the_sessions_that_run():
    async def scene(server, kept):
        PAID.clear()
        data = Path(server._data)
        async with PostgresStore(server.url) as store:
            with pytest.raises(HoldfastError) as raised:
                async with Session.open("s", store=store) as session:
                    await session.step(pay, "ada")
                    await asyncio.to_thread(server.stop)
                    await asyncio.to_thread(shutil.copytree, data, kept)
                    await asyncio.to_thread(server.start)
                    await session.step(pay, "bob")
                    await asyncio.to_thread(server.stop)
                    await asyncio.to_thread(_put_back, kept, data)
                    await asyncio.to_thread(server.start)
                    await session.step(pay, "cyd")
            assert raised.value.fault.code == "SESS_MANIFEST_DRIFT"
            assert PAID == ["ada", "bob"]

    with PrivateServer() as server:
        asyncio.run(scene(server, Path(server._folder, "kept")))
