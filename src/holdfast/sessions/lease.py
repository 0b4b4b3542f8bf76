"""The lease of a session: taken when the session is opened, renewed while it is open, given back when it is left.

A lease names its owner: host, process id, the start time of that process, and the start of the machine and the namespace in which
that id counts. So other processes of the same machine can tell whether the owner still lives, also after the machine was started
again. They need not wait until the lease of a dead owner ends.

Leases are renewed by a thread, all leases of a store at once, so that an event loop that is busy or blocked does not lose them. A
process that hangs therefore keeps its sessions until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from holdfast._platform import after_fork, boot_id, is_posix
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.runtime import SystemClock, default_runtime
from holdfast.runtime.shield import run_to_end
from holdfast.runtime.suppress import suppress, suppressed

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.suppress import Suppression
    from holdfast.stores import Lease, Store

__all__ = ["LeaseKeeper", "is_gone", "keeper_for", "left", "take", "take_within", "this_process"]

_FIRST_LOOK_S, _LOOK_S = 0.05, 1.0
"""Seconds between looks at a lease that somebody waits for: the first, and the longest."""


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


async def take_within(store: Store, session: str, ttl: float, wait: float, runtime: Runtime | None = None) -> Lease:
    """Take the lease of a session. While another process has it, wait for so many seconds; then raise SESS_LEASE_LOST."""
    clock = (runtime or default_runtime()).clock
    until, pause, has_waited = clock.monotonic() + wait, _FIRST_LOOK_S, False
    while True:
        try:
            return await take(store, session, ttl, runtime)
        except HoldfastError as error:
            left_s = until - clock.monotonic()
            if error.fault.code != "SESS_LEASE_LOST" or left_s <= 0:
                raise
            if not has_waited:
                who = error.fault.context.get("owner", "another process")
                logging.getLogger("holdfast").info("session %s is in use by %s: wait up to %g s", session, who, wait)
                has_waited = True
        # Nothing tells that another process gives a lease back: not every store could, and a process that dies does not.
        await _wait_for_release(store, session, min(pause, left_s))
        pause = min(2 * pause, _LOOK_S)


async def _wait_for_release(store: Store, session: str, seconds: float) -> None:
    """Wait until this process gives the lease back, for so many seconds."""
    loop, released = asyncio.get_running_loop(), asyncio.Event()
    waiting = _WAITING.setdefault((store.id, session), [])
    waiting.append((loop, released))
    try:
        with contextlib.suppress(TimeoutError):  # the time is up: the caller tries the store again
            async with asyncio.timeout(seconds):
                await released.wait()
    except asyncio.CancelledError:
        if released.is_set():
            _wake_next(store, session)
        raise
    finally:
        with contextlib.suppress(ValueError):  # whoever released it has removed it
            waiting.remove((loop, released))
        if not waiting:
            _WAITING.pop((store.id, session), None)


def _wake_next(store: Store, session: str) -> None:
    """Wake the one that has waited longest for this lease in this process."""
    waiting = _WAITING.get((store.id, session), [])
    while waiting:
        loop, released = waiting.pop(0)
        # A loop that has ended waits for nothing.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(released.set)
            return


async def _give_back(store: Store, taking: asyncio.Future[Lease], runtime: Runtime | None) -> None:
    with _ends_by_itself(runtime):
        await _release(store, await taking)


async def _release(store: Store, lease: Lease) -> None:
    _LEFT.add(lease.owner)
    await store.release(lease)
    _LEFT.discard(lease.owner)
    _wake_next(store, lease.session)


def _ends_by_itself(runtime: Runtime | None) -> Suppression:
    return suppress(HoldfastError, reason="a lease that is not given back ends by itself", runtime=runtime)


async def _take(store: Store, session: str, ttl: float) -> Lease:
    owner = this_process()
    try:
        return await store.acquire(session, owner, ttl)
    except HoldfastError as error:
        holder = error.fault.context.get("owner")
        if error.fault.code != "SESS_LEASE_LOST" or not isinstance(holder, str):
            raise
        # This process may have left the session while the store failed, and could not give the lease back.
        if holder not in _LEFT and not is_gone(holder, store):
            raise
    # Acquire the lease in the dead owner's name, for zero seconds. This raises the fence, so the store rejects a late write
    # of the dead process.
    await store.acquire(session, holder, 0.0)
    _LEFT.discard(holder)
    return await store.acquire(session, owner, ttl)


class LeaseKeeper:
    """Renews the leases of all sessions that are open on one store, in one event loop, by one clock.

    By the system's clock a thread renews them. By another clock, such as a test's, a task does, because only the event loop knows
    that time.
    """

    def __init__(self, store: Store, ttl: float, clock: Clock) -> None:
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._changing = threading.Lock()
        """Held while a lease that was renewed takes the place of the one before."""
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._stop: threading.Event | None = None

    def keep(self, lease: Lease, lost: Callable[[Fault], None], runtime: Runtime | None = None) -> None:
        """Renew a lease from now on. `lost` is called once if the lease is lost; ignored failures go to `runtime`."""
        if (before := self._kept.get(lease.session)) is not None:
            # The earlier lease had ended, and this same process opened the session again.
            before.lost(_lost(lease.session))
        self._kept[lease.session] = _Kept(lease, lost, self._clock.monotonic() + self._ttl, runtime)
        if self._task is None and self._stop is None:
            self._start()

    def _start(self) -> None:
        if not isinstance(self._clock, SystemClock):
            self._task = self._loop.create_task(self._run(), name="holdfast-leases")
            return
        self._stop = threading.Event()
        # The thread is a daemon: a program that forgets to leave a session must still be able to end.
        threading.Thread(target=self._run_in_thread, args=(self._stop,), name="holdfast-leases", daemon=True).start()

    async def give_back(self, session: str, fence: int) -> None:
        """Stop renewing, and release the lease. If the store fails now, the lease ends by itself after its time."""
        kept = self._kept.get(session)
        # Another `Session` of this process may have taken the session since. We must not release its lease.
        if kept is not None and kept.lease.fence == fence:
            self.forget(session)
            with _ends_by_itself(kept.runtime):
                await _release(self._store, kept.lease)

    def forget(self, session: str) -> _Kept | None:
        """Stop renewing a lease. The thread or task ends when no lease is left."""
        with self._changing:
            kept = self._kept.pop(session, None)
        if not self._kept:
            if self._task is not None:
                self._task.cancel()
            if self._stop is not None:
                self._stop.set()
            self._task = self._stop = None
        return kept

    def holds(self, session: str, fence: int) -> bool:
        """Whether the lease with this fence is kept, and its time is not over: no other process can have the session."""
        kept = self._kept.get(session)
        return kept is not None and kept.lease.fence == fence and self._clock.monotonic() < kept.end

    async def confirm(self, session: str) -> None:
        """Renew the lease of a session now. Raise SESS_LEASE_LOST if it was taken over, and what the store raises."""
        kept = self._kept.get(session)
        if kept is None:
            raise HoldfastError(_lost(session))
        end = self._clock.monotonic() + self._ttl
        try:
            self._renewed(session, kept, await self._store.renew(kept.lease, self._ttl), end)
        except HoldfastError as error:
            if error.fault.code != "SESS_STORE_UNAVAILABLE":
                # The caller stops by itself: it need not be cancelled.
                self.forget(session)
                _LEFT.add(kept.lease.owner)
            raise

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
        end = self._clock.monotonic() + self._ttl
        try:
            lease = await self._store.renew(kept.lease, self._ttl)
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the other leases must still be renewed
            rejected = isinstance(error, HoldfastError) and error.fault.code != "SESS_STORE_UNAVAILABLE"
            self._failed(session, kept, None if rejected else error)
        else:
            self._renewed(session, kept, lease, end)

    def _run_in_thread(self, stop: threading.Event) -> None:
        while not stop.wait(self._ttl / 3):
            # A loop that is closed left its sessions without giving them back. Their leases end by themselves.
            if self._loop.is_closed():
                return
            self._renew_all()

    def _renew_all(self) -> None:
        kept, end = dict(self._kept), self._clock.monotonic() + self._ttl
        try:
            renewed = self._store.renew_all([one.lease for one in kept.values()], self._ttl)
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the leases must be renewed again
            for session, one in kept.items():
                self._in_loop(self._failed, session, one, error)
            return
        leases = {lease.session: lease for lease in renewed}
        for session, one in kept.items():
            lease = leases.get(session)
            if lease is None:
                self._in_loop(self._failed, session, one, None)
            else:
                # Do this here: the loop may be blocked for longer than a lease.
                self._renewed(session, one, lease, end)

    def _renewed(self, session: str, kept: _Kept, lease: Lease, end: float) -> None:
        with self._changing:
            # The session may have been left, or opened again, while the store was renewing.
            if self._kept.get(session) is kept:
                self._kept[session] = _Kept(lease, kept.lost, end, kept.runtime)

    def _failed(self, session: str, kept: _Kept, error: Exception | None) -> None:
        """A lease was not renewed. Without an error, another owner has taken it."""
        if self._kept.get(session) is not kept:
            return
        if error is not None and self._clock.monotonic() < kept.end:
            # The lease is still valid, and the store may recover before it ends.
            suppressed(error, "the lease is still valid and is renewed again", runtime=kept.runtime)
            return
        self.forget(session)
        _LEFT.add(kept.lease.owner)
        kept.lost(_lost(session))

    def _in_loop(self, action: Callable[..., None], *args: Any) -> None:
        # A closed loop raises. It has no sessions any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action, *args)


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


_WAITING: dict[tuple[str, str], list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}
"""Those that wait for a lease in this process, by store and session, the one that waits longest in front."""

_LEFT: set[str] = set()
"""Owner names of this process that own nothing any more, although the store still has their leases: it failed when they ended."""


def this_process() -> str:
    """Return a new owner name in this process: host, process id, start of the process, where that id counts, a random part."""
    pid = os.getpid()
    return f"{socket.gethostname()}/{pid}/{_own_start(pid)}/{_namespace()}/{secrets.token_hex(4)}"


def is_gone(owner: str, store: Store | None = None) -> bool:
    """Whether an owner is known to be dead: it was a process of this machine that has ended, or of an earlier start of it.

    Two machines may have the same name. Only where a store is used by one machine (`store`) can another start be an earlier one.
    """
    host, _, rest = owner.partition("/")
    pid, _, rest = rest.partition("/")
    started, _, rest = rest.partition("/")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    where = rest.partition("/")[0]
    # Two containers may have the same host name. In another one the same id means another process, or none.
    if where != _namespace():
        return bool(getattr(store, "one_machine", False)) and _restarted(where)
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


def _restarted(where: str) -> bool:
    """Whether this machine was started again since somebody noted where process ids counted then."""
    (then, _, then_in), (now, _, now_in) = where.partition("."), _namespace().partition(".")
    # The system's own namespace has the same number on every start. A container may see a boot id of its own, while the machine
    # and its other processes go on.
    return bool(then and now) and then != now and then_in == now_in == _OF_THE_SYSTEM


_OF_THE_SYSTEM = "4026531836"
"""The number of the first namespace of process ids, in every Linux."""


@cache
def _namespace() -> str:
    """Return where process ids count: this start of the machine, and the namespace of process ids (containers have their own)."""
    try:
        inode = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        inode = 0
    return f"{(boot_id() or '')[:8]}.{inode}"


@cache
def _own_start(pid: int) -> str:
    """Return when this process started. Reading it takes as long as a quick commit, and it never changes."""
    return _started(pid)


after_fork(_namespace.cache_clear)
after_fork(_own_start.cache_clear)


def _started(pid: int) -> str:
    """Return when a process started, in the kernel's own ticks; empty if that cannot be read, or if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        state, threads, started = fields[0], fields[17], fields[19]
    except (OSError, IndexError):
        return ""
    # A process that has ended keeps its id until its parent collects it. One whose first thread has ended may have others that run.
    return "" if state in ("Z", "X") and threads in ("0", "1") else started


after_fork(_WAITING.clear)
