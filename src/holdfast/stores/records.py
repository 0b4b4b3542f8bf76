"""The records of a store as values: what it holds, and what a commit writes.

Invariant: a `Commit` is the only way to write. It is stored whole, in one transaction, or not at all.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError

MAX_OFFSET = 2**53 - 1
"""The largest integer that JavaScript holds exactly. Clients in browsers read offsets."""

KEYS = "holdfast-keys"
"""The session whose manifest holds the key of the audit trail of an encrypted store."""
INTERNAL = frozenset({KEYS})
"""The sessions that stores keep for themselves. Nobody works in them, closes or removes them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}")


def check_name(path: str, name: Any) -> None:
    """Raise `InvalidError` if `name` is not a valid id. Ids are used in SQL, paths, logs and pages."""
    if not isinstance(name, str) or not _is_name(name):
        raise InvalidError.at(path, "1 to 128 letters, digits or _.:@- with a letter or digit first", name)


@lru_cache(maxsize=4_096)
def _is_name(name: str) -> bool:
    # A session's name is checked with each of its commits.
    return _NAME.fullmatch(name) is not None


class SessionState(StrEnum):
    """The state of a session. `holdfast.sessions` decides which state may follow which."""

    CREATED = "created"
    ACTIVE = "active"
    PAUSED = "paused"
    CLOSED = "closed"
    ERROR = "error"


FINAL = (SessionState.CLOSED, SessionState.ERROR)
"""The states that a session never leaves. It takes no entry any more."""


AuditClass: TypeAlias = Literal[
    "Approval",
    "Compaction",
    "StageExecution",
    "ModelSwitch",
    "ProviderSwitch",
    "ExtensionsReloaded",
    "TrustDecision",
    "SMTransition",
    "Integrity",
    "SessionLifecycle",
    "Turn",
    "ProviderExchange",
    "ToolInvocation",
    "SuppressedError",
    "Fault",
    "Retry",
    "Circuit",
    "Fallback",
    "Recovery",
    "Cancellation",
    "Budget",
    "Command",
    "Actor",
    "Alert",
]
"""The classes of audit records: document 002's (N2-16), and those of recoveries."""

AUDIT_CLASSES = frozenset(get_args(AuditClass))


# `gc=False`: a value is made of texts, numbers, bytes and other values, so it is in no cycle. A collector that has to look at those of
# every commit takes as long as a tenth of a step.
class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    pass


class NewEntry(_Value, frozen=True):
    """An entry to append to a session's log: `NewEntry(type="message", body=b"{}", id="m-1")`.

    The commit gives it an offset and a time.
    """

    type: str
    body: bytes
    """JSON."""
    id: str
    """Unique in the session. The id shows whether a write was repeated."""


class Entry(_Value, frozen=True):
    """An entry of a session's log."""

    offset: int
    """1, 2, 3 … without gaps."""
    id: str
    at: float
    """Wall clock of the commit. It is never less than the time of the entry before."""
    type: str
    body: msgspec.Raw
    hash: str = ""
    """The hash of this entry and of the hash of the entry before it. Empty: it was written before there were hashes."""


class NewCheckpoint(_Value, frozen=True):
    """A snapshot of what follows from a session's log, to be written."""

    message_count: int
    last_message_id: str | None
    snapshot: bytes
    """JSON: the context, and the steps of the turn in flight."""
    offset: int | None = None
    """It covers the log up to this offset, even if others have written more. None means the whole log, with this commit."""


class Checkpoint(_Value, frozen=True):
    """The last snapshot of a session. Resuming reads the snapshot and the log after it."""

    offset: int
    """It covers the log up to this offset."""
    at: float
    message_count: int
    last_message_id: str | None
    snapshot: msgspec.Raw


class Claim(_Value, frozen=True):
    """Makes a commit happen once: `Claim(client="phone", id="m-1", body_hash=digest)`.

    The same id and body again returns the first receipt and writes nothing. Another body raises PROTO_DUPLICATE_ID.
    """

    client: str
    """The client that chose the id."""
    id: str
    body_hash: bytes
    result: bytes = b"null"
    """JSON that a repeated claim gets back."""


