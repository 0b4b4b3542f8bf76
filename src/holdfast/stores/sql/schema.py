"""The tables for every engine, and the steps from one version of the tables to the next."""

from __future__ import annotations

from typing import NamedTuple

VERSION = 3


class SqlDialect(NamedTuple):
    """What differs between engines."""

    text: str
    """A text type that sorts by bytes, as Python does. Pages of ids need that order."""
    blob: str
    real: str
    integer: str
    key: str
    """A primary key that the engine counts itself."""
    clustered: str
    """The clause for a table whose rows are stored in the order of their key."""
    lock: str
    """The clause that makes a SELECT lock its row until the transaction ends."""


def migrations(dialect: SqlDialect) -> dict[int, tuple[str, ...]]:
    """Return the statements that lead to each version from the version before it."""
    steps = {1: _FIRST, 2: _SECOND, 3: _THIRD}
    return {
        version: tuple(statement.format_map(dialect._asdict()) for statement in step) for version, step in steps.items()
    }


_FIRST = (
    "CREATE TABLE meta (name {text} PRIMARY KEY, value {text} NOT NULL) {clustered}",
    """CREATE TABLE session (
        key {key},
        id {text} NOT NULL UNIQUE,
        epoch {text} NOT NULL,
        state {text} NOT NULL,
        oldest {integer} NOT NULL,
        top {integer} NOT NULL,
        created_at {real} NOT NULL,
        last_at {real} NOT NULL,
        manifest {blob} NOT NULL,
        fence {integer} NOT NULL DEFAULT 0,
        owner {text},
        lease_until {real} NOT NULL DEFAULT 0,
        checkpoint {integer}
    )""",
    """CREATE TABLE entry (
        session {integer} NOT NULL,
        pos {integer} NOT NULL,
        id {text} NOT NULL,
        at {real} NOT NULL,
        type {text} NOT NULL,
        body {blob} NOT NULL,
        PRIMARY KEY (session, pos)
    ) {clustered}""",
    """CREATE TABLE checkpoint (
        session {integer} PRIMARY KEY,
        pos {integer} NOT NULL,
        at {real} NOT NULL,
        message_count {integer} NOT NULL,
        last_message_id {text},
        snapshot {blob} NOT NULL
    )""",
    """CREATE TABLE inbox (
        session {integer} NOT NULL,
        client {text} NOT NULL,
        id {text} NOT NULL,
        body_hash {blob} NOT NULL,
        at {real} NOT NULL,
        first {integer} NOT NULL,
        top {integer} NOT NULL,
        result {blob} NOT NULL,
        PRIMARY KEY (session, client, id)
    ) {clustered}""",
    "CREATE INDEX inbox_age ON inbox (session, at)",
    """CREATE TABLE chain (
        key {key},
        name {text} NOT NULL UNIQUE,
        seq {integer} NOT NULL,
        hash {blob} NOT NULL
    )""",
    """CREATE TABLE audit (
        chain {integer} NOT NULL,
        seq {integer} NOT NULL,
        at {real} NOT NULL,
        kind {text} NOT NULL,
        correlation {text} NOT NULL,
        payload {blob} NOT NULL,
        hash {blob} NOT NULL,
        PRIMARY KEY (chain, seq)
    ) {clustered}""",
)

# Version 2: each entry and checkpoint has a hash, and a lease also ends by the clock of the machine that holds it.
_SECOND = (
    # A process with version 1 that still runs must not write entries without a hash. Each of its statements about a session names
    # this column, so each of them fails from now on, and its transaction is rolled back.
    "ALTER TABLE session RENAME COLUMN id TO name",
    # The hash of the last entry. It is NULL while the log has no entry with a hash.
    "ALTER TABLE session ADD COLUMN head {blob}",
    # The hash of the last entry that was dropped: the first one that is left is chained to it.
    "ALTER TABLE session ADD COLUMN base {blob}",
    "ALTER TABLE session ADD COLUMN lease_boot {text}",
    "ALTER TABLE session ADD COLUMN lease_end {real}",
    "ALTER TABLE entry ADD COLUMN hash {blob}",
    "ALTER TABLE checkpoint ADD COLUMN hash {blob}",
)

# Version 3: sessions that workers claim.
_THIRD = (
    """CREATE TABLE work (
        session {integer} PRIMARY KEY,
        program {text} NOT NULL,
        version {text} NOT NULL,
        queue {text} NOT NULL,
        tenant {text} NOT NULL,
        priority {integer} NOT NULL,
        status {text} NOT NULL,
        due {real},
        added {real} NOT NULL,
        failures {integer} NOT NULL DEFAULT 0,
        starts {integer} NOT NULL DEFAULT 0,
        cancel {integer} NOT NULL DEFAULT 0,
        claim {text},
        claim_until {real},
        code {text} NOT NULL DEFAULT ''
    )""",
    # Partial, so that what has ended costs the workers nothing.
    "CREATE INDEX work_ready ON work (queue, priority DESC, due) WHERE status = 'ready'",
    "CREATE INDEX work_waiting ON work (due) WHERE status = 'waiting'",
    "CREATE INDEX work_running ON work (queue) WHERE status = 'running'",
    """CREATE TABLE work_queue (
        name {text} PRIMARY KEY,
        paused {integer} NOT NULL DEFAULT 0,
        free_at {real} NOT NULL DEFAULT 0
    ) {clustered}""",
)
