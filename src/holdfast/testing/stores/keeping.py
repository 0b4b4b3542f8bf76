"""Cases: checkpoints, and forgetting what they hold."""

from __future__ import annotations

from holdfast.stores import Commit, NewCheckpoint, SessionState
from holdfast.testing.stores.kit import Kit, appending, audit, case, claim, create, everything, refused

__all__: list[str] = []


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
async def what_no_checkpoint_holds_is_not_forgotten(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("a", "b"))
        assert await store.compact("s1", 100) == 0
        await store.commit(Commit(session="s1", checkpoint=_snapshot(2)))
        await store.commit(appending("c", "d"))
        assert await store.compact("s1", 100) == 2
        assert [(entry.offset, entry.id) for entry in await everything(store)] == [(3, "c"), (4, "d")]
        assert (await store.session("s1")).oldest == 3


@case
async def entries_before_an_offset_are_forgotten_once(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending(*"abcde", checkpoint=_snapshot(5)))
        assert [await store.compact("s1", before) for before in (0, 1, 3, 3, 2, 4)] == [0, 0, 2, 0, 0, 1]
        assert [entry.offset for entry in await everything(store)] == [4, 5]
        assert (await store.commit(appending("f"))).first == 6
        with refused("SESS_NOT_FOUND"):
            await store.compact("s9", 1)


@case
async def a_log_may_be_forgotten_whole_and_goes_on(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("a", "b", checkpoint=_snapshot(2)))
        assert await store.compact("s1", 3) == 2
        assert await store.read("s1", after=2) == []
        await store.commit(appending("c"))
        assert [entry.offset for entry in await store.read("s1", after=2)] == [3]


@case
async def only_a_session_that_ended_is_removed(kit: Kit) -> None:
    async with kit.store() as store:
        made = await create(store)
        with refused("SESS_ILLEGAL_TRANSITION"):
            await store.remove("s1")
        await store.commit(
            appending("a", checkpoint=_snapshot(1), claim=claim(), audit=(audit(),), state=SessionState.CLOSED)
        )
        await store.remove("s1")
        for gone in (store.session("s1"), store.read("s1"), store.checkpoint("s1"), store.remove("s1")):
            with refused("SESS_NOT_FOUND"):
                await gone
        assert await store.sessions() == []
        assert len(await store.audit("session:s1")) == 1
        again = await create(store)
        assert again.epoch != made.epoch
        assert (await store.session("s1")).top == 0
        assert await store.checkpoint("s1") is None
        assert not (await store.commit(appending("a", claim=claim()))).duplicate
