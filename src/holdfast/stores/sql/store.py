"""`SqlStore`: what the SQL stores have in common. Each call is a script; the store of a dialect says how a script runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeVar

from holdfast.stores.records import Lease, check_name
from holdfast.stores.sql import deletion, leases, reads, work
from holdfast.stores.store import PAGE_BYTES, PAGE_ENTRIES
from holdfast.stores.wakeups import WORK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.stores.records import (
        AuditRecord,
        Checkpoint,
        Entry,
        SessionRecord,
        SessionState,
        StoredClaim,
        WorkItem,
        WorkStatus,
        WorkWanted,
    )
    from holdfast.stores.sql.query import Script

T = TypeVar("T")


class SqlStore(ABC):
    """Everything that a store reads and writes by scripts, except commits."""

    _row_lock: ClassVar[str] = ""
    """What makes a SELECT lock its rows."""
    _server_time: ClassVar[str] = "0.0"
    """The server's time in SQL, if it has a clock of its own."""
    _id = ""

    @abstractmethod
    async def _read(self, script: Callable[[], Script[T]]) -> T:
        """Run a script that only reads. All its statements see one snapshot."""

    @abstractmethod
    async def _write(self, session: str, script: Callable[[leases.Instant], Script[T]]) -> T:
        """Run a script in one transaction. It gets the time at which leases are judged."""

    @abstractmethod
    def _instant(self, server: float) -> leases.Instant:
        """Return the time at which leases are judged, from the server's time."""

    @abstractmethod
    def _work_changed(self) -> None:
        """Wake the workers that wait for work."""

    @property
    def id(self) -> str:
        """The store's own id; empty before it is opened."""
        return self._id

    async def session(self, session: str) -> SessionRecord:
        """Return the record of a session, or raise SESS_NOT_FOUND."""
        check_name("session", session)
        return await self._read(lambda: reads.session_script(session, self._instant, self._server_time))

    async def sessions(
        self, *, states: Sequence[SessionState] = (), after: str = "", limit: int = PAGE_ENTRIES
    ) -> list[SessionRecord]:
        """Return a page of sessions in the order of their ids: those after `after`, in one of `states` if given."""
        return await self._read(lambda: reads.sessions_script(states, after, limit, self._instant, self._server_time))

    async def read(
        self, session: str, *, after: int = 0, limit: int = PAGE_ENTRIES, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        """Return the entries after an offset. Raise SESS_GAP if some of them are gone, SESS_MANIFEST_DRIFT if one was changed."""
        check_name("session", session)
        return await self._read(lambda: reads.read_script(session, after, limit, max_bytes))

    async def checkpoint(self, session: str) -> Checkpoint | None:
        """Return the last checkpoint, or None. Raise SESS_MANIFEST_DRIFT if it was changed."""
        check_name("session", session)
        return await self._read(lambda: reads.checkpoint_script(session))

    async def audit(self, chain: str, *, after: int = 0, limit: int = PAGE_ENTRIES) -> list[AuditRecord]:
        """Return a page of an audit chain: the records after number `after`."""
        return await self._read(lambda: reads.audit_script(chain, after, limit))

    async def chains(self, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[tuple[str, int, str]]:
        """Return a page of audit chains: name, number of the last record, and its hash."""
        return await self._read(lambda: reads.chains_script(after, limit))

    async def claims(
        self, session: str, *, after: tuple[str, str] = ("", ""), limit: int = PAGE_ENTRIES
    ) -> list[StoredClaim]:
        """Return a page of a session's claims, after the client and id `after`."""
        check_name("session", session)
        return await self._read(lambda: reads.claims_script(session, after, limit))

    async def next_work(self, queues: Sequence[str]) -> float | None:
        """Return in how many seconds an item of these queues is due, or any that waits for a time; None: none is."""
        return await self._read(lambda: reads.next_work_script(queues, self._instant, self._server_time))

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
        where, args = reads.work_where(session, statuses, queue, after)
        return await self._read(lambda: reads.work_script(where, (*args, limit), self._instant, self._server_time))

    async def paused_work(self) -> list[str]:
        """Return the queues that are paused."""
        return await self._read(reads.paused_work_script)

    async def claim_work(self, wanted: WorkWanted) -> list[WorkItem]:
        """Claim work items that are due, the most important first."""
        return await self._write(WORK, lambda now: work.claim_script(wanted, now, self._row_lock))

    async def free_work(self, claims: Sequence[tuple[str, str]], *, due: float | None = None) -> None:
        """Give back claimed items, by session and claim; with `due` they wait until then."""
        await self._write(WORK, lambda _: work.free_script(claims, due))

    async def pause_work(self, queue: str, *, paused: bool) -> None:
        """Let no item of a queue begin, or let them begin again."""
        await self._write(WORK, lambda _: work.pause_script(queue, paused=paused))
        self._work_changed()

    async def orphans(self) -> list[AuditRecord]:
        """Return the first record of each audit chain whose own row is gone."""
        return await self._read(reads.orphans_script)

    async def acquire(self, session: str, owner: str, ttl: float) -> Lease:
        """Take the session for `ttl` seconds, or raise SESS_LEASE_LOST while another owner holds it."""
        check_name("session", session)
        return await self._write(session, lambda now: self._acquisition(session, owner, ttl, now))

    def _acquisition(self, session: str, owner: str, ttl: float, now: leases.Instant) -> Script[Lease]:
        return leases.acquire_script(session, owner, ttl, now, self._row_lock)

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease to `ttl` seconds from now, or raise SESS_LEASE_LOST if it was taken over."""
        return await self._write(lease.session, lambda now: leases.renew_script(lease, ttl, now, self._row_lock))

    async def release(self, lease: Lease) -> None:
        """End a lease. If it was taken over meanwhile, nothing happens."""
        await self._write(lease.session, lambda _: leases.release_script(lease, self._row_lock))

    async def compact(self, session: str, before: int, *, fence: int | None = None) -> int:
        """Drop the entries before an offset, up to the checkpoint at most; return how many were dropped."""
        return await self._write(session, lambda _: deletion.compact_script(session, before, fence, self._row_lock))

    async def forget_claims(self, session: str, before: float) -> None:
        """Drop claims older than a time (wall clock), but never the last thousand."""
        await self._write(session, lambda _: deletion.forget_claims_script(session, before, self._row_lock))

    async def remove(self, session: str) -> None:
        """Remove a closed or failed session. Its audit chain stays. Raises SESS_ILLEGAL_TRANSITION for others."""
        await self._write(session, lambda _: self._removal(session))

    def _removal(self, session: str) -> Script[None]:
        return deletion.remove_script(session, self._row_lock)
