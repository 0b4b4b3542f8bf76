"""Cases: a claim takes effect once, and a repeated claim gets the first receipt."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.stores import Commit, NewAudit, NewSession, SessionState
from holdfast.stores.records import StoredClaim
from holdfast.testing.stores.conformance import Kit, appending, case, claim, create, everything, raises_fault

__all__: list[str] = []

_KEPT = 1_000
"""How many claims a session keeps at any age."""


@case
async def the_same_claim_gives_the_first_receipt(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        first = await store.commit(appending("a", claim=claim(result=b'{"answer":42}')))
        # The repeated claim must get the time of the first commit, not a new time.
        kit.clock.advance(60)
        await store.commit(appending("b"))
        again = await store.commit(appending("a2", claim=claim(result=b'{"answer":"another"}')))
        assert again.duplicate
        assert msgspec.structs.replace(again, duplicate=False, result=first.result) == first
        assert bytes(again.result) == bytes(first.result) == b'{"answer":42}'
        assert [entry.id for entry in await everything(store)] == ["a", "b"]


@case
async def a_claim_with_another_body_is_rejected(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("a", claim=claim()))
        with raises_fault("PROTO_DUPLICATE_ID") as faults:
            await store.commit(appending("b", claim=claim(body=b"another")))
        assert faults[0].context["id"] == "m1"
        assert [entry.id for entry in await everything(store)] == ["a"]


@case
async def ids_belong_to_a_client_and_a_session(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store, "s1")
        await create(store, "s2")
        # Clients choose their ids without knowing each other.
        another = msgspec.structs.replace(claim(body=b"two"), client="c2")
        receipts = [
            await store.commit(appending("a", claim=claim())),
            await store.commit(appending("b", claim=another)),
            await store.commit(appending("c", session="s2", claim=claim(body=b"three"))),
        ]
        assert not any(receipt.duplicate for receipt in receipts)


@case
async def one_of_several_concurrent_claims_wins(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        # If a client retries in parallel, the effect must still happen once.
        receipts = await asyncio.gather(*(store.commit(appending(f"a{n}", claim=claim())) for n in range(8)))
        assert sorted(receipt.duplicate for receipt in receipts) == [False] + [True] * 7
        assert {(receipt.first, receipt.top, receipt.at) for receipt in receipts} == {(1, 1, receipts[0].at)}
        assert len(await everything(store)) == 1


@case
async def a_claim_may_create_its_session(kit: Kit) -> None:
    async with kit.store() as store:
        made = await store.commit(appending("a", create=NewSession(manifest=b"{}"), claim=claim()))
        again = await store.commit(appending("a", claim=claim()))
        assert (made.first, made.duplicate, again.first, again.duplicate) == (1, False, 1, True)


@case
async def a_claim_without_a_result_gives_null(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        nothing = msgspec.structs.replace(claim(), result=b"null")
        await store.commit(appending("a", claim=nothing))
        assert bytes((await store.commit(appending("a", claim=nothing))).result) == b"null"


@case
async def a_known_claim_is_rejected_by_a_closed_session(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("a", claim=claim(), state=SessionState.CLOSED))
        # The session's state is checked first: a closed session accepts no write at all.
        with raises_fault("SESS_CLOSED"):
            await store.commit(appending("a", claim=claim()))


@case
async def old_claims_are_forgotten_but_not_the_last_thousand(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        for n in range(3):
            await store.commit(appending(f"old{n}", claim=claim(f"old{n}")))
        kit.clock.advance(60)
        # Add exactly the number of claims that is kept, so that the older claims may be dropped.
        await asyncio.gather(*(store.commit(appending(f"n{n}", claim=claim(f"new{n}"))) for n in range(_KEPT)))
        await store.forget_claims("s1", kit.clock.wall() - 120)
        assert (await store.commit(appending("x", claim=claim("old0")))).duplicate
        await store.forget_claims("s1", kit.clock.wall() + 60)
        assert not (await store.commit(appending("x", claim=claim("old1")))).duplicate
        assert (await store.commit(appending("x", claim=claim("new0")))).duplicate
        assert (await store.commit(appending("x", claim=claim(f"new{_KEPT - 1}")))).duplicate


@case
async def fewer_than_a_thousand_claims_are_all_kept(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("a", claim=claim()))
        await store.forget_claims("s1", kit.clock.wall() + 3_600)
        assert (await store.commit(appending("a", claim=claim()))).duplicate
        with raises_fault("SESS_NOT_FOUND"):
            await store.forget_claims("s9", 0)


@case
async def claims_are_listed_page_by_page_with_their_receipts(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        for number in range(3):
            await store.commit(appending(f"e{number}", claim=claim(f"m{number}", result=b'{"n":%d}' % number)))
        page = await store.claims("s1", limit=2)
        assert [(one.id, one.first, one.result) for one in page] == [("m0", 1, b'{"n":0}'), ("m1", 2, b'{"n":1}')]
        rest = await store.claims("s1", after=(page[-1].client, page[-1].id))
        assert [one.id for one in rest] == ["m2"]
        with raises_fault("SESS_NOT_FOUND"):
            await store.claims("nobody")


@case
async def a_created_session_can_bring_claims_along(kit: Kit) -> None:
    async with kit.store() as store:
        made = claim("m1", result=b'{"n":1}')
        known = StoredClaim(
            client=made.client, id="m1", body_hash=made.body_hash, at=5.0, first=1, top=1, result=made.result
        )
        await store.commit(Commit(session="s1", create=NewSession(manifest=b"{}"), claims=(known,)))
        assert await store.claims("s1") == [known]
        again = await store.commit(appending("a", claim=made))
        assert (again.duplicate, again.first, bytes(again.result)) == (True, 1, b'{"n":1}')
        with raises_fault("CONFIG_OPTION_INVALID"):
            await store.commit(Commit(session="s1", claims=(known,)))


@case
async def a_sound_store_has_no_orphans(kit: Kit) -> None:
    async with kit.store() as store:
        record = NewAudit(kind="Turn", correlation="run-1", payload=b"{}")
        await store.commit(Commit(chain="mine", audit=(record,)))
        assert await store.orphans() == []
