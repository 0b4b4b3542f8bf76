"""The two drivers: they make the calls and sleep; an `Operation` says what happens next.

Invariant: both are the same loop. Whatever is decided is decided in `Operation`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.runtime.abort import parts_of
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.limits import Limit, Wheel
from holdfast.runtime.results import discard, discard_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextvars import Token

    from holdfast.runtime.ambient import Around
    from holdfast.runtime.operation import Operation

__all__ = ["begin_limit", "drive", "drive_async", "limited", "pause_async"]


async def drive_async(
    op: Operation, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Make the call until it succeeds or there is a reason not to."""
    binding = op.binding
    token = AMBIENT.set(op)
    try:
        while True:
            try:
                op.admit()
                value = await binding.perform_async(op, fn, args, kwargs)
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
                await discard_async(value)
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
                fault = None if binding.accept is None else binding.refusal(value)
                if fault is None:
                    op.succeeded(value)
                    return value
                delay = op.rejected(fault)
                discard(value)
            pause(op, delay)
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
        for part in (seconds,) if op.abort is None else parts_of(op.abort, seconds):
            await asyncio.sleep(part if op.binding.runtime.waits else 0)
    except BaseException as stop:
        op.stopped(stop)
        raise


def pause(op: Operation, seconds: float) -> None:
    try:
        for part in (seconds,) if op.abort is None else parts_of(op.abort, seconds):
            op.binding.runtime.sleep(part)
    except BaseException as stop:
        op.stopped(stop)
        raise


def leave(token: Token[Around | None]) -> None:
    try:  # noqa: SIM105 - every call passes here, and a context manager would cost more than the reset
        AMBIENT.reset(token)
    except ValueError:
        # A coroutine that is closed by the garbage collector ends in another context, where there is nothing to reset.
        pass
