"""What workflows have bound in a session, read from its log, and a new session that begins after a binding.

    for binding in await bindings_of(store, "review-42"):
        print(binding.name, binding.shown)
    await fork_from_binding(store, "review-42", "review-42-again", "plan")

Invariant: a fork has exactly the results that were stored when the name was bound. Everything after it runs anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import InvalidError
from holdfast.once.records import StepEnded
from holdfast.sessions import codec
from holdfast.sessions.admin import fork_session
from holdfast.sessions.journal import entries_of
from holdfast.sessions.log import read_entry
from holdfast.tasks.workflows.durable import BINDINGS

if TYPE_CHECKING:
    from holdfast.stores import Store

__all__ = ["StoredBinding", "bindings_of", "fork_from_binding"]


class StoredBinding(msgspec.Struct, frozen=True, kw_only=True):
    """A name that a workflow bound, as the log has it."""

    name: str
    shown: str
    """The value as text, masked and cut."""
    line: int
    column: int
    strand: str = ""
    """The item of `map` that bound it; empty outside of `map`."""
    offset: int = 0
    """The offset of its checkpoint in the log."""


async def bindings_of(store: Store, session: str) -> list[StoredBinding]:
    """Return what the workflows of a session have bound, in the order of the log.

        found = await bindings_of(store, "review-42")

    Raises SESS_NOT_FOUND for an unknown session.
    """
    record = await store.session(session)
    found: list[StoredBinding] = []
    async for entry in entries_of(store, session, max(0, record.oldest - 1)):
        body = read_entry(session, entry)
        if not isinstance(body, StepEnded) or not body.ok or BINDINGS.encode() not in bytes(body.result):
            continue
        checkpoint = codec.decode(bytes(body.result), Any, "bind")
        if not isinstance(checkpoint, dict) or BINDINGS not in checkpoint:
            continue
        for one in checkpoint[BINDINGS]:
            fields = {name: one[name] for name in ("name", "shown", "line", "column")}
            found.append(StoredBinding(**fields, strand=checkpoint.get("strand", ""), offset=entry.offset))
    return found


async def fork_from_binding(store: Store, session: str, new: str, name: str) -> int:
    """Make a new session that begins where a name was bound last; return the offset of its last entry.

        await fork_from_binding(store, "review-42", "review-42-again", "plan")

    Run the workflow in the new session: results that were stored before the binding are used again, and what came after runs anew. Raises
    `InvalidError` if the session never bound the name, and what `holdfast.sessions.admin.fork_session` raises.
    """
    found = await bindings_of(store, session)
    matching = [binding for binding in found if binding.name == name]
    if not matching:
        known = ", ".join(dict.fromkeys(binding.name for binding in found)) or "none"
        raise InvalidError.at("fork.binding", f"a name that session {session} has bound ({known})", name)
    return await fork_session(store, session, new, at=matching[-1].offset)