class StoredClaim(_Value, frozen=True):
    """A claim that was made, and the receipt of its commit."""

    client: str
    id: str
    body_hash: bytes
    at: float
    first: int
    top: int
    result: bytes
    """JSON."""


class NewAudit(_Value, frozen=True):
    """A record to add to an audit chain.

    Raises SYS_AUDIT_CLASS_UNKNOWN for a class that is not known, and SYS_AUDIT_UNCORRELATED without a correlation.
    """

    kind: str
    """One of `AuditClass`."""
    correlation: str
    """The run, turn or session that it belongs to."""
    payload: bytes
    """JSON."""

    def __post_init__(self) -> None:
        # Check the record when it is made, because that is where the mistake is, and not when a store writes it.
        if self.kind not in AUDIT_CLASSES:
            raise HoldfastError(Fault.of("SYS_AUDIT_CLASS_UNKNOWN", context={"received": self.kind}))
        if not self.correlation:
            raise HoldfastError(Fault.of("SYS_AUDIT_UNCORRELATED", context={"class": self.kind}))


class AuditRecord(_Value, frozen=True):
    """A record of an audit chain."""

    chain: str
    """A session's id, or the name of a part of the program."""
    seq: int
    """1, 2, 3 … in its chain."""
    at: float
    kind: str
    correlation: str
    payload: msgspec.Raw
    hash: str
    """The hash of this record and of the hash of the record before it."""
    stored: msgspec.Raw = msgspec.Raw(b"")
    """What the hash covers, if that is not `payload`: the ciphertext of an encrypted store."""


class NewSession(_Value, frozen=True):
    """A session to create."""

    manifest: bytes
    """JSON: what the session was started with."""


WorkStatus: TypeAlias = Literal["ready", "running", "waiting", "paused", "done", "failed", "cancelled"]
"""`ready`: a worker may claim it. `waiting`: for a time, a signal or an answer. `failed`: a dead letter. The last three but one are final."""


class NewWork(_Value, frozen=True):
    """Makes a session a work item, which workers claim: `NewWork(program="program refund")`. Its input is in the log."""

    program: str
    """The name of the program that finishes it."""
    version: str = ""
    queue: str = "default"
    tenant: str = ""
    """Whose work it is. Tenants of a queue take turns."""
    priority: int = 0
    """Higher ones are claimed first."""
    due: float | None = None
    """When it may begin (wall clock); None: at once."""


class WorkChange(_Value, frozen=True):
    """Changes a work item: `WorkChange(status="waiting", due=time.time() + 60)`. A session that is none is not changed."""

    status: WorkStatus
    only: tuple[WorkStatus, ...] = ()
    """The statuses in which it may be; empty means any. In another one nothing is changed."""
    must: bool = False
    """Raise SESS_ILLEGAL_TRANSITION, and write nothing of the commit, if it is in another one, or if the session is none."""
    due: float | None = None
    """When it is claimed again, of one that waits; None: not before somebody wakes it."""
    failures: int | None = None
    """How many attempts in a row have failed; None: as before."""
    code: str = ""
    """The code of the last failure."""
    cancel: bool | None = None
    """Whether its worker is to end it; None: as before."""
    seen: int | None = None
    """The end of the log as its program knew it. If the log has grown since then by another writer, one that waits becomes `ready`: what it waits for may be there."""


WAKE = WorkChange(status="ready", only=("waiting",))
"""Lets an item that waits go on: what it waits for may be in the log now."""


CLOSED_WORK = WorkChange(status="cancelled", only=("ready", "running", "waiting", "paused", "failed"))
"""Ends the item of a session that is closed before its program has ended."""


def may_be_claimed(work: NewWork | WorkChange | None) -> bool:
    """Whether workers had better look for work after a commit with this part."""
    return isinstance(work, NewWork) or (work is not None and work.status in ("ready", "waiting"))


class WorkQueue(_Value, frozen=True):
    """A queue from which a worker claims, and what holds for all its workers together."""

    name: str
    concurrency: int | None = None
    """The most items that run at once; None: no limit."""
    per_second: float | None = None
    """The most items that begin in a second; None: no limit."""


