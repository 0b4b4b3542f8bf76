"""`MemoryStore`: sessions in memory, which are lost when the process ends. It is for tests and simple programs.

It shares no code with the SQL stores on purpose: the conformance suite compares them, and a difference shows a bug.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast import options
from holdfast.faults import HoldfastError
from holdfast.runtime.secrets import process_redactor
from holdfast.stores import errors
from holdfast.stores.chain import GENESIS, entry_hash, link, session_chain
from holdfast.stores.records import (
    AuditRecord,
    Checkpoint,
    Commit,
    Entry,
    Lease,
    NewAudit,
    NewWork,
    Receipt,
    SessionRecord,
    SessionState,
    StoredClaim,
    WorkItem,
    check_name,
    may_be_claimed,
)
from holdfast.stores.redaction import Mask, prepared
from holdfast.stores.store import PAGE_BYTES, PAGE_ENTRIES
from holdfast.stores.wakeups import WORK, Wakeups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock
    from holdfast.faults import Redactor
    from holdfast.stores.records import Claim, WorkQueue, WorkStatus, WorkWanted
    from holdfast.stores.wakeups import Follower

KEPT_CLAIMS = 1_000
"""A session keeps at least this many claims of any age (BRIDGE e.6)."""


class _Kept:
    """One session with its log."""

    __slots__ = ("checkpoint", "claimed_until", "claims", "end", "entries", "head", "record", "work")

    def __init__(self, record: SessionRecord) -> None:
        self.record = record
        self.work: WorkItem | None = None
        self.claimed_until = 0.0
        self.entries: list[Entry] = []
        self.head = GENESIS
        """The hash of the last entry."""
        self.claims: dict[tuple[str, str], tuple[bytes, Receipt]] = {}
        self.checkpoint: Checkpoint | None = None
        self.end = 0.0
        """When its lease ends, by the clock that decides about it."""


class _Item(_Kept):
    """A session that is a work item, for type checkers."""

    work: WorkItem


class MemoryStore:
    """Sessions in memory: `async with MemoryStore() as store`. Use it in one event loop at a time.

    `clock` gives the times of records. A commit with a secret that `redactor` knows is rejected; in audit records it is masked.
    A wrong option raises `InvalidError`.
    """

    @options.suggests
    def __init__(self, *, clock: Clock | None = None, redactor: Redactor | None = None) -> None:
        self._wall = time.time if clock is None else clock.wall
        # A wall clock that is set forward must not end a lease. A clock of the user's own, such as a test's, decides alone.
        self._monotonic = time.monotonic if clock is None else clock.wall
        self.mask = Mask(redactor or process_redactor())
        """Knows the secrets that may not be stored."""
        self._sessions: dict[str, _Kept] = {}
        self._chains: dict[str, list[AuditRecord]] = {}
        self._paused: set[str] = set()
        self._free_at: dict[str, float] = {}
        """When the next item of a queue with a rate may begin."""
        self._wakeups = Wakeups()
        self._lock = threading.Lock()
        self._id = f"memory-{secrets.token_hex(8)}"

    @property
    def id(self) -> str:
        """The store's own id, new for each object."""
        return self._id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def commit(self, commit: Commit) -> Receipt:
        """Write all of the commit, or nothing. Raises what `Store.commit` lists."""
        return self._make(commit)

    def submit(self, commit: Commit) -> asyncio.Future[Receipt]:
        """Make a commit; return its future. Raises as `commit` does."""
        made: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        made.set_result(self._make(commit))
        return made

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | Exception]:
        """Make commits in this order; return the receipt of each, or the error for which it was not made."""
        made: list[Receipt | Exception] = []
        for commit in commits:
            try:
                made.append(self._make(commit))
            except HoldfastError as error:
                made.append(error)
        return made

    def _make(self, commit: Commit) -> Receipt:
        commit = prepared(commit, self.mask)
        # Nothing below awaits, so a commit is atomic in the event loop. The lock keeps out the thread that renews leases.
        with self._lock:
            return self._commit(commit)

    def _commit(self, commit: Commit) -> Receipt:
        now = self._wall()
        if commit.session is None:
            self._seal(commit.chain, commit.audit, now)
            return Receipt(at=now)
        kept = self._create(commit, now) if commit.create is not None else self._kept(commit.session)
        record = kept.record
        if commit.create is None:
            errors.admit(commit, record.state, record.fence, record.top)
        if commit.claim is not None and (known := _known(kept, commit.claim)) is not None:
            return known
        errors.check_checkpoint(commit, record.top + len(commit.entries))
        may_change = _may_change(kept, commit)
        # Times of a log never run backwards, even if the clock does.
        receipt = self._write(kept, commit, max(now, record.last_at))
        if may_change:
            kept.work = _changed_work(kept, commit, record.top, receipt.at)
            if may_be_claimed(commit.work):
                self._wakeups.wake((WORK,))
        # Add the session only now, because a rejected commit must not create a session.
        self._sessions[commit.session] = kept
        self._wakeups.grew({commit.session: receipt.top})
        return receipt

    async def session(self, session: str) -> SessionRecord:
        """Return the record of a session, or raise SESS_NOT_FOUND."""
        return self._shown(self._kept(session))

    async def sessions(
        self, *, states: Sequence[SessionState] = (), after: str = "", limit: int = PAGE_ENTRIES
    ) -> list[SessionRecord]:
        """Return a page of sessions in the order of their ids: those after `after`, in one of `states` if given."""
        found = (self._shown(kept) for id_, kept in sorted(self._sessions.items()) if id_ > after)
        return [record for record in found if not states or record.state in states][:limit]

    async def read(
        self, session: str, *, after: int = 0, limit: int = PAGE_ENTRIES, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        """Return the entries after an offset, or raise SESS_GAP if some of them are gone."""
        kept = self._kept(session)
        record = kept.record
        if after + 1 < record.oldest or after > record.top:
            raise errors.gap(session, after + 1, record.oldest, record.top)
        page: list[Entry] = []
        for entry in kept.entries[after + 1 - record.oldest :][:limit]:
            max_bytes -= len(bytes(entry.body))
            # Always return at least one entry (`and page`). Otherwise a reader could never get past a large entry.
            if max_bytes < 0 and page:
                break
            page.append(entry)
        return page

    async def checkpoint(self, session: str) -> Checkpoint | None:
        """Return the last checkpoint, or None."""
        return self._kept(session).checkpoint

    async def acquire(self, session: str, owner: str, ttl: float) -> Lease:
        """Take the session for `ttl` seconds, or raise SESS_LEASE_LOST while another owner holds it."""
        kept = self._kept(session)
        record, left = kept.record, self._left(kept)
        if record.owner is not None and record.owner != owner and left > 0:
            raise errors.held_by(session, record.owner, left)
        lease = Lease(session=session, owner=owner, fence=record.fence + 1, until=self._wall() + ttl)
        with self._lock:
            self._own(kept, lease, ttl)
        return lease

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease to `ttl` seconds from now, or raise SESS_LEASE_LOST if it was taken over."""
        kept = self._kept(lease.session)
        if not _holds(kept.record, lease):
            raise errors.lost(lease.session)
        renewed = msgspec.structs.replace(lease, until=self._wall() + ttl)
        with self._lock:
            self._own(kept, renewed, ttl)
        return renewed

    def renew_all(self, held: Sequence[Lease], ttl: float) -> list[Lease]:
        """Extend many leases to `ttl` seconds from now, from another thread; return those that were renewed."""
        until, renewed = self._wall() + ttl, list[Lease]()
        for lease in held:
            with self._lock:
                kept = self._sessions.get(lease.session)
                if kept is not None and _holds(kept.record, lease):
                    renewed.append(msgspec.structs.replace(lease, until=until))
                    self._own(kept, renewed[-1], ttl)
        return renewed

    async def release(self, lease: Lease) -> None:
        """End a lease. If it was taken over meanwhile, nothing happens."""
        kept = self._kept(lease.session)
        with self._lock:
            if _holds(kept.record, lease):
                kept.record = msgspec.structs.replace(kept.record, owner=None, lease_until=0.0)

    async def audit(self, chain: str, *, after: int = 0, limit: int = PAGE_ENTRIES) -> list[AuditRecord]:
        """Return a page of an audit chain: the records after number `after`."""
        return self._chains.get(chain, [])[after : after + limit]

    async def chains(self, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[tuple[str, int, str]]:
        """Return a page of audit chains: name, number of the last record, and its hash."""
        heads = [(name, records[-1].seq, records[-1].hash) for name, records in sorted(self._chains.items())]
        return [head for head in heads if head[0] > after][:limit]

    async def orphans(self) -> list[AuditRecord]:
        """Return the records of chains whose row is gone. Here a chain is its records, so there are none."""
        return []

    async def compact(self, session: str, before: int, *, fence: int | None = None) -> int:
        """Drop the entries before an offset, up to the checkpoint at most; return how many were dropped."""
        kept = self._kept(session)
        record = kept.record
        if fence is not None and fence != record.fence:
            raise errors.lost(session)
        # Never drop entries after the checkpoint, because they are needed to resume.
        gone = max(0, min(before, (record.checkpoint or 0) + 1) - record.oldest)
        del kept.entries[:gone]
        with self._lock:
            kept.record = msgspec.structs.replace(kept.record, oldest=record.oldest + gone)
        return gone

    async def claims(
        self, session: str, *, after: tuple[str, str] = ("", ""), limit: int = PAGE_ENTRIES
    ) -> list[StoredClaim]:
        """Return a page of a session's claims, by client and id, after the client and id in `after`."""
        known = nsmallest(limit, (item for item in self._kept(session).claims.items() if item[0] > after))
        return [_stored(key, body_hash, receipt) for key, (body_hash, receipt) in known]

    async def forget_claims(self, session: str, before: float) -> None:
        """Drop claims older than a time (wall clock), but never the last thousand."""
        kept = self._kept(session)
        # Keep the newest claims at any age: a client that was offline for long may still repeat them.
        by_age = sorted(kept.claims.items(), key=lambda item: item[1][1].at)
        for key, (_, receipt) in by_age[: max(0, len(by_age) - KEPT_CLAIMS)]:
            if receipt.at < before:
                del kept.claims[key]

    async def remove(self, session: str) -> None:
        """Remove a closed or failed session. Its audit chain stays. Raises SESS_ILLEGAL_TRANSITION for others."""
        errors.admit_removal(session, self._kept(session).record.state)
        del self._sessions[session]

    async def changed(self, session: str, after: int, seconds: float) -> bool:
        """Wait until the session's log goes beyond `after`, for at most `seconds`; return whether it did."""
        return await self._wakeups.beyond(session, after, seconds, self.session)

    def follow(self, session: str) -> Follower:
        """Return what waits for the log of a session again and again."""
        return self._wakeups.follow(session)

    async def claim_work(self, wanted: WorkWanted) -> list[WorkItem]:
        """Claim work items that are due, the most important first."""
        now, found = self._wall(), list[WorkItem]()
        for kept in self._items():
            if kept.work.status == "waiting" and kept.work.due is not None and kept.work.due <= now:
                kept.work = msgspec.structs.replace(kept.work, status="ready")
        for queue in wanted.queues:
            items = [kept for kept in self._items() if kept.work.queue == queue.name]
            most = self._room(queue, wanted.limit - len(found), items, now)
            ready = [kept for kept in items if kept.work.status == "ready" and _program(kept.work) in wanted.programs]
            for kept in sorted(ready, key=lambda kept: (-kept.work.priority, kept.work.due))[: max(0, most)]:
                starts, kept.claimed_until = kept.work.starts + 1, now + wanted.ttl
                kept.work = msgspec.structs.replace(kept.work, status="running", claim=wanted.claim, starts=starts)
                found.append(self._shown_work(kept))
                if queue.per_second:
                    self._free_at[queue.name] = (
                        max(self._free_at.get(queue.name, 0.0), now - 1.0) + 1 / queue.per_second
                    )
        return found

    def _room(self, queue: WorkQueue, most: int, items: list[_Item], now: float) -> int:
        """Return how many items of a queue may begin now."""
        if queue.name in self._paused:
            return 0
        if queue.concurrency is not None:
            most = min(most, queue.concurrency - sum(kept.work.status == "running" for kept in items))
        if queue.per_second is not None:
            unused = min(1.0, now - self._free_at.get(queue.name, 0.0))
            most = min(most, 0 if unused < 0 else max(1, int(unused * queue.per_second)))
        return most

    async def free_work(self, claims: Sequence[tuple[str, str]], *, due: float | None = None) -> None:
        """Give back claimed items, by session and claim; with `due` they wait until then."""
        given = set(claims)
        for kept in self._items():
            if kept.work.status == "running" and (kept.work.session, kept.work.claim) in given:
                status: WorkStatus = "ready" if due is None else "waiting"
                at = kept.work.due if due is None else due
                kept.work = msgspec.structs.replace(kept.work, status=status, due=at, claim=None)

    async def next_work(self, queues: Sequence[str]) -> float | None:
        """Return in how many seconds an item of these queues is due, or any that waits for a time; None: none is."""
        items = [kept.work for kept in self._items() if kept.work.due is not None]
        due = [
            item.due for item in items if item.status == "waiting" or (item.status == "ready" and item.queue in queues)
        ]
        return max(0.0, min(at for at in due if at is not None) - self._wall()) if due else None

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
        if session is not None:
            check_name("session", session)
        items = sorted((self._shown_work(kept) for kept in self._items()), key=lambda item: item.session)
        found = [item for item in items if (item.session > after if session is None else item.session == session)]
        found = [item for item in found if not statuses or item.status in statuses]
        return [item for item in found if queue is None or item.queue == queue][:limit]

    async def pause_work(self, queue: str, *, paused: bool) -> None:
        """Let no item of a queue begin, or let them begin again."""
        (self._paused.add if paused else self._paused.discard)(queue)
        self._wakeups.wake((WORK,))

    async def paused_work(self) -> list[str]:
        """Return the queues that are paused."""
        return sorted(self._paused)

    def follow_work(self) -> Follower:
        """Return what waits for work again and again."""
        return self._wakeups.follow(WORK)

    def _items(self) -> list[_Item]:
        found: Any = [kept for kept in self._sessions.values() if kept.work is not None]
        items: list[_Item] = found
        return items

    def _shown_work(self, kept: _Item) -> WorkItem:
        claim_left = 0.0 if kept.work.claim is None else kept.claimed_until - self._wall()
        left = max(0.0, self._left(kept))
        return msgspec.structs.replace(
            kept.work, claim_left=claim_left, top=kept.record.top, owner=kept.record.owner, lease_left=left
        )

    def _kept(self, session: str) -> _Kept:
        check_name("session", session)
        kept = self._sessions.get(session)
        if kept is None:
            raise errors.missing(session)
        return kept

    def _create(self, commit: Commit, now: float) -> _Kept:
        assert commit.session is not None
        assert commit.create is not None
        if commit.session in self._sessions:
            raise errors.already_there(commit.session)
        return _Kept(
            SessionRecord(
                id=commit.session,
                epoch=secrets.token_urlsafe(12),
                state=SessionState.CREATED,
                oldest=1,
                top=0,
                created_at=now,
                last_at=now,
                manifest=msgspec.Raw(commit.create.manifest),
            )
        )

    def _write(self, kept: _Kept, commit: Commit, at: float) -> Receipt:
        record = kept.record
        top = record.top
        for entry in commit.entries:
            top += 1
            kept.head = entry_hash(
                kept.head, session=record.id, offset=top, at=at, id_=entry.id, type_=entry.type, body=entry.body
            )
            body, sealed = msgspec.Raw(entry.body), kept.head.hex()
            kept.entries.append(Entry(offset=top, id=entry.id, at=at, type=entry.type, body=body, hash=sealed))
        receipt = Receipt(first=record.top + 1 if commit.entries else 0, top=top, at=at, epoch=record.epoch)
        if (new := commit.checkpoint) is not None:
            kept.checkpoint = Checkpoint(
                offset=top if new.offset is None else new.offset,
                at=at,
                message_count=new.message_count,
                last_message_id=new.last_message_id,
                snapshot=msgspec.Raw(new.snapshot),
            )
        kept.record = msgspec.structs.replace(
            record,
            top=top,
            last_at=at,
            state=commit.state or record.state,
            manifest=record.manifest if commit.manifest is None else msgspec.Raw(commit.manifest),
            checkpoint=record.checkpoint if kept.checkpoint is None else kept.checkpoint.offset,
        )
        if (claim := commit.claim) is not None:
            receipt = msgspec.structs.replace(receipt, result=msgspec.Raw(claim.result))
            kept.claims[claim.client, claim.id] = (claim.body_hash, receipt)
        for one in commit.claims:
            made = Receipt(first=one.first, top=one.top, at=one.at, epoch=record.epoch, result=msgspec.Raw(one.result))
            kept.claims[one.client, one.id] = (one.body_hash, made)
        if commit.audit:
            self._seal(commit.chain or session_chain(record.id), commit.audit, at)
        return receipt

    def _seal(self, chain: str, new: tuple[NewAudit, ...], at: float) -> None:
        records = self._chains.setdefault(chain, [])
        for one in new:
            before = bytes.fromhex(records[-1].hash) if records else GENESIS
            seq = len(records) + 1
            sealed = link(before, one, chain=chain, seq=seq, at=at)
            records.append(
                AuditRecord(
                    chain=chain,
                    seq=seq,
                    at=at,
                    kind=one.kind,
                    correlation=one.correlation,
                    payload=msgspec.Raw(one.payload),
                    hash=sealed.hex(),
                )
            )

    def _own(self, kept: _Kept, lease: Lease, ttl: float) -> None:
        kept.end = self._monotonic() + ttl
        kept.record = msgspec.structs.replace(
            kept.record, fence=lease.fence, owner=lease.owner, lease_until=lease.until
        )

    def _left(self, kept: _Kept) -> float:
        """Return how many seconds a session's lease has left; 0 or less if it has ended."""
        return 0.0 if kept.record.owner is None else kept.end - self._monotonic()

    def _shown(self, kept: _Kept) -> SessionRecord:
        return msgspec.structs.replace(kept.record, lease_left=max(0.0, self._left(kept)))


def _program(item: WorkItem) -> tuple[str, str]:
    return item.program, item.version


def _may_change(kept: _Kept, commit: Commit) -> bool:
    """Whether the commit's change of a work item is to be made. Raise if it must be, and may not."""
    change = commit.work
    if change is None or isinstance(change, NewWork):
        return change is not None
    status = None if kept.work is None else kept.work.status
    may = status is not None and (not change.only or status in change.only)
    if change.must and not may:
        raise errors.not_in_status(kept.record.id, status, change)
    return may


def _changed_work(kept: _Kept, commit: Commit, top: int, at: float) -> WorkItem:
    """Return the work item of a session after a commit. `top` is the end of the log before it."""
    match commit.work:
        case NewWork() as new:
            begins = new.due is None or new.due <= at
            return WorkItem(
                session=kept.record.id,
                program=new.program,
                version=new.version,
                queue=new.queue,
                tenant=new.tenant,
                priority=new.priority,
                status="ready" if begins else "waiting",
                due=at if begins else new.due,
                added=at,
                failures=0,
                starts=0,
                cancel=False,
                claim=None,
                claim_left=0.0,
                code="",
            )
        case change:
            assert change is not None
            assert kept.work is not None
            if change.status == "running":
                return msgspec.structs.replace(kept.work, cancel=bool(change.cancel))
            waits = change.status == "waiting" and (change.seen is None or top <= change.seen)
            status: WorkStatus = "ready" if change.status == "waiting" and not waits else change.status
            was = kept.work.due
            # What was due before keeps its place.
            place = was if status == "ready" and was is not None and was < at else at
            return msgspec.structs.replace(
                kept.work,
                status=status,
                due=change.due if waits else place,
                failures=kept.work.failures if change.failures is None else change.failures,
                starts=0,
                cancel=kept.work.cancel if change.cancel is None else change.cancel,
                claim=None,
                code=change.code,
            )


def _stored(key: tuple[str, str], body_hash: bytes, receipt: Receipt) -> StoredClaim:
    client, id_ = key
    return StoredClaim(
        client=client,
        id=id_,
        body_hash=body_hash,
        at=receipt.at,
        first=receipt.first,
        top=receipt.top,
        result=bytes(receipt.result),
    )


def _known(kept: _Kept, claim: Claim) -> Receipt | None:
    """If the claim was made before, return its first receipt, else None."""
    found = kept.claims.get((claim.client, claim.id))
    if found is None:
        return None
    body_hash, receipt = found
    if body_hash != claim.body_hash:
        raise errors.claimed_otherwise(claim.client, claim.id)
    return msgspec.structs.replace(receipt, duplicate=True)


def _holds(record: SessionRecord, lease: Lease) -> bool:
    return record.fence == lease.fence and record.owner == lease.owner
