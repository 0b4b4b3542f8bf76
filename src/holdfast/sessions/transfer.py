"""Transfer of sessions between stores and files: one session as JSON Lines, or the last state of several as one JSON list.

A file of lines holds one session: a head, its checkpoint, its log, the message ids it knows, its audit trail, and a last line that shows the
file is complete. After the import the session has a new epoch, and its entries have new numbers and dates. The new audit records hold
the old hashes. The content of an encrypted store is written only if the caller says so.

Invariant: a session is imported as a whole or not at all. It never replaces an existing session. A file whose audit trail was changed
is rejected unless the caller accepts that, and then the new trail says so. A file of `PersistedSession` records that does not exist
holds no sessions; one that cannot be read raises an error that names the place, and is never overwritten.
"""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions import codec
from holdfast.sessions.journal import audit, fresh_id, memory_of
from holdfast.sessions.log import SessionMemory, StateChanged, new_entry
from holdfast.sessions.manifest import Manifest, decode_manifest, encode_manifest
from holdfast.stores import Commit, NewAudit, NewCheckpoint, NewEntry, NewSession, SessionState
from holdfast.stores.chain import GENESIS, entry_hash, session_chain, verify
from holdfast.stores.encryption import EncryptedStore
from holdfast.stores.errors import damaged
from holdfast.stores.records import MAX_OFFSET, AuditRecord, StoredClaim, check_name
from holdfast.stores.redaction import Mask
from holdfast.stores.verification import records_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from holdfast.stores import Entry, SessionRecord, Store


__all__ = [
    "SCHEMA",
    "Imported",
    "ImportedSessions",
    "PersistedCheckpoint",
    "PersistedSession",
    "dump_persisted",
    "export_lines",
    "import_lines",
    "load_persisted",
    "parse_persisted",
    "persisted",
    "put_persisted",
    "save_persisted",
]

SCHEMA = "holdfast.session/1"
_DEEPEST = 700
"""How deep a file may be nested: deeper than what is stored now, because older versions stored more, and less than Python 3.11 reads."""
_ANYTHING = "contextSnapshot"
"""Our context is a table. If document 000's context is another value, it is kept in our table under this name."""
_Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What `import_lines` stored."""

    session: str
    entries: int
    claims: int
    """The message ids that the session still knows, so that no client can send a message twice."""
    records: int
    """The audit records that came along."""
    verified: int
    """How many of them have the hash that they should have. The others were masked in the export, or changed."""
    tampered: str = ""
    """What is wrong with the hashes of the audit trail or of the log; empty if nothing is."""
    masked: int = 0
    """Lines in which the export masked what looked like a secret. The session gets the masks."""


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
    hash: str = ""
    masked: bool = False
    """Whether the body is not what the store holds: something in it looked like a secret."""


class _Audit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    seq: int
    at: float
    kind: str
    correlation: str
    payload: msgspec.Raw
    hash: str
    masked: bool = False
    """Then its hash cannot be checked."""
    decrypted: bool = False
    """Then its hash cannot be checked either: it covers the ciphertext."""


class _Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    client: str
    id: str
    body_hash: str
    at: float
    first: int
    top: int
    result: msgspec.Raw
    masked: bool = False


class _End(msgspec.Struct, frozen=True, kw_only=True):
    entries: int
    audit: int
    claims: int = 0


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the file. Exactly one of these fields is set."""

    head: _Head | None = None
    checkpoint: _Checkpoint | None = None
    entry: _Entry | None = None
    claim: _Claim | None = None
    audit: _Audit | None = None
    end: _End | None = None


_READ = msgspec.json.Decoder(_Line)
L = TypeVar("L", bound=_Checkpoint | _Entry | _Claim | _Audit)


