"""Verification of the audit trail: follows every chain from its first record to its head.

If somebody removes the end of a chain, or a whole chain, together with its head, the hashes of that chain cannot show it. An anchor
can. Sessions write anchors into the chain `anchors` of the store: the number and hash of the last record of their own chain. An
anchor that is kept elsewhere also protects the chain of anchors: the heads of an earlier verification, or the digest over them.

Invariant: verification only reads. Records that are added meanwhile are checked by the next verification.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.stores.chain import GENESIS, Broken, session_chain, verify
from holdfast.stores.encryption import EncryptedStore
from holdfast.stores.records import NewAudit
from holdfast.stores.store import PAGE_ENTRIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from holdfast.stores.records import AuditRecord, SessionRecord
    from holdfast.stores.store import Store

ANCHORS = "anchors"
"""The chain that holds the heads of other chains."""


class ChainHead(msgspec.Struct, frozen=True, kw_only=True):
    """The last record of a chain."""

    chain: str
    seq: int
    hash: str


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `verify_store`: `(await verify_store(store)).check()`."""

    heads: tuple[ChainHead, ...]
    """The last record of each chain when the verification began, by name. Keep them elsewhere as an anchor."""
    digest: str
    """A hash over all heads. It stays the same as long as nothing is written or changed."""
    records: int
    """How many records are intact."""
    broken: tuple[Broken, ...] = ()
    """Where each broken chain breaks."""

    @property
    def sound(self) -> bool:
        """Whether every chain is intact."""
        return not self.broken

    @property
    def error(self) -> HoldfastError | None:
        """SYS_AUDIT_TAMPERED with the first break, or None."""
        if self.sound:
            return None
        first = self.broken[0]
        message = f"Audit chain {first.chain!r} breaks at record {first.seq}: {first.reason}"
        context = {"record": first.seq, "chain": first.chain, "reason": first.reason, "broken": len(self.broken)}
        return HoldfastError(Fault.of("SYS_AUDIT_TAMPERED", message, context=context))

    def check(self) -> None:
        """Raise SYS_AUDIT_TAMPERED unless every chain is intact."""
        if (error := self.error) is not None:
            raise error


async def verify_store(
    store: Store,
    *,
    chains: Sequence[str] = (),
    anchor: Sequence[ChainHead] = (),
    expect: str | None = None,
    each: Callable[[AuditRecord], object] | None = None,
) -> Verification:
    """Check every chain, or the chains in `chains`, from its first record to its present head.

        result = await verify_store(store, anchor=yesterday.heads)
        result.check()

    `anchor` holds the heads of an earlier verification, which must still be in their chains, as those in the store's own chain of
    anchors must. `expect` is the digest that the result must have. `each` is called with every record that is read, intact or not.
    """
    # Read the anchors, then the heads: records that are added during the check must not count as wrong.
    anchored: dict[str, list[ChainHead]] = {}
    for known in (*anchor, *await _anchors(store)):
        anchored.setdefault(known.chain, []).append(known)
    every = [head async for head in heads_of(store)]
    heads = tuple(head for head in every if not chains or head.chain in chains)
    broken: list[Broken] = []
    records = 0
    for head in heads:
        sound, found = await _follow(store, head, anchored.pop(head.chain, []), each)
        records += sound
        broken += found
    broken += await _beside(store, heads)
    # The remaining anchors name chains that no longer exist. With a selection those chains may just not be selected.
    if not chains:
        broken += [_broken(gone[0], 1, "the whole chain is gone") for gone in anchored.values()]
        broken += await _orphans(store)
        broken += [found async for found in broken_logs(store)]
    digest = digest_of(heads)
    if expect is not None and expect != digest:
        reason = f"the digest over all heads is {digest}, not the expected {expect}"
        broken.append(Broken(chain="*", seq=0, reason=reason))
    return Verification(heads=heads, digest=digest, records=records, broken=tuple(broken))


def digest_of(heads: Iterable[ChainHead]) -> str:
    """Return one hash over the heads, in the order of their chains' names."""
    parts = sorted((head.chain, head.seq, head.hash) for head in heads)
    return sha256(msgspec.json.encode(parts)).hexdigest()


async def heads_of(store: Store) -> AsyncIterator[ChainHead]:
    """Yield the heads of all chains, page by page."""
    after = ""
    while page := await store.chains(after=after):
        for name, seq, sealed in page:
            yield ChainHead(chain=name, seq=seq, hash=sealed)
        after = page[-1][0]


async def head_of(store: Store, chain: str) -> ChainHead | None:
    """Return the head of one chain, or None if it has no record."""
    # A page begins after a name. No name is between this one and the chain's own, because names have no `~`.
    just_before = f"{chain[:-1]}{chr(ord(chain[-1]) - 1)}~"
    for name, seq, sealed in await store.chains(after=just_before, limit=1):
        if name == chain:
            return ChainHead(chain=name, seq=seq, hash=sealed)
    return None


def anchor_of(head: ChainHead) -> NewAudit:
    """Return the record that anchors a chain. Write it into the chain `ANCHORS`."""
    payload = msgspec.json.encode({"event": "anchor", **msgspec.to_builtins(head)})
    return NewAudit(kind="Integrity", correlation=head.chain, payload=payload)


