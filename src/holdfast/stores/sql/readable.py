"""Reading as every store on SQL does it; how a script is run is the engine's."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from holdfast.stores.records import check_name
from holdfast.stores.sql import reading
from holdfast.stores.store import PAGE_BYTES, PAGE_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.stores.records import AuditRecord, Checkpoint, Entry, SessionRecord, SessionState
    from holdfast.stores.sql.query import Script

__all__ = ["Readable"]

T = TypeVar("T")


class Readable:
    """The reading half of a store."""

    async def _read(self, script: Callable[[], Script[T]]) -> T:
        """Run a script that writes nothing, all its statements on one snapshot."""
        raise NotImplementedError

    async def session(self, session: str) -> SessionRecord:
        check_name("session", session)
        return await self._read(lambda: reading.session_script(session))

    async def sessions(
        self, *, states: Sequence[SessionState] = (), after: str = "", limit: int = PAGE_ENTRIES
    ) -> list[SessionRecord]:
        return await self._read(lambda: reading.sessions_script(states, after, limit))

    async def read(
        self, session: str, *, after: int = 0, limit: int = PAGE_ENTRIES, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        check_name("session", session)
        return await self._read(lambda: reading.read_script(session, after, limit, max_bytes))

    async def checkpoint(self, session: str) -> Checkpoint | None:
        check_name("session", session)
        return await self._read(lambda: reading.checkpoint_script(session))

    async def audit(self, chain: str, *, after: int = 0, limit: int = PAGE_ENTRIES) -> list[AuditRecord]:
        return await self._read(lambda: reading.audit_script(chain, after, limit))

    async def chains(self, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[tuple[str, int, str]]:
        return await self._read(lambda: reading.chains_script(after, limit))
