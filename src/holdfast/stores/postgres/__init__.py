"""The store on a PostgreSQL server: many processes and machines on the same sessions. Needs the extra `postgres`.

    store      `PostgresStore`; engine: transactions, and what became of one whose COMMIT was not answered
    listening  waking those who wait in other processes; tables: the schema and its versions; failures: in our words

An offset is given under the lock of its session's row, which is held until the commit ends: offsets have no holes and come
in the order of their commits.
"""

from __future__ import annotations

from holdfast.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
