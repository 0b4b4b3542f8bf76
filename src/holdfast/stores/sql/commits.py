"""One commit as a script of statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.stores import errors
from holdfast.stores.chain import GENESIS, entry_hash, link, session_chain, snapshot_hash
from holdfast.stores.records import Checkpoint, Commit, Receipt, SessionState
from holdfast.stores.sql.batch import KNOWN, repeated
from holdfast.stores.sql.query import Many, Query, Script
from holdfast.stores.sql.work import admit_change, write_work

if TYPE_CHECKING:
    from holdfast.stores.records import NewAudit, NewCheckpoint

_HEAD = "SELECT key, epoch, state, fence, top, last_at, head FROM session WHERE name = ?"
_NEW = (
    "INSERT INTO session (name, epoch, state, oldest, top, created_at, last_at, manifest) VALUES (?, ?, ?, 1, 0, ?, ?, ?)"
    " ON CONFLICT (name) DO NOTHING RETURNING key"
)
CLAIM = "INSERT INTO inbox (session, client, id, body_hash, at, first, top, result) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
APPEND = "INSERT INTO entry (session, pos, id, at, type, body, hash) VALUES (?, ?, ?, ?, ?, ?, ?)"
MOVE = "UPDATE session SET top = ?, last_at = ?, state = ?, head = ? WHERE key = ?"
_DESCRIBE = "UPDATE session SET manifest = ? WHERE key = ?"
_MARK = "UPDATE session SET checkpoint = ? WHERE key = ?"
_SNAPSHOT = (
    "INSERT INTO checkpoint (session, pos, at, message_count, last_message_id, snapshot, hash) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (session) DO UPDATE SET pos = excluded.pos, at = excluded.at, message_count = excluded.message_count,"
    " last_message_id = excluded.last_message_id, snapshot = excluded.snapshot, hash = excluded.hash"
)
_CHAIN = "SELECT key, seq, hash FROM chain WHERE name = ?"
_NEW_CHAIN = "INSERT INTO chain (name, seq, hash) VALUES (?, 0, ?) ON CONFLICT (name) DO NOTHING"
SEAL = "INSERT INTO audit (chain, seq, at, kind, correlation, payload, hash) VALUES (?, ?, ?, ?, ?, ?, ?)"
LENGTHEN = "UPDATE chain SET seq = ?, hash = ? WHERE key = ?"


def commit_script(commit: Commit, now: float, epoch: str, lock: str = "") -> Script[Receipt]:
    """Write a checked commit. A session that it creates gets `epoch`. `lock` is the engine's clause that locks a row."""
    if commit.session is None:
        yield from _seal(commit.chain, commit.audit, now, lock)
        return Receipt(at=now)
    if commit.create is not None:
        errors.check_checkpoint(commit, len(commit.entries))
        args = (commit.session, epoch, SessionState.CREATED.value, now, now, commit.create.manifest)
        # Use ON CONFLICT instead of a SELECT first, because two processes may create the session at the same instant.
        made = yield Query(_NEW, args)
        if not made:
            raise errors.already_there(commit.session)
        key, state, top, at, head = made[0][0], SessionState.CREATED.value, 0, now, None
    else:
        rows = yield Query(_HEAD + lock, (commit.session,))
        if not rows:
            raise errors.missing(commit.session)
        key, epoch, state, fence, top, last_at, head = rows[0]
        errors.admit(commit, state, fence, top)
        # Times of a log never run backwards, even if the clock does.
        at = max(now, last_at)
    receipt = Receipt(first=top + 1 if commit.entries else 0, top=top + len(commit.entries), at=at, epoch=epoch)
    errors.check_checkpoint(commit, receipt.top)
    # Before anything is written, because it may raise.
    may_change = commit.work is not None and (yield from admit_change(commit, key, lock))
    if commit.claim is not None:
        known = yield from _claim(commit, key, receipt)
        if known is not None:
            return known
    yield from _write(commit, key, (state, GENESIS if head is None else bytes(head)), receipt, lock)
    if commit.work is not None and may_change:
        yield from write_work(commit.work, key, top, receipt.at)
    return (
        receipt if commit.claim is None else msgspec.structs.replace(receipt, result=msgspec.Raw(commit.claim.result))
    )


def _claim(commit: Commit, key: int, receipt: Receipt) -> Script[Receipt | None]:
    """Make the commit's claim; return the first receipt if it was made before."""
    claim = commit.claim
    assert claim is not None
    rows = yield Query(KNOWN, (key, claim.client, claim.id))
    if rows:
        return repeated(claim, rows[0], receipt.epoch)
    # Store the receipt with the claim, so that a repeated claim returns exactly the first receipt.
    args = (key, claim.client, claim.id, claim.body_hash, receipt.at, receipt.first, receipt.top, claim.result)
    yield Query(CLAIM, args)
    return None


def _write(commit: Commit, key: int, was: tuple[str, bytes], receipt: Receipt, lock: str) -> Script[None]:
    at, (state, head) = receipt.at, was
    rows: list[tuple[Any, ...]] = []
    for offset, entry in enumerate(commit.entries, receipt.first):
        head = entry_hash(
            head, session=commit.session or "", offset=offset, at=at, id_=entry.id, type_=entry.type, body=entry.body
        )
        rows.append((key, offset, entry.id, at, entry.type, entry.body, head))
    if rows:
        # For a single row `executemany` is slower than `execute`, and most commits have a single row.
        yield Query(APPEND, rows[0]) if len(rows) == 1 else Many(APPEND, rows)
    yield Query(MOVE, (receipt.top, at, (commit.state or state), head, key))
    if commit.manifest is not None:
        yield Query(_DESCRIBE, (commit.manifest, key))
    if commit.claims:
        yield Many(CLAIM, [(key, *msgspec.structs.astuple(claim)) for claim in commit.claims])
    if commit.checkpoint is not None:
        yield from _snapshot(commit.session or "", commit.checkpoint, key, receipt)
    if commit.audit:
        yield from _seal(commit.chain or session_chain(commit.session or ""), commit.audit, at, lock)


def _snapshot(session: str, new: NewCheckpoint, key: int, receipt: Receipt) -> Script[None]:
    kept = Checkpoint(
        offset=receipt.top if new.offset is None else new.offset,
        at=receipt.at,
        message_count=new.message_count,
        last_message_id=new.last_message_id,
        snapshot=msgspec.Raw(new.snapshot),
    )
    sealed = snapshot_hash(session, kept)
    yield Query(_SNAPSHOT, (key, kept.offset, kept.at, kept.message_count, kept.last_message_id, new.snapshot, sealed))
    yield Query(_MARK, (kept.offset, key))


def _seal(chain: str, records: tuple[NewAudit, ...], at: float, lock: str) -> Script[None]:
    rows = yield Query(_CHAIN + lock, (chain,))
    if not rows:
        # Another process may create the chain at the same time, so read it again after the insert.
        yield Query(_NEW_CHAIN, (chain, GENESIS))
        rows = yield Query(_CHAIN + lock, (chain,))
    key, seq, before = rows[0]
    links = []
    for record in records:
        seq += 1
        before = link(bytes(before), record, chain=chain, seq=seq, at=at)
        links.append((key, seq, at, record.kind, record.correlation, record.payload, before))
    yield Many(SEAL, links)
    yield Query(LENGTHEN, (seq, before, key))
