"""A loop of attempts around a block of code, for code that is not a function.

    async for attempt in recover("claude"):
        async with attempt:
            …

Invariant: the loop ends with the first attempt that ends well, or by raising. An attempt is admitted when its block is
entered, so an attempt whose block is never entered holds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.faults import InvalidError
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.budgets.reserve import reserve, reserve_async
from holdfast.runtime.operation import errors
from holdfast.runtime.operation.drivers import acquire, acquire_async, begin_limit, leave, pause, pause_async

if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType
    from typing import Self

    from holdfast.runtime.ambient import Ambient
    from holdfast.runtime.limits import TimeLimit
    from holdfast.runtime.operation.operation import Operation
    from holdfast.runtime.targets.limiter import Limiter, Seat

__all__ = ["AsyncAttempts", "Attempts", "BlockAttempt"]


class BlockAttempt:
    """One attempt at a block. Use `with` inside a `for` loop and `async with` inside an `async for` loop."""

    def __init__(self, op: Operation, *, in_task: bool) -> None:
        self._op = op
        self._in_task = in_task
        self._limit: TimeLimit | None = None
        self._token: Token[Ambient | None] | None = None
        self._place: tuple[Limiter, Seat] | None = None
        self.number = op.attempts + 1
        """Counted from 1."""
        self.entered = False
        self.over = False
        """The attempt ended well or the operation gave up: the loop is done."""
        self.delay = 0.0
        """Seconds to wait before the next attempt, if this attempt failed."""

    def __enter__(self) -> Self:
        if self._in_task:
            # A plain `with` cannot cancel the task or wait without blocking the event loop, so it would drop every limit.
            raise InvalidError.saying("attempt", "`async with attempt:` inside `async for`", "`with attempt:`")
        self._enter_once()
        while (delay := self._admitted()) is not None:
            pause(self._op, delay)
        self._token = AMBIENT.set(self._op)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._end(error)

    async def __aenter__(self) -> Self:
        self._enter_once()
        while (delay := await self._admitted_async()) is not None:
            await pause_async(self._op, delay)
        self._token = AMBIENT.set(self._op)
        self._limit = begin_limit(self._op)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        limit = self._limit
        if limit is None or not (limit.end() if error is None else limit.ends_with(error)):
            return self._end(error)
        # Our own limit cancelled the block. The caller gets a timeout, not a cancellation that it never requested. A block
        # that swallowed the cancellation ended too late all the same.
        timed_out = errors.timed_out(self._op)
        try:
            if self._end(timed_out):
                return True
            raise timed_out from error
        finally:
            # A frame in an exception's traceback must not refer to the exception: the cycle would keep both alive.
            del timed_out

    def _enter_once(self) -> None:
        if self.entered:
            raise InvalidError.saying("attempt", "one `with` per attempt", "an attempt that was entered before")
        self.entered = True

    def _admitted(self) -> float | None:
        """Admit the attempt; return the seconds to wait if it must wait, or raise if it must not be made."""
        op = self._op
        try:
            # The circuit comes first: a call that it rejects must not take a place of the limiter.
            if op.charges is not None and op.plan.limiter is None:
                reserve(op, (), {})
            op.admit()
            if (limiter := op.plan.limiter) is not None:
                self._place = (limiter, acquire(op, limiter, (), {}))
        except BaseException as error:
            # The attempt may also be cancelled while it waits for the limiter. Then the circuit's permit must go back.
            delay = self._failed(error)
            if delay is None:
                raise
            return delay
        return None

    async def _admitted_async(self) -> float | None:
        op = self._op
        try:
            if op.charges is not None and op.plan.limiter is None:
                await reserve_async(op, (), {})
            op.admit()
            if (limiter := op.plan.limiter) is not None:
                self._place = (limiter, await acquire_async(op, limiter, (), {}))
        except BaseException as error:
            delay = self._failed(error)
            if delay is None:
                raise
            return delay
        return None

    def _end(self, error: BaseException | None) -> bool:
        """Settle the attempt; return True to swallow a failure that is retried."""
        if self._token is not None:
            leave(self._token)
        if self._place is not None:
            # The limiter's place goes back before the wait for the next attempt, so that other calls can use it.
            limiter, seat = self._place
            limiter.release(seat)
        op = self._op
        if error is None:
            op.succeeded()
            self.over = True
            return False
        delay = self._failed(error)
        if delay is None:
            return False
        self.delay = delay
        return True

    def _failed(self, error: BaseException) -> float | None:
        delay = self._op.failed(error)
        self.over = delay is None
        return delay


class _Loop:
    def __init__(self, op: Operation) -> None:
        self._op = op
        self._last: BlockAttempt | None = None

    def _wait(self) -> float | None:
        """Return how long to wait before the next attempt; None when the loop is over."""
        last = self._last
        if last is None:
            return 0.0
        if last.over:
            return None
        if not last.entered:
            # Without `with` no attempt ever ends, and the loop would go on for ever.
            raise InvalidError.saying("attempt", "`with attempt:` around the block", "no `with`")
        return last.delay

    def _next(self, *, in_task: bool) -> BlockAttempt:
        self._last = BlockAttempt(self._op, in_task=in_task)
        return self._last


class Attempts(_Loop):
    """Attempts at a block in a thread."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockAttempt:
        delay = self._wait()
        if delay is None:
            raise StopIteration
        if delay:
            pause(self._op, delay)
        return self._next(in_task=False)


class AsyncAttempts(_Loop):
    """Attempts at a block in a task."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BlockAttempt:
        delay = self._wait()
        if delay is None:
            raise StopAsyncIteration
        if delay:
            await pause_async(self._op, delay)
        return self._next(in_task=True)
