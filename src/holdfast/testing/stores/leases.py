"""Cases: a session has one owner at a time, and writes of former owners fail."""

from __future__ import annotations

import asyncio

from holdfast.faults import HoldfastError
from holdfast.stores import Lease
from holdfast.testing.stores.conformance import Kit, appending, case, create, everything, raises_fault

__all__: list[str] = []


@case
async def a_session_has_one_owner(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        lease = await store.acquire("s1", "a", 10)
        assert (lease.session, lease.owner, lease.fence, lease.until) == ("s1", "a", 1, kit.clock.wall() + 10)
        with raises_fault("SESS_LEASE_LOST") as faults:
            await store.acquire("s1", "b", 10)
        assert faults[0].context["owner"] == "a"
        assert faults[0].retry_after is not None
        # Check a range, because a store may round times.
        assert 9 <= faults[0].retry_after <= 10
        record = await store.session("s1")
        assert (record.owner, record.fence, record.lease_until) == ("a", 1, lease.until)


@case
async def one_of_several_concurrent_owners_wins(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        # Two hosts that restart at the same time both try to take over.
        taken = await asyncio.gather(*(store.acquire("s1", f"o{n}", 10) for n in range(6)), return_exceptions=True)
        (won,) = (lease for lease in taken if isinstance(lease, Lease))
        lost = [error for error in taken if isinstance(error, HoldfastError)]
        assert [error.fault.code for error in lost] == ["SESS_LEASE_LOST"] * 5
        assert (await store.session("s1")).owner == won.owner


@case
async def a_lease_ends(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        first = await store.acquire("s1", "a", 10)
        # Go a little past the end, because a store may round times.
        kit.clock.advance(10.5)
        second = await store.acquire("s1", "b", 10)
        assert second.fence > first.fence


@case
async def a_record_says_how_long_its_lease_lasts(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        free = (await store.session("s1")).lease_left
        lease = await store.acquire("s1", "a", 10)
        kit.clock.advance(4)
        (listed,) = await store.sessions()
        # None: the store does not know it. Check ranges, because a store may round times.
        for record in (listed, await store.session("s1")):
            assert record.lease_left is None or 5 <= record.lease_left <= 6
        kit.clock.advance(7)
        ended = (await store.session("s1")).lease_left
        await store.release(lease)
        released = (await store.session("s1")).lease_left
        assert all(left is None or left <= 0 for left in (free, ended, released)), (free, ended, released)


@case
async def a_former_owner_cannot_write_renew_or_release(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        old = await store.acquire("s1", "a", 10)
        await store.commit(appending("a1", fence=old.fence))
        kit.clock.advance(11)
        new = await store.acquire("s1", "b", 10)
        with raises_fault("SESS_LEASE_LOST"):
            await store.commit(appending("a2", fence=old.fence))
        with raises_fault("SESS_LEASE_LOST"):
            await store.renew(old, 10)
        with raises_fault("SESS_LEASE_LOST"):
            await store.compact("s1", 1, fence=old.fence)
        # This raises no error: a former owner can shut down cleanly, and the new owner keeps the session.
        await store.release(old)
        assert (await store.session("s1")).owner == "b"
        await store.commit(appending("b1", fence=new.fence))
        assert [entry.id for entry in await everything(store)] == ["a1", "b1"]


@case
async def an_expired_lease_still_writes_until_it_is_taken(kit: Kit) -> None:
    """After the end of a lease others may take the session. Until somebody takes it, the old owner may still write."""
    async with kit.store() as store:
        await create(store)
        lease = await store.acquire("s1", "a", 10)
        kit.clock.advance(60)
        await store.commit(appending("a", fence=lease.fence))
        assert (await store.renew(lease, 10)).until == kit.clock.wall() + 10


@case
async def a_renewed_lease_lasts(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        lease = await store.acquire("s1", "a", 10)
        kit.clock.advance(8)
        renewed = await store.renew(lease, 10)
        assert (renewed.fence, renewed.until) == (lease.fence, kit.clock.wall() + 10)
        kit.clock.advance(8)
        with raises_fault("SESS_LEASE_LOST"):
            await store.acquire("s1", "b", 10)


@case
async def many_leases_are_renewed_at_once_from_another_thread(kit: Kit) -> None:
    async with kit.store() as store:
        leases = []
        for n in range(4):
            await create(store, f"s{n}")
            leases.append(await store.acquire(f"s{n}", f"o{n}", 10))
        await store.acquire("s1", "o1", 10)
        await store.release(leases[2])
        kit.clock.advance(8)
        missing = Lease(session="s9", owner="a", fence=1, until=0.0)
        renewed = await asyncio.to_thread(store.renew_all, [*leases, missing], 10)
        assert [(lease.session, lease.fence) for lease in renewed] == [("s0", 1), ("s3", 1)]
        assert {lease.until for lease in renewed} == {kit.clock.wall() + 10}
        kit.clock.advance(8)
        for session in ("s0", "s3"):
            with raises_fault("SESS_LEASE_LOST"):
                await store.acquire(session, "b", 10)
        for session in ("s1", "s2"):
            await store.acquire(session, "b", 10)
        assert await asyncio.to_thread(store.renew_all, [], 10) == []


@case
async def a_released_lease_is_free_at_once(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        first = await store.acquire("s1", "a", 60)
        await store.release(first)
        assert (await store.session("s1")).owner is None
        second = await store.acquire("s1", "b", 60)
        assert second.fence > first.fence
        with raises_fault("SESS_LEASE_LOST"):
            await store.commit(appending("x", fence=first.fence))


@case
async def an_owner_may_acquire_again_and_fences_off_its_old_lease(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        before = await store.acquire("s1", "a", 60)
        after = await store.acquire("s1", "a", 60)
        assert after.fence > before.fence
        with raises_fault("SESS_LEASE_LOST"):
            await store.commit(appending("x", fence=before.fence))
        await store.commit(appending("y", fence=after.fence))


@case
async def a_missing_session_cannot_be_owned(kit: Kit) -> None:
    async with kit.store() as store:
        nobody = Lease(session="s9", owner="a", fence=1, until=0.0)
        with raises_fault("SESS_NOT_FOUND"):
            await store.acquire("s9", "a", 10)
        with raises_fault("SESS_NOT_FOUND"):
            await store.renew(nobody, 10)
        with raises_fault("SESS_NOT_FOUND"):
            await store.release(nobody)
