"""What a session was begun with, and how what it is resumed with differs.

Invariant: comparing is pure and per field. A part that is missing on either side never blocks; what blocks is a policy.
"""

from __future__ import annotations

import warnings
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.sessions.journal import audit

if TYPE_CHECKING:
    from holdfast.sessions.journal import Journal

__all__ = [
    "Drift",
    "DriftPolicy",
    "DriftWarning",
    "Manifest",
    "compare",
    "decode_manifest",
    "drift",
    "encode_manifest",
    "mismatch",
    "refused",
]

DriftPolicy: TypeAlias = Literal["warn", "refuse", "accept"]
"""What happens when a session is resumed with something else than it was begun with."""

_COMPARED = ("project_root", "mode", "model", "config", "tools")


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a session was begun with (N2-12). It holds no secret, and of settings and schemas only hashes."""

    session_id: str
    store_id: str
    """Which store it belongs to."""
    created_at: float = 0.0
    updated_at: float = 0.0
    project_root: str | None = None
    mode: Literal["ask", "yolo", "allowlist"] = "ask"
    """Who answers when nobody is there: `yolo` has questions answered by themselves (N2-15)."""
    model: str | None = None
    config: str | None = None
    """The hash of the settings."""
    tools: dict[str, str] = {}
    """Each tool's name, and the hash of its schema."""
    resumable: bool = True
    agent_type: str = ""
    """Document 000's `agentType`."""
    sm_state: dict[str, str] | None = None
    """Document 002's state machine: `smExtId` and `stateSlotRef`."""

    @staticmethod
    def hash_of(value: Any) -> str:
        """Return the hash under which settings or a tool's schema are compared."""
        return sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:32]


class DriftWarning(UserWarning):
    """A session goes on with other tools, another model or other settings than it was begun with."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """One field that differs."""

    field: str
    was: str | None
    now: str | None

    def __str__(self) -> str:
        return f"{self.field} was {self.was or 'not set'}, is {self.now or 'not set'}"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return its JSON, keys in order."""
    return msgspec.json.encode(manifest, order="sorted")


def decode_manifest(session: str, stored: bytes) -> Manifest:
    """Read a stored manifest; one that makes no sense is SESS_MANIFEST_INVALID, and one without a store drifted (N2-12)."""
    try:
        manifest = msgspec.json.decode(stored, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"Session '{session}' has a manifest that cannot be read: {error}"
        context = {"session_id": session, "reason": str(error)}
        raise HoldfastError(Fault.of("SESS_MANIFEST_INVALID", message, context=context)) from error
    if not manifest.store_id:
        raise refused(session, (Drift(field="storeId", was=None, now=None),))
    return manifest


def drift(was: Manifest, now: Manifest) -> tuple[Drift, ...]:
    """Return every field in which two manifests differ; what one of them does not say is no difference."""
    found: list[Drift] = []
    for field in _COMPARED:
        before, after = getattr(was, field), getattr(now, field)
        if field == "tools":
            found += _tools(before, after)
        elif before is not None and after is not None and before != after:
            found.append(Drift(field=field, was=str(before), now=str(after)))
    return tuple(found)


def mismatch(session: str, manifest: Manifest, store: str) -> HoldfastError | None:
    """Return the error of a session that another store saved (B101)."""
    if manifest.store_id == store:
        return None
    context = {"session_id": session, "expected": manifest.store_id, "received": store}
    return HoldfastError(Fault.of("SESS_RESUME_MISMATCH", context=context))


def refused(session: str, fields: tuple[Drift, ...]) -> HoldfastError:
    told = "; ".join(str(field) for field in fields)
    changes = [msgspec.to_builtins(field) for field in fields]
    context = {"session_id": session, "fields": told, "drift": changes}
    return HoldfastError(Fault.of("SESS_MANIFEST_DRIFT", context=context))


async def compare(journal: Journal, was: Manifest, now: Manifest, policy: DriftPolicy) -> tuple[Drift, ...]:
    """Return what differs: warned of, or accepted and stored; raise where it is refused, or where the store is another."""
    problem = mismatch(journal.session, was, now.store_id)
    if problem is not None:
        raise problem
    fields = drift(was, now)
    if not fields:
        return ()
    if policy == "refuse":
        raise refused(journal.session, fields)
    told = audit("Integrity", journal.session, drift=[str(field) for field in fields], policy=policy)
    if policy == "warn":
        # At the place that opens the session: compare, _open, _enter, __aenter__, there.
        warnings.warn(f"session {journal.session}: {'; '.join(map(str, fields))}", DriftWarning, stacklevel=5)
        await journal.write(audit=(told,))
    else:
        kept = msgspec.structs.replace(now, created_at=was.created_at, sm_state=was.sm_state)
        await journal.write(audit=(told,), manifest=encode_manifest(kept))
    return fields


def _tools(was: dict[str, str], now: dict[str, str]) -> list[Drift]:
    if not was or not now:
        return []
    changed = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return [Drift(field=f"tools.{name}", was=was.get(name), now=now.get(name)) for name in changed]
