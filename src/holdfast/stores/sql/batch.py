"""A batch: plain commits of many sessions as a few lists of rows, which an engine writes with one statement for each table.

A commit is plain if it appends entries, changes the state or adds to the session's own audit chain. Nearly all commits are. Others
create, claim, or write a checkpoint or manifest; each of them runs as a script of its own (`commits`).

Invariant: nothing here does I/O. A batch is computed from the sessions' heads as the engine knows them, and the engine writes it only
if they are still so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.stores import errors
from holdfast.stores.chain import GENESIS, entry_hash, link, session_chain
from holdfast.stores.records import Receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.records import Commit
    from holdfast.stores.sql.query import Row

__all__ = ["HEADS", "Batch", "Head", "head_of", "is_plain"]

HEADS = (
    "SELECT s.name, s.key, s.epoch, s.state, s.fence, s.top, s.last_at, s.head, c.key, c.seq, c.hash"
    " FROM session s LEFT JOIN chain c ON c.name = 'session:' || s.name WHERE s.name"
)
"""Reads the heads of sessions; the engine adds which names."""


class Head(NamedTuple):
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


def head_of(row: Row) -> Head:
    """Return the head of a session from a row of `HEADS`, without its first column."""
    key, epoch, state, fence, top, last_at, hash_, chain, seq, seal = row
    before = GENESIS if hash_ is None else bytes(hash_)
    return Head(
        key, epoch, state, fence, top, last_at, before, chain, seq or 0, GENESIS if seal is None else bytes(seal)
    )


def is_plain(commit: Commit) -> bool:
    """Whether a batch can hold the commit."""
    return (
        commit.session is not None
        and commit.create is None
        and commit.claim is None
        and commit.checkpoint is None
        and commit.manifest is None
        and not (commit.audit and commit.chain)
    )


class Batch:
    """Rows to write, and what each session's head is before and after."""

    __slots__ = ("after", "audits", "before", "entries")

    def __init__(self) -> None:
        self.before: dict[str, Head] = {}
        self.after: dict[str, Head] = {}
        self.entries: list[tuple[Any, ...]] = []
        """(session's key, offset, id, time, type, body, hash)"""
        self.audits: list[tuple[Any, ...]] = []
        """(chain's key, number, time, class, correlation, payload, hash)"""

    @staticmethod
    def takes(commit: Commit, head: Head) -> bool:
        """Whether a plain commit fits here: its audit chain exists, if it needs one."""
        return not commit.audit or head.chain is not None

    def add(self, commit: Commit, head: Head, now: float) -> Receipt:
        """Add a commit to a session with this head; return its receipt. Raise, and add nothing, if the session does not take it."""
        name = commit.session
        assert name is not None
        known = self.after.get(name)
        if known is not None:
            head = known
        key, epoch, state, fence, top, last_at, before, chain, seq, seal = head
        errors.admit(commit, state, fence)
        if known is None:
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
        self.after[name] = _new(Head, (key, epoch, state, fence, top, at, before, chain, seq, seal))
        return Receipt(first=first, top=top, at=at, epoch=epoch)

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
