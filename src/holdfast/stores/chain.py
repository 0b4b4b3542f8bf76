"""The hash chains: each record of an audit trail, and each entry of a log, is sealed with the hash of the one before it.

Invariant: changing, removing or reordering records of a chain changes the hash of its last record.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from holdfast.stores.records import NewAudit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.stores.records import AuditRecord, Checkpoint

GENESIS = b"\x00" * 32
"""The hash before the first record of a chain."""


_ENCODER = msgspec.json.Encoder()


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """Where a chain breaks, and why."""

    chain: str
    seq: int
    reason: str


def session_chain(session: str) -> str:
    """Return the name of a session's own chain."""
    return f"session:{session}"


def link(before: bytes, record: NewAudit | AuditRecord, *, chain: str, seq: int, at: float) -> bytes:
    """Return the hash that seals a record at its place in a chain."""
    # JSON separates the parts. Without it, two different records could have the same bytes.
    sealed = msgspec.json.encode((chain, seq, at, record.kind, record.correlation))
    # The hash covers the ciphertext, so that a trail can be verified without its key.
    stored = b"" if isinstance(record, NewAudit) else bytes(record.stored)
    return sha256(before + sealed + (stored or bytes(record.payload))).digest()


def entry_hash(before: bytes, *, session: str, offset: int, at: float, id_: str, type_: str, body: bytes) -> bytes:
    """Return the hash of a log entry at its place. `before` is the hash of the entry before it, or `GENESIS`."""
    return sha256(before + _ENCODER.encode((session, offset, at, id_, type_)) + body).digest()


def snapshot_hash(session: str, checkpoint: Checkpoint) -> bytes:
    """Return the hash of a checkpoint."""
    place = (session, checkpoint.offset, checkpoint.at, checkpoint.message_count, checkpoint.last_message_id)
    return sha256(_ENCODER.encode(place) + bytes(checkpoint.snapshot)).digest()


def verify(
    records: Iterable[AuditRecord], *, after: int = 0, before: bytes = GENESIS
) -> tuple[int, bytes, Broken | None]:
    """Check records that should come right after record `after`, whose hash is `before`.

    Return the number and hash of the last intact record, and where the chain breaks, if it does.
    """
    for record in records:
        # Check the number first: a removed record also breaks the hash, but the number shows what happened.
        if record.seq != after + 1:
            reason = f"record {after + 1} is missing: {record.seq} follows {after}"
            return after, before, Broken(chain=record.chain, seq=after + 1, reason=reason)
        sealed = link(before, record, chain=record.chain, seq=record.seq, at=record.at)
        if sealed.hex() != record.hash:
            return after, before, Broken(chain=record.chain, seq=record.seq, reason="its content was changed")
        after, before = record.seq, sealed
    return after, before, None
