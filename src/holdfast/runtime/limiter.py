"""Places and pace: how many calls to a name run at once, and how many start per second.

Invariant: whoever was let in goes out once, however the call ends; a waiter that is cancelled frees its place in the queue
(R69). Callers of any thread and event loop share one queue.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, HoldfastError
from holdfast.policies.bulkhead import Bulkhead, BulkheadMachine, Place
from holdfast.policies.rate_limit import RateLimit, RateLimitMachine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.runtime.operation import Operation

__all__ = ["Limiter", "acquire", "acquire_async", "limited_by", "limited_call", "limiter_for"]


class Limiter:
    """The places and the pace of one name."""

    def __init__(self, name: str, bulkhead: Bulkhead | None, rate: RateLimit | None) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._bulkhead = bulkhead
        self._places = None if bulkhead is None else BulkheadMachine(bulkhead)
        self._rate = rate
        self._pace = None if rate is None else RateLimitMachine(rate)
        self._wakers: dict[int, Callable[[], None]] = {}

    # --- places ---

    async def enter_async(self, op: Operation) -> int:
        """Take a place, waiting for one if need be; return the ticket to leave with."""
        if self._places is None:
            return 0
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()

        def come() -> None:
            if not turn.done():
                turn.set_result(None)

        def wake() -> None:
            loop.call_soon_threadsafe(come)

        ticket = self._enter(wake)
        if not ticket:
            return 0
        timer = None if op.deadline is None else loop.call_later(_left(op), lambda: turn.done() or turn.cancel("late"))
        try:
            await turn
        except BaseException as error:
            self._cancel(ticket)
            if isinstance(error, asyncio.CancelledError) and error.args == ("late",):
                raise self._full() from None
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return ticket

    def enter(self, op: Operation) -> int:
        """Take a place, blocking the thread for one if need be; return the ticket to leave with."""
        if self._places is None:
            return 0
        turn = threading.Event()
        ticket = self._enter(turn.set)
        if not ticket:
            return 0
        try:
            came = turn.wait(None if op.deadline is None else _left(op))
        except BaseException:
            self._cancel(ticket)
            raise
        if not came:
            self._cancel(ticket)
            raise self._full()
        return ticket

    def try_acquire(self, now: float) -> bool:
        """Take a place and a start if both are to be had at once; then `leave(0)` gives the place back."""
        with self._lock:
            if self._pace is not None and self._pace.peek(now) > 0:
                return False
            if self._places is not None and not self._places.try_acquire():
                return False
            if self._pace is not None:
                self._pace.reserve(now)
            return True

    def release(self, ticket: int) -> None:
        """Give the place to whoever is next."""
        if self._places is not None:
            with self._lock:
                following = self._places.release(ticket)
            self._wake(following)

    def _enter(self, wake: Callable[[], None]) -> int:
        assert self._places is not None
        with self._lock:
            entry = self._places.acquire()
            if entry is Place.FULL:
                raise self._full()
            if isinstance(entry, Place):
                return 0
            self._wakers[entry.ticket] = wake
            return entry.ticket

    def _cancel(self, ticket: int) -> None:
        assert self._places is not None
        with self._lock:
            self._wakers.pop(ticket, None)
            following = self._places.cancel(ticket)
        self._wake(following)

    def _wake(self, ticket: int | None) -> None:
        """Wake a waiter; one whose event loop is gone passes its turn on."""
        while ticket is not None and (wake := self._wakers.pop(ticket, None)) is not None:
            try:
                wake()
            except RuntimeError:
                assert self._places is not None
                with self._lock:
                    ticket = self._places.release(ticket)
            else:
                return

    def _full(self) -> HoldfastError:
        limit = 0 if self._bulkhead is None else self._bulkhead.concurrency
        return HoldfastError(Fault.of("SYS_BULKHEAD_FULL", context={"limit": limit, "name": self.name}))

    # --- pace ---

    def start_in(self, op: Operation) -> float:
        """Reserve a start and return the wait for it; refuse where that would pass the deadline."""
        if self._pace is None or self._rate is None:
            return 0.0
        now = op.plan.monotonic()
        with self._lock:
            wait = self._pace.reserve(now)
            if op.deadline is None or now + wait < op.deadline:
                return wait
            self._pace.cancel(now + wait)
        context = {"limit": self._rate.per_second, "name": self.name}
        raise HoldfastError(Fault.of("SYS_RATE_LIMITED", retry_after=wait, context=context))

    def start_cancelled(self, start: float) -> None:
        if self._pace is not None:
            with self._lock:
                self._pace.cancel(start)


def limiter_for(name: str, concurrency: int | None, waiting: int | None, per_second: float | None) -> Limiter:
    """Return the limiter that these options of a policy ask for."""
    bulkhead = None if concurrency is None else Bulkhead(concurrency=concurrency, waiting=waiting)
    return Limiter(name, bulkhead, None if per_second is None else RateLimit(per_second=per_second))


def limited_by(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return `call` (one way of making an attempt) behind the limiter of the name it is made to."""

    async def gated_call(
        op: Operation, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        limiter = op.plan.limiter
        assert limiter is not None
        ticket = await acquire_async(limiter, op)
        try:
            return await call(op, fn, args, kwargs)
        finally:
            limiter.release(ticket)

    return gated_call


def limited_call(op: Operation, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make one sync attempt behind the limiter of the name it is made to."""
    limiter = op.plan.limiter
    assert limiter is not None
    ticket = acquire(limiter, op)
    try:
        call = op.plan.call
        return fn(*args, **kwargs) if call is None else call(op, fn, args, kwargs)
    finally:
        limiter.release(ticket)


async def acquire_async(limiter: Limiter, op: Operation) -> int:
    """Wait for a place and for the start; return the ticket to `leave` with. Waiting is not the callee's time."""
    ticket = await limiter.enter_async(op)
    try:
        if wait := limiter.start_in(op):
            await _start_async(limiter, op, wait)
    except BaseException:
        limiter.release(ticket)
        raise
    op.attempt_started = op.plan.monotonic()
    return ticket


def acquire(limiter: Limiter, op: Operation) -> int:
    """The same in a thread."""
    ticket = limiter.enter(op)
    try:
        if wait := limiter.start_in(op):
            _start(limiter, op, wait)
    except BaseException:
        limiter.release(ticket)
        raise
    op.attempt_started = op.plan.monotonic()
    return ticket


async def _start_async(limiter: Limiter, op: Operation, wait: float) -> None:
    start = op.plan.monotonic() + wait
    try:
        await asyncio.sleep(wait if op.plan.runtime.waits else 0)
    except BaseException:
        limiter.start_cancelled(start)
        raise


def _start(limiter: Limiter, op: Operation, wait: float) -> None:
    start = op.plan.monotonic() + wait
    try:
        op.plan.runtime.sleep(wait)
    except BaseException:
        limiter.start_cancelled(start)
        raise


def _left(op: Operation) -> float:
    return 0.0 if op.deadline is None else max(0.0, op.deadline - op.plan.monotonic())
