"""Keeping a session while it is worked on: taken at the start, renewed on the way, given back at the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from holdfast.faults import Fault, HoldfastError
from holdfast.sessions import owners

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.stores import Lease, Store

__all__ = ["Keeper", "keeper_for", "take"]


async def take(store: Store, session: str, ttl: float) -> Lease:
    """Take a session. From a process of this machine that is known to be dead it is taken at once."""
    owner = owners.this_process()
    try:
        return await store.acquire(session, owner, ttl)
    except HoldfastError as error:
        holder = error.fault.context.get("owner")
        if error.fault.code != "SESS_LEASE_LOST" or not isinstance(holder, str) or not owners.is_gone(holder):
            raise
    # In its name, for no time at all: from now on whatever the dead one still had under way is refused.
    await store.acquire(session, holder, 0.0)
    return await store.acquire(session, owner, ttl)


class Keeper:
    """Renews the leases of all sessions that are open on one store in one event loop."""

    def __init__(self, store: Store, ttl: float) -> None:
        self._store = store
        self._ttl = ttl
        self._kept: dict[str, _Kept] = {}
        self._task: asyncio.Task[None] | None = None

    def keep(self, lease: Lease, lost: Callable[[Fault], None]) -> None:
        """Renew a lease from now on; `lost` is called once, should it be lost."""
        loop = asyncio.get_running_loop()
        self._kept[lease.session] = _Kept(lease, lost, loop.time() + self._ttl)
        if self._task is None:
            self._task = loop.create_task(self._run(), name="holdfast-leases")

    async def give_back(self, session: str) -> None:
        """Stop renewing, and give the session back. A store that fails now forgets the lease when its time is over."""
        kept = self.forget(session)
        if kept is None:
            return
        try:
            await self._store.release(kept.lease)
        except HoldfastError:
            return

    def forget(self, session: str) -> _Kept | None:
        """Stop renewing a lease; with the last one, the task ends."""
        kept = self._kept.pop(session, None)
        if not self._kept and self._task is not None:
            self._task.cancel()
            self._task = None
        return kept

    def lease(self, session: str) -> Lease:
        return self._kept[session].lease

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._ttl / 3)
            for session, kept in list(self._kept.items()):
                await self._renew(session, kept)

    async def _renew(self, session: str, kept: _Kept) -> None:
        loop = asyncio.get_running_loop()
        try:
            lease = await self._store.renew(kept.lease, self._ttl)
        except HoldfastError as error:
            if error.fault.code == "SESS_STORE_UNAVAILABLE" and loop.time() < kept.end:
                return
            self._kept.pop(session, None)
            kept.lost(Fault.of("SESS_LEASE_LOST", context={"session_id": session}))
        else:
            if session in self._kept:
                self._kept[session] = _Kept(lease, kept.lost, loop.time() + self._ttl)


def keeper_for(store: Store, ttl: float) -> Keeper:
    """Return the one keeper of these leases: ten thousand sessions need no more."""
    loop = asyncio.get_running_loop()
    keepers = _KEEPERS.setdefault(loop, WeakKeyDictionary()).setdefault(store, {})
    return keepers.setdefault(ttl, Keeper(store, ttl))


class _Kept(NamedTuple):
    lease: Lease
    lost: Callable[[Fault], None]
    end: float
    """When it is over, on the loop's clock, unless it is renewed."""


_KEEPERS: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[Store, dict[float, Keeper]]] = (
    WeakKeyDictionary()
)
