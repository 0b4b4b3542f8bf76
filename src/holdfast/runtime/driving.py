"""The two drivers: they make the calls and sleep; an `Operation` says what happens next.

Invariant: both are the same loop. Whatever is decided is decided in `Operation`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.limits import Limit, Wheel
from holdfast.runtime.results import refusal, throw_away, throw_away_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextvars import Token

    from holdfast.runtime.ambient import Around
    from holdfast.runtime.operation import Operation

__all__ = ["begin_limit", "drive", "drive_async", "leave", "limited", "pause", "pause_async"]


async def drive_async(
    op: Operation,
    fn: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    begun: bool = False,
) -> Any:
    """Make the call until it succeeds or there is a reason not to. `begun`: its first attempt is admitted already."""
    binding = op.binding
    token = AMBIENT.set(op)
    try:
        while True:
            try:
                if begun:
                    begun = False
                else:
                    op.admit()
                value = await binding.perform_async(op, fn, args, kwargs)
            except BaseException as error:
                delay = op.failed(error)
                if delay is None:
                    raise
            else:
                fault = None if binding.accept is None else refusal(op, value)
                if fault is None:
                    op.succeeded(value)
                    return value
                delay = op.rejected(fault)
                await throw_away_async(op, value)
            await pause_async(op, delay)
    finally:
        leave(token)


def drive(op: Operation, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make the call until it succeeds or there is a reason not to; the thread sleeps in between."""
    binding = op.binding
    token = AMBIENT.set(op)
    try:
        while True:
            try:
                op.admit()
                value = binding.perform(op, fn, args, kwargs)
            except BaseException as error:
                delay = op.failed(error)
                if delay is None:
                    raise
            else:
                if hasattr(value, "__await__"):
                    # Not async by its looks, but what it gives must be awaited: the call is not over yet (R23).
                    return drive_on(op, value, fn, args, kwargs)
                fault = None if binding.accept is None else refusal(op, value)
                if fault is None:
                    op.succeeded(value)
                    return value
                delay = op.rejected(fault)
                throw_away(op, value)
            pause(op, delay)
    finally:
        leave(token)


async def drive_on(
    op: Operation, given: Awaitable[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Await what a sync call has given; where that fails, make the call again. The one begun is the first attempt."""
    pending = [given]

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
            raise op.timed_out() from error
        raise
    except BaseException:
        if limit is not None:
            limit.end()
        raise
    if limit is not None:
        limit.end()
    return value


def direct(op: Operation, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG001 - one shape for all
    """Make one sync call. It cannot be cancelled, so it has no limit."""
    return fn(*args, **kwargs)


def begin_limit(op: Operation) -> Limit | None:
    """Start the clock for the attempt just begun; None where it has no limit."""
    seconds = op.limit()
    if seconds is None:
        return None
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a time limit needs a running asyncio task")
    wheels = op.binding.wheels
    wheel = wheels.here(loop) if seconds == wheels.seconds else Wheel(loop, seconds, single=True)
    limit = Limit()
    limit.begin(wheel, task)
    return limit


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
