"""The store in one SQLite file: no server, and everything on disk when a commit returns.

    store    `SqliteStore`; writer: the one thread that writes, many commits in one transaction
    files    the file, its rights and its versions; failures: what SQLite says, in our words

Readers have connections and threads of their own: a write never waits for a reader, nor a reader for a write.
"""

from __future__ import annotations

from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
