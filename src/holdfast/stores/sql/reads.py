"""What an SQL store reads, as scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.stores import errors
from holdfast.stores.sql import rows as to
from holdfast.stores.sql.query import Query
from holdfast.stores.sql.work import ITEM, item_of

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
    )
    from holdfast.stores.sql.leases import Instant
    from holdfast.stores.sql.query import Script


def session_script(session: str, instant: Callable[[float], Instant], clock: str) -> Script[SessionRecord]:
    rows = yield Query(f"SELECT {clock}, {to.SESSION_COLUMNS} FROM session WHERE name = ?", (session,))  # noqa: S608 - constants only
    if not rows:
        raise errors.missing(session)
    now, *row = rows[0]
    return to.session_record(row, instant(now))


def sessions_script(
    states: Sequence[SessionState], after: str, limit: int, instant: Callable[[float], Instant], clock: str
) -> Script[list[SessionRecord]]:
    where, args = "name > ?", [after]
    if states:
        where += f" AND state IN ({', '.join('?' * len(states))})"
        args += [state.value for state in states]
    sql = f"SELECT {clock}, {to.SESSION_COLUMNS} FROM session WHERE {where} ORDER BY name LIMIT ?"  # noqa: S608 - constants only
    found = yield Query(sql, (*args, limit))
    return [to.listed(row, instant(now)) for now, *row in found]


def read_script(session: str, after: int, limit: int, max_bytes: int) -> Script[list[Entry]]:
    """Read a page of the log. Sizes are read first, because bodies may be large."""
    found = yield Query(_LOG, (after, session))
    if not found:
        raise errors.missing(session)
    key, oldest, top, base, head, before = found[0]
    # An offset beyond the end is a gap too: such a reader has offsets of another log.
    if after + 1 < oldest or after > top:
        raise errors.gap(session, after + 1, oldest, top)
    sizes = yield Query(
        "SELECT pos, LENGTH(body) FROM entry WHERE session = ? AND pos > ? ORDER BY pos LIMIT ?", (key, after, limit)
    )
    last = _last_within(sizes, max_bytes)
    if last is None:
        return []
    rows = yield Query(
        "SELECT pos, id, at, type, body, hash FROM entry WHERE session = ? AND pos > ? AND pos <= ? ORDER BY pos",
        (key, after, last),
    )
    entries = to.entries(session, rows, base if after + 1 == oldest else before)
    if last == top and entries[-1].hash != to.hashed(head):
        raise errors.damaged(session, f"its log does not end with its entry {top} as it was written")
    return entries


# The entry before the page is read for its hash.
_LOG = (
    "SELECT key, oldest, top, base, head, (SELECT hash FROM entry WHERE session = s.key AND pos = ?) FROM session s"
    " WHERE name = ?"
)


def _last_within(sizes: Sequence[Sequence[int]], max_bytes: int) -> int | None:
    last: int | None = None
    for pos, size in sizes:
        max_bytes -= size
        # Always return at least one entry. Otherwise a reader could never get past a large entry.
        if max_bytes < 0 and last is not None:
            break
        last = pos
    return last


def checkpoint_script(session: str) -> Script[Checkpoint | None]:
    key = yield from _key(session)
    sql = "SELECT pos, at, message_count, last_message_id, snapshot, hash FROM checkpoint WHERE session = ?"
    rows = yield Query(sql, (key,))
    return to.checkpoint(session, rows[0]) if rows else None


def audit_script(chain: str, after: int, limit: int) -> Script[list[AuditRecord]]:
    rows = yield Query(
        "SELECT a.seq, a.at, a.kind, a.correlation, a.payload, a.hash FROM audit a JOIN chain c ON c.key = a.chain"
        " WHERE c.name = ? AND a.seq > ? ORDER BY a.seq LIMIT ?",
        (chain, after, limit),
    )
    return [to.audit_record(chain, row) for row in rows]


def chains_script(after: str, limit: int) -> Script[list[tuple[str, int, str]]]:
    rows = yield Query("SELECT name, seq, hash FROM chain WHERE name > ? ORDER BY name LIMIT ?", (after, limit))
    return [(name, seq, bytes(sealed).hex()) for name, seq, sealed in rows]


def claims_script(session: str, after: tuple[str, str], limit: int) -> Script[list[StoredClaim]]:
    key = yield from _key(session)
    rows = yield Query(
        "SELECT client, id, body_hash, at, first, top, result FROM inbox"
        " WHERE session = ? AND (client, id) > (?, ?) ORDER BY client, id LIMIT ?",
        (key, *after, limit),
    )
    return [to.claim(row) for row in rows]


def orphans_script() -> Script[list[AuditRecord]]:
    rows = yield Query(
        "SELECT a.seq, a.at, a.kind, a.correlation, a.payload, a.hash FROM audit a JOIN ("
        "SELECT chain, MIN(seq) AS first FROM audit WHERE chain NOT IN (SELECT key FROM chain) GROUP BY chain"
        ") o ON a.chain = o.chain AND a.seq = o.first ORDER BY a.chain",
        (),
    )
    return [to.audit_record("", row) for row in rows]


def next_work_script(queues: Sequence[str], instant: Callable[[float], Instant], clock: str) -> Script[float | None]:
    found = yield Query(
        f"SELECT {clock}, MIN(due) FROM work WHERE status = 'ready' AND queue IN ({', '.join('?' * len(queues))})"  # noqa: S608 - constants only
        f" UNION ALL SELECT {clock}, MIN(due) FROM work WHERE status = 'waiting'",
        tuple(queues),
    )
    left = [due - instant(now).wall for now, due in found if due is not None]
    return max(0.0, min(left)) if left else None


def work_where(
    session: str | None, statuses: Sequence[WorkStatus], queue: str | None, after: str
) -> tuple[str, list[str]]:
    """Return the condition for the work item of a session, or for those after one, and its arguments."""
    where, args = ("s.name = ?", [session]) if session is not None else ("s.name > ?", [after])
    if statuses:
        # As constants, so that the index of the items that run serves.
        where += f" AND w.status IN ({', '.join(repr(str(status)) for status in statuses)})"
    if queue is not None:
        where += " AND w.queue = ?"
        args.append(queue)
    return where, args


def work_script(
    where: str, args: tuple[Any, ...], instant: Callable[[float], Instant], clock: str
) -> Script[list[WorkItem]]:
    rows = yield Query(
        f"SELECT {clock}, {ITEM} FROM work w JOIN session s ON s.key = w.session WHERE {where} ORDER BY s.name LIMIT ?",  # noqa: S608 - constants only
        args,
    )
    return [item_of(row, instant(now)) for now, *row in rows]


def paused_work_script() -> Script[list[str]]:
    rows = yield Query("SELECT name FROM work_queue WHERE paused <> 0 ORDER BY name")
    return [name for (name,) in rows]


def _key(session: str) -> Script[int]:
    rows = yield Query("SELECT key FROM session WHERE name = ?", (session,))
    if not rows:
        raise errors.missing(session)
    return int(rows[0][0])
