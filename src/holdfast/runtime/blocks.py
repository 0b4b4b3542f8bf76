"""A block as a loop of attempts, for code that is not a function of its own.

    async for attempt in recover("claude"):
        async with attempt:
            …

Invariant: the loop ends with the first attempt that ends well, or by raising. An attempt whose block was never entered
gives its permit back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.faults import InvalidError
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.driving import begin_limit, leave, pause, pause_async
from holdfast.runtime.surroundings import Surroundings, admit

if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType
    from typing import Self

    from holdfast.runtime.ambient import Around
    from holdfast.runtime.limits import Limit
    from holdfast.runtime.operation import Operation
    from holdfast.runtime.surroundings import Tokens

__all__ = ["AsyncAttempts", "Attempts", "BlockAttempt"]


class BlockAttempt:
    """One attempt at a block. Enter it with `with` or `async with`, as the loop is."""

    def __init__(self, op: Operation, surroundings: Surroundings | None) -> None:
        self._op = op
        self._surroundings = surroundings
        self._inside: Tokens = ()
        self._limit: Limit | None = None
        self._token: Token[Around | None] | None = None
        self.number = op.attempts
        """Counted from 1."""
        self.over = False
        """It ended well: the loop is done."""
        self.delay = 0.0
        """Seconds to wait before the next one, where this one failed."""

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._end(error)

    async def __aenter__(self) -> Self:
        self._enter()
        self._limit = begin_limit(self._op)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        limit = self._limit
        if limit is not None and limit.end() and isinstance(error, asyncio.CancelledError):
            timed_out = self._op.timed_out()
            if self._end(timed_out):
                return True
            raise timed_out from error
        return self._end(error)

    @property
    def entered(self) -> bool:
        return self._token is not None

    def _enter(self) -> None:
        self._token = AMBIENT.set(self._op)
        if self._surroundings is not None:
            self._inside = self._surroundings.enter()

    def _end(self, error: BaseException | None) -> bool:
        """Settle, and swallow a failure that will be tried again."""
        if self._inside:
            Surroundings.leave(self._inside)
        if self._token is not None:
            leave(self._token)
        op = self._op
        if error is None:
            op.succeeded()
            self.over = True
            return False
        delay = op.failed(error)
        if delay is None:
            return False
        self.delay = delay
        return True


class _Loop:
    def __init__(self, op: Operation) -> None:
        self._op = op
        self._attempt: BlockAttempt | None = None

    def _next(self) -> BlockAttempt | float | None:
        """Return the next attempt, how long to wait for it, or None when the loop is over."""
        last, op = self._attempt, self._op
        if last is not None:
            if last.over:
                return None
            if not last.entered:
                op.stopped(misuse := InvalidError.saying("attempt", "`with attempt:` around the block", "no `with`"))
                raise misuse
            if last.delay:
                delay, last.delay = last.delay, 0.0
                return delay
        try:
            surroundings = admit(op)
        except Exception as error:
            delay_or_none = op.failed(error)
            if delay_or_none is None:
                raise
            return delay_or_none
        self._attempt = BlockAttempt(op, surroundings)
        return self._attempt


class Attempts(_Loop):
    """Attempts at a block in a thread."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockAttempt:
        while True:
            following = self._next()
            if following is None:
                raise StopIteration
            if isinstance(following, BlockAttempt):
                return following
            pause(self._op, following)


class AsyncAttempts(_Loop):
    """Attempts at a block in a task."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BlockAttempt:
        while True:
            following = self._next()
            if following is None:
                raise StopAsyncIteration
            if isinstance(following, BlockAttempt):
                return following
            await pause_async(self._op, following)
