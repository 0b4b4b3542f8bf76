"""`holdfast audit export`: the trail as JSON Lines, with the hashes it can be verified by."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.audit_records import payload_of
from holdfast.cli.audit_verify import leave
from holdfast.cli.stored import with_store
from holdfast.stores.verifying import verify_store

if TYPE_CHECKING:
    from holdfast.cli.audit_records import Wanted
    from holdfast.cli.exits import Exit
    from holdfast.stores.records import AuditRecord
    from holdfast.stores.store import Store

__all__ = ["audit_export"]


def audit_export(url: str | None, wanted: Wanted) -> Exit:
    """Write what fits, chain by chain; verify those chains on the way, and say their digest."""

    def write(record: AuditRecord) -> None:
        if wanted.fits(record):
            sys.stdout.write(_line(record) + "\n")

    async def export(store: Store) -> Exit:
        if wanted.chains is not None and not wanted.chains:
            return leave(await verify_store(store, chains=("",)))
        return leave(await verify_store(store, chains=tuple(wanted.chains or ()), each=write))

    return with_store(url, export)


def _line(record: AuditRecord) -> str:
    """Return a record with its payload as it was stored, byte by byte: its hash is over that."""
    payload = payload_of(record)
    document = {
        "schema": "holdfast.audit.export/1",
        "chain": record.chain,
        "seq": record.seq,
        "at": record.at,
        "class": record.kind,
        "correlation": record.correlation,
        "payload": payload if isinstance(payload, str) else record.payload,
        "hash": record.hash,
    }
    return msgspec.json.encode(document).decode()
