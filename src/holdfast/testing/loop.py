"""Event loops for tests: `VirtualLoop` and `run` in virtual time, `no_waiting` without pauses, `LoopThread` for servers.

A real loop sleeps until its next timer. A virtual loop moves its clock to the time of that timer instead.

Invariants: the virtual clock moves only while nothing is ready to run. A test on a virtual loop never hangs, because it waits for
the real world only for a limited real time. Inside `run`, event loop and runtime use the same clock. With two clocks, a limit could
be due by one clock and not by the other, and would be set again for ever.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, TypeVarTuple

from holdfast import options
from holdfast.runtime.runtime import default_runtime, use_runtime
from holdfast.testing.clock import VirtualClock, seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Executor

    from holdfast.runtime.runtime import Runtime

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PATIENCE = 5.0
"""If a loop waits for an event from outside for this many real seconds, it is stuck."""
IO_WAIT = 0.1
"""Real seconds that a peer has to answer on a socket before the clock moves. This is short for a test, but long for loopback."""

_RESOLUTION = 1e-9
_WAKE_UP_PIPE = 1
"""How many files a loop registers for itself."""
_THREAD_PATIENCE_S = 10.0
"""Test servers start and stop quickly. A server that takes longer is stuck, and the test must fail instead of hanging."""


@options.suggests
def run(
    coroutine: Coroutine[Any, Any, T],
    *,
    clock: VirtualClock | None = None,
    patience: float = PATIENCE,
    io_wait: float = IO_WAIT,
) -> T:
    """Run a coroutine to its end in virtual time, as `asyncio.run` does in real time, and return its result.

    For example:
        clock = VirtualClock()
        assert run(answer("Hello"), clock=clock) == "Hi"
        assert clock.monotonic() == 7.0  # what the recovery waited

    Recoveries inside use the default runtime if it is on `clock`. Otherwise they get a new runtime with its settings, such as those
    of `holdfast.toml`, but with its own circuits and no event handlers. To read events, or to keep circuits over several runs, make the runtime yourself:
    `with use_runtime(Runtime(clock=VirtualClock())) as runtime: runtime.on(capture); run(…)`.

    Raises whatever the coroutine raises, and `StuckError` if nothing can happen any more.
    """
    with _virtual_time(clock) as shared, closing(_runner(shared, patience, io_wait)) as runner:
        return runner.run(coroutine)


def _runner(clock: VirtualClock, patience: float, io_wait: float) -> asyncio.Runner:
    # Do not enter the runner here: entering makes the loop at once, even if it cannot run because another loop runs.
    return asyncio.Runner(loop_factory=loop_factory(clock, patience=patience, io_wait=io_wait))


@contextmanager
def _virtual_time(clock: VirtualClock | None) -> Iterator[VirtualClock]:
    """Yield the clock of the default runtime inside the block; replace the runtime if it is on another clock."""
    current = default_runtime()
    if isinstance(current.clock, VirtualClock) and clock in (None, current.clock):
        yield current.clock
        return
    own = VirtualClock() if clock is None else clock
    # A fixed seed gives the same jitter in every run. The settings are kept: a test must check the policy that the program has.
    with use_runtime(current.fresh(clock=own, rng=seeded(0))):
        yield own


class WaitingOff:
    """The switch that `no_waiting` returns. `restore()` or the end of its `with` block sets waiting as it was before."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._before = runtime.waits
        # Switch waiting off here and not in `__enter__`, so that a plain `no_waiting()` in a conftest works.
        runtime.waits = False

    def restore(self) -> None:
        """Let the runtime wait again if it did before. What it has learned about limits is forgotten, because no time has passed."""
        self._runtime.waits = self._before
        if self._before:
            self._runtime.registry.forget_paces()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()


