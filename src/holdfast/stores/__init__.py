"""What must not be lost: sessions, their logs, checkpoints and audit trails, in memory, SQLite or PostgreSQL.

store      the one interface; records: what is held and written, as values
preparing  what happens to a commit before it is written: checks, secrets
refusals   why a commit is refused; chain: the audit trail's hashes
memory     for tests and for those who need no more
sqlite     one file, the default; postgres: many processes and machines; sql: what both ask and write, without I/O
verifying  whether the audit trail is as it was written
opening    a store by its address
waking     waking those who wait for news; points: where tests kill the process
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.stores.address import default_url, open_store
    from holdfast.stores.memory import MemoryStore
    from holdfast.stores.postgres import PostgresStore
    from holdfast.stores.records import (
        AuditRecord,
        Checkpoint,
        Claim,
        Commit,
        Entry,
        Lease,
        NewAudit,
        NewCheckpoint,
        NewEntry,
        NewSession,
        Receipt,
        SessionRecord,
        SessionState,
    )
    from holdfast.stores.sqlite import SqliteStore
    from holdfast.stores.store import Store
    from holdfast.stores.verification import Verification, verify_store

__all__ = [
    "AuditRecord",
    "Checkpoint",
    "Claim",
    "Commit",
    "Entry",
    "Lease",
    "MemoryStore",
    "NewAudit",
    "NewCheckpoint",
    "NewEntry",
    "NewSession",
    "PostgresStore",
    "Receipt",
    "SessionRecord",
    "SessionState",
    "SqliteStore",
    "Store",
    "Verification",
    "default_url",
    "open_store",
    "verify_store",
]

_HOMES = dict.fromkeys(__all__, "holdfast.stores.records") | {
    "MemoryStore": "holdfast.stores.memory",
    "PostgresStore": "holdfast.stores.postgres",
    "SqliteStore": "holdfast.stores.sqlite",
    "Store": "holdfast.stores.store",
    "Verification": "holdfast.stores.verification",
    "default_url": "holdfast.stores.address",
    "open_store": "holdfast.stores.address",
    "verify_store": "holdfast.stores.verification",
}

__getattr__ = loader(__name__, globals(), _HOMES)
