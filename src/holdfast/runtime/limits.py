"""Time limits on tasks: one timer per event loop and duration serves all calls that have that limit.

Calls with the same limit expire in the order they began, so a plain dict is a queue of them, the first is the only one
that needs a timer, and a call that ends in time costs one insertion and one deletion. That is how a whole recovered call
can cost less than one `asyncio.timeout`.

Invariant: after `end`, the task has exactly as many cancellations pending as others asked for.
"""

from __future__ import annotations

from asyncio import current_task, get_running_loop
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task, TimerHandle
    from collections.abc import Callable

    from holdfast.clock import Clock

__all__ = ["Limit", "Wheels"]


class Limit:
    """One limited piece of work in one task, running since it was made. You must call `end` in the same task."""

    __slots__ = ("cancelling", "expired", "expires", "task", "wheel")

    def __init__(self, wheel: _Wheel, began: float) -> None:
        task = current_task(wheel.loop)
        if task is None:
            raise RuntimeError("a time limit needs a running asyncio task to cancel")
        self.wheel = wheel
        self.task: Task[Any] = task
        self.expired = False
        self.cancelling = task.cancelling()
        self.expires = began + wheel.seconds
        wheel.running[self] = None
        if wheel.handle is None:
            wheel.set_timer(self)

    def end(self) -> bool:
        """Stop the clock. Return whether the cancellation just seen, if any, was ours alone.

        A cancellation from outside that came at the same moment wins (R65).
        """
        wheel = self.wheel
        if self in wheel.running:
            del wheel.running[self]
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
        return Limit(wheel if wheel is not None else self._new(loop), began)

    def begin_own(self, seconds: float) -> Limit:
        """Start the clock in the running task for a duration of its own."""
        wheel = _Wheel(get_running_loop(), seconds, self._monotonic, single=True)
        return Limit(wheel, self._monotonic())

    def _new(self, loop: AbstractEventLoop) -> _Wheel:
        live = {key: wheel for key, wheel in self._by_loop.items() if not wheel.loop.is_closed()}
        wheel = live[id(loop)] = _Wheel(loop, self.seconds, self._monotonic)
        self._by_loop = live
        return wheel
