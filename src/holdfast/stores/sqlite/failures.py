"""SQLite's errors as faults."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from holdfast.faults import Fault, HoldfastError
from holdfast.stores.errors import unavailable
from holdfast.stores.sqlite.holders import holder_of

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the file may not be written to",
    sqlite3.SQLITE_PERM: "the file may not be opened",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_IOERR: "the disk failed",
    sqlite3.SQLITE_BUSY: "another process holds the file",
    sqlite3.SQLITE_LOCKED: "another connection holds the table",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_PROTOCOL: "the file could not be locked",
}


def typed(error: sqlite3.Error, path: str) -> HoldfastError:
    """Return the fault for an error of SQLite, with the error as its cause."""
    # The low byte is the primary code. The other bytes only distinguish variants of it.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    # No retry can help here, so it must not be SESS_STORE_UNAVAILABLE.
    if code in _DAMAGED:
        message = f"The session store {path} is damaged ({name}: {error}). It was left as it is."
        failure = HoldfastError(
            Fault.of("SESS_MANIFEST_INVALID", message, context={"path": path, "reason": str(error)})
        )
    else:
        reason = _REASONS.get(code, str(error))
        # Who writes holds a lock of the index of the WAL.
        holder = holder_of(Path(f"{path}-shm")) if code == sqlite3.SQLITE_BUSY else None
        known = {} if holder is None else {"pid": holder.pid}
        who = "" if holder is None else f": {holder}"
        failure = unavailable(f"{reason} ({path}, {name}){who}", path=path, sqlite=name, **known)
    failure.__cause__ = error
    return failure
