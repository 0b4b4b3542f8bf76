"""Where a virtual loop waits: the operating system is asked without waiting, and the virtual clock passes instead."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any

from holdfast import options

if TYPE_CHECKING:
    from holdfast.testing.clock import VirtualClock

__all__ = ["IO_WAIT", "PATIENCE", "StuckError", "VirtualSelector"]

PATIENCE = 5.0
"""Real seconds without any sign from outside after which a loop that depends on one is stuck."""
IO_WAIT = 0.1
"""Real seconds a peer has to answer on a socket before the clock moves: little for a test, much for a loopback."""

_WAKE_UP_PIPE = 1
"""How many files a loop registers for itself."""


class StuckError(RuntimeError):
    """Nothing can happen any more: no task is ready, no timer is set, and nothing came from outside in time."""


class VirtualSelector(selectors.DefaultSelector):
    """Returns what is ready; where nothing is, moves the clock by the time a real selector would have slept."""

    def __init__(self, clock: VirtualClock, *, patience: float, io_wait: float) -> None:
        options.seconds("patience", patience)
        options.seconds("io_wait", io_wait, zero=True)
        super().__init__()
        self._clock = clock
        self._patience = patience
        self._io_wait = io_wait
        self._expected = 0
        self._overdue = False

    def expect(self) -> None:
        """Count one more thing under way in the real world."""
        self._expected += 1
        self._overdue = False

    def arrived(self) -> None:
        """Count one of them as done."""
        self._expected -= 1

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the files that are ready; `timeout` is virtual."""
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if (real := self._real_seconds(timeout)) and (ready := super().select(real)):
            return ready
        if timeout is None:
            raise StuckError(self._account())
        # What did not come in time is not waited for again at every timer from here on.
        self._overdue = self._expected > 0
        self._clock.advance(timeout)
        return []

    def _real_seconds(self, timeout: float | None) -> float:
        if timeout is None or (self._expected and not self._overdue):
            return self._patience
        return self._io_wait if len(self.get_map()) > _WAKE_UP_PIPE else 0.0

    def _account(self) -> str:
        waiting = sorted(map(_place, asyncio.all_tasks())) or ["no task at all"]
        head = (
            f"expected a task, a timer or a thread to go on; nothing happened for {self._patience:g} real seconds at "
            f"virtual time {self._clock.monotonic():g} s ({self._expected} jobs under way outside the loop). Waiting:"
        )
        return "\n  ".join([head, *waiting])


def _place(task: asyncio.Task[Any]) -> str:
    name = getattr(task.get_coro(), "__qualname__", "a coroutine")
    (frame, *_) = task.get_stack(limit=1) or (None,)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "its end"
    return f"{task.get_name()} ({name}) at {where}"
