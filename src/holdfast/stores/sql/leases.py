"""The lease of a session as scripts: acquire, renew, release.

A store in a file is used by the processes of one machine, so their leases end by that machine's monotonic clock: a wall clock that is
set forward must not take a lease from an owner that lives. After a restart of the machine, and on a server, the wall clock decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.stores import errors
from holdfast.stores.records import Lease
from holdfast.stores.sql.query import Query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.sql.query import Script

_HELD = "SELECT key, fence, owner, lease_until, lease_boot, lease_end FROM session WHERE name = ?"
_TAKE = "UPDATE session SET fence = ?, owner = ?, lease_until = ?, lease_boot = ?, lease_end = ? WHERE key = ?"

_RENEW_ALL = (
    "UPDATE session SET lease_until = ?, lease_boot = ?, lease_end = ? WHERE key IN (SELECT s.key FROM json_each(?) j"
    " JOIN session s ON s.name = json_extract(j.value, '$[0]') WHERE s.fence = json_extract(j.value, '$[1]')"
    " AND s.owner = json_extract(j.value, '$[2]')) RETURNING name"
)


class Instant(NamedTuple):
    """The time of a lease: the wall clock, and the monotonic clock of one start of the machine, if that decides."""

    wall: float
    boot: str | None = None
    monotonic: float = 0.0

    def left(self, until: float, boot: str | None, end: float | None) -> float:
        """Return how many seconds a lease has left; 0 or less if it has ended."""
        if self.boot is not None and self.boot == boot and end is not None:
            return end - self.monotonic
        return until - self.wall

    def columns(self, ttl: float) -> tuple[float, str | None, float | None]:
        """Return when a lease of `ttl` seconds from now ends, as its columns."""
        return self.wall + ttl, self.boot, None if self.boot is None else self.monotonic + ttl


def acquire_script(session: str, owner: str, ttl: float, now: Instant, lock: str = "") -> Script[Lease]:
    """Take a session, unless another owner's lease is still valid. The fence rises each time."""
    rows = yield Query(_HELD + lock, (session,))
    if not rows:
        raise errors.missing(session)
    key, fence, holder, *until = rows[0]
    # The same owner may take it again, after a crash. Another process also uses a dead owner's name to take over.
    if holder is not None and holder != owner and (left := now.left(*until)) > 0:
        raise errors.held_by(session, holder, left)
    lease = Lease(session=session, owner=owner, fence=fence + 1, until=now.wall + ttl)
    yield Query(_TAKE, (lease.fence, owner, *now.columns(ttl), key))
    return lease


def renew_script(lease: Lease, ttl: float, now: Instant, lock: str = "") -> Script[Lease]:
    key = yield from _ours(lease, lock)
    if key is None:
        raise errors.lost(lease.session)
    yield Query(_TAKE, (lease.fence, lease.owner, *now.columns(ttl), key))
    return Lease(session=lease.session, owner=lease.owner, fence=lease.fence, until=now.wall + ttl)


def renew_all_script(leases: Sequence[Lease], ttl: float, now: Instant) -> Script[list[Lease]]:
    """Extend many leases with one statement; return those that are still held. It is SQLite's: a server has arrays."""
    held = msgspec.json.encode([(lease.session, lease.fence, lease.owner) for lease in leases]).decode()
    rows = yield Query(_RENEW_ALL, (*now.columns(ttl), held))
    renewed = {name for (name,) in rows}
    return [msgspec.structs.replace(lease, until=now.wall + ttl) for lease in leases if lease.session in renewed]


def release_script(lease: Lease, lock: str = "") -> Script[None]:
    key = yield from _ours(lease, lock)
    if key is not None:
        yield Query(_TAKE, (lease.fence, None, 0.0, None, None, key))


def _ours(lease: Lease, lock: str) -> Script[int | None]:
    """Return the session's key if this is its latest lease, else None."""
    rows = yield Query(_HELD + lock, (lease.session,))
    if not rows:
        raise errors.missing(lease.session)
    found: Any = rows[0]
    return int(found[0]) if (found[1], found[2]) == (lease.fence, lease.owner) else None
