"""What anybody may do about a work item from outside: cancel it, retry a dead letter, pause and resume.

Invariant: a change is written only if the item is in a status that allows it, in one commit with the note that says who did it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions import admin
from holdfast.sessions.journal import audit, fresh_id
from holdfast.sessions.log import WorkNoted, new_entry
from holdfast.stores import Commit, shared
from holdfast.stores.records import WorkChange
from holdfast.stores.store import work_store

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.stores import Store
    from holdfast.stores.records import WorkItem, WorkStatus

__all__ = ["cancel", "close_cancelled", "item_of", "pause", "resume", "retry"]

_TRIES = 3
"""How often a change is tried whose item changes meanwhile."""


async def item_of(store: Store, id_: str) -> WorkItem:
    """Return a work item; raise SESS_NOT_FOUND for an unknown session, and `InvalidError` for one that is no work item."""
    found = await work_store(store).work(id_)
    if found:
        return found[0]
    await store.session(id_)
    raise InvalidError.saying("work item", "the id of a work item", f"{id_}, a session that nobody has submitted")


async def cancel(item: str, *, store: Store | str | Path | None = None, by: str = "") -> bool:
    """End a work item: at once if it does not run, otherwise after the steps that are in flight. Return False if it has ended already.

        await cancel("refund:o-7", by="ann")

    A dead letter is put away so, too. Raises SESS_NOT_FOUND for an unknown session, and `InvalidError` for one that is no work item.
    """
    async with shared.opened(store) as opened:
        for _ in range(_TRIES):
            status = (await item_of(opened, item)).status
            if status in ("done", "cancelled"):
                return False
            if status == "running":
                change = WorkChange(status="running", only=("running",), must=True, cancel=True)
                if await _changed(opened, item, change, None):
                    return True
            elif await _changed(
                opened,
                item,
                _to("cancelled", "ready", "waiting", "paused", "failed"),
                WorkNoted(status="cancelled", by=by),
            ):
                await close_cancelled(opened, item)
                return True
    return False


async def retry(item: str, *, store: Store | str | Path | None = None, by: str = "") -> bool:
    """Let a dead letter be tried again, or one that waits go on now.

        await retry("refund:o-7", by="ann")

    What its steps have stored stays. Return False if there is nothing to retry: it runs, is ready, paused, or has ended. Raises as `cancel`.
    """
    change = WorkChange(status="ready", only=("failed", "waiting"), must=True, failures=0)
    return await _change(item, store, change, by)


async def pause(item: str, *, store: Store | str | Path | None = None, by: str = "") -> bool:
    """Keep an item from being claimed until `resume`. Return False if it runs, or has ended. Raises as `cancel`."""
    return await _change(item, store, _to("paused", "ready", "waiting"), by)


async def resume(item: str, *, store: Store | str | Path | None = None, by: str = "") -> bool:
    """Let a paused item be claimed again. Return False if it was not paused. Raises as `cancel`."""
    return await _change(item, store, _to("ready", "paused"), by)


def _to(status: WorkStatus, *only: WorkStatus) -> WorkChange:
    return WorkChange(status=status, only=only, must=True)


async def _change(item: str, store: Store | str | Path | None, change: WorkChange, by: str) -> bool:
    async with shared.opened(store) as opened:
        await item_of(opened, item)
        return await _changed(opened, item, change, WorkNoted(status=change.status, by=by))


async def _changed(store: Store, item: str, change: WorkChange, note: WorkNoted | None) -> bool:
    entries = () if note is None else (new_entry(note, fresh_id()),)
    record = audit("Command", item, work=change.status, cancel=bool(change.cancel), by="" if note is None else note.by)
    try:
        await store.commit(Commit(session=item, entries=entries, audit=(record,), work=change))
    except HoldfastError as error:
        if error.fault.code not in ("SESS_ILLEGAL_TRANSITION", "SESS_CLOSED"):
            raise
        return False
    return True


async def close_cancelled(store: Store, item: str) -> None:
    """Close the session of an item that was cancelled. If somebody works in it, the item is cancelled all the same."""
    try:
        await admin.close(store, item, "cancelled")
    except HoldfastError as error:
        if error.fault.code not in ("SESS_LEASE_LOST", "SESS_CLOSED", "SESS_ILLEGAL_TRANSITION"):
            raise
