"""Time limits on tasks and threads.

In tasks, one timer per event loop and duration serves all calls with that limit. Calls with the same limit expire in the
order they began, so a plain dict is a queue of them and only the first needs a timer. A call that ends in time costs one
insertion and one deletion. That is how a whole recovered call can cost less than one `asyncio.timeout`.

Recoveries with the same limit share that timer. Otherwise each `recover("x").call(…)` would leave one behind, and the timer
would keep the call in memory until the limit is over.

A call that ignores its cancellation cannot be taken out of its caller's task, and a task for every call would make every call
several times slower. So it is cancelled again and then closed, as Python closes a coroutine that nobody awaits any more: its
`finally` blocks run, and it ends. A call that still handles its cancellation, for example to roll back, has `CLEANUP_S`.

A thread cannot be stopped. When its time is over, the caller goes on and the thread is counted until it ends by itself.
Beyond a cap no new thread is started, so the leak is bounded and visible.

Invariant: after `TimeLimit.end`, the task has exactly as many cancellations pending as others requested. No thread started here
keeps the interpreter from exiting (R67).
"""

from __future__ import annotations

import contextvars
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast._lazy import lazy_module
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.event_loop import running_loop
from holdfast.runtime.failures.left_behind import LEFT_BEHIND, OURS

if TYPE_CHECKING:
    import asyncio
    from asyncio import AbstractEventLoop, TimerHandle
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from holdfast.clock import Clock
    from holdfast.runtime.operation.operation import Operation  # noqa: TC004 - nobody reads the annotations of `TimeLimit`
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = [
    "CANCEL_GRACE_S",
    "CLEANUP_S",
    "MOST_ABANDONED",
    "AbandonedThreads",
    "Overdue",
    "TimeLimit",
    "Wheels",
    "call_in_thread",
    "extended",
    "limit_of_attempt",
]

_NEARLY = 0.01
"""An outer limit of the same length ends a little earlier. Within this share of the limit, both count as over."""


class TimeLimit(msgspec.Struct, eq=False):
    """One limited piece of work in one task. Its clock runs from the start. You must end it in the same task.

    It is a struct, because every call makes one, and an `__init__` in Python would take longer than the work itself.
    """

    wheel: _Wheel
    task: asyncio.Task[Any]
    cancelling: int
    """Cancellations that were pending when it began."""
    expires: float
    op: Operation
    """The `Operation` whose attempt it limits; it is named if it ignores the limit."""
    call: Any = None
    """What the task awaits under this limit. It is closed if it ignores its cancellation. None for a block of code."""
    overdue: Overdue | None = None
    """Set when the time is over: what is done to end the work."""

    @property
    def due(self) -> bool:
        """Whether its time is over, or nearly over."""
        return self.expires - self.wheel.monotonic() <= self.wheel.seconds * _NEARLY

    def end(self) -> bool:
        """Stop the clock; return whether the time was over before the work ended."""
        wheel = self.wheel
        wheel.running.pop(self, None)
        if wheel.single:
            wheel.stop()
        if self.overdue is None:
            return False
        self.overdue.end()
        return True

    def ends_with(self, error: BaseException) -> bool:
        """Stop the clock; return whether the work raised `error` because of this limit alone.

        If somebody else cancelled the task at the same moment, the result is False, and that cancellation must surface
        (R65).
        """
        return self.end() and self.overdue is not None and self.overdue.caused(error)


