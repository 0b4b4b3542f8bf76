"""Work items as scripts: what a commit changes about them, and how workers claim them.

Invariant: an item is claimed by one worker at a time. The worker then takes the session's lease, which decides who works: a claim only keeps
others from trying.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.stores import errors
from holdfast.stores.records import NewWork, WorkItem
from holdfast.stores.sql.query import Many, Query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.records import Commit, WorkChange, WorkQueue, WorkWanted
    from holdfast.stores.sql.leases import Instant
    from holdfast.stores.sql.query import Row, Script

__all__ = [
    "ITEM",
    "admit_change",
    "claim_script",
    "free_script",
    "item_of",
    "pause_script",
    "write_work",
]

_STATUS = "SELECT status FROM work WHERE session = ?"
_ADD = "INSERT INTO work (session, program, version, queue, tenant, priority, status, due, added) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_CHANGE = (
    "UPDATE work SET status = ?, due = CASE WHEN ? = 'ready' AND due < ? THEN due ELSE ? END, failures = COALESCE(?, failures), starts = 0, cancel = COALESCE(?, cancel), claim = NULL,"
    " claim_until = NULL, code = ? WHERE session = ?"
)
_DUE = "UPDATE work SET status = 'ready' WHERE status = 'waiting' AND due <= ?"
ITEM = (
    "s.name, w.program, w.version, w.queue, w.tenant, w.priority, w.status, w.due, w.added, w.failures, w.starts, w.cancel, w.claim,"
    " w.claim_until, w.code, s.top, s.owner, s.lease_until, s.lease_boot, s.lease_end"
)
_TAKE = "UPDATE work SET status = 'running', claim = ?, claim_until = ?, starts = starts + 1 WHERE session = ?"
_FREE = (
    "UPDATE work SET status = ?, due = COALESCE(?, due), claim = NULL, claim_until = NULL WHERE status = 'running' AND claim = ?"
    " AND session = (SELECT key FROM session WHERE name = ?)"
)
_FREE_AT = "SELECT paused, free_at FROM work_queue WHERE name = ?"
_QUEUE = "INSERT INTO work_queue (name) VALUES (?) ON CONFLICT (name) DO NOTHING"


def admit_change(commit: Commit, key: int, lock: str) -> Script[bool]:
    """Return whether the commit's change of a work item is to be written. Raise if it must be, and may not."""
    change = commit.work
    assert change is not None
    if isinstance(change, NewWork):
        return True
    rows = yield Query(_STATUS + lock, (key,))
    status = rows[0][0] if rows else None
    may = status is not None and (not change.only or status in change.only)
    if change.must and not may:
        raise errors.not_in_status(commit.session or "", status, change)
    return may


def write_work(work: NewWork | WorkChange, key: int, top: int, at: float) -> Script[None]:
    """Add a work item, or change it. `top` is the end of the log before the commit."""
    if isinstance(work, NewWork):
        begins = work.due is None or work.due <= at
        status, when = ("ready", at) if begins else ("waiting", work.due)
        yield Query(_ADD, (key, work.program, work.version, work.queue, work.tenant, work.priority, status, when, at))
        return
    if work.status == "running":
        # Its worker goes on with it, and is told to end it.
        yield Query("UPDATE work SET cancel = ? WHERE session = ?", (int(bool(work.cancel)), key))
        return
    waits = work.status == "waiting" and (work.seen is None or top <= work.seen)
    status = work.status if waits or work.status != "waiting" else "ready"
    # What is ready is claimed in the order of this time. What was due before keeps its place.
    due = work.due if waits else at
    cancel = None if work.cancel is None else int(work.cancel)
    yield Query(_CHANGE, (status, status, at, due, work.failures, cancel, work.code, key))


