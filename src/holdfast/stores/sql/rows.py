"""Turns rows into records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import HoldfastError
from holdfast.stores.chain import GENESIS, entry_hash, snapshot_hash
from holdfast.stores.errors import damaged
from holdfast.stores.records import AuditRecord, Checkpoint, Entry, SessionRecord, SessionState, StoredClaim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.sql.leases import Instant
    from holdfast.stores.sql.query import Row

SESSION_COLUMNS = (
    "key, name, epoch, state, oldest, top, created_at, last_at, manifest, fence, owner, lease_until, checkpoint,"
    " lease_boot, lease_end"
)
_NUMBERS = ("oldest", "top", "created_at", "last_at", "fence", "lease_until", "checkpoint", "lease_end")
_OPTIONAL = ("checkpoint", "lease_end")


def session_record(row: Row, now: Instant) -> SessionRecord:
    """Return a session from its `SESSION_COLUMNS`. `now` is the time at which they were read."""
    _, id_, epoch, state, oldest, top, created_at, last_at, manifest, fence, owner, lease_until, at, boot, end = row
    # A newer version, or somebody who edited the table, may have written an unknown state.
    try:
        known = SessionState(state)
    except ValueError:
        raise damaged(id_, f"its state is {state!r}") from None
    numbers = (oldest, top, created_at, last_at, fence, lease_until, at, end)
    for name, number in zip(_NUMBERS, numbers, strict=True):
        # SQLite stores any value in any column.
        if not isinstance(number, (int, float)) and not (number is None and name in _OPTIONAL):
            raise damaged(id_, f"its {name} is {number!r}, not a number")
    return SessionRecord(
        id=id_,
        epoch=epoch,
        state=known,
        oldest=oldest,
        top=top,
        created_at=created_at,
        last_at=last_at,
        manifest=_json(id_, "manifest", manifest),
        fence=fence,
        owner=owner,
        lease_until=lease_until,
        lease_left=0.0 if owner is None else max(0.0, now.left(lease_until, boot, end)),
        checkpoint=at,
    )


def listed(row: Row, now: Instant) -> SessionRecord:
    """Return a session for a list. A damaged session is shown in state `error`, so it does not hide the others (C25)."""
    try:
        return session_record(row, now)
    except HoldfastError:
        id_, epoch, created_at, last_at = row[1], row[2], row[6], row[7]
        return SessionRecord(
            id=id_,
            epoch=str(epoch),
            state=SessionState.ERROR,
            oldest=1,
            top=0,
            created_at=created_at if isinstance(created_at, float) else 0.0,
            last_at=last_at if isinstance(last_at, float) else 0.0,
            manifest=msgspec.Raw(b"null"),
        )


def entries(session: str, rows: Sequence[Row], before: Any) -> list[Entry]:
    """Return entries that follow each other. `before` is the hash before the first; raise if one of them was changed."""
    found: list[Entry] = []
    before = None if before is None else _bytes(before)
    for pos, id_, at, type_, body, sealed in rows:
        kept = _json(session, f"entry {pos}", body)
        # Entries without a hash were written before there were hashes. None can follow one that has a hash.
        if sealed is not None:
            chained = before or GENESIS
            if _bytes(sealed) != entry_hash(
                chained, session=session, offset=pos, at=at, id_=id_, type_=type_, body=bytes(kept)
            ):
                raise damaged(session, f"its entry {pos} was changed after it was written, or one before it is missing")
            before = _bytes(sealed)
        elif before:
            raise damaged(session, f"its entry {pos} has no hash, and the one before it has")
        found.append(Entry(offset=pos, id=id_, at=at, type=type_, body=kept, hash=hashed(sealed)))
    return found


def hashed(stored: Any) -> str:
    """Return a hash as it is shown; empty if there is none."""
    return "" if stored is None or stored == GENESIS else _bytes(stored).hex()


def checkpoint(session: str, row: Row) -> Checkpoint:
    pos, at, count, last, snapshot, sealed = row
    kept = Checkpoint(
        offset=pos,
        at=at,
        message_count=count,
        last_message_id=last,
        snapshot=_json(session, "checkpoint", snapshot),
    )
    # A checkpoint without a hash was written before there were hashes.
    if sealed is not None and _bytes(sealed) != snapshot_hash(session, kept):
        raise damaged(session, "its checkpoint was changed after it was written")
    return kept


def claim(row: Row) -> StoredClaim:
    client, id_, body_hash, at, first, top, result = row
    return StoredClaim(
        client=client,
        id=id_,
        body_hash=_bytes(body_hash),
        at=at,
        first=first,
        top=top,
        result=_bytes(result),
    )


def audit_record(chain: str, row: Row) -> AuditRecord:
    seq, at, kind, correlation, payload, sealed = row
    return AuditRecord(
        chain=chain,
        seq=seq,
        at=at,
        kind=kind,
        correlation=correlation,
        payload=msgspec.Raw(_bytes(payload)),
        hash=_bytes(sealed).hex(),
    )


def _bytes(stored: Any) -> bytes:
    """Return the bytes of a column. Somebody who edits the trail by hand may leave text, which verification must find."""
    return bytes(stored) if isinstance(stored, (bytes, memoryview)) else str(stored).encode()


def _json(session: str, part: str, stored: Any) -> msgspec.Raw:
    if isinstance(stored, memoryview):
        stored = bytes(stored)
    # Only the type is checked here. Other mistakes are found when the JSON is decoded.
    if not isinstance(stored, bytes) or not stored:
        raise damaged(session, f"its {part} is not JSON")
    return msgspec.Raw(stored)
