"""Cases: pages of logs and sessions, and waiting for changes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from holdfast.stores import Commit, NewCheckpoint, NewEntry, SessionState
from holdfast.testing.stores.conformance import Kit, appending, case, create, everything, raises_fault

_ID_ORDER = sorted(["B2", "a1", "A1", "b_1", "b-1", "b.1", "b:1", "10", "9", "Z", "z"])
"""Ids in the order of bytes, capitals first. A database with a locale would sort them in another order."""


@case
async def a_log_is_read_by_pages(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        assert await store.read("s1") == []
        await store.commit(appending(*(f"e{n}" for n in range(1, 26))))
        seen: list[int] = []
        while page := await store.read("s1", after=len(seen), limit=10):
            assert len(page) <= 10
            seen += [entry.offset for entry in page]
        assert seen == list(range(1, 26))
        assert await store.read("s1", after=25) == []


@case
async def a_page_is_bounded_in_bytes_but_never_empty(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        # One entry alone exceeds the limit. An empty page would look like the end of the log.
        sizes = {"small": 10, "huge": 300_000, "after": 10}
        for id_, size in sizes.items():
            body = b'"' + b"x" * (size - 2) + b'"'
            await store.commit(Commit(session="s1", entries=(NewEntry(type="t", body=body, id=id_),)))
        pages = [[entry.id for entry in await store.read("s1", after=n, max_bytes=1_000)] for n in range(3)]
        assert pages == [["small"], ["huge"], ["after"]]
        assert len(await store.read("s1", max_bytes=300_010)) == 2
        assert len(await store.read("s1", max_bytes=300_020)) == 3


@case
async def offsets_before_the_log_and_after_it_are_gaps(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        snapshot = NewCheckpoint(message_count=0, last_message_id=None, snapshot=b"{}")
        await store.commit(appending(*"abcde", checkpoint=snapshot))
        # Entries 1 to 3 are gone, 4 and 5 are left.
        await store.compact("s1", 4)
        with raises_fault("SESS_GAP") as behind:
            await store.read("s1", after=2)
        assert (behind[0].context["oldest"], behind[0].context["top"]) == (4, 5)
        assert behind[0].context["reason"] == "evicted"
        with raises_fault("SESS_GAP") as ahead:
            await store.read("s1", after=6)
        assert ahead[0].context["reason"] == "ahead"
        assert [entry.id for entry in await store.read("s1", after=3)] == ["d", "e"]


@case
async def sessions_are_paged_in_the_order_of_their_ids(kit: Kit) -> None:
    async with kit.store() as store:
        for name in reversed(_ID_ORDER):
            await create(store, name)
        seen: list[str] = []
        while page := await store.sessions(after=seen[-1] if seen else "", limit=4):
            assert len(page) <= 4
            seen += [record.id for record in page]
        assert seen == _ID_ORDER


@case
async def sessions_are_chosen_by_their_states(kit: Kit) -> None:
    async with kit.store() as store:
        states = {
            "a": SessionState.ACTIVE,
            "b": SessionState.PAUSED,
            "c": SessionState.CLOSED,
            "d": SessionState.PAUSED,
        }
        for name, state in states.items():
            await create(store, name, state)
        paused = await store.sessions(states=(SessionState.PAUSED,))
        either = await store.sessions(states=(SessionState.PAUSED, SessionState.CLOSED), after="b", limit=1)
        assert [record.id for record in paused] == ["b", "d"]
        assert [record.id for record in either] == ["c"]
        assert await store.sessions(states=(SessionState.ERROR,)) == []


_LONG = 20.0
"""Longer than any case takes."""


@case
async def a_change_that_is_already_there_is_not_waited_for(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("a"))
        assert await store.changed("s1", 0, _LONG)


@case
async def a_commit_wakes_all_waiters(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await create(store, "s2")
        waiting = [asyncio.create_task(store.changed("s1", 0, _LONG)) for _ in range(3)]
        # All tasks must wait before the commit, or the case proves nothing.
        await asyncio.sleep(0.01)
        await store.commit(appending("x", session="s2"))
        assert not any(task.done() for task in waiting)
        await store.commit(appending("a"))
        async with asyncio.timeout(_LONG / 4):
            assert await asyncio.gather(*waiting) == [True, True, True]


@case
async def waiting_ends_with_its_timeout(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        assert not await store.changed("s1", 0, 0.02)
        with raises_fault("SESS_NOT_FOUND"):
            await store.changed("s9", 0, 0.02)


@case
async def a_waiter_may_be_cancelled(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        task = asyncio.create_task(store.changed("s1", 0, _LONG))
        await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):  # the cancellation is the case
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
            # Cancel each commit a little later than the one before, so that different moments are tested.
            for _ in range(n):
                await asyncio.sleep(0)
            if task.cancel():
                with suppress(asyncio.CancelledError):  # the cancellation is the case
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
