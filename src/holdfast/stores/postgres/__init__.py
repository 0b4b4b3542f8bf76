"""The store on a PostgreSQL server, where many processes and machines share sessions. It needs the extra `postgres`.

    store          `PostgresStore`
    engine         transactions, and the outcome of a transaction whose COMMIT was not answered
    groups         group commit: plain commits of all sessions in one statement; arrays: their values in binary
    lanes          one queue of all other writes per session
    renewals       renews leases from another thread
    notifications  wakes tasks in other processes, with LISTEN and NOTIFY
    tables         the schema and its versions; failures: PostgreSQL's errors as faults

An offset is assigned under the lock of its session's row, which is held until the commit ends. So offsets have no gaps and follow
the order of the commits.
"""

from __future__ import annotations

from holdfast.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
