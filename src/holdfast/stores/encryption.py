"""`EncryptedStore`: a store around a store, with all content encrypted before it reaches the inner one.

Each session has a data key of its own, which its manifest holds, wrapped by the user's key. Audit payloads have a data key of the
store, because an audit chain outlives its session; the reserved session `holdfast-keys` holds it. A change of the user's key wraps
the data keys anew and touches no entry.

Invariant: entry bodies, checkpoints, results of claims, manifests and audit payloads are stored only as AES-256-GCM ciphertext,
bound to their session, id and type. Ids, types, times, sizes, states and audit classes stay plain. The hashes of the inner store cover
the ciphertext, so a log can be verified without a key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from holdfast import options
from holdfast.extras import needs_extra
from holdfast.faults import HoldfastError, InvalidError
from holdfast.runtime.secrets import process_redactor
from holdfast.stores import errors
from holdfast.stores.chain import session_chain
from holdfast.stores.records import FINAL, KEYS, Commit, NewSession, SessionState
from holdfast.stores.redaction import SEALED, WRAPPED, Mask, prepared
from holdfast.stores.store import PAGE_BYTES, PAGE_ENTRIES, work_store

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from holdfast.faults import Redactor
    from holdfast.stores.records import (
        AuditRecord,
        Checkpoint,
        Claim,
        Entry,
        Lease,
        NewAudit,
        NewCheckpoint,
        NewEntry,
        Receipt,
        SessionRecord,
        StoredClaim,
        WorkItem,
        WorkStatus,
        WorkWanted,
    )
    from holdfast.stores.store import Store
    from holdfast.stores.wakeups import Follower

    Key: TypeAlias = bytes | str | Callable[[], bytes | str]

C = TypeVar("C", "Claim", "StoredClaim")

_KEY_BYTES = 32
_NONCE_BYTES = 12
_MOST_KEYS = 65_536
"""How many sessions' data keys are remembered. A key that was forgotten is read again."""


class Rekeyed(msgspec.Struct, frozen=True, kw_only=True):
    """What `EncryptedStore.rekey` did."""

    rewrapped: tuple[str, ...] = ()
    """The sessions whose data key is wrapped by the current key now."""
    current: int = 0
    """How many sessions had it before."""
    skipped: dict[str, str] = {}
    """The sessions that still need an old key, each with the reason."""


class SealedManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest as it is stored: the wrapped data key of its session, and the manifest encrypted with that key."""

    enc: int
    """The version of this form."""
    key: str
    """The id of the user's key that wraps the data key."""
    dek: str
    data: str = ""


def sealed_manifest(stored: bytes) -> SealedManifest | None:
    """Return an encrypted manifest, or None if it is a plain one."""
    if not stored.startswith(WRAPPED):
        return None
    try:
        return msgspec.json.decode(stored, type=SealedManifest)
    except msgspec.DecodeError:
        return None


def unreadable(session: str, what: str, stored: msgspec.Raw, error: Exception) -> HoldfastError:
    """Return the error of content that cannot be decoded: the store has no key for it, or it is damaged."""
    if bytes(stored).startswith(SEALED):
        return errors.wrong_key(session, "", ())
    return errors.damaged(session, f"its {what} cannot be read: {error}")


def key_from_env(names: str) -> tuple[Key, ...]:
    """Return the keys that environment variables hold: `"NEW_KEY,OLD_KEY"`, the current one first.

    The variables are read when the store is used. One that is not set then raises `InvalidError`.
    """

    def reader(name: str) -> Callable[[], str]:
        def read() -> str:
            value = os.environ.get(name, "").strip()
            if not value:
                raise InvalidError.saying("store key", f"a key in the environment variable {name}", "nothing")
            return value

        return read

    return tuple(reader(name.strip()) for name in names.split(",") if name.strip())


