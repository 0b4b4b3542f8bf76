"""`holdfast sessions ls`: the sessions of a store."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate, show_json, show_line, show_table
from holdfast.cli.stored import with_store
from holdfast.faults import HoldfastError
from holdfast.sessions.outside import in_use

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.cli.audit_records import Form
    from holdfast.stores import SessionRecord, SessionState, Store

__all__ = ["ids_from", "record_document", "sessions_ls", "time_of"]

SCHEMA = "holdfast.sessions/1"
COLUMNS = ("session", "state", "in use", "entries", "checkpoint", "created", "last")


def sessions_ls(url: str | None, states: Sequence[SessionState], *, limit: int | None, form: Form) -> Exit:
    """List the sessions, in any of these states if some are named."""

    async def list_them(store: Store) -> Exit:
        found = [record_document(record) async for record in _records(store, states, limit)]
        match form:
            case "json":
                show_json({"schema": SCHEMA, "sessions": found})
            case "jsonl":
                for document in found:
                    show_line({"schema": SCHEMA, **document})
            case "table" if found:
                show_table(COLUMNS, [[_cell(value) for value in document.values()] for document in found])
            case _:
                narrate("no sessions")
        return Exit.OK

    return with_store(url, list_them)


def ids_from(url: str | None, beginning: str) -> list[str]:
    """Return the ids that begin so; none where the store cannot be read: a shell that completes shows no errors."""
    found: list[str] = []

    async def look(store: Store) -> Exit:
        page = await store.sessions(after=beginning[:-1])
        found.extend(record.id for record in page if record.id.startswith(beginning))
        return Exit.OK

    with contextlib.suppress(HoldfastError, OSError):
        with_store(url, look)
    return found


def record_document(record: SessionRecord) -> dict[str, Any]:
    """Return what is known of a session without reading its log."""
    return {
        "session": record.id,
        "state": record.state.value,
        "in_use": in_use(record),
        "entries": record.top,
        "checkpoint": record.checkpoint,
        "created_at": time_of(record.created_at),
        "last_at": time_of(record.last_at),
    }


def time_of(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _records(store: Store, states: Sequence[SessionState], limit: int | None) -> AsyncIterator[SessionRecord]:
    after, left = "", limit
    while page := await store.sessions(states=states, after=after):
        for record in page[:left]:
            yield record
        if left is not None and (left := left - len(page)) <= 0:
            return
        after = page[-1].id


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
