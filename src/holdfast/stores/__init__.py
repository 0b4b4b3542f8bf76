"""Stores keep data that must not be lost: sessions, their logs, checkpoints and audit trails.

store         `Store`, the interface; records: what is stored, as values
memory        `MemoryStore`: in this process, for tests
sqlite/       `SqliteStore`: one file, the default; postgres/: many processes and machines
sql/          the statements of both SQL stores and their order, without I/O
address       `open_store`: a store by its address; shared: one store for all sessions of an address
encryption    `EncryptedStore`: a store around a store, with everything encrypted
redaction     what may be stored, and what leaves a store masked
errors        the errors of a store; chain: the hashes of the audit trail
verification  `verify_store`: whether the audit trail was changed
wakeups       wakes tasks that wait for a log to grow; failpoints: where tests kill the process
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.stores.address import default_url, open_store
    from holdfast.stores.encryption import EncryptedStore
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
    "EncryptedStore",
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
    "EncryptedStore": "holdfast.stores.encryption",
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
