"""`holdfast audit tail`: the newest records, and with --follow those to come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.cli.audit_records import order, show
from holdfast.cli.exits import Exit
from holdfast.cli.stored import with_store
from holdfast.stores.verifying import heads_of, records_of

if TYPE_CHECKING:
    from holdfast.cli.audit_records import Form, Wanted
    from holdfast.stores.records import AuditRecord
    from holdfast.stores.store import Store
    from holdfast.stores.verifying import Head

__all__ = ["audit_tail"]

LOOK_AGAIN_S = 0.5
_LEAST_PAGE = 100


def audit_tail(url: str | None, wanted: Wanted, *, lines: int, follow: bool, form: Form) -> Exit:
    """Show the newest records of all chains together; go on with new ones until Ctrl-C."""

    async def tail(store: Store) -> Exit:
        heads = [head async for head in heads_of(store) if wanted.reads(head.chain)]
        show(await _newest(store, wanted, heads, lines), form)
        if follow:
            await _follow(store, wanted, {head.chain: head.seq for head in heads}, form)
        return Exit.OK

    return with_store(url, tail)


async def _newest(store: Store, wanted: Wanted, heads: list[Head], count: int) -> list[AuditRecord]:
    found = [record for head in heads for record in await _end_of(store, wanted, head, count)]
    found.sort(key=order)
    return found[len(found) - min(count, len(found)) :]


async def _end_of(store: Store, wanted: Wanted, head: Head, count: int) -> list[AuditRecord]:
    """Return the last wanted records of a chain, reading it from its end."""
    found: list[AuditRecord] = []
    end, step = head.seq, max(count, _LEAST_PAGE)
    while end > 0 and len(found) < count:
        begin = max(0, end - step)
        page = await store.audit(head.chain, after=begin, limit=end - begin)
        found = [record for record in page if record.seq <= end and wanted.fits(record)] + found
        end = begin
    return found[len(found) - min(count, len(found)) :]


async def _follow(store: Store, wanted: Wanted, seen: dict[str, int], form: Form) -> None:
    while True:
        new: list[AuditRecord] = []
        async for head in heads_of(store):
            after = seen.get(head.chain, 0)
            if head.seq > after and wanted.reads(head.chain):
                async for record in records_of(store, head.chain, after=after):
                    seen[head.chain] = record.seq
                    new.append(record)
        new.sort(key=order)
        if fitting := [record for record in new if wanted.fits(record)]:
            show(fitting, form)
        await asyncio.sleep(LOOK_AGAIN_S)
