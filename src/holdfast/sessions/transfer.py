"""Transfer of a session from one store to another, as JSON Lines.

A file holds one session: a head, its checkpoint, its log, its audit trail, and a last line that shows the file is complete. After
the import the session has a new epoch, and its entries have new numbers and dates. The new audit records hold the old hashes. Text that
looks like a secret is masked in the file, unless it is exported `exact`.

Invariant: a session is imported as a whole or not at all. It never replaces an existing session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions.journal import audit
from holdfast.sessions.manifest import Manifest, decode_manifest, encode_manifest
from holdfast.stores import Commit, NewAudit, NewCheckpoint, NewEntry, NewSession, SessionState
from holdfast.stores.chain import session_chain
from holdfast.stores.errors import damaged
from holdfast.stores.redaction import Mask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from holdfast.stores import Store

__all__ = ["SCHEMA", "export_lines", "import_lines"]

SCHEMA = "holdfast.session/1"


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    session: str
    state: SessionState
    epoch: str
    oldest: int
    top: int
    created_at: float
    last_at: float
    manifest: Manifest


class _Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    offset: int
    message_count: int
    last_message_id: str | None
    snapshot: msgspec.Raw
    masked: bool = False


class _Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    offset: int
    id: str
    at: float
    type: str
    body: msgspec.Raw
    masked: bool = False
    """Whether the body is not what the store holds: something in it looked like a secret."""


class _Audit(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    at: float
    kind: str
    correlation: str
    payload: msgspec.Raw
    hash: str


class _End(msgspec.Struct, frozen=True, kw_only=True):
    entries: int
    audit: int


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the file. Exactly one of these fields is set."""

    head: _Head | None = None
    checkpoint: _Checkpoint | None = None
    entry: _Entry | None = None
    audit: _Audit | None = None
    end: _End | None = None


_READ = msgspec.json.Decoder(_Line)
L = TypeVar("L", bound=_Checkpoint | _Entry)


async def export_lines(store: Store, session: str, *, exact: bool = False) -> AsyncIterator[bytes]:
    """Yield a session as JSON, line by line. Entries that are written meanwhile are left out.

    What looks like a secret is masked, and its line is marked. With `exact` it is written as it is stored, so that the session can
    be continued elsewhere with all its values.

    Raise SESS_NOT_FOUND for an unknown session, and SESS_MANIFEST_DRIFT if its log is damaged.
    """
    mask = None if exact else Mask(process_redactor())
    record = await store.session(session)
    head = _Head(
        schema=SCHEMA,
        session=session,
        state=record.state,
        epoch=record.epoch,
        oldest=record.oldest,
        top=record.top,
        created_at=record.created_at,
        last_at=record.last_at,
        manifest=decode_manifest(session, bytes(record.manifest)),
    )
    yield msgspec.json.encode(_Line(head=head))
    checkpoint = await store.checkpoint(session)
    # Skip a checkpoint that was written after the head was read, because it covers entries that are not exported.
    if checkpoint is not None and checkpoint.offset <= record.top:
        kept = msgspec.convert(checkpoint, _Checkpoint, from_attributes=True)
        yield msgspec.json.encode(_Line(checkpoint=_masked(kept, "snapshot", mask)))
    entries, after = 0, record.oldest - 1
    while after < record.top:
        found = await store.read(session, after=after, limit=min(1_000, record.top - after))
        if not found:
            # Without this check a gap in the log would make the loop run for ever.
            raise damaged(session, f"its log ends at entry {after}, and had {record.top}")
        for entry in found:
            line = msgspec.convert(entry, _Entry, from_attributes=True)
            yield msgspec.json.encode(_Line(entry=_masked(line, "body", mask)))
            entries, after = entries + 1, entry.offset
    records = 0
    while page := await store.audit(session_chain(session), after=records):
        for sealed in page:
            yield msgspec.json.encode(_Line(audit=msgspec.convert(sealed, _Audit, from_attributes=True)))
        records += len(page)
    yield msgspec.json.encode(_Line(end=_End(entries=entries, audit=records)))


def _masked(line: L, field: str, mask: Mask | None) -> L:
    body = bytes(getattr(line, field))
    masked = body if mask is None else mask.json(body)
    if masked is body:
        return line
    return msgspec.structs.replace(line, **{field: msgspec.Raw(masked), "masked": True})


