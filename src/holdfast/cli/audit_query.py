"""`holdfast audit query`: the records that fit every filter."""

from __future__ import annotations

import heapq
from operator import itemgetter
from typing import TYPE_CHECKING

from holdfast.cli.audit_records import order, show
from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate
from holdfast.cli.stored import with_store
from holdfast.stores.verifying import heads_of, records_of

if TYPE_CHECKING:
    from holdfast.cli.audit_records import Form, Wanted
    from holdfast.stores.records import AuditRecord
    from holdfast.stores.store import Store

__all__ = ["audit_query"]


def audit_query(url: str | None, wanted: Wanted, *, limit: int, form: Form) -> Exit:
    """Show the newest `limit` records that fit, in the order of their times."""

    async def query(store: Store) -> Exit:
        records, count = await _fitting(store, wanted, limit)
        if records or form != "table":
            show(records, form)
        if not count:
            narrate("holdfast: no record fits all of these filters")
        elif count > limit:
            narrate(f"the newest {limit} of {count} records that fit; --limit shows more")
        return Exit.OK if count else Exit.NOT_FOUND

    return with_store(url, query)


async def _fitting(store: Store, wanted: Wanted, limit: int) -> tuple[list[AuditRecord], int]:
    """Return the newest that fit and how many fit; no more than `limit` are held."""
    kept: list[tuple[tuple[float, str, int], AuditRecord]] = []
    count = 0
    async for head in heads_of(store):
        if not wanted.reads(head.chain):
            continue
        async for record in records_of(store, head.chain):
            if wanted.fits(record):
                count += 1
                keep = heapq.heappush if len(kept) < limit else heapq.heappushpop
                keep(kept, (order(record), record))
    return [record for _, record in sorted(kept, key=itemgetter(0))], count
