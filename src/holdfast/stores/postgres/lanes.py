"""Lanes: one queue of writes per session. Writes that arrive during a transaction share the next transaction.

Without lanes these writes would still wait for each other, at the session's row, and each would occupy a connection.

Invariant: a write that was started runs to its end even if its caller is cancelled, and the jobs of a lane run in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.stores.records import Commit
    from holdfast.stores.sql.query import Script

MOST_JOBS = 128
"""The most jobs in one transaction. More jobs would delay the first of them too much."""


class LaneJob:
    """A script to run in a transaction, and the future of its result."""

    __slots__ = ("commit", "error", "future", "lane", "on_end", "refused", "result", "script")

    def __init__(
        self,
        lane: str,
        script: Callable[[float], Script[Any]],
        commit: Commit | None = None,
        on_end: Callable[[LaneJob], None] | None = None,
    ) -> None:
        self.lane = lane
        self.script = script
        self.commit = commit
        """The commit that the script writes, if it writes one. A group writes a plain commit without its script."""
        self.refused = 0
        """How often its session was not as expected when a group was written."""
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.result: Any = None
        self.error: BaseException | None = None
        self.on_end = on_end
        """Called when its transaction has ended, before its future is completed. It may change the error."""

    def settle(self) -> None:
        """Complete the future, unless the caller was cancelled."""
        if self.on_end is not None:
            self.on_end(self)
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class Lanes:
    """One queue for each session that is being written to."""

    def __init__(self, perform: Callable[[list[LaneJob]], Awaitable[None]]) -> None:
        self._perform = perform
        self._waiting: dict[str, deque[LaneJob]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_busy(self, lane: str) -> bool:
        """Whether a lane has jobs."""
        return lane in self._waiting

    def begin(self, job: LaneJob) -> asyncio.Future[Any]:
        """Run a job after those of its lane that wait; return the future of its result."""
        lane = job.lane
        waiting = self._waiting.get(lane)
        if waiting is None:
            self._waiting[lane] = deque((job,))
            task = asyncio.create_task(self._drain(lane), name=f"holdfast-postgres-{lane}")
            # Keep the task, because asyncio holds only a weak reference to it.
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            waiting.append(job)
        return job.future

    async def close(self) -> None:
        """Wait until everything that was started is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _drain(self, lane: str) -> None:
        waiting = self._waiting[lane]
        while waiting:
            # If a caller was cancelled before its transaction, its job is not started.
            jobs = [job for job in _taken(waiting) if not job.future.done()]
            if jobs:
                await self._perform_and_settle(jobs)
        # Drop the lane of an idle session, because a process may serve many thousands of sessions.
        del self._waiting[lane]

    async def _perform_and_settle(self, jobs: list[LaneJob]) -> None:
        try:
            await self._perform(jobs)
        except BaseException as error:  # noqa: BLE001 - the waiting callers must get the error, and the lane must live on
            for job in jobs:
                job.error = error
        for job in jobs:
            job.settle()


def _taken(waiting: deque[LaneJob]) -> list[LaneJob]:
    return [waiting.popleft() for _ in range(min(len(waiting), MOST_JOBS))]
