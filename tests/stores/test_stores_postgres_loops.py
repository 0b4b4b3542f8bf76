"""One PostgresStore belongs to the event loop that opened it; another loop is told so, and can open it when that one has ended."""

from __future__ import annotations

import asyncio
import threading

import pytest
from stores_postgres_kit import new_schema

from holdfast.faults import InvalidError
from holdfast.stores import Commit, NewEntry, NewSession, SessionState
from holdfast.stores.postgres import PostgresStore

CREATE = Commit(session="s", create=NewSession(manifest=b"{}"), state=SessionState.ACTIVE)
APPEND = Commit(session="s", entries=(NewEntry(type="t", body=b"{}", id="e"),))


async def _entered(store):
    async with store:
        pass


CALLS = {
    "commit": lambda store: store.commit(APPEND),
    "submit": lambda store: _awaited(lambda: store.submit(APPEND)),
    "read": lambda store: store.read("s"),
    "acquire": lambda store: store.acquire("s", "a", 10),
    "changed": lambda store: store.changed("s", 0, 0.1),
    "open": _entered,
    "close": lambda store: store.__aexit__(None, None, None),
}


async def _awaited(begin):
    return await begin()


def _in_another_loop(call):
    raised = []

    def work():
        try:
            asyncio.run(call)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return raised


@pytest.mark.parametrize("what", CALLS)
def test_XD13_a_store_of_another_event_loop_says_what_to_do(postgres, what):
    async def scene():
        async with PostgresStore(postgres.url, schema=new_schema()) as store:
            await store.commit(CREATE)
            (error,) = await asyncio.to_thread(_in_another_loop, CALLS[what](store))
            assert isinstance(error, InvalidError), error
            assert "another event loop" in str(error)
            assert "open a store there" in str(error)
            # It is as it was. Leases are renewed from a thread, which has no loop.
            lease = await store.acquire("s", "a", 10)
            assert await asyncio.to_thread(store.renew_all, [lease], 10)
            await store.commit(APPEND)
            assert len(await store.read("s")) == 1

    asyncio.run(scene())


def test_XD13_a_store_can_be_opened_in_one_loop_after_the_other(postgres):
    store = PostgresStore(postgres.url, schema=new_schema())

    async def scene(commit):
        async with store:
            await store.commit(commit)

    asyncio.run(scene(CREATE))
    asyncio.run(scene(APPEND))
