"""Cases: what a store keeps and what it forgets: checkpoints, compaction, removal, closing and opening again."""

from __future__ import annotations

import msgspec

from holdfast.stores import Commit, NewCheckpoint, SessionState
from holdfast.stores.chain import verify
from holdfast.testing.stores.conformance import (
    Kit,
    appending,
    audit,
    case,
    claim,
    create,
    durable_case,
    everything,
    raises_fault,
)


def _snapshot(n: int) -> NewCheckpoint:
    return NewCheckpoint(message_count=n, last_message_id=f"m{n}", snapshot=b'{"n":%d}' % n)


@case
async def the_last_checkpoint_is_kept(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        assert await store.checkpoint("s1") is None
        await store.commit(appending("a", "b", checkpoint=_snapshot(1)))
        await store.commit(appending("c"))
        first = await store.checkpoint("s1")
        kit.clock.advance(1)
        await store.commit(Commit(session="s1", checkpoint=_snapshot(2)))
        second = await store.checkpoint("s1")
        assert first is not None
        assert second is not None
        assert (first.offset, first.message_count, bytes(first.snapshot)) == (2, 1, b'{"n":1}')
        assert (second.offset, second.last_message_id, bytes(second.snapshot)) == (3, "m2", b'{"n":2}')
        assert second.at > first.at
        assert (await store.session("s1")).checkpoint == 3


@case
async def entries_that_no_checkpoint_covers_are_kept(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("a", "b"))
        # Without a checkpoint these entries are the only copy.
        assert await store.compact("s1", 100) == 0
        await store.commit(Commit(session="s1", checkpoint=_snapshot(2)))
        await store.commit(appending("c", "d"))
        assert await store.compact("s1", 100) == 2
        assert [(entry.offset, entry.id) for entry in await everything(store)] == [(3, "c"), (4, "d")]
        assert (await store.session("s1")).oldest == 3


@case
async def entries_before_an_offset_are_compacted_once(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending(*"abcde", checkpoint=_snapshot(5)))
        assert [await store.compact("s1", before) for before in (0, 1, 3, 3, 2, 4)] == [0, 0, 2, 0, 0, 1]
        assert [entry.offset for entry in await everything(store)] == [4, 5]
        assert (await store.commit(appending("f"))).first == 6
        with raises_fault("SESS_NOT_FOUND"):
            await store.compact("s9", 1)


@case
async def a_fully_compacted_log_goes_on(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("a", "b", checkpoint=_snapshot(2)))
        assert await store.compact("s1", 3) == 2
        assert await store.read("s1", after=2) == []
        await store.commit(appending("c"))
        assert [entry.offset for entry in await store.read("s1", after=2)] == [3]


@case
async def only_a_closed_session_is_removed(kit: Kit) -> None:
    async with kit.store() as store:
        made = await create(store)
        with raises_fault("SESS_ILLEGAL_TRANSITION"):
            await store.remove("s1")
        await store.commit(
            appending("a", checkpoint=_snapshot(1), claim=claim(), audit=(audit(),), state=SessionState.CLOSED)
        )
        await store.remove("s1")
        for gone in (store.session("s1"), store.read("s1"), store.checkpoint("s1"), store.remove("s1")):
            with raises_fault("SESS_NOT_FOUND"):
                await gone
        assert await store.sessions() == []
        # The audit trail must stay after the session is removed.
        assert len(await store.audit("session:s1")) == 1
        again = await create(store)
        # A reader of the old session must notice that this is a new session.
        assert again.epoch != made.epoch
        assert (await store.session("s1")).top == 0
        assert await store.checkpoint("s1") is None
        assert not (await store.commit(appending("a", claim=claim()))).duplicate


@durable_case
async def a_store_is_the_same_when_opened_again(kit: Kit) -> None:
    async with kit.store() as store:
        first = store.id
    async with kit.store() as store:
        assert store.id == first != ""


@durable_case
async def everything_is_there_when_opened_again(kit: Kit) -> None:
    snapshot = NewCheckpoint(message_count=2, last_message_id="b", snapshot=b'{"n":2}')
    async with kit.store() as store:
        await create(store)
        lease = await store.acquire("s1", "me", 60)
        stored = await store.commit(
            appending("a", "b", checkpoint=snapshot, claim=claim(), audit=(audit(1),), state=SessionState.PAUSED)
        )
        before = (
            await store.session("s1"),
            await everything(store),
            await store.checkpoint("s1"),
            await store.chains(),
        )
    async with kit.store() as store:
        after = (await store.session("s1"), await everything(store), await store.checkpoint("s1"), await store.chains())
        assert _plain(after) == _plain(before)
        assert (await store.commit(appending("a", claim=claim()))).first == stored.first
        with raises_fault("SESS_LEASE_LOST"):
            await store.acquire("s1", "other", 60)
        again = await store.commit(
            Commit(session="s1", fence=lease.fence, entries=appending("c").entries, audit=(audit(2),))
        )
        assert (again.first, again.epoch) == (3, stored.epoch)
        last, _, broken = verify(await store.audit("session:s1"))
        assert (last, broken) == (2, None)


@durable_case
async def a_store_that_is_not_open_raises(kit: Kit) -> None:
    store = kit.store()
    with raises_fault("SESS_STORE_UNAVAILABLE"):
        await store.session("s1")
    async with store:
        await create(store)
    with raises_fault("SESS_STORE_UNAVAILABLE"):
        await store.commit(appending("a"))
    with raises_fault("SESS_STORE_UNAVAILABLE"):
        await store.session("s1")


def _plain(value: object) -> bytes:
    return msgspec.json.encode(value)
