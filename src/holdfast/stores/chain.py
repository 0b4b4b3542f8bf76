"""The audit trail's hash chain: each record is sealed with the hash of the one before it.

Invariant: changing, removing or reordering records of a chain changes the hash of its last one.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.stores.records import AuditRecord, NewAudit

__all__ = ["GENESIS", "Broken", "link", "session_chain", "verify"]

GENESIS = b"\x00" * 32
"""What the first record of a chain is linked to."""


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """Where a chain breaks."""

    chain: str
    seq: int
    reason: str


def session_chain(session: str) -> str:
    """Return the name of a session's own chain."""
    return f"session:{session}"


def link(before: bytes, record: NewAudit | AuditRecord, *, chain: str, seq: int, at: float) -> bytes:
    """Return the hash that seals a record at its place in a chain."""
    # The parts are framed by JSON, so that no two records have the same bytes.
    sealed = msgspec.json.encode((chain, seq, at, record.kind, record.correlation))
    return sha256(before + sealed + bytes(record.payload)).digest()


def verify(
    records: Iterable[AuditRecord], *, after: int = 0, before: bytes = GENESIS
) -> tuple[int, bytes, Broken | None]:
    """Follow records that should come right after number `after` with hash `before`.

    Return the number and hash of the last sound one, and where the chain breaks, if it does.
    """
    for record in records:
        if record.seq != after + 1:
            reason = f"record {after + 1} is missing: {record.seq} follows {after}"
            return after, before, Broken(chain=record.chain, seq=after + 1, reason=reason)
        sealed = link(before, record, chain=record.chain, seq=record.seq, at=record.at)
        if sealed.hex() != record.hash:
            return after, before, Broken(chain=record.chain, seq=record.seq, reason="its content was changed")
        after, before = record.seq, sealed
    return after, before, None
