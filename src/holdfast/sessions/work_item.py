"""`HeldWork`: the work item that an open session is, for the worker that runs its program.

Invariant: what becomes of an item is written with the fence of the session's lease, in one commit with the entry that says it. A worker that
has lost the session changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.sessions.lease import left
from holdfast.sessions.log import WorkNoted
from holdfast.stores.records import CLOSED_WORK, FINAL, WorkChange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.faults import Fault
    from holdfast.sessions.journal import Journal
    from holdfast.sessions.log import WorkSubmitted
    from holdfast.stores.records import SessionState, WorkStatus

__all__ = ["HeldWork", "ending"]

_LOOK_S = 0.02
"""How often a worker that stops looks whether the steps in flight have ended."""


def ending(
    journal: Journal, to: SessionState, noted: WorkNoted | None
) -> tuple[tuple[WorkNoted, ...], WorkChange | None]:
    """Return what is written about the work item with a change of the session's state: a session that is closed ends its item."""
    if noted is not None:
        return (noted,), WorkChange(status=noted.status)
    return (), CLOSED_WORK if to in FINAL and journal.memory.submitted is not None else None


class HeldWork:
    """The work item that an open session is. `Session.work` returns it."""

    def __init__(
        self, journal: Journal, lose: Callable[[Fault], None], close: Callable[[WorkNoted], Awaitable[None]]
    ) -> None:
        self._journal = journal
        self._lose = lose
        self._close = close
        self._is_over = False
        self._stopped: asyncio.Event | None = None
        """Set when the run was stopped; None: nobody stops it."""

    @property
    def submitted(self) -> WorkSubmitted | None:
        """What was submitted; None: the session is no work item."""
        return self._journal.memory.submitted

    @property
    def is_lost(self) -> bool:
        """Whether this process may write to the session no more."""
        return self._journal.failed is not None

    def begin(self) -> None:
        """A worker runs the program from here on: it waits elsewhere."""
        self._journal.parks, self._journal.waited = True, None
        self._journal.gate = asyncio.Event()
        self._journal.gate.set()

    def due(self, now: float) -> float | None:
        """Return when the first of its waits ends, of those that have not; None: they have no end."""
        memory = self._journal.memory
        times = [*memory.timers.values(), *(run.until for run in memory.parked.values())]
        times += [raised.expires_at for raised in memory.pending() if raised.expires_at is not None]
        return min((until for until in times if until > now), default=None)

    async def note(self, status: WorkStatus, *, value: Any = None, fault: Any = None, **change: Any) -> None:
        """Store what has become of it. `change` are fields of `WorkChange`."""
        body = WorkNoted(status=status, value=value, fault=fault)
        await self._journal.write(body, work=WorkChange(status=status, **change))

    async def end(self, status: WorkStatus, value: Any = None) -> None:
        """Store that it has ended, and close the session, in one commit."""
        await self._close(WorkNoted(status=status, value=value))

    async def park(self, due: float | None, code: str = "") -> None:
        """Store that it waits until a time, or until somebody wakes it. What came since its program looked wakes it at once."""
        journal = self._journal
        seen = journal.seen if journal.waited in (None, journal.heard) else -1
        await journal.write(work=WorkChange(status="waiting", due=due, seen=seen, code=code))

    async def ends(self) -> bool:
        """The program has ended. Return whether its end is to be stored: if somebody stops the run, the next run finds it."""
        if self._stopped is not None:
            await self._stopped.wait()
            return False
        self._is_over = True
        return True

    async def stop(self, seconds: float, status: WorkStatus = "ready") -> bool:
        """Stop the run: let no step begin, wait for so many seconds for those in flight, and give the item back, or end it.

        Return False if the program has ended meanwhile.
        """
        journal = self._journal
        if journal.gate is None:
            return False
        journal.gate.clear()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        # A step tells nobody that it ends.
        while journal.running() and not self._is_over and loop.time() < end and journal.failed is None:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        if self._is_over or self._stopped is not None or journal.failed is not None:
            return False
        # From here on the run does not store its end.
        self._stopped = asyncio.Event()
        try:
            await journal.finish_late()
            notes = () if status == "ready" else (WorkNoted(status=status),)
            await journal.write(*notes, work=WorkChange(status=status, only=("running",)))
        finally:
            # As after a kill: nothing more is written, and the next worker goes on after the last stored step.
            self._lose(left(journal.session))
            self._stopped.set()
        return True
