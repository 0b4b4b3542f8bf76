"""`Schedule`: a program that is submitted at times, once for each time, whatever number of workers has the schedule.

Invariant: a tick is submitted with a key of its own, so all workers together submit it once. What was submitted last is read from the store, so
a schedule needs no record of its own.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.tasks.workflows.function import WorkflowCall, WorkflowFunction
from holdfast.work.cron import Cron, read_shown, shown
from holdfast.work.submission import submit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.stores.store import WorkStore

__all__ = ["Missed", "Schedule", "Scheduler"]

Missed: TypeAlias = Literal["once", "all", "none"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_LATE_S = 60.0
"""With `missed="none"` a tick is submitted up to so many seconds late."""
_MOST = 1_000
"""How many missed ticks are submitted at a time."""


class Schedule:
    """Submits a program at times: `Schedule("nightly", clean_up, cron="0 3 * * *", zone="Europe/Berlin")`.

    `work` is a program without arguments, or `program.given(…)`. `cron` has five fields (minute, hour, day, month, day of the week) in the
    time of `zone`, or is @hourly, @daily, @weekly, @monthly or @yearly; or `every` is a number of seconds. `missed` says what happens to the
    times at which no worker ran: `"once"` submits the last of them, `"all"` each, `"none"` none. `queue` and `priority` are as in `submit`.

    Raises `InvalidError` for a wrong option.
    """

    @options.suggests
    def __init__(
        self,
        name: str,
        work: WorkflowFunction[[], Any] | WorkflowCall[Any],
        *,
        cron: str | None = None,
        every: float | None = None,
        zone: str = "UTC",
        missed: Missed = "once",
        queue: str | None = None,
        priority: int = 0,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidError.at("schedule.name", "1 to 40 letters, digits or _.- with a letter or digit first", name)
        call = work.given() if isinstance(work, WorkflowFunction) else work
        if not isinstance(call, WorkflowCall):
            raise InvalidError.at("schedule.work", "a program, or program.given(…)", work)
        if not _NAME.fullmatch(call.workflow.name):
            raise InvalidError.at(
                "schedule.work", "a program whose name is of letters, digits and _.-", call.workflow.name
            )
        if (cron is None) == (every is None):
            raise InvalidError.saying("schedule", "cron= or every=", "both" if cron else "neither")
        options.seconds("schedule.every", 1.0 if every is None else every)
        if every is not None and every < 1:
            raise InvalidError.at("schedule.every", "at least 1 second", every)
        options.one_of("schedule.missed", missed, get_args(Missed))
        self.name = name
        self.call = call
        self.missed = missed
        self.queue = queue
        self.priority = priority
        self._cron = None if cron is None else Cron.read(cron, zone)
        self._every = every

    def after(self, at: float) -> float:
        """Return the first time after `at`, both as seconds since the epoch."""
        if self._cron is not None:
            return self._cron.after(at)
        assert self._every is not None
        return (math.floor(at / self._every) + 1) * self._every

    def key(self, tick: float) -> str:
        """Return the key with which a time is submitted: `nightly@2026-11-20T03:00:00Z`."""
        return f"{self.name}@{shown(tick)}"

    @property
    def prefix(self) -> str:
        """How the ids of its items begin."""
        return f"{self.call.workflow.name}:{self.name}@"


class Scheduler:
    """Submits the ticks of schedules. Each worker has one."""

    def __init__(self, store: WorkStore, schedules: Iterable[Schedule]) -> None:
        self._store = store
        self._schedules = tuple(schedules)
        self._next: dict[str, float] = {}
        """The first tick of each schedule that was not looked at, by its name."""

    async def submit_due(self, now: float) -> float | None:
        """Submit the ticks that have come; return in how many seconds the next one comes."""
        for schedule in self._schedules:
            if schedule.name not in self._next:
                last = await self._last(schedule)
                self._next[schedule.name] = schedule.after(now if last is None or schedule.missed == "none" else last)
            for tick in self._due(schedule, now):
                await submit(
                    schedule.call,
                    key=schedule.key(tick),
                    queue=schedule.queue,
                    priority=schedule.priority,
                    store=self._store,
                )
        return min((tick - now for tick in self._next.values()), default=None)

    def _due(self, schedule: Schedule, now: float) -> Sequence[float]:
        ticks: list[float] = []
        tick = self._next[schedule.name]
        while tick <= now and len(ticks) < _MOST:
            if schedule.missed == "once":
                ticks.clear()
            if schedule.missed != "none" or now - tick <= _LATE_S:
                ticks.append(tick)
            tick = schedule.after(tick)
        self._next[schedule.name] = tick
        return ticks

    async def _last(self, schedule: Schedule) -> float | None:
        """Return the last tick that was submitted and is still in the store."""
        last, after = None, schedule.prefix
        while page := await self._store.work(after=after):
            for item in page:
                if not item.session.startswith(schedule.prefix):
                    return last
                try:
                    last = read_shown(item.session.removeprefix(schedule.prefix))
                except ValueError:
                    # Somebody has submitted something else with such a key.
                    continue
            after = page[-1].session
        return last
