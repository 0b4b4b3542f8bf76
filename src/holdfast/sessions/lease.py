"""Keeping a session while it is worked on: taken at the start, renewed on the way, given back at the end."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from holdfast._platform import is_posix
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.shield import run_to_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.stores import Lease, Store

__all__ = ["Keeper", "is_gone", "keeper_for", "left", "take", "this_process"]


async def take(store: Store, session: str, ttl: float) -> Lease:
    """Take a session. From a process of this machine that is known to be dead it is taken at once.

    Cancelled, it is given back: nobody would, until its time is over.
    """
    taking = asyncio.ensure_future(_take(store, session, ttl))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        await run_to_end(_give_back(store, taking))
        raise


async def _give_back(store: Store, taking: asyncio.Future[Lease]) -> None:
    # Whatever fails now, its time will be over.
    with suppress(HoldfastError):
        await store.release(await taking)


async def _take(store: Store, session: str, ttl: float) -> Lease:
    owner = this_process()
    try:
        return await store.acquire(session, owner, ttl)
    except HoldfastError as error:
        holder = error.fault.context.get("owner")
        if error.fault.code != "SESS_LEASE_LOST" or not isinstance(holder, str) or not is_gone(holder):
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
        if (before := self._kept.get(lease.session)) is not None:
            # Its time was over, and the session was opened once more in this very process.
            before.lost(_lost(lease.session))
        self._kept[lease.session] = _Kept(lease, lost, loop.time() + self._ttl)
        if self._task is None:
            self._task = loop.create_task(self._run(), name="holdfast-leases")

    async def give_back(self, session: str, fence: int) -> None:
        """Stop renewing, and give the session back. A store that fails now forgets the lease when its time is over."""
        kept = self._kept.get(session)
        # What another of this process took since is not ours to give back.
        if kept is not None and kept.lease.fence == fence:
            self.forget(session)
            with suppress(HoldfastError):
                await self._store.release(kept.lease)

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
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the leases of the others are to be renewed
            refused = isinstance(error, HoldfastError) and error.fault.code != "SESS_STORE_UNAVAILABLE"
            if not refused and loop.time() < kept.end:
                return
            if self._kept.get(session) is not kept:
                return
            del self._kept[session]
            kept.lost(_lost(session))
        else:
            if self._kept.get(session) is kept:
                self._kept[session] = _Kept(lease, kept.lost, loop.time() + self._ttl)


def keeper_for(store: Store, ttl: float) -> Keeper:
    """Return the one keeper of these leases: ten thousand sessions need no more."""
    loop = asyncio.get_running_loop()
    keepers = _KEEPERS.setdefault(loop, WeakKeyDictionary()).setdefault(store, {})
    return keepers.setdefault(ttl, Keeper(store, ttl))


def left(session: str) -> Fault:
    """Return why a session that was left takes nothing more."""
    message = f"Session '{session}' was left: Session.open opens it again"
    return Fault.of("SESS_LEASE_LOST", message, context={"session_id": session})


def _lost(session: str) -> Fault:
    return Fault.of("SESS_LEASE_LOST", context={"session_id": session})


class _Kept(NamedTuple):
    lease: Lease
    lost: Callable[[Fault], None]
    end: float
    """When it is over, on the loop's clock, unless it is renewed."""


_KEEPERS: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[Store, dict[float, Keeper]]] = (
    WeakKeyDictionary()
)


def this_process() -> str:
    """Return a name for one owner in this process: host, process, when that began, and chance."""
    pid = os.getpid()
    return f"{socket.gethostname()}/{pid}/{_began(pid)}/{secrets.token_hex(4)}"


def is_gone(owner: str) -> bool:
    """Whether an owner is known to be dead: a process of this machine that is not there any more."""
    host, _, rest = owner.partition("/")
    pid, _, rest = rest.partition("/")
    began = rest.partition("/")[0]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    # On Windows `os.kill(pid, 0)` does not look: it sends Ctrl-C. There a dead owner's lease is over when its time is.
    if not is_posix():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    # The number may belong to another process by now.
    return began != _began(int(pid))


def _began(pid: int) -> str:
    """When a process began, in the kernel's own count; empty where that cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