def claim_script(wanted: WorkWanted, now: Instant, lock: str = "") -> Script[list[WorkItem]]:
    """Claim items that are due, the most important first."""
    yield Query(_DUE, (now.wall,))
    found: list[Row] = []
    for queue in wanted.queues:
        left = yield from _room(queue, wanted.limit - len(found), now.wall, lock)
        if left > 0:
            rows = yield from _ready(queue, wanted, left, lock)
            found += rows
            if queue.per_second and rows:
                yield from _space(queue.name, len(rows), queue.per_second, now.wall)
    if found:
        yield Many(_TAKE, [(wanted.claim, now.wall + wanted.ttl, key) for key, *_ in found])
    return [_claimed(item_of(row, now), wanted) for _, *row in found]


def _claimed(item: WorkItem, wanted: WorkWanted) -> WorkItem:
    return msgspec.structs.replace(
        item, status="running", claim=wanted.claim, claim_left=wanted.ttl, starts=item.starts + 1
    )


def _room(queue: WorkQueue, most: int, now: float, lock: str) -> Script[int]:
    """Return how many items of a queue may begin now."""
    if queue.concurrency is None and queue.per_second is None:
        rows = yield Query(_FREE_AT, (queue.name,))
    else:
        # Its row is locked, so that two workers do not count at the same time.
        yield Query(_QUEUE, (queue.name,))
        rows = yield Query(_FREE_AT + lock, (queue.name,))
    paused, free_at = rows[0] if rows else (0, 0.0)
    if paused:
        return 0
    if queue.concurrency is not None:
        ((running,),) = yield Query("SELECT COUNT(*) FROM work WHERE queue = ? AND status = 'running'", (queue.name,))
        most = min(most, queue.concurrency - running)
    if queue.per_second is not None:
        # What was not used within a second lapses.
        unused = min(1.0, now - free_at)
        most = min(most, 0 if unused < 0 else max(1, int(unused * queue.per_second)))
    return most


def _space(queue: str, count: int, per_second: float, now: float) -> Script[None]:
    """Note when the next item of a queue with a rate may begin."""
    ((free_at,),) = yield Query("SELECT free_at FROM work_queue WHERE name = ?", (queue,))
    yield Query(
        "UPDATE work_queue SET free_at = ? WHERE name = ?", (max(free_at, now - 1.0) + count / per_second, queue)
    )


def _ready(queue: WorkQueue, wanted: WorkWanted, most: int, lock: str) -> Script[Sequence[Row]]:
    if not wanted.programs:
        return []
    known = ", ".join(["(?, ?)"] * len(wanted.programs))
    sql = (
        f"SELECT w.session, {ITEM} FROM work w JOIN session s ON s.key = w.session WHERE w.queue = ? AND w.status = 'ready'"  # noqa: S608 - constants only
        f" AND (w.program, w.version) IN (VALUES {known}) ORDER BY w.priority DESC, w.due LIMIT ?"
    )
    args = (queue.name, *(part for program in wanted.programs for part in program), most)
    # Another worker may be claiming the first ones at this moment. It is not waited for.
    return (yield Query(f"{sql}{lock} OF w SKIP LOCKED" if lock else sql, args))


def free_script(claims: Sequence[tuple[str, str]], due: float | None) -> Script[None]:
    """Give back items, by session and claim. With `due` they wait until then; without it they keep their place."""
    status = "ready" if due is None else "waiting"
    yield Many(_FREE, [(status, due, claim, session) for session, claim in claims])


def pause_script(queue: str, *, paused: bool) -> Script[None]:
    """Let no item of a queue begin, or let them begin again."""
    yield Query(_QUEUE, (queue,))
    yield Query("UPDATE work_queue SET paused = ? WHERE name = ?", (int(paused), queue))


def item_of(row: Row, now: Instant) -> WorkItem:
    *kept, cancel, claim, until, code, top, owner, lease_until, boot, end = row
    session, program, version, queue, tenant, priority, status, due, added, failures, starts = kept
    return WorkItem(
        session=session,
        program=program,
        version=version,
        queue=queue,
        tenant=tenant,
        priority=priority,
        status=status,
        due=due,
        added=added,
        failures=failures,
        starts=starts,
        cancel=bool(cancel),
        claim=claim,
        claim_left=0.0 if until is None else until - now.wall,
        code=code,
        top=top,
        owner=owner,
        lease_left=0.0 if owner is None else max(0.0, now.left(lease_until, boot, end)),
    )
