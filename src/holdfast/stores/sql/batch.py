"""A batch: plain commits of many sessions as a few lists of rows, which an engine writes with one statement for each table.

A commit is plain if it appends entries, changes the state or adds to the session's own audit chain. Nearly all commits are. An engine
that looks up claims can also batch commits that make one. Others create, or write a checkpoint or manifest; each of them runs as a
script of its own (`commits`).

Invariant: nothing here does I/O. A batch is computed from the sessions' heads as the engine knows them, and the engine writes it only
if they are still so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.stores import errors
from holdfast.stores.chain import GENESIS, entry_hash, link, session_chain
from holdfast.stores.records import Receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.records import Claim, Commit
    from holdfast.stores.sql.query import Row

HEADS = (
    "SELECT s.name, s.key, s.epoch, s.state, s.fence, s.top, s.last_at, s.head, c.key, c.seq, c.hash"
    " FROM session s LEFT JOIN chain c ON c.name = 'session:' || s.name WHERE s.name"
)
"""Reads the heads of sessions; the engine adds which names."""
KNOWN = "SELECT body_hash, first, top, at, result FROM inbox WHERE session = ? AND client = ? AND id = ?"
"""Reads the receipt of a claim that was made before."""


class SessionHead(NamedTuple):
    """What a commit needs to know of a session: its row, and the end of its audit chain."""

    key: int
    epoch: str
    state: str
    fence: int
    top: int
    last_at: float
    hash: bytes
    chain: int | None
    """The key of its audit chain. It is None until the first record."""
    seq: int
    seal: bytes


_new = tuple.__new__


def head_of(row: Row) -> SessionHead:
    """Return the head of a session from a row of `HEADS`, without its first column."""
    key, epoch, state, fence, top, last_at, hash_, chain, seq, seal = row
    before = GENESIS if hash_ is None else bytes(hash_)
    return SessionHead(
        key, epoch, state, fence, top, last_at, before, chain, seq or 0, GENESIS if seal is None else bytes(seal)
    )


def is_plain(commit: Commit, *, may_claim: bool = False) -> bool:
    """Whether a batch can hold the commit. may_claim: also if it makes a claim."""
    return (
        commit.session is not None
        and commit.create is None
        and (may_claim or commit.claim is None)
        and commit.checkpoint is None
        and commit.manifest is None
        and commit.work is None
        and not (commit.audit and commit.chain)
    )


def repeated(claim: Claim, known: Row, epoch: str) -> Receipt:
    """Return the first receipt of a claim that was made before, from a row of `KNOWN`. Raise if it was made for something else."""
    body_hash, first, top, at, result = known
    if bytes(body_hash) != claim.body_hash:
        raise errors.claimed_otherwise(claim.client, claim.id)
    return Receipt(first=first, top=top, at=at, epoch=epoch, duplicate=True, result=msgspec.Raw(bytes(result)))


class Batch:
    """Rows to write, and what each session's head is before and after."""

    __slots__ = ("after", "audits", "before", "claims", "entries")

    def __init__(self) -> None:
        self.before: dict[str, SessionHead] = {}
        self.after: dict[str, SessionHead] = {}
        self.entries: list[tuple[Any, ...]] = []
        """(session's key, offset, id, time, type, body, hash)"""
        self.claims: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        """By session's key, client and id: (session's key, client, id, hash of the body, time, first and last offset, result)"""
        self.audits: list[tuple[Any, ...]] = []
        """(chain's key, number, time, class, correlation, payload, hash)"""

    @staticmethod
    def takes(commit: Commit, head: SessionHead) -> bool:
        """Whether a plain commit fits here: its audit chain exists, if it needs one."""
        return not commit.audit or head.chain is not None

    def add(self, commit: Commit, head: SessionHead, now: float, known: Row | None = None) -> Receipt:
        """Add a commit to a session with this head; return its receipt. Raise, and add nothing, if the session does not take it.

        known: the row of `KNOWN` for the commit's claim, if it was made before.
        """
        name = commit.session
        assert name is not None
        before_this = self.after.get(name)
        if before_this is not None:
            head = before_this
        key, epoch, state, fence, top, last_at, before, chain, seq, seal = head
        errors.admit(commit, state, fence, top)
        claim = commit.claim
        if claim is not None:
            made = self.claims.get((key, claim.client, claim.id))
            known = known if made is None else (made[3], made[5], made[6], made[4], made[7])
            if known is not None:
                return repeated(claim, known, epoch)
        if before_this is None:
            self.before[name] = head
        # Times of a log never run backwards, even if the clock does.
        at = max(now, last_at)
        first = top + 1 if commit.entries else 0
        for entry in commit.entries:
            top += 1
            id_, type_, body = entry.id, entry.type, entry.body
            before = entry_hash(before, session=name, offset=top, at=at, id_=id_, type_=type_, body=body)
            self.entries.append((key, top, id_, at, type_, body, before))
        if commit.audit:
            for record in commit.audit:
                seq += 1
                seal = link(seal, record, chain=session_chain(name), seq=seq, at=at)
                self.audits.append((chain, seq, at, record.kind, record.correlation, record.payload, seal))
        state = state if commit.state is None else commit.state.value
        # Making the tuple itself takes a third of the time of calling the class.
        self.after[name] = _new(SessionHead, (key, epoch, state, fence, top, at, before, chain, seq, seal))
        if claim is None:
            return Receipt(first=first, top=top, at=at, epoch=epoch)
        # The receipt is stored with the claim, so that a repeated claim returns exactly the first receipt.
        row = (key, claim.client, claim.id, claim.body_hash, at, first, top, claim.result)
        self.claims[row[:3]] = row
        return Receipt(first=first, top=top, at=at, epoch=epoch, result=msgspec.Raw(claim.result))

    def moves(self) -> Sequence[tuple[Any, ...]]:
        """Return the changed columns of each session: offset, time, state, hash, key."""
        return [(head.top, head.last_at, head.state, head.hash, head.key) for head in self.after.values()]

    def lengthened(self) -> list[tuple[int, bytes, int]]:
        """Return the changed columns of each audit chain: number, hash, key."""
        return [
            (head.seq, head.seal, head.chain)
            for name, head in self.after.items()
            if head.chain is not None and head.seq != self.before[name].seq
        ]