async def export_lines(store: Store, session: str, *, exact: bool = False, plain: bool = False) -> AsyncIterator[bytes]:
    """Yield a session as JSON, line by line. Entries that are written meanwhile are left out.

    Text that looks like a secret is masked, unless `exact`. A session that goes on elsewhere needs `exact`: with masks its steps get
    other results than they stored. Raise SESS_NOT_FOUND for an unknown session, SESS_MANIFEST_DRIFT if its log is damaged, and
    `InvalidError` for an encrypted store, unless `plain`: the file is not encrypted.
    """
    _check_plain(store, plain=plain)
    record = await store.session(session)
    mask = None if exact else Mask(process_redactor())
    yield msgspec.json.encode(_Line(head=_head_of(record)))
    checkpoint = await store.checkpoint(session)
    # Skip a checkpoint that was written after the head was read, because it covers entries that are not exported.
    if checkpoint is not None and checkpoint.offset <= record.top:
        kept = msgspec.convert(checkpoint, _Checkpoint, from_attributes=True)
        yield msgspec.json.encode(_Line(checkpoint=_masked(kept, "snapshot", mask)))
    entries = 0
    async for entry in _log(store, record):
        entries += 1
        kept_entry = msgspec.convert(entry, _Entry, from_attributes=True)
        if isinstance(store, EncryptedStore):
            # The hash covers the ciphertext.
            kept_entry = msgspec.structs.replace(kept_entry, hash="")
        yield msgspec.json.encode(_Line(entry=_masked(kept_entry, "body", mask)))
    claims, place = 0, ("", "")
    while found := await store.claims(session, after=place):
        for claim in found:
            yield msgspec.json.encode(_Line(claim=_masked(_exported(claim), "result", mask)))
        claims, place = claims + len(found), (found[-1].client, found[-1].id)
    records = 0
    async for sealed in records_of(store, session_chain(session)):
        records += 1
        kept_record = msgspec.convert(sealed, _Audit, from_attributes=True)
        if bytes(sealed.stored):
            kept_record = msgspec.structs.replace(kept_record, decrypted=True)
        yield msgspec.json.encode(_Line(audit=_masked(kept_record, "payload", mask)))
    yield msgspec.json.encode(_Line(end=_End(entries=entries, audit=records, claims=claims)))


def _head_of(record: SessionRecord) -> _Head:
    return _Head(
        schema=SCHEMA,
        session=record.id,
        state=record.state,
        epoch=record.epoch,
        oldest=record.oldest,
        top=record.top,
        created_at=record.created_at,
        last_at=record.last_at,
        manifest=decode_manifest(record.id, bytes(record.manifest)),
    )


def _check_plain(store: Store, *, plain: bool) -> None:
    """Raise `InvalidError` if a store is encrypted and the caller did not say that the file may be plain."""
    if isinstance(store, EncryptedStore) and not plain:
        raise InvalidError.saying(
            "export", "plain=True (--plain), because the store is encrypted and the file is not", "neither"
        )


async def _log(store: Store, record: SessionRecord) -> AsyncIterator[Entry]:
    """Yield the entries up to the record's last, or raise SESS_MANIFEST_DRIFT if some are missing."""
    after = record.oldest - 1
    while after < record.top:
        found = await store.read(record.id, after=after, limit=min(1_000, record.top - after))
        if not found:
            # Without this check a gap in the log would make the loop run for ever.
            raise damaged(record.id, f"its log ends at entry {after}, and had {record.top}")
        for entry in found:
            yield entry
        after = found[-1].offset


def _masked(line: L, field: str, mask: Mask | None) -> L:
    body = bytes(getattr(line, field))
    masked = body if mask is None else mask.json(body)
    if masked is body:
        return line
    return msgspec.structs.replace(line, **{field: msgspec.Raw(masked), "masked": True})


def _exported(claim: StoredClaim) -> _Claim:
    return _Claim(
        client=claim.client,
        id=claim.id,
        body_hash=claim.body_hash.hex(),
        at=claim.at,
        first=claim.first,
        top=claim.top,
        result=msgspec.Raw(claim.result),
    )