class WorkWanted(_Value, frozen=True):
    """What a worker claims."""

    claim: str
    """A name for this claim that no other claim has."""
    ttl: float
    """Seconds in which the worker takes the sessions' leases. Later other workers may claim the items."""
    programs: tuple[tuple[str, str], ...]
    """Names and versions of the programs that the worker knows."""
    queues: tuple[WorkQueue, ...]
    limit: int
    """The most items."""


class WorkItem(_Value, frozen=True):
    """A work item as it is in the store, without its input."""

    session: str
    program: str
    version: str
    queue: str
    tenant: str
    priority: int
    status: WorkStatus
    due: float | None
    added: float
    failures: int
    starts: int
    """How often it was claimed since it last stopped in order."""
    cancel: bool
    claim: str | None
    claim_left: float
    """Seconds that its worker has left to take the lease of the session; 0 or less: it has none."""
    code: str
    top: int = 0
    """The last offset of the session's log."""
    owner: str | None = None
    """The owner of the session's lease."""
    lease_left: float = 0.0
    """Seconds that the lease has left; 0 or less: it has ended."""


class Commit(_Value, frozen=True):
    """What to write in one transaction.

    await store.commit(Commit(session="s", entries=(NewEntry(type="message", body=b"{}", id="m-1"),)))
    """

    session: str | None = None
    """None writes to an audit chain only."""
    create: NewSession | None = None
    """Create the session first. If it exists already, the commit raises SESS_ILLEGAL_TRANSITION."""
    fence: int | None = None
    """The fence of the writer's lease. If another owner has taken the session since, the commit raises SESS_LEASE_LOST."""
    after: int | None = None
    """The last offset that the writer has seen. If the log ends before it, or the session's fence is lower than `fence`, the store was set
    back, for example to a backup: the commit raises SESS_MANIFEST_DRIFT."""
    expect: tuple[SessionState, ...] = ()
    """The states that the session may be in. In any other state the commit raises. Empty means any state that is not final."""
    state: SessionState | None = None
    """The session's new state."""
    manifest: bytes | None = None
    entries: tuple[NewEntry, ...] = ()
    checkpoint: NewCheckpoint | None = None
    claim: Claim | None = None
    claims: tuple[StoredClaim, ...] = ()
    """Claims that an imported session brings along. Only with `create`."""
    audit: tuple[NewAudit, ...] = ()
    chain: str = ""
    """The audit chain for `audit`; by default the session's own."""
    work: NewWork | WorkChange | None = None
    """Make the session a work item, or change the one that it is. `NewWork` only with `create`."""


class Receipt(_Value, frozen=True):
    """What a commit stored."""

    first: int = 0
    """The offset of this commit's first entry; 0 if it had none."""
    top: int = 0
    """The offset of the session's last entry."""
    at: float = 0.0
    epoch: str = ""
    duplicate: bool = False
    """Whether the claim was made before. Then nothing was written, and this is the first receipt."""
    result: msgspec.Raw = msgspec.Raw(b"null")
    """The result of the claim."""


class Lease(_Value, frozen=True):
    """The right to write to a session, until the lease ends or another owner takes it over."""

    session: str
    owner: str
    fence: int
    """Higher than the fence of every earlier lease."""
    until: float
    """Wall clock at which it ends."""


class SessionRecord(_Value, frozen=True):
    """What a store knows about a session without reading its log."""

    id: str
    epoch: str
    """Offsets stay valid as long as this does not change."""
    state: SessionState
    oldest: int
    """The first offset that the log still holds."""
    top: int
    """The last offset; 0 while the log is empty."""
    created_at: float
    last_at: float
    manifest: msgspec.Raw
    fence: int = 0
    owner: str | None = None
    lease_until: float = 0.0
    lease_left: float | None = None
    """Seconds that its lease had left when this was read, by the clock that decides about it; 0: it has ended. None: the store
    does not know it."""
    checkpoint: int | None = None
    """The offset of its checkpoint."""
