"""What every store does. `testing.stores` holds the conformance suite a new one has to pass.

Invariant: when `commit` returns, what it wrote survives the process; in the durable stores, the machine too. A failure is a
typed fault and changes nothing: SESS_STORE_UNAVAILABLE where trying again may help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

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
    )

__all__ = ["PAGE_BYTES", "PAGE_ENTRIES", "Store"]

PAGE_ENTRIES = 1_000
PAGE_BYTES = 1 << 20
"""What one read returns at most; one entry is returned whatever its size."""


class Store(Protocol):
    """Sessions, their logs, checkpoints and audit trails. An async context manager: open for as long as the block runs."""

    @property
    def id(self) -> str:
        """Which store it is, the same each time it is opened (N2-12)."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def commit(self, commit: Commit) -> Receipt:
        """Write all of it, or nothing.

        A cancelled caller does not know which: the claim, or the ids in the log, tell.
        """
        ...

    async def session(self, session: str) -> SessionRecord:
        """Return what is known of a session, or raise SESS_NOT_FOUND."""
        ...

    async def sessions(
        self, *, states: Sequence[SessionState] = (), after: str = "", limit: int = PAGE_ENTRIES
    ) -> list[SessionRecord]:
        """Return a page of the sessions in order of their ids, those after `after`."""
        ...

    async def read(
        self, session: str, *, after: int = 0, limit: int = PAGE_ENTRIES, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        """Return the entries after an offset, or raise SESS_GAP where some of them are gone."""
        ...

    async def checkpoint(self, session: str) -> Checkpoint | None:
        """Return the last checkpoint."""
        ...

    async def acquire(self, session: str, owner: str, ttl: float) -> Lease:
        """Take the session for `ttl` seconds, or raise SESS_LEASE_LOST while another owner holds it.

        The owner itself may take it again, after a crash say: the fence rises all the same.
        """
        ...

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Keep it for another `ttl` seconds, or raise SESS_LEASE_LOST."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give it back. A lease that was taken over is not ours to give back, and nothing happens."""
        ...

    async def audit(self, chain: str, *, after: int = 0, limit: int = PAGE_ENTRIES) -> list[AuditRecord]:
        """Return a page of an audit chain."""
        ...

    async def chains(self, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[tuple[str, int, str]]:
        """Return the audit chains with the number of their last record and its hash."""
        ...

    async def compact(self, session: str, before: int, *, fence: int | None = None) -> int:
        """Forget the entries before an offset, as far as the checkpoint holds them; return how many went."""
        ...

    async def forget_claims(self, session: str, before: float) -> None:
        """Forget what was claimed before a time (wall clock), but not the last thousand claims."""
        ...

    async def remove(self, session: str) -> None:
        """Forget a closed session. Its audit chain stays."""
        ...

    async def changed(self, session: str, after: int, seconds: float) -> bool:
        """Wait until the session's log goes beyond `after`, or for so many seconds. A hint: the log is the truth."""
        ...
