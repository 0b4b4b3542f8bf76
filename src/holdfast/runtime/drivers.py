"""The two drivers: they make the calls and sleep; an `Operation` says what happens next.

Invariant: both are the same loop. Whatever is decided is decided in `Operation`.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.runtime import errors, permits
from holdfast.runtime.abort import parts_of
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.commands import TaskWait, ThreadWait
from holdfast.runtime.limits import Wheels
from holdfast.runtime.repair import mend, repair_async
from holdfast.runtime.results import refusal, throw_away, throw_away_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from contextvars import Token

    from holdfast.runtime.ambient import Ambient
    from holdfast.runtime.commands import Wait
    from holdfast.runtime.limits import Limit
    from holdfast.runtime.operation import Operation

__all__ = ["begin_limit", "drive", "drive_async", "leave", "limited", "pause", "pause_async"]


async def drive_async(
    op: Operation,
    fn: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    begun: bool = False,  # noqa: FBT001, FBT002 - keyword-only it would make every call dearer on Python 3.11
) -> Any:
    """Make the call until it succeeds or there is a reason not to. `begun`: its first attempt is admitted already."""
    plan = op.plan
    perform = plan.perform_async
    token = AMBIENT.set(op)
    try:
        while True:
            limit = None
            try:
                if begun:
                    begun = False
                else:
                    op.admit()
                if perform is None:
                    # As `limited` does it, without its frame: nearly every call comes this way.
                    limit = begin_limit(op)
                    value = await fn(*args, **kwargs)
                    if limit is not None:
                        limit.end()
                else:
                    value = await perform(op, fn, args, kwargs)
            except BaseException as error:
                delay = op.failed(error) if limit is None else failed_in_time(op, limit, error)
                if delay is None:
                    raise
            else:
                fault = None if plan.accept is None else refusal(op, value)
                if fault is None:
                    op.succeeded(value)
                    return value
                delay = op.rejected(fault)
                await throw_away_async(op, value)
            await pause_async(op, delay)
            if op.mending is not None:
                args, kwargs = await repair_async(op, args, kwargs)
    finally:
        op.over = True
        leave(token)


def drive(op: Operation, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make the call until it succeeds or there is a reason not to; the thread sleeps in between."""
    plan = op.plan
    perform = plan.perform
    token = AMBIENT.set(op)
    try:
        while True:
            try:
                op.admit()
                value = fn(*args, **kwargs) if perform is None else perform(op, fn, args, kwargs)
            except BaseException as error:
                delay = op.failed(error)
                if delay is None:
                    raise
            else:
                if hasattr(value, "__await__"):
                    # Not async by its looks, but what it gives must be awaited: the call is not over yet (R23).
                    return drive_on(op, value, fn, args, kwargs)
                fault = None if plan.accept is None else refusal(op, value)
                if fault is None:
                    op.succeeded(value)
                    return value
                delay = op.rejected(fault)
                throw_away(op, value)
            pause(op, delay)
            if op.mending is not None:
                args, kwargs = mend(op, args, kwargs)
    finally:
        op.over = True
        AMBIENT.reset(token)


async def drive_on(
    op: Operation, given: Awaitable[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Await what a sync call has given; where that fails, make the call again. The one begun is the first attempt."""
    pending = [given]
    op.over = False

    async def go_on(*args: Any, **kwargs: Any) -> Any:
        value = pending.pop() if pending else fn(*args, **kwargs)
        return await value if hasattr(value, "__await__") else value

    return await drive_async(op, go_on, args, kwargs, begun=True)


async def limited(
    op: Operation, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Make one async call under its time limit."""
    limit = begin_limit(op)
    try:
        value = await fn(*args, **kwargs)
    except asyncio.CancelledError as error:
        if limit is not None and limit.end():
            raise errors.timed_out(op) from error
        raise
    except BaseException:
        if limit is not None:
            limit.end()
        raise
    if limit is not None:
        limit.end()
    return value


def failed_in_time(op: Operation, limit: Limit, error: BaseException) -> float | None:
    """Take in a failure under a limit, as `Operation.failed` does; what the limit itself cancelled is our own error."""
    if not limit.end() or not isinstance(error, asyncio.CancelledError):
        if op.around is not None and isinstance(error, asyncio.CancelledError) and limit.due:
            # A recovery around it with the same limit came first: it was late all the same, and its circuits are told.
            now = op.plan.monotonic()
            permits.settle_failure(op, errors.lateness(op, now), now)
        return op.failed(error)
    late = errors.timed_out(op)
    try:
        delay = op.failed(late)
        if delay is None:
            raise late from error
        return delay
    finally:
        # An exception in a frame that it passes through keeps itself alive.
        del late


def begin_limit(op: Operation) -> Limit | None:
    """Start the clock for the attempt just begun; None where it has no limit."""
    wheels = op.plan.wheels
    if op.attempts == 1 and op.around is None:
        # The first attempt of an operation with nothing around it has the same limit as all its like.
        return None if wheels is None else wheels.begin(op.attempt_started)
    seconds = op.limit()
    if seconds is None:
        return None
    if wheels is None:
        wheels = Wheels(seconds, op.plan.runtime.clock)
    return wheels.begin(op.attempt_started) if seconds == wheels.seconds else wheels.begin_own(seconds)


async def pause_async(op: Operation, seconds: float) -> None:
    """Wait before the next attempt; a command ends the wait and may end the operation."""
    if seconds <= 0 or not op.plan.runtime.waits:
        op.failed_with = None
        await _let_others_run(op)
        return
    wait = TaskWait(op, seconds)
    with _told(wait):
        for part in (seconds,) if op.abort is None else parts_of(op.abort, seconds):
            await wait.sleep(part)
            if wait.told is not None:
                break
    if wait.told is not None:
        op.commanded(wait)


def pause(op: Operation, seconds: float) -> None:
    """Wait before the next attempt, in a thread; ditto."""
    if seconds <= 0 or not op.plan.runtime.waits:
        op.failed_with = None
        return
    wait = ThreadWait(op, seconds)
    with _told(wait):
        for part in (seconds,) if op.abort is None else parts_of(op.abort, seconds):
            wait.sleep(part)
            if wait.told is not None:
                break
    if wait.told is not None:
        op.commanded(wait)


@contextmanager
def _told(wait: Wait) -> Iterator[None]:
    """Let the wait inside be told something; where it is cut short, the operation is stopped."""
    commands = wait.op.plan.runtime.commands
    commands.enter(wait)
    try:
        yield
    except BaseException as stop:
        wait.op.stopped(stop)
        raise
    finally:
        commands.leave(wait)


async def _let_others_run(op: Operation) -> None:
    """Suspend once, where there is nothing to wait for."""
    try:
        await asyncio.sleep(0)
    except BaseException as stop:
        op.stopped(stop)
        raise


def leave(token: Token[Ambient | None]) -> None:
    try:  # noqa: SIM105 - every call passes here, and a context manager would cost more than the reset
        AMBIENT.reset(token)
    except ValueError:
        # A coroutine that is closed by the garbage collector ends in another context, where there is nothing to reset.
        pass
