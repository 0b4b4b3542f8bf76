"""The store in one SQLite file: no server, and everything is on disk when a commit returns.

    store      `SqliteStore`
    writer     writes many commits in one transaction; tables: what it writes
    open_file  opening and closing the file; files: its permissions and versions
    locks      taking turns with other processes; failures: SQLite's errors as faults
    watch      notices what other processes write

Readers have their own connections and threads, so writes and reads never wait for each other.
"""

from __future__ import annotations

from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