class _Wheel:
    """All limits of one duration on one event loop."""

    __slots__ = ("__weakref__", "handle", "loop", "monotonic", "running", "seconds", "single")

    def __init__(
        self, loop: AbstractEventLoop, seconds: float, monotonic: Callable[[], float], *, single: bool = False
    ) -> None:
        self.loop = loop
        self.seconds = seconds
        self.monotonic = monotonic
        self.single = single
        """Whether it serves only one call, such as one with the rest of a deadline. Its timer ends with that call."""
        self.running: dict[TimeLimit, None] = {}
        self.handle: TimerHandle | None = None

    def set_timer(self, limit: TimeLimit) -> None:
        # The loop may count time from another start than our clock, so it gets a duration.
        self.handle = self.loop.call_later(max(0.0, limit.expires - self.monotonic()), self.fire)

    def fire(self) -> None:
        """Cancel the calls that are due and set the timer for the next one."""
        self.handle = None
        now = self.monotonic()
        # The due calls are collected first, because the dict must not change while it is iterated.
        due = []
        for limit in self.running:
            if limit.expires > now:
                self.set_timer(limit)
                break
            due.append(limit)
        for limit in due:
            del self.running[limit]
            limit.overdue = Overdue(self.loop, limit.task, limit.cancelling, limit.op, limit.call)

    def stop(self) -> None:
        if self.handle is not None:
            self.handle.cancel()


_LASTING: weakref.WeakValueDictionary[tuple[int, float, Callable[[], float]], _Wheel] = weakref.WeakValueDictionary()
"""The wheels that recoveries share, by loop, duration and clock. A wheel is in here while it has a timer or a user."""

_MOST_LASTING = 256
"""With so many wheels, perhaps every call has another limit. From then on a new limit gets a timer that ends with its call."""


class Wheels:
    """Limits of one duration, on whichever event loop runs. A recovery made at import serves every loop (R70)."""

    __slots__ = ("_by_loop", "_monotonic", "seconds")

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self._monotonic = clock.monotonic
        self._by_loop: dict[int, _Wheel] = {}

    def begin(self, began: float, op: Operation, own: _Wheel | None = None) -> TimeLimit:
        """Start the clock in the running task, as of `began`. `own`: the wheel of this limit alone."""
        loop = running_loop()
        # A wheel keeps its loop alive, so no other loop can get the same id while the wheel is in this dict.
        wheel = own or self._by_loop.get(id(loop)) or self._new(loop)
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a time limit needs a running asyncio task to cancel")
        limit = TimeLimit(wheel, task, task.cancelling(), began + wheel.seconds, op)
        wheel.running[limit] = None
        if wheel.handle is None:
            wheel.set_timer(limit)
        return limit

    def begin_own(self, seconds: float, op: Operation) -> TimeLimit:
        """Start the clock in the running task for a duration of its own."""
        wheel = _Wheel(running_loop(), seconds, self._monotonic, single=True)
        return self.begin(self._monotonic(), op, wheel)

    def _new(self, loop: AbstractEventLoop) -> _Wheel:
        # Only the loop's own thread uses this key, so no lock is needed.
        key = (id(loop), self.seconds, self._monotonic)
        wheel = _LASTING.get(key)
        if wheel is None:
            wheel = _Wheel(loop, self.seconds, self._monotonic, single=len(_LASTING) >= _MOST_LASTING)
            if wheel.single:
                return wheel
            _LASTING[key] = wheel
        # Without this a program that calls `asyncio.run` again and again would keep every loop it ever had.
        live = {key: wheel for key, wheel in self._by_loop.items() if not wheel.loop.is_closed()}
        live[id(loop)] = wheel
        self._by_loop = live
        return wheel


# --- calls that ignore their cancellation ---

CANCEL_GRACE_S = 1.0
"""Seconds that a cancelled call has to end, for example to close its connection."""

CLEANUP_S = 30.0
"""Seconds that a cancelled call has as long as it is still inside the `except` or `finally` that received the cancellation."""

_MOST_CLOSES = 8
"""How often a call is closed that awaits something in its `finally` blocks."""
_DEEPEST = 1_000
"""How many coroutines of a call, each awaited by the one before, are looked at."""


