"""Cases of durable stores: what was stored is there when the store is opened again."""

from __future__ import annotations

import msgspec

from holdfast.stores import Commit, NewCheckpoint, SessionState
from holdfast.stores.chain import verify
from holdfast.testing.stores.kit import Kit, appending, audit, case, claim, create, everything, refused

__all__: list[str] = []


@case
async def a_store_is_the_same_when_opened_again(kit: Kit) -> None:
    async with kit.store() as store:
        first = store.id
    async with kit.store() as store:
        assert store.id == first != ""


@case
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
        with refused("SESS_LEASE_LOST"):
            await store.acquire("s1", "other", 60)
        again = await store.commit(
            Commit(session="s1", fence=lease.fence, entries=appending("c").entries, audit=(audit(2),))
        )
        assert (again.first, again.epoch) == (3, stored.epoch)
        last, _, broken = verify(await store.audit("session:s1"))
        assert (last, broken) == (2, None)


@case
async def what_is_not_open_says_so(kit: Kit) -> None:
    store = kit.store()
    with refused("SESS_STORE_UNAVAILABLE"):
        await store.session("s1")
    async with store:
        await create(store)
    with refused("SESS_STORE_UNAVAILABLE"):
        await store.commit(appending("a"))
    with refused("SESS_STORE_UNAVAILABLE"):
        await store.session("s1")


def _plain(value: object) -> bytes:
    return msgspec.json.encode(value)
