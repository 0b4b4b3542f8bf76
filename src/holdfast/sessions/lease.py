"""The lease of a session: taken when the session is opened, renewed while it is open, given back when it is left.

A lease names its owner: host, process id, and the start time of that process. So other processes of the same machine can tell
whether the owner still lives. They need not wait until the lease of a dead owner ends.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from holdfast._platform import is_posix
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.shield import run_to_end
from holdfast.runtime.suppress import suppress, suppressed

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.suppress import Suppression
    from holdfast.stores import Lease, Store

__all__ = ["LeaseKeeper", "is_gone", "keeper_for", "left", "take", "this_process"]


async def take(store: Store, session: str, ttl: float, runtime: Runtime | None = None) -> Lease:
    """Take the lease of a session. If its owner is a dead process of this machine, take it at once.

    If the caller is cancelled, give the lease back. Otherwise nobody could open the session until the lease ends. A failure
    to give it back is reported to `runtime`, or to the default runtime.
    """
    taking = asyncio.ensure_future(_take(store, session, ttl))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        await run_to_end(_give_back(store, taking, runtime))
        raise


async def _give_back(store: Store, taking: asyncio.Future[Lease], runtime: Runtime | None) -> None:
    with _ends_by_itself(runtime):
        await store.release(await taking)


def _ends_by_itself(runtime: Runtime | None) -> Suppression:
    return suppress(HoldfastError, reason="a lease that is not given back ends by itself", runtime=runtime)


async def _take(store: Store, session: str, ttl: float) -> Lease:
    owner = this_process()
    try:
        return await store.acquire(session, owner, ttl)
    except HoldfastError as error:
        holder = error.fault.context.get("owner")
        if error.fault.code != "SESS_LEASE_LOST" or not isinstance(holder, str) or not is_gone(holder):
            raise
    # Acquire the lease in the dead owner's name, for zero seconds. This raises the fence, so the store rejects a late write
    # of the dead process.
    await store.acquire(session, holder, 0.0)
    return await store.acquire(session, owner, ttl)


class LeaseKeeper:
    """Renews the leases of all sessions that are open on one store, in one event loop, by one clock."""

    def __init__(self, store: Store, ttl: float, clock: Clock) -> None:
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._task: asyncio.Task[None] | None = None

    def keep(self, lease: Lease, lost: Callable[[Fault], None], runtime: Runtime | None = None) -> None:
        """Renew a lease from now on. `lost` is called once if the lease is lost; ignored failures go to `runtime`."""
        if (before := self._kept.get(lease.session)) is not None:
            # The earlier lease had ended, and this same process opened the session again.
            before.lost(_lost(lease.session))
        self._kept[lease.session] = _Kept(lease, lost, self._clock.monotonic() + self._ttl, runtime)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="holdfast-leases")

    async def give_back(self, session: str, fence: int) -> None:
        """Stop renewing, and release the lease. If the store fails now, the lease ends by itself after its time."""
        kept = self._kept.get(session)
        # Another `Session` of this process may have taken the session since. We must not release its lease.
        if kept is not None and kept.lease.fence == fence:
            self.forget(session)
            with _ends_by_itself(kept.runtime):
                await self._store.release(kept.lease)

    def forget(self, session: str) -> _Kept | None:
        """Stop renewing a lease. The task ends when no lease is left."""
        kept = self._kept.pop(session, None)
        if not self._kept and self._task is not None:
            self._task.cancel()
            self._task = None
        return kept

    def lease(self, session: str) -> Lease:
        """Return the lease of a session as it was renewed last."""
        return self._kept[session].lease

    async def _run(self) -> None:
        while True:
            # Renew after a third of the time, so that two renewals may fail before the lease ends.
            await asyncio.sleep(self._ttl / 3)
            for session, kept in list(self._kept.items()):
                await self._renew(session, kept)

    async def _renew(self, session: str, kept: _Kept) -> None:
        try:
            lease = await self._store.renew(kept.lease, self._ttl)
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the other leases must still be renewed
            rejected = isinstance(error, HoldfastError) and error.fault.code != "SESS_STORE_UNAVAILABLE"
            if not rejected and self._clock.monotonic() < kept.end:
                # The lease is still valid, and the store may recover before it ends.
                suppressed(error, "the lease is still valid and is renewed again", runtime=kept.runtime)
                return
            if self._kept.get(session) is not kept:
                return
            del self._kept[session]
            kept.lost(_lost(session))
        else:
            # The session may have been left, or opened again, while the store was renewing.
            if self._kept.get(session) is kept:
                self._kept[session] = _Kept(lease, kept.lost, self._clock.monotonic() + self._ttl, kept.runtime)


def keeper_for(store: Store, ttl: float, clock: Clock) -> LeaseKeeper:
    """Return the keeper for this store, time and clock. All its sessions share one task."""
    loop = asyncio.get_running_loop()
    keepers = _KEEPERS.setdefault(loop, WeakKeyDictionary()).setdefault(store, {})
    name = (ttl, id(clock))
    if name not in keepers:
        # The keeper keeps the clock alive, so no other clock can get the same `id()`.
        keepers[name] = LeaseKeeper(store, ttl, clock)
    return keepers[name]


def left(session: str) -> Fault:
    """Return the fault of a session whose block was left. It writes nothing more."""
    message = f"Session '{session}' was left: Session.open opens it again"
    return Fault.of("SESS_LEASE_LOST", message, context={"session_id": session})


def _lost(session: str) -> Fault:
    return Fault.of("SESS_LEASE_LOST", context={"session_id": session})


class _Kept(NamedTuple):
    lease: Lease
    lost: Callable[[Fault], None]
    end: float
    """When the lease ends unless it is renewed, by the keeper's monotonic clock."""
    runtime: Runtime | None
    """Where failures that are ignored are reported; None: to the default runtime."""


_KEEPERS: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakKeyDictionary[Store, dict[tuple[float, int], LeaseKeeper]]
] = WeakKeyDictionary()


def this_process() -> str:
    """Return a new owner name in this process: host, process id, start of the process, and a random part."""
    pid = os.getpid()
    return f"{socket.gethostname()}/{pid}/{_started(pid)}/{secrets.token_hex(4)}"


def is_gone(owner: str) -> bool:
    """Whether an owner is known to be dead: it was a process of this machine, and that process has ended."""
    host, _, rest = owner.partition("/")
    pid, _, rest = rest.partition("/")
    started = rest.partition("/")[0]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    # On Windows `os.kill(pid, 0)` sends Ctrl-C instead of a test. There we wait until a dead owner's lease ends.
    if not is_posix():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # The process exists and belongs to another user.
        return False
    # The system reuses process ids. The start time shows whether it is still the same process.
    return started != _started(int(pid))


def _started(pid: int) -> str:
    """Return when a process started, in the kernel's own ticks; empty if that cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
