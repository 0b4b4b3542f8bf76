"""What a store holds, and what it is told to write, as values.

Invariant: a `Commit` is the only way to write. All of it is stored in one transaction, or nothing of it.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError

__all__ = [
    "AUDIT_CLASSES",
    "MAX_OFFSET",
    "AuditClass",
    "AuditRecord",
    "Checkpoint",
    "Claim",
    "Commit",
    "Entry",
    "Lease",
    "NewAudit",
    "NewCheckpoint",
    "NewEntry",
    "NewSession",
    "Receipt",
    "SessionRecord",
    "SessionState",
    "check_name",
]

MAX_OFFSET = 2**53 - 1
"""Offsets are numbers in JavaScript too."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}")


def check_name(path: str, name: Any) -> None:
    """Refuse what is no id: ids end up in SQL, paths, logs and pages."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidError.at(path, "1 to 128 letters, digits or _.:@- with a letter or digit first", name)


class SessionState(StrEnum):
    """Where a session is in its life. `sessions/` says which may follow which."""

    CREATED = "created"
    ACTIVE = "active"
    PAUSED = "paused"
    CLOSED = "closed"
    ERROR = "error"


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
    "Alert",
]
"""Document 002's classes (N2-16), and what recovering adds to them."""

AUDIT_CLASSES = frozenset(get_args(AuditClass))


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class NewEntry(_Value, frozen=True):
    """Something to be appended to a session's log. Its offset and time are given when it is committed."""

    type: str
    body: bytes
    """JSON."""
    id: str
    """Unique in the session; what makes a repeated write recognisable."""


class Entry(_Value, frozen=True):
    """Something in a session's log."""

    offset: int
    """1, 2, 3 …: no holes."""
    id: str
    at: float
    """Wall clock at the commit; never less than the entry before."""
    type: str
    body: msgspec.Raw


class NewCheckpoint(_Value, frozen=True):
    """A snapshot of what follows from a session's log."""

    message_count: int
    last_message_id: str | None
    snapshot: bytes
    """JSON: the context, and the steps of a turn under way."""
    offset: int | None = None
    """The log up to here is in it, however far others have written on. None: all of it, this commit's entries included."""


class Checkpoint(_Value, frozen=True):
    offset: int
    """The log up to here is in it."""
    at: float
    message_count: int
    last_message_id: str | None
    snapshot: msgspec.Raw


class Claim(_Value, frozen=True):
    """Take something once: the same id and body again gives the first receipt, another body is refused."""

    client: str
    """Whose ids these are."""
    id: str
    body_hash: bytes
    result: bytes = b"null"
    """JSON, given back to whoever claims the same again."""


class NewAudit(_Value, frozen=True):
    """What is to be in the audit trail."""

    kind: str
    """One of `AuditClass`."""
    correlation: str
    """What it belongs to: a run, a turn, a session."""
    payload: bytes
    """JSON."""

    def __post_init__(self) -> None:
        if self.kind not in AUDIT_CLASSES:
            raise HoldfastError(Fault.of("SYS_AUDIT_CLASS_UNKNOWN", context={"received": self.kind}))
        if not self.correlation:
            raise HoldfastError(Fault.of("SYS_AUDIT_UNCORRELATED", context={"class": self.kind}))


class AuditRecord(_Value, frozen=True):
    """One link of an audit chain."""

    chain: str
    """A session's id, or the name of a part of the program."""
    seq: int
    """1, 2, 3 … in its chain."""
    at: float
    kind: str
    correlation: str
    payload: msgspec.Raw
    hash: str
    """Over this record and the hash of the one before it."""


class NewSession(_Value, frozen=True):
    """A session to be made."""

    manifest: bytes
    """JSON: what the session was begun with."""


class Commit(_Value, frozen=True):
    """What to write, in one transaction."""

    session: str | None = None
    """None writes to an audit chain only."""
    create: NewSession | None = None
    """Make the session first, unless it is there: then the commit is refused with SESS_ILLEGAL_TRANSITION."""
    fence: int | None = None
    """The writer's lease: refused with SESS_LEASE_LOST when somebody else has taken the session since."""
    expect: tuple[SessionState, ...] = ()
    """The states it may be in; otherwise refused. None given: any but closed."""
    state: SessionState | None = None
    """The state it goes to."""
    manifest: bytes | None = None
    entries: tuple[NewEntry, ...] = ()
    checkpoint: NewCheckpoint | None = None
    claim: Claim | None = None
    audit: tuple[NewAudit, ...] = ()
    chain: str = ""
    """The audit chain; by default the session's own."""


class Receipt(_Value, frozen=True):
    """What was stored."""

    first: int = 0
    """The offset of the first entry of this commit; 0 where it had none."""
    top: int = 0
    """The offset of the session's last entry."""
    at: float = 0.0
    epoch: str = ""
    duplicate: bool = False
    """The claim was known: nothing was written, this is the first receipt."""
    result: msgspec.Raw = msgspec.Raw(b"null")
    """What the claim holds."""


class Lease(_Value, frozen=True):
    """The right to write to a session, until it ends or somebody takes it over."""

    session: str
    owner: str
    fence: int
    """Higher than that of every lease before."""
    until: float
    """Wall clock."""


class SessionRecord(_Value, frozen=True):
    """What a store knows of a session without reading its log."""

    id: str
    epoch: str
    """Offsets mean the same as long as this does not change."""
    state: SessionState
    oldest: int
    """The first offset still held."""
    top: int
    """The last offset; 0 before the first."""
    created_at: float
    last_at: float
    manifest: msgspec.Raw
    fence: int = 0
    owner: str | None = None
    lease_until: float = 0.0
    checkpoint: int | None = None
    """The offset of its checkpoint."""
