"""Comparing what a session is resumed with to what it was begun with, and doing what the policy says about it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import msgspec

from holdfast.sessions.manifest import DriftWarning, drift, encode_manifest, mismatch, refused
from holdfast.sessions.saving import audit

if TYPE_CHECKING:
    from holdfast.sessions.manifest import Drift, DriftPolicy, Manifest
    from holdfast.sessions.saving import Journal

__all__ = ["compare"]


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
