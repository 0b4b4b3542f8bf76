"""One run of a program in a worker, and what becomes of its item: done, waiting, tried again later, or a dead letter.

Invariant: the item changes in one commit with what the log says about it, with the fence of the session's lease. If that fails, nothing has
changed, and the item is claimed again when the lease has ended.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Fault, HoldfastError, OutcomeUnknownError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import codec
from holdfast.sessions.later import is_waiting
from holdfast.sessions.parked_runs import ParkedError
from holdfast.sessions.session import Session
from holdfast.sessions.waits import NEVER
from holdfast.work.changes import close_cancelled
from holdfast.work.programs import retry_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.later import Resumable
    from holdfast.sessions.questions.question import Interactor
    from holdfast.sessions.work_item import HeldWork
    from holdfast.stores.records import WorkItem, WorkStatus
    from holdfast.stores.store import WorkStore

__all__ = ["Run"]

_LOG = logging.getLogger("holdfast")
_LEAVING_S = 2.0
"""Seconds to wait for the lease: the run before may still be leaving the session."""
_IN_USE_S = 1.0
"""Seconds until an item is claimed again in whose session another process works."""
_BROKEN_S = 600.0
"""The same for an item whose session cannot be opened."""
_ONCE_MORE = 2
"""How often a program is tried that fails in a way that nobody knows."""


class Run:
    """One run of an item's program."""

    def __init__(
        self,
        store: WorkStore,
        item: WorkItem,
        program: Resumable,
        *,
        lease: float,
        max_starts: int,
        runtime: Runtime | None,
        interactors: Iterable[Interactor],
    ) -> None:
        self.item = item
        self._store = store
        self._program = program
        self._lease = lease
        self._max_starts = max_starts
        self._runtime = runtime
        self._interactors = tuple(interactors)
        self._held: HeldWork | None = None
        self._stops = self._is_cancelled = False
        self.became: WorkStatus | None = None
        """What became of the item; None: nobody knows, because the session could not be opened, or was lost."""

    async def perform(self) -> None:
        """Open the session, run the program, and store what became of it. A failure of the store leaves the item to the next worker."""
        item, opened = self.item, False
        try:
            async with Session.open(
                item.session,
                store=self._store,
                lease=self._lease,
                wait=_LEAVING_S,
                runtime=self._runtime,
                interactors=self._interactors,
            ) as session:
                opened = True
                await self._in_session(session)
        except HoldfastError as error:
            if self._is_cancelled:
                await close_cancelled(self._store, item.session)
            elif not opened:
                await self._put_back(error)
            elif self._held is None or not self._held.is_lost:
                _LOG.warning("work item %s: its run could not be stored: %s", item.session, error.fault.message)

    async def stop(self, seconds: float) -> None:
        """Let the steps in flight end, for so many seconds, and give the item back."""
        self._stops = True
        if self._held is not None and await self._held.stop(seconds):
            self.became = "ready"

    async def cancel(self, seconds: float) -> None:
        """Let the steps in flight end, for so many seconds, and end the item."""
        if self._held is not None and await self._held.stop(seconds, "cancelled"):
            self._is_cancelled, self.became = True, "cancelled"

    async def _in_session(self, session: Session) -> None:
        held = session.work
        submitted = held.submitted
        if submitted is None:
            message = f"Session '{session.id}' does not say what was submitted: its log was written by another program"
            await held.note(
                "failed", fault=_stored(session, Fault.of("SESS_MANIFEST_DRIFT", message)), code="SESS_MANIFEST_DRIFT"
            )
            self.became = "failed"
            return
        if self.item.cancel:
            await held.end("cancelled")
            self.became = "cancelled"
            return
        if self.item.starts > self._max_starts:
            message = f"Its worker died {self._max_starts} times in a row while it ran"
            fault = Fault.of("ACTOR_MAX_RESTARTS", message, context={"session_id": session.id})
            await held.note("failed", fault=_stored(session, fault), code=fault.code)
            self.became = "failed"
            return
        held.begin()
        self._held = held
        if self._stops:
            await held.stop(0.0)
            await asyncio.sleep(0)
        try:
            value = await self._program.resume(session, submitted.inputs)
            if not await held.ends():
                return
            returns = getattr(self._program, "returns", Any)
            result = msgspec.json.decode(codec.encode_result(value, returns, f"result of {self._program.run_name}"))
            await held.end("done", result)
            self.became = "done"
        except Exception as error:
            if held.is_lost:
                raise
            if not await held.ends():
                return
            self.became = await self._failed(session, held, error)

    async def _failed(self, session: Session, held: HeldWork, error: Exception) -> WorkStatus:
        """Store what follows from the exception of a run; return what the item is now."""
        runtime = self._runtime or default_runtime()
        now, fault = runtime.clock.wall(), runtime.fault_of(error)
        if is_waiting(error):
            own = error.until if isinstance(error, ParkedError) else NEVER
            due = min(own, held.due(now) or NEVER)
            await held.park(None if due >= NEVER else due, "" if fault.code == "SESS_WAITING" else fault.code)
            return "waiting"
        if isinstance(error, OutcomeUnknownError):
            # Somebody has to find out. Who stores what was found wakes it.
            _LOG.warning("work item %s waits for a person: %s", session.id, fault.message)
            await held.note("waiting", fault=_stored(session, fault), code=fault.code)
            return "waiting"
        failures, retry = self.item.failures + 1, retry_of(self._program)
        attempts = min(retry.attempts or 1, _ONCE_MORE) if fault.code == "SYS_UNKNOWN" else retry.attempts or 1
        if fault.retryable and failures < attempts:
            delay = max(retry.backoff.delay(failures, runtime.rng), fault.retry_after or 0.0)
            _LOG.info("work item %s failed, and is tried again in %.1f s: %s", session.id, delay, fault.message)
            await held.note(
                "waiting", fault=_stored(session, fault), due=now + delay, failures=failures, code=fault.code
            )
            return "waiting"
        _LOG.warning("work item %s is a dead letter: %s", session.id, fault.message)
        await held.note("failed", fault=_stored(session, fault), failures=failures, code=fault.code)
        return "failed"

    async def _put_back(self, error: HoldfastError) -> None:
        """Give back an item whose session could not be opened."""
        item, code = self.item, error.fault.code
        if code != "SESS_LEASE_LOST":
            _LOG.warning("work item %s could not be opened: %s", item.session, error.fault.message)
        now = (self._runtime or default_runtime()).clock.wall()
        due = now + (_IN_USE_S if code in ("SESS_LEASE_LOST", "SESS_STORE_UNAVAILABLE") else _BROKEN_S)
        try:
            await self._store.free_work([(item.session, item.claim or "")], due=due)
        except HoldfastError as failed:
            _LOG.warning(
                "work item %s could not be given back, its claim ends by itself: %s", item.session, failed.fault.message
            )


def _stored(session: Session, fault: Fault) -> Any:
    return session.storable(msgspec.to_builtins(msgspec.structs.replace(fault, partial=None), enc_hook=str))
