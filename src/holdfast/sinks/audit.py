"""Writes events to the audit trail of a store: append-only, hash-chained, in the order they happened.

    async with SqliteStore("work.db") as store, audit_to(store, runtime):   # written in this event loop
    with audit_to(SqliteStore("work.db"), runtime):                         # opened and written in a thread of its own

Invariant: writing never slows or breaks a call. Events are queued and written afterwards. Events that do not fit into the queue
are counted, and a record at their place in the trail says how many are missing.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import msgspec

from holdfast import options
from holdfast._platform import after_fork
from holdfast._version import __version__
from holdfast.events import AttemptEnded, SuppressedError
from holdfast.faults import InvalidError
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import process_redactor
from holdfast.sinks.audit_records import CLASSES, audit_of
from holdfast.sinks.reader import subscribe
from holdfast.stores.records import Commit, NewAudit, check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.events import Event
    from holdfast.faults import Redactor
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime
    from holdfast.stores.records import AuditClass
    from holdfast.stores.store import Store

__all__ = ["AuditTrail", "audit_to"]

MOST_QUEUED = 10_000
MOST_AT_ONCE = 200
"""The most records in one commit. A larger commit would block the store's writer for too long."""
_IN_ONE_GO = 10
"""Records that are encoded before the event loop may run something else. This takes about a millisecond."""
CHAIN = "runtime"

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_PATIENCE_S = 10.0
"""How long closing waits for the last records."""

_LOG = logging.getLogger("holdfast")


@options.suggests
def audit_to(
    store: Store,
    runtime: Runtime | None = None,
    *,
    chain: str = CHAIN,
    attempts: bool = False,
    most_queued: int = MOST_QUEUED,
    redactor: Redactor | None = None,
) -> AuditTrail:
    """Return the audit trail of `runtime`, or of the default runtime. It is written while its block runs.

    With `async with` the store must be open, and is used in this event loop. With `with` the store must not be open: a thread
    opens it, writes, and closes it. `attempts` adds the end of every call, also of calls that work at once. After a restart the
    same chain is continued. Several processes may share a chain.

        async with SqliteStore("work.db") as store, audit_to(store) as trail:
            trail.record("TrustDecision", {"tool": "bash"}, correlation="session-7")

    Raises `InvalidError` for an option of the wrong type.
    """
    return AuditTrail(store, runtime, chain=chain, attempts=attempts, most_queued=most_queued, redactor=redactor)