async def import_lines(store: Store, lines: Iterable[bytes], *, unverified: bool = False) -> Imported:
    """Import an exported session into a store; return what was imported.

    Raise SESS_MANIFEST_INVALID for a file that cannot be read, SESS_ILLEGAL_TRANSITION if the session exists already, and
    SYS_AUDIT_TAMPERED if its audit trail was changed. With `unverified` a changed trail is accepted, and the new trail says so.
    """
    file = _SessionFile(lines)
    imported = file.imported()
    if imported.tampered and not unverified:
        message = f"The file of session {imported.session!r} was changed: {imported.tampered}"
        context = {"chain": session_chain(imported.session), "reason": imported.tampered}
        raise HoldfastError(Fault.of("SYS_AUDIT_TAMPERED", message, context=context))
    await store.commit(file.commit(store.id, imported))
    return imported


class _SessionFile:
    """The decoded lines of a file."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.head: _Head | None = None
        self._checkpoint: _Checkpoint | None = None
        self._entries: list[_Entry] = []
        self._claims: list[_Claim] = []
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
        part = _part(line, number)
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
        elif part.claim is not None:
            if not _digest(part.claim.body_hash):
                raise _invalid(number, f"claim {part.claim.id!r} has no hash of its message")
            self._claims.append(part.claim)
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
        found = _End(entries=len(self._entries), audit=len(self._audit), claims=len(self._claims))
        # A file that was cut in the middle and glued together again has wrong counts.
        if end != found:
            raise _invalid(number, f"expected {_counts(end)}, got {_counts(found)}")
        self._ended = True

    def imported(self) -> Imported:
        """Check the audit trail; return what the file holds."""
        head = self.head
        assert head is not None
        verified, tampered = _verify(session_chain(head.session), self._audit)
        tampered = tampered or _verify_log(head.session, self._entries)
        checkpoint = [] if self._checkpoint is None else [self._checkpoint]
        lines: list[_Checkpoint | _Entry | _Claim | _Audit] = [*checkpoint, *self._entries, *self._claims, *self._audit]
        return Imported(
            session=head.session,
            entries=len(self._entries),
            claims=len(self._claims),
            records=len(self._audit),
            verified=verified,
            tampered=tampered,
            masked=sum(line.masked for line in lines),
        )

    def commit(self, store: str, imported: Imported) -> Commit:
        """Return the whole session as one commit."""
        head = self.head
        assert head is not None
        # The process that works in the original does not work in the copy.
        state = SessionState.PAUSED if head.state is SessionState.ACTIVE else head.state
        manifest = msgspec.structs.replace(head.manifest, store_id=store, session_id=head.session, store_epoch=None)
        trail = {"records": imported.records, "verified": imported.verified, "tampered": imported.tampered}
        arrival = audit(
            "SessionLifecycle",
            head.session,
            state=state.value,
            was=head.state.value,
            imported=True,
            epoch=head.epoch,
            trail=trail,
            # Values that were masked in the file do not come back when the session is resumed.
            masked=imported.masked,
        )
        return Commit(
            session=head.session,
            create=NewSession(manifest=encode_manifest(manifest)),
            state=state,
            entries=tuple(NewEntry(type=entry.type, id=entry.id, body=bytes(entry.body)) for entry in self._entries),
            checkpoint=self._new_checkpoint(head),
            claims=tuple(_new_claim(claim, head) for claim in self._claims),
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


def _part(line: bytes, number: int) -> _Line:
    if codec.is_too_deep(line, _DEEPEST):
        raise _invalid(number, "its values are nested too deeply")
    try:
        part = _READ.decode(line)
        # The line above does not check `Raw` parts. They must be JSON too, or the store would hold garbage.
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(number, str(error)) from error
    return part


def _verify(chain: str, records: list[_Audit]) -> tuple[int, str]:
    """Return how many records have the hash that they should have, and what is wrong, if anything is."""
    verified, before = 0, GENESIS
    for number, record in enumerate(records, 1):
        if record.seq != number:
            return verified, f"record {number} is missing"
        if record.masked or record.decrypted:
            # Its content is not the content that was sealed. What follows is still chained to its hash.
            before = _digest(record.hash)
            continue
        whole = AuditRecord(
            chain=chain,
            seq=record.seq,
            at=record.at,
            kind=record.kind,
            correlation=record.correlation,
            payload=record.payload,
            hash=record.hash,
        )
        _, before, broken = verify((whole,), after=number - 1, before=before)
        if broken is not None:
            return verified, f"record {number} was changed"
        verified += 1
    return verified, ""


def _verify_log(session: str, entries: list[_Entry]) -> str:
    """Return what is wrong with the hashes of a log, or an empty text."""
    before: bytes | None = None
    for entry in entries:
        # Entries of before there were hashes have none. A log that was compacted begins with a hash of what is gone.
        if before is None and entry.offset == 1:
            before = GENESIS
        if entry.hash and before is not None and not entry.masked:
            sealed = entry_hash(
                before,
                session=session,
                offset=entry.offset,
                at=entry.at,
                id_=entry.id,
                type_=entry.type,
                body=bytes(entry.body),
            )
            if sealed.hex() != entry.hash:
                return f"entry {entry.offset} of its log was changed"
        before = _digest(entry.hash) if entry.hash else None
    return ""


def _counts(end: _End) -> str:
    return f"{end.entries} entries, {end.claims} claims and {end.audit} records"


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _new_claim(claim: _Claim, head: _Head) -> StoredClaim:
    moved = head.oldest - 1
    return StoredClaim(
        client=claim.client,
        id=claim.id,
        body_hash=_digest(claim.body_hash),
        at=claim.at,
        # The log is numbered from 1 again. The entry of an old claim may have been compacted away.
        first=max(0, claim.first - moved),
        top=max(0, claim.top - moved),
        result=bytes(claim.result),
    )


def _resealed(record: _Audit) -> NewAudit:
    payload: Any = msgspec.json.decode(record.payload)
    facts = payload if isinstance(payload, dict) else {"payload": payload}
    facts["imported"] = {"seq": record.seq, "at": record.at, "hash": record.hash}
    return NewAudit(kind=record.kind, correlation=record.correlation, payload=msgspec.json.encode(facts))


def _invalid(line: int, reason: str) -> HoldfastError:
    message = f"Line {line} of the session file cannot be read: {reason}"
    return HoldfastError(Fault.of("SESS_MANIFEST_INVALID", message, context={"line": line, "reason": reason}))


# --- sessions as one JSON list ---


class PersistedCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A checkpoint as a file of sessions holds it."""

    message_count: Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)]
    last_message_id: str | None = None
    context_snapshot: Any = None


