"""Cases: the chains of the audit trail."""

from __future__ import annotations

import asyncio

from holdfast.stores import Commit
from holdfast.stores.chain import verify
from holdfast.testing.stores.conformance import Kit, appending, audit, case, create

__all__: list[str] = []


@case
async def a_chain_is_continuous_and_verifies(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("a", audit=(audit(1), audit(2))))
        # The sequence and the hashes must be correct even if the wall clock is set back.
        kit.clock.jump(-60)
        await store.commit(Commit(session="s1", audit=(audit(3),)))
        records = await store.audit("session:s1")
        assert [(r.seq, r.kind, r.correlation, bytes(r.payload)) for r in records] == [
            (n, "Turn", "run-1", b'{"n":%d}' % n) for n in (1, 2, 3)
        ]
        last, sealed, broken = verify(records)
        assert (last, broken) == (3, None)
        assert await store.chains() == [("session:s1", 3, sealed.hex())]


@case
async def concurrent_writers_make_one_chain(kit: Kit) -> None:
    async with kit.store() as store:
        for name in ("s1", "s2", "s3"):
            await create(store, name)
        # Two writers that read the same last hash would make two branches, and the chain would not verify.
        await asyncio.gather(
            *(
                store.commit(Commit(session=f"s{1 + n % 3}", chain="shared", audit=(audit(n), audit(n))))
                for n in range(12)
            ),
            *(store.commit(Commit(chain="shared", audit=(audit(n),))) for n in range(6)),
        )
        records = await store.audit("shared")
        last, sealed, broken = verify(records)
        assert (last, broken) == (30, None)
        assert await store.chains() == [("shared", 30, sealed.hex())]


@case
async def a_chain_needs_no_session(kit: Kit) -> None:
    async with kit.store() as store:
        receipt = await store.commit(Commit(chain="runtime:main", audit=(audit(1),)))
        assert (receipt.first, receipt.top, receipt.at) == (0, 0, kit.clock.wall())
        assert [record.seq for record in await store.audit("runtime:main")] == [1]
        assert await store.sessions() == []


@case
async def chains_are_read_by_pages(kit: Kit) -> None:
    async with kit.store() as store:
        # Use lower and upper case, because every database must sort by bytes.
        names = sorted(["b", "A", "a", "B", "c"])
        for name in names:
            await store.commit(Commit(chain=name, audit=tuple(audit(n) for n in range(5))))
        pages = [await store.chains(limit=2), await store.chains(after=names[1], limit=2)]
        assert [[name for name, _, _ in page] for page in pages] == [names[:2], names[2:4]]
        parts = [
            await store.audit("a", limit=2),
            await store.audit("a", after=2, limit=2),
            await store.audit("a", after=5),
        ]
        assert [[record.seq for record in part] for part in parts] == [[1, 2], [3, 4], []]
        assert await store.audit("none") == []