class AuditTrail:
    """Writes the events of a runtime to the audit chain of a store; `audit_to` makes one."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime | None = None,
        *,
        chain: str = CHAIN,
        attempts: bool = False,
        most_queued: int = MOST_QUEUED,
        redactor: Redactor | None = None,
    ) -> None:
        if not callable(getattr(store, "commit", None)):
            raise InvalidError.at("store", "a Store", store)
        check_name("audit.chain", chain)
        options.flag("audit.attempts", attempts)
        options.count("audit.most_queued", most_queued)
        self.chain = chain
        self.id = f"audit-{secrets.token_hex(8)}"
        """The correlation of records that belong to no run."""
        self._store = store
        self._runtime = default_runtime() if runtime is None else runtime
        self._attempts = attempts
        self._queue = _Queue(most_queued)
        self._redactor = redactor
        self._subscription: Subscription | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # An asyncio.Event belongs to no loop until it is awaited, so it can be made before the loop exists.
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._ending = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self.written = 0
        """Records that are in the store."""

    @property
    def dropped(self) -> int:
        """The number of records that did not fit into the queue, or were not written before the trail was closed."""
        return self._queue.dropped

    def record(self, kind: AuditClass, payload: Any, *, correlation: str) -> None:
        """Add a record of your own: `trail.record("Approval", {"by": "ann"}, correlation=run)`.

        The payload is anything that JSON can hold; secrets in it are masked. Raises `InvalidError` if the trail is not open,
        SYS_AUDIT_CLASS_UNKNOWN for an unknown class, and SYS_AUDIT_UNCORRELATED without a correlation.
        """
        if self._subscription is None or self._closing:
            raise InvalidError.saying(
                "audit.record", "an open trail: use it in `with` or `async with`", "a closed trail"
            )
        mask = self._mask()
        body = msgspec.json.encode(mask.value(payload))
        # Make the record here, so that a wrong class raises in the caller and not in the writing task.
        self._put(NewAudit(kind=kind, correlation=mask.text(correlation), payload=body))

    async def flush(self) -> None:
        """Wait until everything reported so far is in the store. Call it in the event loop of `async with`."""
        # Check that the task still runs: if it ended with an error, nothing would ever wake us.
        while self._queue.unwritten and self._task is not None and not self._task.done():
            self._idle.clear()
            await self._idle.wait()

    # In an event loop

    async def __aenter__(self) -> Self:
        self._begin(asyncio.get_running_loop())
        self._task = asyncio.create_task(self._write(), name="holdfast-audit")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()
        task, self._task = self._task, None
        assert task is not None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await asyncio.shield(task)
        except BaseException as error:
            task.cancel()
            if not isinstance(error, TimeoutError):
                raise
        finally:
            self._over()

    # In a thread

    def __enter__(self) -> Self:
        ready: list[BaseException | None] = []
        opened = threading.Event()

        def started(error: BaseException | None) -> None:
            if not opened.is_set():
                ready.append(error)
                opened.set()

        self._thread = threading.Thread(target=self._run, args=(started,), name="holdfast-audit", daemon=True)
        self._thread.start()
        opened.wait()
        if (error := ready[0]) is not None:
            self._thread.join()
            raise error
        # The thread is a daemon. Without this line the queued records would be lost when the program ends.
        atexit.register(self.close)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the queued records, then close the store, of a trail opened with `with`. It also runs when the program ends."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        atexit.unregister(self.close)
        self._end()
        thread.join(_PATIENCE_S)
        self._over()

    def _run(self, started: Callable[[BaseException | None], None]) -> None:
        try:
            asyncio.run(self._serve(started))
        except BaseException as error:  # noqa: BLE001 - `__enter__` waits for this thread and must get its error
            started(error)
            if not self._closing:
                _LOG.error("the audit trail has ended: %s", error)

    async def _serve(self, started: Callable[[BaseException | None], None]) -> None:
        store = await self._store.__aenter__()
        try:
            self._begin(asyncio.get_running_loop())
            started(None)
            await self._write()
        finally:
            try:
                await store.__aexit__(None, None, None)
            except RuntimeError:
                # The interpreter is shutting down and has no executors. Everything is committed, so nothing is lost.
                _LOG.debug("the store of the audit trail was left open at the program's end")

    # Both

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._subscription is not None or self._closing:
            raise InvalidError.saying("audit", "a trail that was not opened before", "a trail that was opened before")
        self._loop = loop
        wanted = [kind for kind in CLASSES if self._attempts or kind is not AttemptEnded]
        self._subscription = subscribe(self._runtime, dict.fromkeys(wanted, self._put))
        _TRAILS.add(self)
        # Records of opening and closing make a gap visible: a trail without a closing record was cut off.
        self._put(self._own("trail-opened", pid=os.getpid(), version=__version__))

    def _end(self) -> None:
        """Stop taking events. The queued records are still written."""
        if self._subscription is not None:
            self._subscription.cancel()
            self._put(self._own("trail-closed", dropped=self._queue.dropped))
        self._closing = True
        self._wake(self._ending)

    def _over(self) -> None:
        lost = self._queue.give_up()
        if lost:
            _LOG.error("%d audit records could not be written to the store", lost)

    def _own(self, event: str, **facts: Any) -> NewAudit:
        payload = msgspec.json.encode({"event": event, **facts})
        return NewAudit(kind="Integrity", correlation=self.id, payload=payload)

    def _put(self, what: Event | NewAudit) -> None:
        if self._queue.put(what):
            self._wake()

    def _wake(self, *also: asyncio.Event) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            for event in (*also, self._news):
                loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            # The loop was closed meanwhile. When the trail is closed, it counts the remaining records as dropped.
            return

    async def _write(self) -> None:
        try:
            while await self._write_queued() and not self._closing:
                await self._news.wait()
        finally:
            self._idle.set()

    async def _write_queued(self) -> bool:
        # Clear it before reading the queue: an event that arrives meanwhile sets it again.
        self._news.clear()
        while batch := self._queue.take(MOST_AT_ONCE):
            if not await self._commit(await self._records_of(batch)):
                return False
            self._queue.done()
        self._idle.set()
        return True

    async def _commit(self, records: tuple[NewAudit, ...]) -> bool:
        """Write a batch, and repeat until the store takes it. Meanwhile new events wait in the queue.

        Return False if the trail is being closed and the store still fails.
        """
        pause = 0.0
        while True:
            # Read it before the attempt: if the trail is closed during the attempt, one more attempt follows.
            last = self._closing
            try:
                await self._store.commit(Commit(chain=self.chain, audit=records))
            except Exception as error:  # noqa: BLE001 - the trail must survive any error of its store
                if not pause:
                    # Report once per outage, because a report per attempt would fill the log.
                    self._report(error)
                if last:
                    return False
            else:
                self.written += len(records)
                return True
            pause = min(pause * 2 or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            with suppress(TimeoutError):  # the pause has passed, so it tries again
                async with asyncio.timeout(pause):
                    await self._ending.wait()

    async def _records_of(self, batch: list[Event | NewAudit | int]) -> tuple[NewAudit, ...]:
        records: list[NewAudit] = []
        for start in range(0, len(batch), _IN_ONE_GO):
            records += map(self._record_of, batch[start : start + _IN_ONE_GO])
            # Masking is slow. Without this line a full batch would block the event loop of the application.
            await asyncio.sleep(0)
        return tuple(records)

    def _record_of(self, item: Event | NewAudit | int) -> NewAudit:
        if isinstance(item, int):
            return self._own("records-dropped", count=item)
        return item if isinstance(item, NewAudit) else audit_of(item, self._mask(), otherwise=self.id)

    def _mask(self) -> Redactor:
        return process_redactor() if self._redactor is None else self._redactor

    def _report(self, error: Exception) -> None:
        """Report that the trail cannot be written."""
        reason = "the audit trail cannot be written; its records are kept and the write is retried"
        at = self._runtime.clock.wall()
        self._runtime.bus.emit(SuppressedError.of(fault_of(error), reason, at=at, redactor=self._mask()))

    def after_fork(self) -> None:
        """Stop writing in a forked child. It has neither the thread nor the connection, so it must open its own trail."""
        self._queue = _Queue(1)
        self._loop = self._thread = self._task = None
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None


class _Queue:
    """Events and records that wait to be written, in order, from any thread.

    A number in the queue means that this many events did not fit at that place.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: list[Event | NewAudit | int] = []
        self._under_way = 0
        self._missing = 0
        """How many events did not fit since the last item was queued."""
        self.dropped = 0
        # The lock is reentrant, because a signal handler may emit an event while this thread holds it.
        self._lock = threading.RLock()

    def put(self, item: Event | NewAudit) -> bool:
        """Queue an item if there is room. Return True if the writer may have to be woken."""
        with self._lock:
            if len(self._items) + self._under_way >= self._most:
                self._missing += 1
                self.dropped += 1
                return False
            self._add_missing()
            self._items.append(item)
            # Only the first item needs a wake-up, because the writer takes all queued items.
            return len(self._items) == 1

    def take(self, most: int) -> list[Event | NewAudit | int]:
        """Take the oldest items. They count as queued until `done`."""
        with self._lock:
            # The number of lost events belongs after everything that was queued before the loss.
            if len(self._items) < most:
                self._add_missing()
            batch, self._items = self._items[:most], self._items[most:]
            self._under_way = len(batch)
            return batch

    def done(self) -> None:
        self._under_way = 0

    @property
    def unwritten(self) -> int:
        with self._lock:
            return len(self._items) + self._under_way + bool(self._missing)

    def give_up(self) -> int:
        """Count the remaining items as dropped; return their number."""
        with self._lock:
            left = len(self._items) + self._under_way
            self.dropped += left
            self._items, self._under_way = [], 0
            return left

    def _add_missing(self) -> None:
        if self._missing:
            self._items.append(self._missing)
            self._missing = 0


_TRAILS: WeakSet[AuditTrail] = WeakSet()


def _after_fork() -> None:
    for trail in tuple(_TRAILS):
        trail.after_fork()


after_fork(_after_fork)
