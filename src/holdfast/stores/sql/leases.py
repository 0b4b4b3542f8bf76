"""The lease of a session as scripts: acquire, renew, release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.stores import errors
from holdfast.stores.records import Lease
from holdfast.stores.sql.query import Query

if TYPE_CHECKING:
    from holdfast.stores.sql.query import Script

__all__ = ["acquire_script", "release_script", "renew_script"]

_HELD = "SELECT key, fence, owner, lease_until FROM session WHERE id = ?"
_TAKE = "UPDATE session SET fence = ?, owner = ?, lease_until = ? WHERE key = ?"


def acquire_script(session: str, owner: str, ttl: float, now: float, lock: str = "") -> Script[Lease]:
    """Take a session, unless another owner's lease is still valid. The fence rises each time."""
    rows = yield Query(_HELD + lock, (session,))
    if not rows:
        raise errors.missing(session)
    key, fence, holder, until = rows[0]
    # The same owner may take it again, after a crash. Another process also uses a dead owner's name to take over.
    if holder is not None and holder != owner and until > now:
        raise errors.held_by(session, holder, until - now)
    lease = Lease(session=session, owner=owner, fence=fence + 1, until=now + ttl)
    yield Query(_TAKE, (lease.fence, owner, lease.until, key))
    return lease


def renew_script(lease: Lease, ttl: float, now: float, lock: str = "") -> Script[Lease]:
    key = yield from _ours(lease, lock)
    if key is None:
        raise errors.lost(lease.session)
    yield Query(_TAKE, (lease.fence, lease.owner, now + ttl, key))
    return Lease(session=lease.session, owner=lease.owner, fence=lease.fence, until=now + ttl)


def release_script(lease: Lease, lock: str = "") -> Script[None]:
    key = yield from _ours(lease, lock)
    if key is not None:
        yield Query(_TAKE, (lease.fence, None, 0.0, key))


def _ours(lease: Lease, lock: str) -> Script[int | None]:
    """Return the session's key if this is its latest lease, else None."""
    rows = yield Query(_HELD + lock, (lease.session,))
    if not rows:
        raise errors.missing(lease.session)
    key, fence, owner, _ = rows[0]
    return int(key) if fence == lease.fence and owner == lease.owner else None
