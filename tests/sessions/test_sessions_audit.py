"""The audit chain of a session: what must be in it, and how a chain that somebody cut or removed is noticed."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import msgspec
import pytest
from sessions_kit import code_of, dies

from holdfast import Runtime, tool
from holdfast.faults import HoldfastError
from holdfast.runtime.runtime import use_runtime
from holdfast.sessions import Session
from holdfast.sessions.journal import audit
from holdfast.sessions.manifest import DriftWarning, decode_manifest
from holdfast.stores import Commit, MemoryStore, SqliteStore
from holdfast.stores.verification import ANCHORS, head_of, records_of, verify_store
from holdfast.tools import ToolError


@pytest.fixture(autouse=True)
def runtime():
    with use_runtime(Runtime(waits=False)):
        yield


async def payloads(store: Any, kind: str, chain: str = "session:s") -> list[dict[str, Any]]:
    return [msgspec.json.decode(one.payload) async for one in records_of(store, chain) if one.kind == kind]


def tamper(path: Any, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


OWN = "(SELECT key FROM chain WHERE name = 'session:s')"


async def work(store: Any, session: str = "s", steps: int = 1, **options: Any) -> None:
    @tool(effect="unsafe")
    def pay(n: int) -> int:
        return n

    async with Session.open(session, store=store, **options) as open_:
        for n in range(steps):
            await open_.step(pay, n)


def test_FD12_refused_drift_leaves_a_record():
    async def main():
        async with MemoryStore() as store:
            await work(store, model="opus")
            with pytest.raises(HoldfastError) as raised:
                await work(store, model="haiku", on_drift="refuse")
            assert code_of(raised.value) == "SESS_MANIFEST_DRIFT"
            # The session can still be opened: recording left neither a lease nor a state behind.
            await work(store, model="opus")
            return await payloads(store, "Integrity")

    (record,) = asyncio.run(main())
    assert record == {"drift": ["model was opus, is haiku"], "policy": "refuse"}


def test_FD12_removing_the_only_tool_is_drift():
    async def main():
        async with MemoryStore() as store:
            await work(store, tools={"bash": {"a": 1}})
            with pytest.warns(DriftWarning, match=r"tools\.bash"):
                await work(store, tools={})
            # Not naming the tools at all is no difference.
            await work(store)
            await work(store, session="t", tools={})
            with pytest.warns(DriftWarning, match=r"tools\.bash"):
                await work(store, session="t", tools={"bash": {}})

    asyncio.run(main())


def test_FD12_a_manifest_of_before_that_named_no_tools_is_no_drift():
    """Older manifests have no `tools` both if there were none and if nobody named them."""
    old = b'{"sessionId":"s","storeId":"m"}'
    assert decode_manifest("s", old).tools is None


@pytest.mark.parametrize("effect", ["read", "idempotent", "unsafe"])
def test_FD12_a_failed_step_done_again_after_a_restart_is_in_the_chain(effect):
    failing = [True, False]

    @tool(effect=effect)
    def work() -> int:
        if failing.pop(0):
            raise ToolError("not today")
        return 1

    async def main():
        async with MemoryStore() as store:
            with pytest.raises(ToolError, match="today"):
                async with Session.open("s", store=store) as session:
                    await session.step(work)
            async with Session.open("s", store=store) as session:
                assert await session.step(work) == 1
            return await payloads(store, "ToolInvocation"), await payloads(store, "Fault")

    invocations, faults = asyncio.run(main())
    assert len(faults) == 1
    assert [(one["repeated"], one["failed_before"]) for one in invocations if "repeated" in one] == [(True, True)]


def test_FD12_deleting_just_the_chain_row_is_noticed(tmp_path):
    path = tmp_path / "s.db"

    async def make():
        async with SqliteStore(path) as store:
            await work(store)
            await store.commit(Commit(chain="mine", audit=(audit("Turn", "run-1", n=1),)))

    async def verified():
        async with SqliteStore(path) as store:
            return await verify_store(store)

    asyncio.run(make())
    assert asyncio.run(verified()).sound
    tamper(path, "DELETE FROM chain WHERE name = 'mine'")
    result = asyncio.run(verified())
    assert not result.sound
    assert any("chain is gone" in broken.reason and "run-1" in broken.chain for broken in result.broken)


def test_FD12_a_cut_chain_is_noticed_through_the_stores_own_anchors(tmp_path):
    """Somebody removes the last records and writes the head to fit: the chain's own hashes cannot show it."""
    path = tmp_path / "s.db"

    async def make():
        async with SqliteStore(path) as store:
            await work(store, steps=3)
            head = await head_of(store, "session:s")
            assert head is not None
            return head.seq

    async def verified():
        async with SqliteStore(path) as store:
            return await verify_store(store)

    top = asyncio.run(make())
    assert asyncio.run(verified()).sound
    tamper(
        path,
        f"DELETE FROM audit WHERE chain = {OWN} AND seq > {top - 2}",
        f"UPDATE chain SET seq = {top - 2}, hash = (SELECT hash FROM audit WHERE chain = {OWN} AND seq = {top - 2})"
        " WHERE name = 'session:s'",
    )
    result = asyncio.run(verified())
    assert [(broken.chain, broken.seq) for broken in result.broken] == [("session:s", top)]


def test_FD12_a_removed_chain_with_its_records_is_noticed_too(tmp_path):
    path = tmp_path / "s.db"

    async def make():
        async with SqliteStore(path) as store:
            await work(store)

    async def verified():
        async with SqliteStore(path) as store:
            return await verify_store(store)

    asyncio.run(make())
    tamper(path, f"DELETE FROM audit WHERE chain = {OWN}", "DELETE FROM chain WHERE name = 'session:s'")
    result = asyncio.run(verified())
    assert [(broken.chain, broken.reason) for broken in result.broken] == [("session:s", "the whole chain is gone")]


def test_FD12_a_long_session_is_anchored_while_it_runs():
    async def main():
        async with MemoryStore() as store, Session.open("s", store=store) as session:

            @tool(effect="unsafe")
            def pay(n: int) -> int:
                return n

            for n in range(250):
                await session.step(pay, n)
            await asyncio.sleep(0)
            return await payloads(store, "Integrity", ANCHORS)

    anchors = asyncio.run(main())
    assert len(anchors) == 2
    assert all(anchor["chain"] == "session:s" and anchor["seq"] >= 100 for anchor in anchors)


def test_FD12_each_leaving_anchors_once_and_a_lost_session_does_not():
    async def main():
        async with MemoryStore() as store:
            await work(store)
            await work(store)
            assert len(await payloads(store, "Integrity", ANCHORS)) == 2
            with pytest.raises(HoldfastError) as raised:
                async with Session.open("s", store=store) as session:
                    await dies(session)
                    await store.acquire("s", "another", 100.0)
            assert code_of(raised.value) == "SESS_LEASE_LOST"
            return await payloads(store, "Integrity", ANCHORS), await verify_store(store)

    anchors, verified = asyncio.run(main())
    assert len(anchors) == 2
    assert verified.sound