async def import_lines(store: Store, lines: Iterable[bytes]) -> str:
    """Import an exported session into a store; return its id.

    Raise SESS_MANIFEST_INVALID for a file that cannot be read, and SESS_ILLEGAL_TRANSITION if the session exists already.
    """
    file = _SessionFile(lines)
    await store.commit(file.commit(store.id))
    assert file.head is not None
    return file.head.session


class _SessionFile:
    """The decoded lines of a file."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.head: _Head | None = None
        self._checkpoint: _Checkpoint | None = None
        self._entries: list[_Entry] = []
        self._audit: list[_Audit] = []
        self._ended = False
        number = 0
        # Read all lines before storing anything: if the last line is wrong, nothing must be stored.
        for number, line in enumerate(lines, 1):
            if line.strip():
                self._take(line, number)
        if not self._ended:
            raise _invalid(number + 1, "the file is cut: its last line is missing")

    def _take(self, line: bytes, number: int) -> None:
        try:
            part = _READ.decode(line)
            # The line above does not check `Raw` parts. They must be JSON too, or the store would hold garbage.
            msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _invalid(number, str(error)) from error
        if (self.head is None) is (part.head is None) or self._ended:
            raise _invalid(number, "expected a line of one session, its head first and its end last")
        if part.head is not None:
            if part.head.schema != SCHEMA:
                raise _invalid(number, f"expected schema {SCHEMA}, got {part.head.schema}")
            self.head = part.head
        elif part.checkpoint is not None:
            self._checkpoint = part.checkpoint
        elif part.entry is not None:
            self._entry(part.entry, number)
        elif part.audit is not None:
            self._audit.append(part.audit)
        elif part.end is not None:
            self._end(part.end, number)

    def _entry(self, entry: _Entry, number: int) -> None:
        assert self.head is not None
        expected = self.head.oldest + len(self._entries)
        if entry.offset != expected:
            raise _invalid(number, f"expected entry {expected}, got {entry.offset}")
        self._entries.append(entry)

    def _end(self, end: _End, number: int) -> None:
        found = _End(entries=len(self._entries), audit=len(self._audit))
        # A file that was cut in the middle and glued together again has wrong counts.
        if end != found:
            raise _invalid(number, f"expected {end.entries} entries and {end.audit} records, got {found}")
        self._ended = True

    def commit(self, store: str) -> Commit:
        """Return the whole session as one commit."""
        head = self.head
        assert head is not None
        # The process that works in the original does not work in the copy.
        state = SessionState.PAUSED if head.state is SessionState.ACTIVE else head.state
        manifest = msgspec.structs.replace(head.manifest, store_id=store, session_id=head.session)
        facts = {"state": state.value, "was": head.state.value, "imported": True, "epoch": head.epoch}
        # Values that were masked in the file do not come back when the session is resumed.
        masked = sum(entry.masked for entry in self._entries)
        arrival = audit("SessionLifecycle", head.session, **facts, **({"masked": masked} if masked else {}))
        return Commit(
            session=head.session,
            create=NewSession(manifest=encode_manifest(manifest)),
            state=state,
            entries=tuple(NewEntry(type=entry.type, id=entry.id, body=bytes(entry.body)) for entry in self._entries),
            checkpoint=self._new_checkpoint(head),
            audit=(*map(_resealed, self._audit), arrival),
        )

    def _new_checkpoint(self, head: _Head) -> NewCheckpoint | None:
        kept = self._checkpoint
        if kept is None:
            return None
        return NewCheckpoint(
            # The log is numbered from 1 again, even if its beginning was compacted away.
            offset=kept.offset - head.oldest + 1,
            message_count=kept.message_count,
            last_message_id=kept.last_message_id,
            snapshot=bytes(kept.snapshot),
        )


def _resealed(record: _Audit) -> NewAudit:
    payload: Any = msgspec.json.decode(record.payload)
    facts = payload if isinstance(payload, dict) else {"payload": payload}
    facts["imported"] = {"seq": record.seq, "at": record.at, "hash": record.hash}
    return NewAudit(kind=record.kind, correlation=record.correlation, payload=msgspec.json.encode(facts))


def _invalid(line: int, reason: str) -> HoldfastError:
    message = f"Line {line} of the session file cannot be read: {reason}"
    return HoldfastError(Fault.of("SESS_MANIFEST_INVALID", message, context={"line": line, "reason": reason}))