class Overdue:
    """Ends a piece of work whose time is over: cancels it, cancels it again, closes it."""

    __slots__ = (
        "_call",
        "_cancelling",
        "_cancels",
        "_cleaned",
        "_is_closed",
        "_left",
        "_loop",
        "_op",
        "_task",
        "_timer",
    )

    def __init__(
        self, loop: AbstractEventLoop, task: asyncio.Task[Any], cancelling: int, op: Operation, call: Any
    ) -> None:
        self._loop, self._task, self._op, self._call = loop, task, op, call
        self._cancelling = self._left = cancelling
        self._cancels = 0
        self._cleaned = 0.0
        self._is_closed = False
        self._cancel()

    def _cancel(self) -> None:
        self._cancels += 1
        self._task.cancel()
        self._timer = self._loop.call_later(CANCEL_GRACE_S, self._goes_on)

    def _goes_on(self) -> None:
        """The work has not ended although its grace is over."""
        call = self._task.get_coro() if self._call is None else self._call
        if self._cleaned < CLEANUP_S and _handles_cancellation(call):
            self._cleaned += CANCEL_GRACE_S
            self._timer = self._loop.call_later(CANCEL_GRACE_S, self._goes_on)
        elif self._cancels == 1:
            # It may have lost only the first cancellation, in an `except` that is too broad.
            self._cancel()
        elif self._is_closed:
            self._op.ignores_cancellation("was closed, but a task that it waits for ignores its cancellation")
        elif self._call is not None and _close(self._call):
            self._op.ignores_cancellation("ignored its cancellation and was closed")
            self._is_closed = True
            # The task still waits for what the closed call awaited. The cancellation wakes it up.
            waits_for = getattr(self._task, "_fut_waiter", None)
            self._cancel()
            if isinstance(waits_for, asyncio.Future) and not isinstance(waits_for, asyncio.Task):
                # `gather` passes a cancellation on to its tasks, and ends when these end. It is ended itself.
                asyncio.Future.cancel(waits_for)
        else:
            self._op.ignores_cancellation(
                "ignored its cancellation and goes on after its time limit; nothing can stop it"
            )
            # If closing failed, the call awaits something else than its task waits for. The cancellation wakes up both.
            self._cancels += 1
            self._task.cancel()

    def end(self) -> None:
        """The work has ended: take our own cancellations back."""
        self._timer.cancel()
        for _ in range(self._cancels):
            self._left = self._task.uncancel()
        self._cancels = 0

    def caused(self, error: BaseException) -> bool:
        """Whether the work, which has ended, raised `error` because of our cancellations alone.

        Raises `asyncio.CancelledError` if somebody else cancelled a call that had to be closed.
        """
        # If more cancellations are pending than at the beginning, one came from outside.
        is_alone = self._left <= self._cancelling
        if self._is_closed and not is_alone:
            raise asyncio.CancelledError from error
        # Whoever awaits a coroutine that was closed meanwhile gets a RuntimeError.
        return is_alone and (self._is_closed or isinstance(error, asyncio.CancelledError))


def _handles_cancellation(call: Any) -> bool:
    """Whether a suspended call is inside an `except` or `finally` block that a cancellation brought it to."""
    for _ in range(_DEEPEST):
        if call is None:
            return False
        # A suspended coroutine refers to the exception that it handles. Nothing else shows it from outside.
        held = gc.get_referents(call)
        if any(isinstance(part, asyncio.CancelledError) for part in held):
            return True
        call = _awaited_by(call, held)
    return False


def _awaited_by(call: Any, held: list[Any]) -> Any:
    for name in ("cr_await", "ag_await", "gi_yieldfrom"):
        if hasattr(call, name):
            return getattr(call, name)
    # The awaitable of an async generator's next item, for example, only refers to its generator.
    return next((part for part in held if hasattr(part, "cr_await") or hasattr(part, "ag_await")), None)


def _close(call: Any) -> bool:
    """Close a suspended call; return whether it has ended."""
    throw = getattr(call, "throw", None)
    if throw is None:
        return False
    for _ in range(_MOST_CLOSES):
        # `throw` and not `close`: closing the awaitable of a generator's next item does not close the generator on Python 3.11.
        # A call that returns from `throw` awaits something else, for example in a `finally` block.
        try:
            throw(GeneratorExit())
        except BaseException:  # noqa: BLE001 - it has ended, and nobody waits for what it raises
            return True
    return False


# --- threads ---