class EncryptedStore:
    """A store that encrypts everything it keeps in another store.

        key = os.environ["WORK_KEY"]      # 32 random bytes, as base64: openssl rand -base64 32
        async with EncryptedStore(SqliteStore("work.db"), key) as store:
            async with Session.open("release-42", store=store) as session: ...

    `key` is 32 bytes, their base64 or hex text, or a function that returns either and is called once. `old_keys` are keys that
    sessions may still be wrapped with: see `rekey`. The address `sqlite:work.db?key_env=WORK_KEY` opens the same store.

    A session that was encrypted with a key that is not given raises SESS_KEY_WRONG, and so does a session that is not encrypted.
    Raises SYS_DEPENDENCY_MISSING without the package cryptography, which the extra `encryption` installs.
    """

    @options.suggests
    def __init__(
        self, inner: Store, key: Key, *, old_keys: Sequence[Key] = (), redactor: Redactor | None = None
    ) -> None:
        self.inner = inner
        """The store that keeps the ciphertext."""
        self._given = (key, *old_keys)
        self._ring: _KeyRing | None = None
        self.mask = Mask(redactor or process_redactor())
        """Knows the secrets that may not be stored."""
        self._known: dict[str, _DataKey] = {}
        self._of_audit: _DataKey | None = None

    @property
    def id(self) -> str:
        """The inner store's id: encryption does not make it another store."""
        return self.inner.id

    @property
    def epoch(self) -> str | None:
        """The epoch of the store inside."""
        epoch: str | None = getattr(self.inner, "epoch", None)
        return epoch

    @property
    def loses_with_epoch(self) -> bool:
        """Whether another epoch of the store inside proves that entries were lost."""
        return bool(getattr(self.inner, "loses_with_epoch", False))

    @property
    def path(self) -> Path | None:
        """The file of the store inside; None: it has none."""
        path: Path | None = getattr(self.inner, "path", None)
        return path

    @property
    def one_machine(self) -> bool:
        """Whether only processes of one machine can use the store inside."""
        return bool(getattr(self.inner, "one_machine", False))

    @property
    def place(self) -> Hashable | None:
        """What stores at the same place with the same keys have in common: sessions that are opened by address share one."""
        place: Hashable | None = getattr(self.inner, "place", None)
        return None if place is None else ("encrypted", place, self._keys.ids)

    @property
    def key_id(self) -> str:
        """The id of the current key. It is stored with everything that the key wraps, and does not reveal the key."""
        return self._keys.current

    async def __aenter__(self) -> Self:
        # A key that is not set must be noticed before the file is made.
        self._load_keys()
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.inner.__aexit__(None, None, None)

    async def commit(self, commit: Commit) -> Receipt:
        """Write all of the commit, or nothing. Raises what `Store.commit` lists, and SESS_KEY_WRONG."""
        commit = prepared(commit, self.mask)
        if commit.session == KEYS:
            raise errors.reserved(KEYS)
        if commit.audit:
            of_audit = await self._audit_key()
            chain = commit.chain or session_chain(commit.session or "")
            records = tuple(_sealed_audit(of_audit, one, chain) for one in commit.audit)
            commit = msgspec.structs.replace(commit, audit=records)
        if commit.session is None:
            return await self.inner.commit(commit)
        if commit.create is not None:
            key = _DataKey.new(self._keys, commit.session)
        else:
            key = await self._key_to_write(commit)
        receipt = await self.inner.commit(_sealed(commit, key))
        if commit.create is not None:
            self._remember(commit.session, key)
        if commit.claim is None:
            return receipt
        opened = key.open(bytes(receipt.result), _place_of_claim(commit.claim))
        if opened is None:
            raise _changed_claim(commit.session, commit.claim.id)
        return msgspec.structs.replace(receipt, result=msgspec.Raw(opened.partition(b".")[2]))

    async def session(self, session: str) -> SessionRecord:
        """Return the record of a session, or raise SESS_NOT_FOUND or SESS_KEY_WRONG."""
        if session == KEYS:
            raise errors.missing(session)
        return self._opened(await self.inner.session(session))

    async def sessions(
        self, *, states: Sequence[SessionState] = (), after: str = "", limit: int = PAGE_ENTRIES
    ) -> list[SessionRecord]:
        """Return a page of sessions in the order of their ids. With a wrong key their manifests stay encrypted."""
        # One more, because the session that holds our key may be among them.
        page = await self.inner.sessions(states=states, after=after, limit=limit + 1)
        return [self._listed(record) for record in page if record.id != KEYS][:limit]

    async def read(
        self, session: str, *, after: int = 0, limit: int = PAGE_ENTRIES, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        """Return the entries after an offset. Raises SESS_GAP, SESS_KEY_WRONG, and SESS_MANIFEST_DRIFT for a changed entry."""
        # Ciphertext is a third longer, and a page is measured in plain bytes.
        found = await self.inner.read(session, after=after, limit=limit, max_bytes=max_bytes * 4 // 3 + 64 * limit)
        page: list[Entry] = []
        for entry in found:
            body = await self._open(session, f"entry {entry.offset}", entry.body, ("entry", entry.id, entry.type))
            max_bytes -= len(body)
            if max_bytes < 0 and page:
                break
            page.append(msgspec.structs.replace(entry, body=msgspec.Raw(body)))
        return page

    async def checkpoint(self, session: str) -> Checkpoint | None:
        """Return the last checkpoint, or None. Raises SESS_KEY_WRONG, and SESS_MANIFEST_DRIFT if it was changed."""
        found = await self.inner.checkpoint(session)
        if found is None:
            return None
        snapshot = await self._open(session, "checkpoint", found.snapshot, _place_of_checkpoint(found))
        return msgspec.structs.replace(found, snapshot=msgspec.Raw(snapshot))

    async def audit(self, chain: str, *, after: int = 0, limit: int = PAGE_ENTRIES) -> list[AuditRecord]:
        """Return a page of an audit chain. A payload that cannot be decrypted stays as it is: its hash can still be checked."""
        return await self._opened_audit(await self.inner.audit(chain, after=after, limit=limit))

    async def orphans(self) -> list[AuditRecord]:
        """Return the first record of each audit chain whose own row is gone."""
        return await self._opened_audit(await self.inner.orphans())

    async def chains(self, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[tuple[str, int, str]]:
        """Return a page of audit chains: name, number of the last record, and its hash."""
        return await self.inner.chains(after=after, limit=limit)

    async def acquire(self, session: str, owner: str, ttl: float) -> Lease:
        """Take the session for `ttl` seconds, or raise SESS_LEASE_LOST while another owner holds it."""
        return await self.inner.acquire(session, owner, ttl)

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease to `ttl` seconds from now, or raise SESS_LEASE_LOST if it was taken over."""
        return await self.inner.renew(lease, ttl)

    def renew_all(self, leases: Sequence[Lease], ttl: float) -> list[Lease]:
        """Extend many leases at once; return those that were extended. Call it in a thread."""
        return self.inner.renew_all(leases, ttl)

    async def release(self, lease: Lease) -> None:
        """End a lease. If it was taken over meanwhile, nothing happens."""
        await self.inner.release(lease)

    async def compact(self, session: str, before: int, *, fence: int | None = None) -> int:
        """Drop the entries before an offset, up to the checkpoint at most; return how many were dropped."""
        return await self.inner.compact(session, before, fence=fence)

    async def claims(
        self, session: str, *, after: tuple[str, str] = ("", ""), limit: int = PAGE_ENTRIES
    ) -> list[StoredClaim]:
        """Return a page of the claims of a session, in the order of client and id."""
        found = await self.inner.claims(session, after=after, limit=limit)
        return [await self._opened_claim(session, claim) for claim in found]

    async def forget_claims(self, session: str, before: float) -> None:
        """Drop claims older than a time (wall clock), but never the last thousand."""
        await self.inner.forget_claims(session, before)

    async def remove(self, session: str) -> None:
        """Remove a closed or failed session with its data key. Its audit chain stays, and stays readable."""
        if session == KEYS:
            raise errors.reserved(session)
        await self.inner.remove(session)
        self._known.pop(session, None)

    async def changed(self, session: str, after: int, seconds: float) -> bool:
        """Wait until the session's log has entries after `after`, for at most `seconds`; return whether it has."""
        return await self.inner.changed(session, after, seconds)

    async def claim_work(self, wanted: WorkWanted) -> list[WorkItem]:
        """Claim work items that are due, the most important first."""
        return await work_store(self.inner).claim_work(wanted)

    async def free_work(self, claims: Sequence[tuple[str, str]], *, due: float | None = None) -> None:
        """Give back claimed items, by session and claim; with `due` they wait until then."""
        await work_store(self.inner).free_work(claims, due=due)

    async def next_work(self, queues: Sequence[str]) -> float | None:
        """Return in how many seconds an item of these queues is due, or any that waits for a time; None: none is."""
        return await work_store(self.inner).next_work(queues)

    async def work(
        self,
        session: str | None = None,
        *,
        statuses: Sequence[WorkStatus] = (),
        queue: str | None = None,
        after: str = "",
        limit: int = PAGE_ENTRIES,
    ) -> list[WorkItem]:
        """Return the work item of a session, or a page of all of them in the order of their sessions."""
        inner = work_store(self.inner)
        return await inner.work(session, statuses=statuses, queue=queue, after=after, limit=limit)

    async def pause_work(self, queue: str, *, paused: bool) -> None:
        """Let no item of a queue begin, or let them begin again."""
        await work_store(self.inner).pause_work(queue, paused=paused)

    async def paused_work(self) -> list[str]:
        """Return the queues that are paused."""
        return await work_store(self.inner).paused_work()

    def follow_work(self) -> Follower:
        """Return what waits for work again and again."""
        return work_store(self.inner).follow_work()

    async def rekey(self) -> Rekeyed:
        """Wrap every data key with the current key; return what was done. No entry is written anew.

            async with EncryptedStore(SqliteStore("work.db"), new, old_keys=[old]) as store:
                done = await store.rekey()       # then the old key is not needed any more, if nothing was skipped

        A session that a process works in is skipped, because that process may still write with the old key.
        """
        rewrapped, skipped, current = list[str](), dict[str, str](), 0
        after = ""
        while page := await self.inner.sessions(after=after):
            for record in page:
                sealed = sealed_manifest(bytes(record.manifest))
                if sealed is not None and sealed.key == self._keys.current:
                    current += 1
                    continue
                try:
                    await self._rewrap(record)
                    rewrapped.append(record.id)
                except HoldfastError as error:
                    skipped[record.id] = error.fault.message
            after = page[-1].id
        return Rekeyed(rewrapped=tuple(rewrapped), current=current, skipped=skipped)

    # The keys

    @property
    def _keys(self) -> _KeyRing:
        return self._ring or self._load_keys()

    def _load_keys(self) -> _KeyRing:
        self._ring = _KeyRing([_key_bytes(key) for key in self._given])
        return self._ring

    async def _rewrap(self, record: SessionRecord) -> None:
        key = self._unwrapped(record)
        plain = key.manifest_of(record)
        commit = Commit(session=record.id, manifest=key.manifest(plain, self._keys.wrap(record.id, key.raw)))
        if record.state in FINAL:
            await self.inner.commit(msgspec.structs.replace(commit, expect=(record.state,)))
            return
        lease = await self.inner.acquire(record.id, f"rekey-{os.urandom(8).hex()}", 10.0)
        try:
            await self.inner.commit(msgspec.structs.replace(commit, fence=lease.fence))
        finally:
            await self.inner.release(lease)
        self._known.pop(record.id, None)

    def _unwrapped(self, record: SessionRecord) -> _DataKey:
        """Return the data key of a session's record, or raise SESS_KEY_WRONG."""
        sealed = sealed_manifest(bytes(record.manifest))
        if sealed is None:
            raise errors.not_encrypted(record.id)
        return _DataKey(record.id, self._keys.unwrap(record.id, sealed), sealed)

    def _opened(self, record: SessionRecord) -> SessionRecord:
        key = self._unwrapped(record)
        self._remember(record.id, key)
        return msgspec.structs.replace(record, manifest=msgspec.Raw(key.manifest_of(record)))

    def _listed(self, record: SessionRecord) -> SessionRecord:
        try:
            return self._opened(record)
        except HoldfastError:
            # A list must show this session too. A caller that works with it gets the error.
            return record

    async def _key_to_write(self, commit: Commit) -> _DataKey:
        assert commit.session is not None
        # Without a fence, the session may have been removed and made again by another process, with another key.
        return await self._key(commit.session, fresh=commit.fence is None)

    async def _key(self, session: str, *, fresh: bool = False) -> _DataKey:
        key = None if fresh else self._known.get(session)
        if key is None:
            key = self._unwrapped(await self.inner.session(session))
            self._remember(session, key)
        return key

    def _remember(self, session: str, key: _DataKey) -> None:
        while len(self._known) >= _MOST_KEYS:
            del self._known[next(iter(self._known))]
        self._known[session] = key

    async def _audit_key(self) -> _DataKey:
        if self._of_audit is None:
            self._of_audit = await self._find_audit_key()
        return self._of_audit

    async def _find_audit_key(self) -> _DataKey:
        try:
            return self._unwrapped(await self.inner.session(KEYS))
        except HoldfastError as error:
            if error.fault.code != "SESS_NOT_FOUND":
                raise
        key = _DataKey.new(self._keys, KEYS)
        try:
            await self.inner.commit(Commit(session=KEYS, create=NewSession(manifest=key.manifest(b"{}"))))
        except HoldfastError as taken:
            if taken.fault.code != "SESS_ILLEGAL_TRANSITION":
                raise
            # Another process made it meanwhile.
            return self._unwrapped(await self.inner.session(KEYS))
        return key

    async def _open(self, session: str, what: str, stored: msgspec.Raw, place: tuple[Any, ...]) -> bytes:
        for fresh in (False, True):
            key = await self._key(session, fresh=fresh)
            body = key.open(bytes(stored), place)
            if body is not None:
                return body
        raise errors.damaged(session, f"its {what} was changed, or belongs elsewhere")

    async def _opened_claim(self, session: str, claim: StoredClaim) -> StoredClaim:
        opened = (await self._key(session)).open(claim.result, _place_of_claim(claim))
        if opened is None:
            raise _changed_claim(session, claim.id)
        digest, _, result = opened.partition(b".")
        return msgspec.structs.replace(claim, body_hash=bytes.fromhex(digest.decode()), result=result)

    async def _opened_audit(self, records: list[AuditRecord]) -> list[AuditRecord]:
        if not any(bytes(record.payload).startswith(SEALED) for record in records):
            return records
        try:
            key = await self._audit_key()
        except HoldfastError as error:
            if error.fault.code != "SESS_KEY_WRONG":
                raise
            return records
        return [_opened_record(key, record) for record in records]


class _KeyRing:
    """The user's keys: the current one wraps, all of them unwrap."""

    def __init__(self, keys: list[bytes]) -> None:
        self._by_id = {_key_id(key): _cipher(key) for key in keys}
        self.ids = tuple(self._by_id)
        """The ids of the keys, the current one first."""
        self.current = self.ids[0]

    def wrap(self, session: str, raw: bytes) -> SealedManifest:
        nonce = os.urandom(_NONCE_BYTES)
        wrapped = self._by_id[self.current].encrypt(nonce, raw, _place(("data key", session)))
        return SealedManifest(enc=1, key=self.current, dek=b64encode(nonce + wrapped).decode())

    def unwrap(self, session: str, sealed: SealedManifest) -> bytes:
        """Return the data key; raise SESS_KEY_WRONG if none of the user's keys wraps it."""
        cipher = self._by_id.get(sealed.key)
        raw = None if cipher is None else _decrypted(cipher, sealed.dek, ("data key", session))
        if raw is None:
            raise errors.wrong_key(session, sealed.key, self.ids)
        return raw


class _DataKey:
    """The data key of one session."""

    __slots__ = ("_cipher", "_session", "raw", "wrapped")

    def __init__(self, session: str, raw: bytes, wrapped: SealedManifest) -> None:
        self._session = session
        self._cipher = _cipher(raw)
        self.raw = raw
        self.wrapped = wrapped

    @classmethod
    def new(cls, ring: _KeyRing, session: str) -> Self:
        raw = os.urandom(_KEY_BYTES)
        return cls(session, raw, ring.wrap(session, raw))

    def seal(self, body: bytes, place: tuple[Any, ...]) -> bytes:
        """Return ciphertext as a JSON text. It can be opened only at the same place of the same session."""
        return SEALED + self._encrypted(body, place).encode() + b'"'

    def open(self, stored: bytes, place: tuple[Any, ...]) -> bytes | None:
        """Return the plain bytes; None for what this key did not encrypt for this place."""
        if not stored.startswith(SEALED):
            return None
        return _decrypted(self._cipher, stored[len(SEALED) : -1].decode(errors="replace"), (self._session, *place))

    def manifest(self, plain: bytes, wrapped: SealedManifest | None = None) -> bytes:
        sealed = wrapped or self.wrapped
        return msgspec.json.encode(msgspec.structs.replace(sealed, data=self._encrypted(plain, ("manifest",))))

    def manifest_of(self, record: SessionRecord) -> bytes:
        sealed = sealed_manifest(bytes(record.manifest))
        assert sealed is not None
        plain = _decrypted(self._cipher, sealed.data, (self._session, "manifest"))
        if plain is None:
            raise errors.damaged(record.id, "its manifest was changed")
        return plain

    def hash_of(self, body_hash: bytes) -> bytes:
        """Return a hash that only this key can compute. The plain hash of a short message could be guessed."""
        return hmac.digest(self.raw, b"claim" + body_hash, "sha256")

    def _encrypted(self, body: bytes, place: tuple[Any, ...]) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        return b64encode(nonce + self._cipher.encrypt(nonce, body, _place((self._session, *place)))).decode()


def _sealed(commit: Commit, key: _DataKey) -> Commit:
    """Return a commit with its content encrypted. Its audit records are encrypted already."""
    changed: dict[str, Any] = {}
    if commit.entries:
        changed["entries"] = tuple(_sealed_entry(key, entry) for entry in commit.entries)
    if commit.checkpoint is not None:
        snapshot = key.seal(commit.checkpoint.snapshot, _place_of_checkpoint(commit.checkpoint))
        changed["checkpoint"] = msgspec.structs.replace(commit.checkpoint, snapshot=snapshot)
    if commit.claim is not None:
        changed["claim"] = _sealed_claim(key, commit.claim)
    if commit.claims:
        changed["claims"] = tuple(_sealed_claim(key, claim) for claim in commit.claims)
    if commit.manifest is not None:
        changed["manifest"] = key.manifest(commit.manifest)
    if commit.create is not None:
        changed["create"] = NewSession(manifest=key.manifest(commit.create.manifest))
    return msgspec.structs.replace(commit, **changed) if changed else commit


def _sealed_entry(key: _DataKey, entry: NewEntry) -> NewEntry:
    return msgspec.structs.replace(entry, body=key.seal(entry.body, ("entry", entry.id, entry.type)))


def _sealed_claim(key: _DataKey, claim: C) -> C:
    # The plain hash is kept beside the result, because an export needs it.
    kept = claim.body_hash.hex().encode() + b"." + claim.result
    result = key.seal(kept, _place_of_claim(claim))
    return msgspec.structs.replace(claim, result=result, body_hash=key.hash_of(claim.body_hash))


def _changed_claim(session: str, id_: str) -> HoldfastError:
    return errors.damaged(session, f"the result of message {id_} was changed")


def _sealed_audit(key: _DataKey, record: NewAudit, chain: str) -> NewAudit:
    return msgspec.structs.replace(record, payload=key.seal(record.payload, _place_of_audit(record, chain)))


def _opened_record(key: _DataKey, record: AuditRecord) -> AuditRecord:
    payload = key.open(bytes(record.payload), _place_of_audit(record, record.chain))
    if payload is None:
        return record
    return msgspec.structs.replace(record, payload=msgspec.Raw(payload), stored=record.payload)


def _place_of_checkpoint(checkpoint: Checkpoint | NewCheckpoint) -> tuple[Any, ...]:
    return ("checkpoint", checkpoint.message_count, checkpoint.last_message_id)


def _place_of_claim(claim: Claim | StoredClaim) -> tuple[Any, ...]:
    return ("claim", claim.client, claim.id)


def _place_of_audit(record: NewAudit | AuditRecord, chain: str) -> tuple[Any, ...]:
    return ("audit", chain, record.kind, record.correlation)


def _place(parts: tuple[Any, ...]) -> bytes:
    """Return associated data: ciphertext opens only with the same parts, so rows cannot be swapped."""
    return msgspec.json.encode(parts)


def _decrypted(cipher: Any, written: str, place: tuple[Any, ...]) -> bytes | None:
    try:
        raw = b64decode(written, validate=True)
    except (Base64Error, ValueError):
        return None
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - there is a cipher, so the package is there

    try:
        plain: bytes = cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _place(place))
    except (InvalidTag, ValueError):
        return None
    return plain


def _cipher(raw: bytes) -> Any:
    with needs_extra("encryption of a store", "cryptography", "encryption"):
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - only who encrypts needs it
    return AESGCM(raw)


def _key_id(raw: bytes) -> str:
    return hashlib.sha256(b"holdfast key id" + raw).hexdigest()[:16]


def _key_bytes(key: Key) -> bytes:
    """Return the 32 bytes of a key; raise `InvalidError` without showing it."""
    given = key() if callable(key) else key
    raw = given if isinstance(given, bytes) else _from_text(given)
    if raw is None or len(raw) != _KEY_BYTES:
        found = f"{type(given).__name__} of {len(given)}"
        raise InvalidError.saying(
            "store key", "32 random bytes, or their base64 or hex text (openssl rand -base64 32)", found
        )
    return raw


def _from_text(text: str) -> bytes | None:
    with suppress(ValueError):  # not hexadecimal: it is read as base64 below
        return bytes.fromhex(text)
    try:
        return b64decode(
            text.strip().replace("-", "+").replace("_", "/") + "=" * (-len(text.strip()) % 4), validate=True
        )
    except (Base64Error, ValueError):
        return None
