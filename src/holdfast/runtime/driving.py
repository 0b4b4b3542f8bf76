"""The two drivers: they make the calls and sleep; an `Operation` says what happens next.

Invariant: both are the same loop. Whatever is decided is decided in `Operation`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.limits import Wheels
from holdfast.runtime.mending import mend, mend_async
from holdfast.runtime.results import discard, discard_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextvars import Token

    from holdfast.runtime.ambient import Around
    from holdfast.runtime.limits import Limit
    from holdfast.runtime.operation import Operation

__all__ = ["begin_limit", "drive", "drive_async", "limited", "pause_async"]


async def drive_async(
    op: Operation, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Make the call until it succeeds or there is a reason not to."""
    binding = op.binding
    perform = binding.perform_async
    token = AMBIENT.set(op)
    try:
        while True:
            limit = None
            try:
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
                late = limit is not None and limit.end() and isinstance(error, asyncio.CancelledError)
                failure = op.timed_out() if late else error
                delay = op.failed(failure)
                if delay is None:
                    if late:
                        raise failure from error
                    raise
            else:
                fault = None if binding.accept is None else binding.refusal(value)
                if fault is None:
                    op.succeeded(value)
                    return value
                delay = op.rejected(fault)
                await discard_async(value)
            await pause_async(op, delay)
            if op.mending is not None:
                args, kwargs = await mend_async(op, args, kwargs)
    finally:
        leave(token)


def drive(op: Operation, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make the call until it succeeds or there is a reason not to; the thread sleeps in between."""
    binding = op.binding
    perform = binding.perform
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
                fault = None if binding.accept is None else binding.refusal(value)
                if fault is None:
                    op.succeeded(value)
                    return value
                delay = op.rejected(fault)
                discard(value)
            pause(op, delay)
            if op.mending is not None:
                args, kwargs = mend(op, args, kwargs)
    finally:
        leave(token)


async def limited(
    op: Operation, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Make one async call under its time limit."""
    limit = begin_limit(op)
    try:
        value = await fn(*args, **kwargs)
    except asyncio.CancelledError as error:
        if limit is not None and limit.end():
            raise op.timed_out() from error
        raise
    except BaseException:
        if limit is not None:
            limit.end()
        raise
    if limit is not None:
        limit.end()
    return value


def begin_limit(op: Operation) -> Limit | None:
    """Start the clock for the attempt just begun; None where it has no limit."""
    wheels = op.binding.wheels
    if op.attempts == 1 and op.around is None:
        # The first attempt of an operation with nothing around it has the same limit as all its like.
        return None if wheels is None else wheels.begin(op.attempt_started)
    seconds = op.limit()
    if seconds is None:
        return None
    if wheels is None:
        wheels = Wheels(seconds, op.binding.runtime.clock)
    return wheels.begin(op.attempt_started) if seconds == wheels.seconds else wheels.begin_own(seconds)


async def pause_async(op: Operation, seconds: float) -> None:
    try:
        await asyncio.sleep(seconds if op.binding.runtime.waits else 0)
    except BaseException as stop:
        op.stopped(stop)
        raise


def pause(op: Operation, seconds: float) -> None:
    try:
        op.binding.runtime.sleep(seconds)
    except BaseException as stop:
        op.stopped(stop)
        raise


def leave(token: Token[Around | None]) -> None:
    try:  # noqa: SIM105 - every call passes here, and a context manager would cost more than the reset
        AMBIENT.reset(token)
    except ValueError:
        # A coroutine that is closed by the garbage collector ends in another context, where there is nothing to reset.
        pass