MOST_ABANDONED = 64
"""The most threads of one owner that may still run after their callers went on."""
_MOST_IN_ALL = 1_024
"""The most threads of all owners."""


class AbandonedThreads:
    """Counts the threads of a runtime that still run calls whose time was over, by their owner: a tool, or "" for all others."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.Lock()
        self.named: dict[str, Future[None]] = {}
        """Those of calls with a name. Each future is done when its thread ends."""
        self._by_owner: dict[str, int] = {}

    def check(self, owner: str = "") -> None:
        """Raise if too many calls of this owner were left behind. One tool that hangs keeps no other from being called."""
        if self._by_owner.get(owner, 0) >= MOST_ABANDONED or self.count >= _MOST_IN_ALL:
            # Not retryable: threads that hang do not end because the call is made again.
            context = {"limit": MOST_ABANDONED, "name": "calls that never returned"}
            raise HoldfastError(Fault.of("SYS_BULKHEAD_FULL", retryable=False, context=context))

    def add(self, owner: str = "") -> None:
        """Count a thread that is left behind. The caller holds the lock."""
        self.count += 1
        self._by_owner[owner] = self._by_owner.get(owner, 0) + 1

    def remove(self, owner: str = "") -> None:
        """Count no longer a thread that has ended. The caller holds the lock."""
        self.count -= 1
        self._by_owner[owner] -= 1
        if not self._by_owner[owner]:
            del self._by_owner[owner]

    def after_fork(self) -> None:
        """The threads of the parent process do not exist in this one, and one of them may hold the lock."""
        self.__init__()  # type: ignore[misc] # nothing of the parent's is left


def call_in_thread(
    abandoned: AbandonedThreads,
    seconds: float,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    key: str,
) -> tuple[bool, Any]:
    """Call `fn` in a thread and wait at most `seconds`; return whether it ended, and its result. `key` is that of the call.

    Raises what `fn` raises, and `HoldfastError` where too many threads are abandoned already.
    """
    abandoned.check()
    call = _ThreadCall(abandoned, fn, args, kwargs, key)
    # A daemon thread does not hold up the interpreter's exit. It runs in the caller's context, so nested recoveries see the
    # caller's deadline and budget.
    threading.Thread(target=contextvars.copy_context().run, args=(call.run,), daemon=True, name=f"{OURS}call").start()
    return (True, call.result()) if call.wait(seconds) else (False, None)


class _ThreadCall:
    def __init__(
        self,
        abandoned: AbandonedThreads,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        key: str,
    ) -> None:
        self._abandoned = abandoned
        self._fn, self._args, self._kwargs = fn, args, kwargs
        self._key = key
        self._over = threading.Event()
        self._is_abandoned = False
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._fn(*self._args, **self._kwargs)
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            self._error = error
        # Under the lock: `wait` must not abandon the call at the moment it ends, or the count would never go down again.
        with self._abandoned.lock:
            self._over.set()
            if self._is_abandoned:
                self._abandoned.remove()
                LEFT_BEHIND.remove(self._key)

    def wait(self, seconds: float) -> bool:
        if self._over.wait(seconds):
            return True
        with self._abandoned.lock:
            # The call may have ended between the timeout and the lock.
            if self._over.is_set():
                return True
            self._is_abandoned = True
            self._abandoned.add()
            LEFT_BEHIND.add(self._key)
            return False

    def result(self) -> Any:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame: the cycle would keep both alive
        return self._value


# --- ends ---


def extended(ends: float | None, least: float, outer: float | None) -> float | None:
    """Return the later of two ends, but none after the end of the scope around."""
    if ends is None:
        return None
    return max(ends, least if outer is None else min(least, outer))


def limit_of_attempt(op: Operation) -> float | None:
    """Return how many seconds the attempt that an `Operation` has just begun may take; None: any time."""
    allowed: float | None = op.plan.timeout
    if op.cut_at is None:
        return allowed
    left: float = op.cut_at - op.attempt_started
    return left if allowed is None or left < allowed else allowed
