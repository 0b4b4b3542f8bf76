"""Time limits on tasks: one timer per event loop and duration serves all calls that have that limit.

Calls with the same limit expire in the order they began, so a plain dict is a queue of them, the first is the only one
that needs a timer, and a call that ends in time costs one insertion and one deletion. That is how a whole recovered call
can cost less than one `asyncio.timeout`.

Invariant: after `end`, the task has exactly as many cancellations pending as others asked for.
"""

from __future__ import annotations

from asyncio import Task, current_task, get_running_loop
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle
    from collections.abc import Callable

    from holdfast.clock import Clock

__all__ = ["Limit", "Wheels"]

_NEARLY = 0.01
"""The share of a limit that a limit around it, which began a little earlier, may end before it."""


class Limit(msgspec.Struct, eq=False):
    """One limited piece of work in one task, running since it was made. You must call `end` in the same task.

    A struct, because every call makes one and a class's own `__init__` costs more than all it would do here.
    """

    wheel: _Wheel
    task: Task[Any]
    cancelling: int
    """Cancellations that were pending when it began."""
    expires: float
    expired: bool = False

    @property
    def due(self) -> bool:
        """Whether its time is over, or as good as over."""
        return self.expires - self.wheel.monotonic() <= self.wheel.seconds * _NEARLY

    def end(self) -> bool:
        """Stop the clock. Return whether the cancellation just seen, if any, was ours alone.

        A cancellation from outside that came at the same moment wins (R65).
        """
        wheel = self.wheel
        wheel.running.pop(self, None)
        if wheel.single:
            wheel.stop()
        return self.expired and self.task.uncancel() <= self.cancelling


class _Wheel:
    """All limits of one duration on one event loop."""

    __slots__ = ("handle", "loop", "monotonic", "running", "seconds", "single")

    def __init__(
        self, loop: AbstractEventLoop, seconds: float, monotonic: Callable[[], float], *, single: bool = False
    ) -> None:
        self.loop = loop
        self.seconds = seconds
        self.monotonic = monotonic
        self.single = single
        """Made for one call whose limit is its own, such as what is left of a deadline; its timer ends with it."""
        self.running: dict[Limit, None] = {}
        self.handle: TimerHandle | None = None

    def begin(self, began: float) -> Limit:
        """Start the clock in the running task, as of `began`."""
        task = current_task(self.loop)
        if task is None:
            raise RuntimeError("a time limit needs a running asyncio task to cancel")
        limit = Limit(self, task, task.cancelling(), began + self.seconds)
        self.running[limit] = None
        if self.handle is None:
            self.set_timer(limit)
        return limit

    def set_timer(self, limit: Limit) -> None:
        # The loop may count time from another start than we do, so it is told a duration.
        self.handle = self.loop.call_later(max(0.0, limit.expires - self.monotonic()), self.fire)

    def fire(self) -> None:
        """End what is due and set the timer for what is next."""
        self.handle = None
        now = self.monotonic()
        due = []
        for limit in self.running:
            if limit.expires > now:
                self.set_timer(limit)
                break
            due.append(limit)
        for limit in due:
            del self.running[limit]
            limit.expired = True
            limit.task.cancel()

    def stop(self) -> None:
        if self.handle is not None:
            self.handle.cancel()


class Wheels:
    """Limits of one duration, on whichever event loop runs. A recovery made at import serves every loop (R70)."""

    __slots__ = ("_by_loop", "_monotonic", "seconds")

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self._monotonic = clock.monotonic
        self._by_loop: dict[int, _Wheel] = {}

    def begin(self, began: float) -> Limit:
        """Start the clock in the running task, as of `began`."""
        loop = get_running_loop()
        # A wheel keeps its loop alive, so an id cannot be reused while it stands here.
        wheel = self._by_loop.get(id(loop))
        if wheel is None:
            wheel = self._new(loop)
        return wheel.begin(began)

    def begin_own(self, seconds: float) -> Limit:
        """Start the clock in the running task for a duration of its own."""
        wheel = _Wheel(get_running_loop(), seconds, self._monotonic, single=True)
        return wheel.begin(self._monotonic())

    def _new(self, loop: AbstractEventLoop) -> _Wheel:
        live = {key: wheel for key, wheel in self._by_loop.items() if not wheel.loop.is_closed()}
        wheel = live[id(loop)] = _Wheel(loop, self.seconds, self._monotonic)
        self._by_loop = live
        return wheel