async def records_of(store: Store, chain: str, *, after: int = 0) -> AsyncIterator[AuditRecord]:
    """Yield the records of a chain, page by page."""
    while page := await store.audit(chain, after=after, limit=PAGE_ENTRIES):
        for record in page:
            yield record
        after = page[-1].seq


async def unaudited(store: Store) -> list[str]:
    """Return the sessions without an audit chain. Either nothing was recorded, or the chain was removed."""
    known = {head.chain async for head in heads_of(store)}
    after, without = "", list[str]()
    page: list[SessionRecord]
    while page := await store.sessions(after=after):
        without += [record.id for record in page if session_chain(record.id) not in known]
        after = page[-1].id
    return without


async def _anchors(store: Store) -> list[ChainHead]:
    """Return the last anchor of each chain. The anchors before it follow from it, because a chain's hashes do."""
    last: dict[str, ChainHead] = {}
    end = await head_of(store, ANCHORS)
    if end is None:
        return []
    async for record in records_of(store, ANCHORS):
        # Sessions may add anchors faster than they are read here.
        if record.seq > end.seq:
            break
        try:
            head = msgspec.json.decode(record.payload, type=ChainHead)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # It is not an anchor, or somebody changed it. The hash of its own chain shows that.
            continue
        last[head.chain] = head
    return list(last.values())


async def _orphans(store: Store) -> list[Broken]:
    """Return the first record of each chain whose row is gone. The chain's name is gone with it."""
    return [
        Broken(
            chain=f"? ({record.correlation})", seq=record.seq, reason="the records are there, but their chain is gone"
        )
        for record in await store.orphans()
    ]


async def broken_logs(store: Store) -> AsyncIterator[Broken]:
    """Yield the log of each session that was changed after it was written, as the chain `log:SESSION`.

    Reading a log or a checkpoint checks its hashes. What was written before there were hashes is not checked. In an encrypted store
    the hashes cover the ciphertext, so no key is needed.
    """
    if isinstance(store, EncryptedStore):
        store = store.inner
    after = ""
    while page := await store.sessions(after=after):
        for record in page:
            seen = record.oldest - 1
            try:
                await store.checkpoint(record.id)
                while entries := await store.read(record.id, after=seen):
                    seen = entries[-1].offset
            except HoldfastError as error:
                # It was removed or compacted meanwhile.
                if error.fault.code in ("SESS_NOT_FOUND", "SESS_GAP"):
                    continue
                if error.fault.code != "SESS_MANIFEST_DRIFT":
                    raise
                reason = str(error.fault.context.get("fields", error.fault.message))
                yield Broken(chain=f"log:{record.id}", seq=seen + 1, reason=reason)
        after = page[-1].id


async def _follow(
    store: Store, head: ChainHead, anchors: Sequence[ChainHead], each: Callable[[AuditRecord], object] | None
) -> tuple[int, list[Broken]]:
    """Check one chain; return how many records are intact, and where it breaks."""
    seq, sealed, broken = 0, GENESIS, list[Broken]()
    missing = {(anchor.seq, anchor.hash) for anchor in anchors}
    last = 0
    while last < head.seq:
        page = await store.audit(head.chain, after=last, limit=min(PAGE_ENTRIES, head.seq - last))
        # Records beyond the head were added since, or were read early because earlier records are missing.
        page = [record for record in page if record.seq <= head.seq]
        if not page:
            break
        last = page[-1].seq
        for record in page:
            if each is not None:
                each(record)
            # After the first break every later hash is wrong too, so report only the first.
            if not broken:
                seq, sealed, found = verify((record,), after=seq, before=sealed)
                broken += [] if found is None else [found]
            missing.discard((record.seq, record.hash))
    if not broken:
        broken += _end(head, seq, sealed)
    for number, hash_ in sorted(missing):
        reason = f"it is not the record with hash {hash_[:16]}… that was here before"
        broken.append(_broken(head, number, reason))
    return seq, broken


async def _beside(store: Store, heads: Iterable[ChainHead]) -> list[Broken]:
    """Return records beyond the head of their chain. Somebody wrote them into the table, not through a commit."""
    later = [record for head in heads for record in await store.audit(head.chain, after=head.seq, limit=1)]
    if not later:
        return []
    # Read the heads again: a commit since then has moved the head too, so its records are not beyond the head.
    now = {head.chain: head.seq async for head in heads_of(store)}
    return [
        Broken(chain=record.chain, seq=record.seq, reason="it was added after the end of the chain")
        for record in later
        if record.seq > now.get(record.chain, 0)
    ]


def _end(head: ChainHead, seq: int, sealed: bytes) -> list[Broken]:
    if seq < head.seq:
        gone = f"record {seq + 1} is missing: the chain had {head.seq}"
        return [_broken(head, seq + 1, gone)]
    if sealed.hex() != head.hash:
        return [_broken(head, seq, "its hash is not the one the chain ends with")]
    return []


def _broken(head: ChainHead, seq: int, reason: str) -> Broken:
    return Broken(chain=head.chain, seq=seq, reason=reason)
