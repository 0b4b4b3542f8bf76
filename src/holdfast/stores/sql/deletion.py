"""Scripts that delete data that is no longer needed. The audit trail is never deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.stores import errors
from holdfast.stores.sql.query import Query

if TYPE_CHECKING:
    from holdfast.stores.sql.query import Script

KEPT_CLAIMS = 1_000
"""A session keeps at least this many claims of any age (BRIDGE e.6)."""

_HEAD = "SELECT key, state, oldest, top, checkpoint, fence FROM session WHERE name = ?"


def compact_script(session: str, before: int, fence: int | None, lock: str = "") -> Script[int]:
    """Delete the entries before an offset; return how many."""
    rows = yield Query(_HEAD + lock, (session,))
    if not rows:
        raise errors.missing(session)
    key, _, oldest, _, checkpoint, held = rows[0]
    if fence is not None and fence != held:
        raise errors.lost(session)
    # Entries after the checkpoint are needed to resume the session.
    new = min(before, (checkpoint or 0) + 1)
    if new <= oldest:
        return 0
    # The first entry that is left is chained to the last one that goes, so the session keeps that hash.
    kept = yield Query("SELECT hash FROM entry WHERE session = ? AND pos = ?", (key, new - 1))
    yield Query("DELETE FROM entry WHERE session = ? AND pos < ?", (key, new))
    yield Query("UPDATE session SET oldest = ?, base = ? WHERE key = ?", (new, kept[0][0] if kept else None, key))
    return int(new - oldest)


def forget_claims_script(session: str, before: float, lock: str = "") -> Script[None]:
    """Delete claims older than `before`, except the last `KEPT_CLAIMS`."""
    rows = yield Query(_HEAD + lock, (session,))
    if not rows:
        raise errors.missing(session)
    key = rows[0][0]
    # Read the time of the oldest claim to keep. With fewer claims there is nothing to delete.
    youngest = yield Query(
        "SELECT at FROM inbox WHERE session = ? ORDER BY at DESC LIMIT 1 OFFSET ?", (key, KEPT_CLAIMS - 1)
    )
    if youngest:
        yield Query("DELETE FROM inbox WHERE session = ? AND at < ?", (key, min(before, youngest[0][0])))


def remove_script(session: str, lock: str = "") -> Script[None]:
    """Delete a session that is closed or in error."""
    rows = yield Query(_HEAD + lock, (session,))
    if not rows:
        raise errors.missing(session)
    key, state = rows[0][:2]
    errors.admit_removal(session, state)
    for table in ("entry", "checkpoint", "inbox", "work"):
        yield Query(f"DELETE FROM {table} WHERE session = ?", (key,))  # noqa: S608 - constants only
    yield Query("DELETE FROM session WHERE key = ?", (key,))
