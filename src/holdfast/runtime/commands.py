"""What people may tell an operation that waits before its next attempt: retry now, fall back, cancel.

    for wait in runtime.commands.waiting():
        runtime.commands.retry_now(wait.run, by="terminal")

Invariant: a wait obeys at most one command, and every command that is obeyed was told as a `Commanded` event first. Only
waits are kept, and no more than `MOST_WAITING`: a call that works pays nothing.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import msgspec

from holdfast.events import Command, Commanded

if TYPE_CHECKING:
    from holdfast.runtime.operation import Operation

__all__ = ["MOST_WAITING", "Commands", "TaskWait", "ThreadWait", "Wait", "Waiting"]

MOST_WAITING = 10_000
"""Waits beyond these end by themselves only."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that waits, as those who may command it see it."""

    run: str
    operation: str
    attempts: int
    """Calls made so far."""
    until: float
    """Wall clock at which it goes on by itself."""
    can_fall_back: bool


class Commands:
    """The operations of a runtime that wait, by run. Safe to use from any thread."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}
        self._lock = threading.Lock()

    def waiting(self) -> tuple[Waiting, ...]:
        """Return who waits at present, the longest first."""
        with self._lock:
            waits = tuple(self._waits.values())
        return tuple(wait.shown() for wait in waits)

    def retry_now(self, run: str, *, by: str = "") -> bool:
        """Have the next attempt made at once. False: that run does not wait (any more)."""
        return self._tell(run, "retry-now", by)

    def fall_back(self, run: str, *, by: str = "") -> bool:
        """Skip the remaining attempts and go on with the fallbacks. False: it does not wait, or has none."""
        return self._tell(run, "fall-back", by)

    def cancel(self, run: str, *, by: str = "") -> bool:
        """End it with `AbortedError`; no circuit counts that. False: that run does not wait (any more)."""
        return self._tell(run, "cancel", by)

    def enter(self, wait: Wait) -> None:
        """A wait begins: it can be told something from now on."""
        with self._lock:
            if len(self._waits) < MOST_WAITING:
                self._waits[wait.op.run] = wait

    def leave(self, wait: Wait) -> None:
        """A wait is over: what it was told by now holds, and nothing more can be told."""
        with self._lock:
            if self._waits.get(wait.op.run) is wait:
                del self._waits[wait.op.run]

    def after_fork(self) -> None:
        """Who waited in the parent does not wait here."""
        self._lock = threading.Lock()
        self._waits = {}

    def _tell(self, run: str, command: Command, by: str) -> bool:
        with self._lock:
            wait = self._waits.get(run)
            if wait is None or (command == "fall-back" and not wait.op.has_fallbacks):
                return False
            del self._waits[run]
            wait.told = command
        plan = wait.op.plan
        bus = plan.runtime.bus
        if bus.wants(Commanded):
            at = plan.runtime.clock.wall()
            bus.emit(Commanded(at=at, run=run, operation=plan.name, command=command, by=by))
        wait.wake()
        return True


class Wait:
    """One wait of one operation. Its owner sleeps in it; whoever commands the operation wakes it."""

    __slots__ = ("_began", "_seconds", "failed_with", "op", "told")

    def __init__(self, op: Operation, seconds: float) -> None:
        self.op = op
        self.told: Command | None = None
        self.failed_with, op.failed_with = op.failed_with, None
        """Kept here and not by the operation: its error must not outlive the wait."""
        self._began = op.plan.monotonic()
        self._seconds = seconds

    def lasted(self) -> float:
        """Return the seconds since it began."""
        return self.op.plan.monotonic() - self._began

    def shown(self) -> Waiting:
        op = self.op
        return Waiting(
            run=op.run,
            operation=op.plan.name,
            attempts=op.attempts,
            until=op.wall(self._began) + self._seconds,
            can_fall_back=op.has_fallbacks,
        )

    def wake(self) -> None:
        """End the sleep."""
        raise NotImplementedError


class TaskWait(Wait):
    """A wait in an event loop."""

    __slots__ = ("_loop", "_woken")

    def __init__(self, op: Operation, seconds: float) -> None:
        super().__init__(op, seconds)
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()

    async def sleep(self, seconds: float) -> None:
        """Sleep, unless somebody has a command."""
        if self.told is not None:
            return
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            self._woken = self._loop.create_future()

    def wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)


class ThreadWait(Wait):
    """A wait in a thread. Only the machine's own clock can be woken; another one's `sleep` ends when it ends."""

    __slots__ = ("_asleep",)

    def __init__(self, op: Operation, seconds: float) -> None:
        super().__init__(op, seconds)
        # A bare lock: unlike an Event's, its holder may be woken from a signal handler of the same thread.
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def sleep(self, seconds: float) -> None:
        """Sleep, unless somebody has a command."""
        if self.told is None:
            self.op.plan.runtime.sleep(seconds, self._asleep)

    def wake(self) -> None:
        self._asleep.release()
