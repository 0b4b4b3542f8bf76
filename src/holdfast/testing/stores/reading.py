"""Cases: pages of logs and sessions."""

from __future__ import annotations

from holdfast.stores import Commit, NewCheckpoint, NewEntry, SessionState
from holdfast.testing.stores.kit import Kit, appending, case, create, refused

__all__: list[str] = []

_ID_ORDER = sorted(["B2", "a1", "A1", "b_1", "b-1", "b.1", "b:1", "10", "9", "Z", "z"])
"""The order of bytes: capitals before small letters, unlike a dictionary's."""


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
        sizes = {"small": 10, "huge": 300_000, "after": 10}
        for id_, size in sizes.items():
            body = b'"' + b"x" * (size - 2) + b'"'
            await store.commit(Commit(session="s1", entries=(NewEntry(type="t", body=body, id=id_),)))
        pages = [[entry.id for entry in await store.read("s1", after=n, max_bytes=1_000)] for n in range(3)]
        assert pages == [["small"], ["huge"], ["after"]]
        assert len(await store.read("s1", max_bytes=300_010)) == 2
        assert len(await store.read("s1", max_bytes=300_020)) == 3


@case
async def what_is_gone_and_what_is_not_yet_there_are_gaps(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        snapshot = NewCheckpoint(message_count=0, last_message_id=None, snapshot=b"{}")
        await store.commit(appending(*"abcde", checkpoint=snapshot))
        await store.compact("s1", 4)
        with refused("SESS_GAP") as behind:
            await store.read("s1", after=2)
        assert (behind[0].context["oldest"], behind[0].context["top"]) == (4, 5)
        assert behind[0].context["reason"] == "evicted"
        with refused("SESS_GAP") as ahead:
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
