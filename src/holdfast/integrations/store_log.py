"""The log of a framework's own conversation or thread, as a session of a store.

Invariant: a log begins with its first entry. A name that was never written to does not exist.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING
from uuid import uuid4

from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.stores.records import Commit, NewEntry, NewSession, SessionState, check_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.stores.records import Entry, SessionRecord
    from holdfast.stores.store import Store

__all__ = ["StoreLog"]


class StoreLog:
    """The logs of one framework in a store. `kind` is the type of their entries, and the beginning of their names."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store = store
        self._kind = kind

    def name(self, id: str) -> str:  # noqa: A002 - the word of the frameworks
        """Return the name of the session for an id of the framework."""
        name = f"{self._kind}:{id}"
        try:
            check_name("id", name)
        except InvalidError:
            # The ids of frameworks may have any characters and any length, names of sessions may not.
            return f"{self._kind}::{sha256(id.encode()).hexdigest()}"
        return name

    async def append(self, name: str, *bodies: bytes) -> None:
        """Write entries. They are on disk when this returns."""
        entries = tuple(NewEntry(type=self._kind, body=body, id=f"{self._kind}-{uuid4().hex}") for body in bodies)
        try:
            await self._store.commit(Commit(session=name, entries=entries))
        except HoldfastError as error:
            if error.fault.code != "SESS_NOT_FOUND":
                raise
            await self._create(name)
            await self._store.commit(Commit(session=name, entries=entries))

    async def _create(self, name: str) -> None:
        manifest = Manifest(session_id=name, store_id=self._store.id, agent_type=self._kind)
        try:
            await self._store.commit(Commit(session=name, create=NewSession(manifest=encode_manifest(manifest))))
        except HoldfastError as error:
            # Another process was faster.
            if error.fault.code != "SESS_ILLEGAL_TRANSITION":
                raise

    async def record(self, name: str) -> SessionRecord | None:
        """Return what the store knows about a log, or None if it has no such log."""
        try:
            return await self._store.session(name)
        except HoldfastError as error:
            if error.fault.code != "SESS_NOT_FOUND":
                raise
            return None

    async def entries(self, record: SessionRecord, after: int = 0) -> AsyncIterator[Entry]:
        """Yield the entries after an offset, up to where the log ended when the record was read."""
        while after < record.top and (page := await self._store.read(record.id, after=after)):
            for entry in page:
                if entry.type == self._kind:
                    yield entry
                after = entry.offset

    async def names(self) -> AsyncIterator[str]:
        """Yield the names of all logs of this framework."""
        after = ""
        while page := await self._store.sessions(after=after):
            for record in page:
                if record.id.startswith(f"{self._kind}:"):
                    yield record.id
            after = page[-1].id

    async def remove(self, name: str) -> None:
        """Remove a log with everything in it, if it is there."""
        try:
            await self._store.commit(Commit(session=name, state=SessionState.CLOSED, expect=tuple(SessionState)))
            await self._store.remove(name)
        except HoldfastError as error:
            if error.fault.code != "SESS_NOT_FOUND":
                raise
