"""`Worker`: claims what is due, runs it, and goes on with what a dead worker left.

Invariant: an item runs in one worker at a time, because its session has one lease. A worker runs only programs that it knows by name and
version. When it stops, it lets the steps in flight end and gives the rest back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Self

from holdfast import options
from holdfast.faults import HoldfastError, InvalidError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions.lease import is_gone, this_process
from holdfast.stores import shared
from holdfast.stores.records import WorkQueue, WorkWanted
from holdfast.stores.store import work_store
from holdfast.work.programs import known_programs, queue_of, versions_of
from holdfast.work.run import Run
from holdfast.work.schedule import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.questions.question import Interactor
    from holdfast.stores import Store
    from holdfast.stores.records import WorkItem, WorkStatus
    from holdfast.stores.store import WorkStore
    from holdfast.work.schedule import Schedule

__all__ = ["Worker"]

_LOG = logging.getLogger("holdfast")
_SWEEP_S = 1.0
"""How often a worker looks for items that dead workers left, and for its own that are to be cancelled."""
_UNKNOWN_S = 60.0
"""How often it looks for items that it does not know."""
_STORE_AWAY_S = 1.0
"""Seconds until it tries again after the store failed."""


class Worker:
    """Runs what was submitted to programs: `async with Worker("sqlite:work.db", [refund]) as worker: await worker.serve()`.

    `programs` are one or several of what `@program` and `@workflow` make. `queues` are names, or `WorkQueue` values with the limits of a queue,
    which hold for all its workers together; by default those of the programs. `schedules` are submitted at their times, once for all workers. `concurrency` is how many items run at once. `lease`: the seconds
    after the death of this machine until another worker may go on with its items; on the same machine others notice it within seconds.
    `grace`: the seconds that a step in flight may take when the worker stops. `max_starts`: an item is a dead letter when its workers died so
    often in a row while it ran. `on_end` is called with the id of each item whose run has ended here, and its status then. `interactors` answer the questions of programs; without any, a program with a question waits elsewhere.

    Entering raises what opening the store raises, and `InvalidError` for a store that keeps no work items.
    """

    @options.suggests
    def __init__(
        self,
        store: Store | str | Path | None,
        programs: Any,
        *,
        concurrency: int = 16,
        queues: Iterable[str | WorkQueue] | None = None,
        schedules: Iterable[Schedule] = (),
        lease: float = 30.0,
        grace: float = 30.0,
        max_starts: int = 20,
        runtime: Runtime | None = None,
        interactors: Iterable[Interactor] = (),
        on_end: Callable[[str, WorkStatus], object] | None = None,
    ) -> None:
        options.count("worker.concurrency", concurrency)
        options.count("worker.max_starts", max_starts)
        options.seconds("worker.lease", lease)
        options.seconds("worker.grace", grace, zero=True)
        self._programs = known_programs(programs)
        self._queues = _queues(queues, sorted({queue_of(each) for each in self._programs.values()}))
        self._address = store
        self._concurrency = concurrency
        self._lease, self._grace = lease, grace
        self._max_starts = max_starts
        self._runtime = runtime
        self._interactors = tuple(interactors)
        self._on_end = on_end
        self._schedules = tuple(schedules)
        if len({each.name for each in self._schedules}) < len(self._schedules):
            raise InvalidError.saying("worker.schedules", "schedules with different names", "two of one name")
        self._runs: dict[str, tuple[Run, asyncio.Task[None]]] = {}
        """What runs, by session."""
        self._ending: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._news = asyncio.Event()
        self._swept = self._looked = float("-inf")
        self._warned: set[tuple[str, str]] = set()

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the items that run here."""
        return tuple(self._runs)

    async def __aenter__(self) -> Self:
        self._opening: AbstractAsyncContextManager[Store] = shared.opened(self._address)
        opened = await self._opening.__aenter__()
        try:
            self._store: WorkStore = work_store(opened)
        except BaseException:
            await self._opening.__aexit__(None, None, None)
            raise
        self._scheduler = Scheduler(self._store, self._schedules)
        self._stopping = False
        self._listening = asyncio.create_task(self._listen(), name="holdfast-worker-news")
        self._loop = asyncio.create_task(self._work(), name="holdfast-worker")
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.drain()
        finally:
            await _ended(self._loop, self._listening)
            await self._opening.__aexit__(None, None, None)

    async def serve(self) -> None:
        """Work until the caller is cancelled, or something fails that no worker survives."""
        await asyncio.shield(self._loop)

    async def drain(self) -> None:
        """Claim nothing more, let the steps in flight end, and give back what runs. Other workers go on with it at once."""
        self._stopping = True
        self._news.set()
        await asyncio.gather(*(run.stop(self._grace) for run, _ in self._runs.values()), return_exceptions=True)
        tasks = [task for _, task in self._runs.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _work(self) -> None:
        while not self._stopping:
            self._news.clear()
            try:
                wait = await self._round()
            except HoldfastError as error:
                if error.fault.code != "SESS_STORE_UNAVAILABLE":
                    raise
                _LOG.warning("the worker cannot reach its store, and tries again: %s", error.fault.message)
                wait = _STORE_AWAY_S
            await self._wait(wait)

    async def _round(self) -> float:
        """Claim what is due, and look after what dead workers left. Return after how many seconds to come again without news."""
        now = asyncio.get_running_loop().time()
        if now - self._swept >= _SWEEP_S:
            self._swept = now
            await self._sweep()
        tick = await self._scheduler.submit_due(self._clock.wall()) if self._schedules else None
        free = self._concurrency - len(self._runs)
        left = await self._store.next_work([queue.name for queue in self._queues]) if free else None
        if left is not None and left <= 0:
            claimed = await self._claim(free)
            if len(claimed) < free:
                # The others are of a paused or full queue, or this worker does not know them.
                left = _SWEEP_S
        if now - self._looked >= _UNKNOWN_S:
            self._looked = now
            await self._warn_unknown()
        return min(each for each in (_SWEEP_S, left, tick) if each is not None)

    @property
    def _clock(self) -> Clock:
        return (self._runtime or default_runtime()).clock

    async def _claim(self, free: int) -> list[WorkItem]:
        programs = tuple((name, version) for name, each in self._programs.items() for version in versions_of(each))
        wanted = WorkWanted(claim=this_process(), ttl=self._lease, programs=programs, queues=self._queues, limit=free)
        claimed = await self._store.claim_work(wanted)
        for item in claimed:
            self._begin(item)
        return claimed

    def _begin(self, item: WorkItem) -> None:
        run = Run(
            self._store,
            item,
            self._programs[item.program],
            lease=self._lease,
            max_starts=self._max_starts,
            runtime=self._runtime,
            interactors=self._interactors,
        )
        task = asyncio.create_task(run.perform(), name=f"holdfast-work {item.session}")
        self._runs[item.session] = run, task
        task.add_done_callback(lambda done: self._over(item.session, run, done))

    def _over(self, session: str, run: Run, task: asyncio.Task[None]) -> None:
        # It may have been woken, and begun again, while it was still leaving its session.
        if (kept := self._runs.get(session)) is not None and kept[1] is task:
            del self._runs[session]
        self._news.set()
        if self._on_end is not None and run.became is not None:
            self._on_end(session, run.became)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("work item %s: its run ended with an error of ours", session, exc_info=error)

    async def _sweep(self) -> None:
        """Free what dead workers left, and end what runs here and was cancelled."""
        left: list[tuple[str, str]] = []
        after = ""
        while page := await self._store.work(statuses=("running",), after=after):
            after = page[-1].session
            for item in page:
                mine = self._runs.get(item.session)
                if mine is not None and mine[0].item.claim == item.claim:
                    if item.cancel:
                        self._end(mine[0])
                elif self._is_left(item):
                    left.append((item.session, item.claim or ""))
        if left:
            _LOG.info("%d work items of workers that died are free again", len(left))
            await self._store.free_work(left)

    def _is_left(self, item: WorkItem) -> bool:
        """Whether nobody works on an item that was claimed."""
        if item.claim is None or item.claim_left <= 0 or is_gone(item.claim, self._store):
            return item.owner is None or item.lease_left <= 0 or is_gone(item.owner, self._store)
        return False

    def _end(self, run: Run) -> None:
        task = asyncio.create_task(run.cancel(self._grace))
        # Keep the task, because asyncio holds only a weak reference to it.
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _warn_unknown(self) -> None:
        """Warn once about each program that has items here and that this worker does not know."""
        known = {(name, version) for name, each in self._programs.items() for version in versions_of(each)}
        for queue in self._queues:
            for item in await self._store.work(statuses=("ready",), queue=queue.name):
                program = item.program, item.version
                if program not in known and program not in self._warned:
                    self._warned.add(program)
                    _LOG.warning(
                        "queue %s has work of %s%s, which this worker does not know, such as %s: start a worker with that code, let the"
                        " program accept that version, or cancel it with `holdfast work cancel`",
                        queue.name,
                        item.program,
                        f" version {item.version}" if item.version else "",
                        item.session,
                    )

    async def _listen(self) -> None:
        follower = self._store.follow_work()
        try:
            while True:
                if await follower.beyond(0, 3_600.0):
                    self._news.set()
        finally:
            follower.close()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return


def _queues(given: Iterable[str | WorkQueue] | None, of_programs: list[str]) -> tuple[WorkQueue, ...]:
    if isinstance(given, str):
        # Python would take it as the list of its letters.
        raise InvalidError.at("worker.queues", "a list of queues", given)
    found = tuple(each if isinstance(each, WorkQueue) else WorkQueue(name=each) for each in given or of_programs)
    for queue in found:
        options.name("worker.queues", queue.name)
        options.count("worker.queues.concurrency", queue.concurrency, optional=True)
        if queue.per_second is not None and not queue.per_second > 0:
            raise InvalidError.at("worker.queues.per_second", "a number above 0", queue.per_second)
    return found


async def _ended(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
