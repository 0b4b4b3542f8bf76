"""Commands to an operation that waits before its next attempt: retry now, fall back, or cancel.

    for wait in runtime.commands.waiting():
        runtime.commands.retry_now(wait.run, by="terminal")

Invariant: a wait obeys at most one command, and every obeyed command is reported as a `Commanded` event first. Only
waits are registered, at most `MOST_WAITING` of them, so a call that works pays nothing.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast._lazy import lazy_module
from holdfast.events import Command, Commanded
from holdfast.runtime.event_loop import running_loop

if TYPE_CHECKING:
    import asyncio

    from holdfast.runtime.runtime import Runtime
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = ["MOST_WAITING", "Commands", "PendingWait", "TaskWait", "ThreadWait", "Waiting"]

MOST_WAITING = 10_000
"""The most waits that can be commanded at the same time."""


class Waiting(msgspec.Struct, frozen=True):
    """An operation that waits, as it is shown to the people who may command it."""

    run: str
    operation: str
    attempts: int
    """Calls made so far."""
    until: float
    """When it goes on by itself (wall clock)."""
    can_fall_back: bool


class Commands:
    """The waiting operations of a runtime, by run. Safe to use from any thread."""

    def __init__(self) -> None:
        self._waits: dict[str, PendingWait] = {}
        self._lock = threading.Lock()

    def waiting(self) -> tuple[Waiting, ...]:
        """Return the operations that wait at present, the longest wait first."""
        with self._lock:
            return tuple(wait.waiting for wait in self._waits.values())

    def retry_now(self, run: str, *, by: str = "") -> bool:
        """Make the next attempt at once. False: that run does not wait (any more)."""
        return self._command(run, "retry-now", by)

    def fall_back(self, run: str, *, by: str = "") -> bool:
        """Skip the remaining attempts and go on with the fallbacks. False: that run does not wait, or has no fallback."""
        return self._command(run, "fall-back", by)

    def cancel(self, run: str, *, by: str = "") -> bool:
        """End the operation with `AbortedError`; no circuit counts that. False: that run does not wait (any more)."""
        return self._command(run, "cancel", by)

    def register(self, wait: PendingWait) -> None:
        """A wait begins: it can be commanded from now on."""
        with self._lock:
            # A wait beyond the limit cannot be commanded. It still ends by itself.
            if len(self._waits) < MOST_WAITING:
                self._waits[wait.waiting.run] = wait

    def unregister(self, wait: PendingWait) -> None:
        """A wait is over. A command that arrived before still counts, and no other command can arrive."""
        with self._lock:
            # A fallback stream shares its run with the operation before it, so the registered wait of this run may
            # belong to the other operation.
            if self._waits.get(wait.waiting.run) is wait:
                del self._waits[wait.waiting.run]

    def after_fork(self) -> None:
        """Forget the waits of the parent process: they do not exist in this one."""
        self._lock = threading.Lock()
        self._waits = {}

    def _command(self, run: str, command: Command, by: str) -> bool:
        with self._lock:
            wait = self._waits.get(run)
            if wait is None or (command == "fall-back" and not wait.waiting.can_fall_back):
                return False
            # Removed under the lock, so that only one of two simultaneous commands is obeyed.
            del self._waits[run]
            wait.command = command
        # The event comes before its effect, and outside the lock: a reader may send a command itself.
        runtime = wait.runtime
        if runtime.bus.wants(Commanded):
            event = Commanded(
                at=runtime.clock.wall(), run=run, operation=wait.waiting.operation, command=command, by=by
            )
            runtime.bus.emit(event)
        wait.wake()
        return True


class PendingWait:
    """One wait of one operation. The operation sleeps in it; a command wakes it."""

    __slots__ = ("_began", "command", "runtime", "waiting", "woken")

    def __init__(self, waiting: Waiting, runtime: Runtime) -> None:
        self.waiting = waiting
        self.runtime = runtime
        self.command: Command | None = None
        self.woken = False
        """Something ended it before its time."""
        self._began = runtime.clock.monotonic()

    def lasted(self) -> float:
        """Return the seconds since it began."""
        return self.runtime.clock.monotonic() - self._began

    def wake(self) -> None:
        """End the sleep."""
        raise NotImplementedError


class TaskWait(PendingWait):
    """A wait in an event loop."""

    __slots__ = ("_loop", "_woken")

    def __init__(self, waiting: Waiting, runtime: Runtime) -> None:
        super().__init__(waiting, runtime)
        self._loop = running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()

    async def sleep(self, seconds: float) -> None:
        """Sleep until the time is over or something wakes it."""
        if self.woken:
            return
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            # A long wait is slept in several parts, and each needs a future that is not done.
            self._woken = self._loop.create_future()

    def wake(self) -> None:
        self.woken = True
        # A command comes from any thread, perhaps after the event loop of the wait has ended.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)


class ThreadWait(PendingWait):
    """A wait in a thread. A command ends it early only if the runtime uses the machine's own clock."""

    __slots__ = ("_asleep",)

    def __init__(self, waiting: Waiting, runtime: Runtime) -> None:
        super().__init__(waiting, runtime)
        # A bare lock: unlike an Event, it can be released from a signal handler of the sleeping thread itself.
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def sleep(self, seconds: float) -> None:
        """Sleep until the time is over or something wakes it."""
        if not self.woken:
            self.runtime.sleep(seconds, self._asleep)

    def wake(self) -> None:
        self.woken = True
        with suppress(RuntimeError):  # a command and the queue of a target may both wake it
            self._asleep.release()
