"""The interface of every store. A new store has to pass the conformance suite in `holdfast.testing.stores`.

Invariant: when `commit` returns, its data is stored. In the durable stores it survives a crash of the process and of the machine. A
failed call raises a typed fault and changes nothing. The fault is SESS_STORE_UNAVAILABLE if a retry may help.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, Self

from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.records import (
        AuditRecord,
        Checkpoint,
        Commit,
        Entry,
        Lease,
        Receipt,
        SessionRecord,
        SessionState,
        StoredClaim,
        WorkItem,
        WorkStatus,
        WorkWanted,
    )
    from holdfast.stores.wakeups import Follower

PAGE_ENTRIES = 1_000
"""The most items that one read returns."""
PAGE_BYTES = 1 << 20
"""The most bytes of entries that one read returns. A single entry is returned whatever its size."""


class Store(Protocol):
    """Sessions, their logs, checkpoints and audit trails. It is open while its `async with` block runs.

        async with SqliteStore("work.db") as store:
            for record in await store.sessions(states=[SessionState.PAUSED]):
                print(record.id)

    Every method may raise SESS_STORE_UNAVAILABLE. Methods that name a session raise SESS_NOT_FOUND if it does not exist.
    """

    @property
    def id(self) -> str:
        """The store's own id, the same each time it is opened."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def commit(self, commit: Commit) -> Receipt:
        """Write all of the commit, or nothing.

        Raises SESS_CLOSED, SESS_LEASE_LOST or SESS_ILLEGAL_TRANSITION if the session does not take the commit, PROTO_DUPLICATE_ID
        for a claim with another body, and `InvalidError` for a commit that cannot be stored. A cancelled caller cannot know whether
        the commit was written. Repeating the claim, or reading the ids in the log, shows it.
        """
        ...

    async def session(self, session: str) -> SessionRecord:
        """Return the record of a session, or raise SESS_NOT_FOUND."""
        ...

    async def sessions(
        self, *, states: Sequence[SessionState] = (), after: str = "", limit: int = PAGE_ENTRIES
    ) -> list[SessionRecord]:
        """Return a page of sessions in the order of their ids, after the id `after`, and in one of `states` if given."""
        ...

    async def read(
        self, session: str, *, after: int = 0, limit: int = PAGE_ENTRIES, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        """Return the entries after an offset, or raise SESS_GAP if some of them were dropped."""
        ...

    async def checkpoint(self, session: str) -> Checkpoint | None:
        """Return the last checkpoint, or None."""
        ...

    async def acquire(self, session: str, owner: str, ttl: float) -> Lease:
        """Take the session for `ttl` seconds, or raise SESS_LEASE_LOST while another owner holds it.

        The same owner may take it again, for example after a crash. The fence rises each time.
        """
        ...

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease to `ttl` seconds from now, or raise SESS_LEASE_LOST if it was taken over."""
        ...

    def renew_all(self, held: Sequence[Lease], ttl: float) -> list[Lease]:
        """Extend many leases to `ttl` seconds from now; return those that were renewed. The others were taken over.

        This call blocks, and is made from a thread that does nothing else, so that leases are renewed while the event loop is busy.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """End a lease. If it was taken over meanwhile, nothing happens."""
        ...

    async def audit(self, chain: str, *, after: int = 0, limit: int = PAGE_ENTRIES) -> list[AuditRecord]:
        """Return a page of an audit chain: the records after number `after`."""
        ...

    async def chains(self, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[tuple[str, int, str]]:
        """Return a page of audit chains: name, number of the last record, and its hash."""
        ...

    async def orphans(self) -> list[AuditRecord]:
        """Return the first record of each audit chain whose own row is gone. Only somebody who edits the tables makes such records."""
        ...

    async def compact(self, session: str, before: int, *, fence: int | None = None) -> int:
        """Drop the entries before an offset, up to the checkpoint at most; return how many were dropped."""
        ...

    async def claims(
        self, session: str, *, after: tuple[str, str] = ("", ""), limit: int = PAGE_ENTRIES
    ) -> list[StoredClaim]:
        """Return a page of a session's claims, by client and id, after the client and id in `after`."""
        ...

    async def forget_claims(self, session: str, before: float) -> None:
        """Drop claims older than a time (wall clock), but never the last thousand."""
        ...

    async def remove(self, session: str) -> None:
        """Remove a closed or failed session. Its audit chain stays. Raises SESS_ILLEGAL_TRANSITION in other states."""
        ...

    async def changed(self, session: str, after: int, seconds: float) -> bool:
        """Wait until the session's log has entries after `after`, for at most `seconds`; return whether it has.

        The result is only a hint. Read the log to be sure.
        """
        ...


class WorkStore(Store, Protocol):
    """A store that also keeps work items, which workers claim. `Commit.work` makes and changes them."""

    async def claim_work(self, wanted: WorkWanted) -> list[WorkItem]:
        """Claim work items that are due, the most important first. No other call returns them until the claim has ended."""
        ...

    async def free_work(self, claims: Sequence[tuple[str, str]], *, due: float | None = None) -> None:
        """Give back claimed items, by session and claim; with `due` they wait until then. What is not claimed so is left alone."""
        ...

    async def next_work(self, queues: Sequence[str]) -> float | None:
        """Return in how many seconds an item of these queues is due, or any that waits for a time; None: none is."""
        ...

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
        ...

    async def pause_work(self, queue: str, *, paused: bool) -> None:
        """Let no item of a queue begin, or let them begin again."""
        ...

    async def paused_work(self) -> list[str]:
        """Return the queues that are paused."""
        ...

    def follow_work(self) -> Follower:
        """Return what waits for work again and again."""
        ...


def work_store(store: Store) -> WorkStore:
    """Return a store as one that keeps work items; raise `InvalidError` if it keeps none."""
    if not callable(getattr(store, "claim_work", None)):
        raise InvalidError.saying(
            "store", "a store that keeps work items, such as SqliteStore or PostgresStore", type(store).__name__
        )
    kept: Any = store
    found: WorkStore = kept
    return found


def submits(store: Store) -> bool:
    """Whether a store has a method `submit`, which begins a commit without a task of its own, and makes the same commits as `commit`."""
    return has_own(store, "commit", "submit")


async def commit_all(store: Store, commits: Sequence[Commit]) -> list[Receipt | Exception]:
    """Make commits in this order, together if the store can; return the receipt of each, or the error for which it was not made."""
    if not has_own(store, "commit", "commit_all"):
        return await asyncio.gather(*(_outcome(store, commit) for commit in commits))
    own: Any = store
    try:
        receipts: list[Receipt | Exception] = await own.commit_all(commits)
    except Exception as error:  # noqa: BLE001 - none of them was made
        return [error for _ in commits]
    return receipts


async def _outcome(store: Store, commit: Commit) -> Receipt | Exception:
    try:
        return await store.commit(commit)
    except Exception as error:  # noqa: BLE001 - the others are made
        return error


def has_own(store: Store, method: str, quick: str) -> bool:
    """Whether a store has `quick`, a quicker form of its method, and both do the same."""
    kinds = type(store).__mro__
    # A class that changes the method only must get every call.
    here = next((kind for kind in kinds if method in vars(kind) or quick in vars(kind)), object)
    return {method, quick} <= vars(here).keys() and method not in getattr(store, "__dict__", ())
