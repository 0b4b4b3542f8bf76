"""Cases: waiting for news, and giving up waiting."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from holdfast.testing.stores.kit import Kit, appending, case, create, everything, refused

__all__: list[str] = []

_LONG = 20.0
"""More than any of it takes."""


@case
async def news_that_is_there_is_not_waited_for(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("a"))
        assert await store.changed("s1", 0, _LONG)


@case
async def whoever_waits_is_woken_by_a_commit(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await create(store, "s2")
        waiting = [asyncio.create_task(store.changed("s1", 0, _LONG)) for _ in range(3)]
        await asyncio.sleep(0.01)
        await store.commit(appending("x", session="s2"))
        assert not any(task.done() for task in waiting)
        await store.commit(appending("a"))
        async with asyncio.timeout(_LONG / 4):
            assert await asyncio.gather(*waiting) == [True, True, True]


@case
async def waiting_ends_with_its_time(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        assert not await store.changed("s1", 0, 0.02)
        with refused("SESS_NOT_FOUND"):
            await store.changed("s9", 0, 0.02)


@case
async def whoever_waits_may_be_cancelled(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        task = asyncio.create_task(store.changed("s1", 0, _LONG))
        await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        await store.commit(appending("a"))
        assert await store.changed("s1", 0, _LONG)


@case
async def a_cancelled_commit_is_stored_once_or_not_at_all(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        stored: set[str] = set()
        for n in range(12):
            task = asyncio.create_task(store.commit(appending(f"c{n}-a", f"c{n}-b")))
            for _ in range(n):
                await asyncio.sleep(0)
            if task.cancel():
                with suppress(asyncio.CancelledError):
                    await task
            if not task.cancelled():
                stored |= {f"c{n}-a", f"c{n}-b"}
        last = await store.commit(appending("last"))
        log = await everything(store)
        ids = [entry.id for entry in log]
        assert [entry.offset for entry in log] == list(range(1, last.top + 1))
        assert len(set(ids)) == len(ids)
        assert stored <= set(ids)
        assert {id_.removesuffix("-a") for id_ in ids if id_.endswith("-a")} == {
            id_.removesuffix("-b") for id_ in ids if id_.endswith("-b")
        }
