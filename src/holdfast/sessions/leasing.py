"""Keeping a session while it is worked on: taken at the start, renewed on the way, given back at the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.faults import Fault, HoldfastError
from holdfast.sessions import owners

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.stores import Lease, Store

__all__ = ["Keeper", "take"]


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
    """Renews a lease until it is told to stop, or the lease is lost."""

    def __init__(self, store: Store, lease: Lease, ttl: float, lost: Callable[[Fault], None]) -> None:
        self._store = store
        self._lease = lease
        self._ttl = ttl
        self._lost = lost
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"holdfast-lease-{lease.session}")

    async def stop(self) -> None:
        """Stop, and give the session back. A store that fails now forgets the lease when its time is over."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._store.release(self._lease)
        except HoldfastError:
            return

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._ttl
        while True:
            await asyncio.sleep(self._ttl / 3)
            try:
                self._lease = await self._store.renew(self._lease, self._ttl)
            except HoldfastError as error:
                if error.fault.code != "SESS_STORE_UNAVAILABLE" or loop.time() >= end:
                    self._lost(Fault.of("SESS_LEASE_LOST", context={"session_id": self._lease.session}))
                    return
            else:
                end = loop.time() + self._ttl