def no_waiting(runtime: Runtime | None = None) -> WaitingOff:
    """Turn the pauses off: retries, fallbacks and circuits work as always, without waiting between attempts.

    For example:
        with no_waiting():
            assert fetch() == "hello"

    Without `with`, the pauses stay off until `restore()`. Without `runtime`, it applies to the default runtime.
    """
    return WaitingOff(default_runtime() if runtime is None else runtime)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop whose `time()` is a `VirtualClock`. The class itself serves as a `loop_factory`.

    For example:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(asyncio.sleep(3_600))  # takes no time

    When no task is ready, the loop does this, in this order:

    - If work runs in an executor (`asyncio.to_thread`, name lookups) or inside `hold()`, the clock stands still and the
      loop waits for at most `patience` real seconds.
    - If sockets or pipes are registered, the loop waits `io_wait` real seconds for them. A peer in another thread or
      process needs real time to answer.
    - Then the clock moves to the next timer. Without a timer, another thread may still wake the loop. If that does not
      happen within `patience` real seconds, `StuckError` names the tasks and the lines they wait at.

    The loop does not see threads that it did not start, nor child processes: put `with loop.hold():` around the wait.
    """

    _closed = True  # the base class sets it to False; if its __init__ fails, there is nothing to close

    def __init__(
        self, clock: VirtualClock | None = None, *, patience: float = PATIENCE, io_wait: float = IO_WAIT
    ) -> None:
        self.clock = VirtualClock() if clock is None else clock
        self._outside = _VirtualSelector(self.clock, patience=patience, io_wait=io_wait)
        self._in_threads: set[object] = set()
        super().__init__(self._outside)

    def time(self) -> float:
        """Return the virtual clock's reading."""
        return self.clock.monotonic()

    @property
    def _clock_resolution(self) -> float:
        """The tolerance within which asyncio calls a timer due.

        It grows with the time. A fixed tolerance would be smaller than the rounding error of a late time, and timers would never
        be due.
        """
        return max(_RESOLUTION, math.ulp(self.time()))

    @_clock_resolution.setter
    def _clock_resolution(self, _: float) -> None:
        """Ignore the resolution of the real clock, which the base class sets."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Stop the clock inside the block, while work that the loop cannot see runs in the real world.

        For example:
            with loop.hold():
                await anyio.run_process(["make"])
        """
        self._outside.expect()
        try:
            yield
        finally:
            self._outside.arrived()

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run `func` in a thread or process; the clock stands still until it is done."""
        # Wrap only functions for the loop's own threads. For a process the wrapper would have to be pickled.
        future = super().run_in_executor(executor, self._tracked(func) if executor is None else func, *args)
        self._outside.expect()
        # The callback runs in the loop's own thread, so the count needs no lock.
        future.add_done_callback(lambda _: self._outside.arrived())
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """Wait for the loop's own threads. If a thread is busy, do not wait: closing the loop abandons it, so no test hangs."""
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
    """Return a `loop_factory` for `asyncio.Runner`, anyio's `backend_options` and pytest-asyncio.

    For example:
        asyncio.Runner(loop_factory=loop_factory(clock))
    """
    return partial(VirtualLoop, clock, patience=patience, io_wait=io_wait)


class StuckError(RuntimeError):
    """Raised by a virtual loop when no task is ready, no timer is set, and no event came from outside in time.

    Its message names every waiting task and the line it waits at.

    For example:
        with pytest.raises(StuckError, match="worker"):
            run(waits_for_ever(), patience=0.05)
    """


class _VirtualSelector(selectors.DefaultSelector):
    """The selector of a virtual loop: it polls the operating system and moves the clock instead of sleeping."""

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
        """Count one more job that runs in the real world."""
        self._expected += 1
        self._overdue = False

    def arrived(self) -> None:
        """Count one of these jobs as done."""
        self._expected -= 1

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the files that are ready; `timeout` is virtual."""
        # Real events come first: a socket that is ready comes before a timer that is only virtually due.
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if (real := self._real_seconds(timeout)) and (ready := super().select(real)):
            return ready
        if timeout is None:
            raise StuckError(self._account())
        # If a job did not end in time, do not wait for it again at every later timer.
        self._overdue = self._expected > 0
        self._clock.advance(timeout)
        return []

    def _real_seconds(self, timeout: float | None) -> float:
        # Without a timer only the real world can wake the loop. Work in a thread gets the same patience.
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


class LoopThread:
    """A real event loop in a daemon thread, for servers that blocking tests talk to."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # The thread is a daemon: a server that is stuck must not keep the interpreter alive after the tests.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and return its result. Raises `TimeoutError` after ten seconds."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_THREAD_PATIENCE_S)

    def close(self) -> None:
        """Stop the loop and wait for its thread."""
        # Async generators that a test left open can only be closed in their own loop.
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_THREAD_PATIENCE_S)
        self._loop.close()