class PersistedSession(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A session as a file of sessions holds it."""

    id: str
    agent_type: str
    working_directory: str
    created_at: _Instant
    last_activity_at: _Instant
    checkpoint: PersistedCheckpoint | None = None


class ImportedSessions(NamedTuple):
    """The sessions of a file, and the errors of sessions that cannot be read."""

    sessions: list[PersistedSession]
    problems: list[HoldfastError]
    """SESS_MANIFEST_DRIFT for each session that cannot be read, with its place in the file."""


def dump_persisted(sessions: Sequence[PersistedSession]) -> bytes:
    """Return the file's content, indented by two spaces."""
    return msgspec.json.format(msgspec.json.encode(list(sessions)), indent=2) + b"\n"


def save_persisted(path: str | Path, sessions: Sequence[PersistedSession]) -> None:
    """Write all sessions to a file. After a crash the file holds the whole old content or the whole new content.

    If the existing file cannot be read, raise and leave it as it is.
    """
    path = Path(path)
    loaded = load_persisted(path)
    if loaded.problems:
        raise loaded.problems[0]
    # Use the same folder, because a rename is atomic only within one file system.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(dump_persisted(sessions))
            file.flush()
            # Sync before the rename. Otherwise a power cut could leave the new name without content.
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    # Without this a power cut could undo the rename.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_persisted(path: str | Path) -> ImportedSessions:
    """Read a file of sessions. A bad session becomes a problem and does not hide the good sessions. The file may be missing."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return ImportedSessions([], [])
    return parse_persisted(content, str(path))


def parse_persisted(content: bytes, place: str) -> ImportedSessions:
    """Read a file's content; raise SESS_MANIFEST_INVALID if it is not a list at all."""
    if codec.is_too_deep(content, _DEEPEST):
        raise _not_a_list(place, "its values are nested too deeply")
    try:
        items = msgspec.json.decode(content, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_a_list(place, str(error)) from error
    loaded = ImportedSessions([], [])
    for number, item in enumerate(items):
        try:
            loaded.sessions.append(msgspec.json.decode(item, type=PersistedSession))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"Session {number} in {place} cannot be read: {error}"
            facts = {"path": place, "index": number, "fields": str(error)}
            loaded.problems.append(HoldfastError(Fault.of("SESS_MANIFEST_DRIFT", message, context=facts)))
    return loaded


def _not_a_list(place: str, reason: str) -> HoldfastError:
    message = f"{place} cannot be read as a list of sessions: {reason}"
    return HoldfastError(Fault.of("SESS_MANIFEST_INVALID", message, context={"path": place, "reason": reason}))


async def persisted(store: Store, session: str, *, exact: bool = False, plain: bool = False) -> PersistedSession:
    """Return a session of a store in the form of the file. What looks like a secret is masked, unless `exact`.

    Raise `InvalidError` for an encrypted store, unless `plain`: the file is not encrypted.
    """
    _check_plain(store, plain=plain)
    record = await store.session(session)
    manifest = decode_manifest(session, bytes(record.manifest))
    checkpoint = await store.checkpoint(session)
    kept = None
    if checkpoint is not None:
        # The checkpoint may be older than the last turn: the log after it has the rest.
        memory = await memory_of(store, session)
        kept = PersistedCheckpoint(
            message_count=memory.message_count,
            last_message_id=memory.last_message_id,
            context_snapshot=_exported_context(_unwrapped(memory.context), exact=exact),
        )
    return PersistedSession(
        id=session,
        agent_type=manifest.agent_type,
        working_directory=manifest.project_root or "",
        created_at=datetime.fromtimestamp(manifest.created_at or record.created_at, UTC),
        last_activity_at=datetime.fromtimestamp(record.last_at, UTC),
        checkpoint=kept,
    )


async def put_persisted(store: Store, session: PersistedSession) -> None:
    """Import a session of a file into a store, paused at its checkpoint.

    Raise SESS_ILLEGAL_TRANSITION if the session exists already.
    """
    # Document 000 allows any text as an id. Our ids appear in SQL, paths and logs, so they are restricted.
    check_name("session", session.id)
    manifest = Manifest(
        session_id=session.id,
        store_id=store.id,
        created_at=session.created_at.timestamp(),
        project_root=session.working_directory or None,
        agent_type=session.agent_type,
    )
    paused = new_entry(StateChanged(state=SessionState.PAUSED, reason="imported"), fresh_id(), "session_paused")
    commit = Commit(
        session=session.id,
        create=NewSession(manifest=encode_manifest(manifest)),
        state=SessionState.PAUSED,
        entries=(paused,),
        checkpoint=None if session.checkpoint is None else _persisted_checkpoint(session.checkpoint),
        audit=(audit("SessionLifecycle", session.id, state="paused", imported=True),),
    )
    await store.commit(commit)


def _persisted_checkpoint(kept: PersistedCheckpoint) -> NewCheckpoint:
    context = kept.context_snapshot
    if context is not None and not isinstance(context, dict):
        # Our context is a table; the format allows any value.
        context = {_ANYTHING: context}
    memory = SessionMemory(message_count=kept.message_count, last_message_id=kept.last_message_id, context=context)
    return NewCheckpoint(
        message_count=kept.message_count,
        last_message_id=kept.last_message_id,
        snapshot=msgspec.json.encode(memory),
    )


def _exported_context(context: Any, *, exact: bool) -> Any:
    if exact:
        return context
    return msgspec.json.decode(Mask(process_redactor()).json(msgspec.json.encode(context)))


def _unwrapped(context: Any) -> Any:
    return context[_ANYTHING] if isinstance(context, dict) and context.keys() == {_ANYTHING} else context
