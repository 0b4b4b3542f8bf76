"""An event loop on a virtual clock: where a real one would sleep until its next timer, this one moves the clock there.

Invariant: the clock moves only while nothing is ready to run, and a test on this loop never hangs: whatever it waits for
in the real world, it waits for a bounded real time.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from holdfast.testing.clock import VirtualClock
from holdfast.testing.selector import IO_WAIT, PATIENCE, VirtualSelector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

__all__ = ["VirtualLoop", "loop_factory"]

_RESOLUTION = 1e-9


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop whose `time()` is a `VirtualClock`. The class itself serves as a `loop_factory`.

    When nothing is ready, in this order:

    - work in an executor (`asyncio.to_thread`, name lookups) or a `hold()` is under way: the clock stands still and the
      loop waits for real, at most `patience` seconds;
    - sockets or pipes are registered: the loop waits `io_wait` real seconds for them, since a peer in another thread or
      process needs real time to answer;
    - then the clock moves to the next timer. Where there is none, another thread may still wake the loop: after
      `patience` real seconds without that, `StuckError` names the tasks and the lines they wait at.

    A thread the loop did not start and a child process are invisible to it: put `with loop.hold():` around the wait.
    """

    _closed = True  # until the base class opens it: a loop that is never made has nothing to close

    def __init__(
        self, clock: VirtualClock | None = None, *, patience: float = PATIENCE, io_wait: float = IO_WAIT
    ) -> None:
        self.clock = VirtualClock() if clock is None else clock
        self._outside = VirtualSelector(self.clock, patience=patience, io_wait=io_wait)
        self._in_threads: set[object] = set()
        super().__init__(self._outside)

    def time(self) -> float:
        """Return the virtual clock's reading."""
        return self.clock.monotonic()

    @property
    def _clock_resolution(self) -> float:
        """The step within which asyncio calls a timer due. A fixed one vanishes beside a late time: no timer would be."""
        return max(_RESOLUTION, math.ulp(self.time()))

    @_clock_resolution.setter
    def _clock_resolution(self, _: float) -> None:
        """Ignore what the base class reads off the real clock."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let the clock stand still inside: something in the real world that the loop cannot see is under way."""
        self._outside.expect()
        try:
            yield
        finally:
            self._outside.arrived()

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run `func` in a thread or process; the clock stands still until it is done."""
        # Only functions for the loop's own threads are wrapped: for a process the wrapper would have to be pickled.
        future = super().run_in_executor(executor, self._tracked(func) if executor is None else func, *args)
        self._outside.expect()
        future.add_done_callback(lambda _: self._outside.arrived())
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """Wait for the loop's own threads, unless one is busy: closing the loop leaves that one behind, not the test."""
        if not self._in_threads:
            with self.hold():  # from 3.12 on asyncio sets a timer for this, which must not fire
                await super().shutdown_default_executor(*args, **kwargs)

    def _tracked(self, func: Callable[[*Ts], T]) -> Callable[[*Ts], T]:
        job = object()
        self._in_threads.add(job)

        def call(*args: *Ts) -> T:
            try:
                return func(*args)
            finally:
                self._in_threads.discard(job)

        return call


def loop_factory(
    clock: VirtualClock | None = None, *, patience: float = PATIENCE, io_wait: float = IO_WAIT
) -> Callable[[], VirtualLoop]:
    """Return what `asyncio.Runner`, anyio's `backend_options` and pytest-asyncio take as `loop_factory`."""
    return partial(VirtualLoop, clock, patience=patience, io_wait=io_wait)
