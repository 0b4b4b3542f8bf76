"""Time limits on tasks: one timer per event loop and duration serves all calls that have that limit.

Calls with the same limit expire in the order they began, so a plain dict is a queue of them, the first is the only one
that needs a timer, and a call that ends in time costs one insertion and one deletion. That is how a whole recovered call
can cost less than one `asyncio.timeout`.

Invariant: after `end`, the task has exactly as many cancellations pending as others asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task, TimerHandle

__all__ = ["Limit", "Wheel", "Wheels"]


class Limit:
    """One limited piece of work in one task."""

    __slots__ = ("cancelling", "expired", "expires", "task", "wheel")

    task: Task[Any]
    wheel: Wheel

    def begin(self, wheel: Wheel, task: Task[Any]) -> None:
        """Start the clock. You must call `end` in the same task, whatever happens."""
        self.wheel = wheel
        self.task = task
        self.expired = False
        self.cancelling = task.cancelling()
        loop = wheel.loop
        self.expires = loop.time() + wheel.seconds
        wheel.running[self] = None
        if wheel.handle is None:
            wheel.handle = loop.call_at(self.expires, wheel.fire)

    def end(self) -> bool:
        """Stop the clock. Return whether the cancellation just seen, if any, was ours alone.

        A cancellation from outside that came at the same moment wins (R65).
        """
        wheel = self.wheel
        wheel.running.pop(self, None)
        if wheel.single and wheel.handle is not None:
            wheel.handle.cancel()
        if not self.expired:
            return False
        return self.task.uncancel() <= self.cancelling


class Wheel:
    """All limits of one duration on one event loop."""

    __slots__ = ("handle", "loop", "running", "seconds", "single")

    def __init__(self, loop: AbstractEventLoop, seconds: float, *, single: bool = False) -> None:
        self.loop = loop
        self.seconds = seconds
        self.single = single
        """Made for one call whose limit is its own, such as what is left of a deadline; its timer ends with it."""
        self.running: dict[Limit, None] = {}
        self.handle: TimerHandle | None = None

    def fire(self) -> None:
        """End what is due and set the timer for what is next."""
        self.handle = None
        now = self.loop.time()
        due = []
        for limit in self.running:
            if limit.expires > now:
                self.handle = self.loop.call_at(limit.expires, self.fire)
                break
            due.append(limit)
        for limit in due:
            del self.running[limit]
            limit.expired = True
            limit.task.cancel()


class Wheels:
    """The wheels of one duration, by event loop. A recovery made at import serves every loop (R70)."""

    __slots__ = ("_by_loop", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._by_loop: dict[int, Wheel] = {}

    def here(self, loop: AbstractEventLoop) -> Wheel:
        # A wheel keeps its loop alive, so an id cannot be reused while it stands here.
        wheel = self._by_loop.get(id(loop))
        return wheel if wheel is not None else self._new(loop)

    def _new(self, loop: AbstractEventLoop) -> Wheel:
        live = {key: wheel for key, wheel in self._by_loop.items() if not wheel.loop.is_closed()}
        wheel = live[id(loop)] = Wheel(loop, self.seconds)
        self._by_loop = live
        return wheel
