"""Calls with a fallback chain behind them: the two drivers that make the calls a walk asks for.

Invariant: whatever the walk decides, its generator is closed and the scope of the operation is left.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.faults import AbortedError
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.drivers import drive, leave, limited
from holdfast.runtime.walking import walk_down

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Iterator, Mapping

    from holdfast.runtime.chain import Chain
    from holdfast.runtime.operation import Operation
    from holdfast.runtime.walking import Call

__all__ = ["drive_chain", "drive_chain_async"]


async def drive_chain_async(
    op: Operation, chain: Chain, call: Awaitable[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Await the call; when it has failed for good, walk down the chain."""
    op.has_fallbacks = True
    try:
        value = await call
    except AbortedError:
        raise
    except Exception as error:  # noqa: BLE001 - each step decides what it answers; what none answers is raised again
        return await fall_back_async(op, chain, error, args, kwargs)
    chain.keep(op, value, args, kwargs)
    return value


def drive_chain(op: Operation, chain: Chain, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make the call; when it has failed for good, walk down the chain."""
    op.has_fallbacks = True
    try:
        value = drive(op, fn, args, kwargs)
    except AbortedError:
        raise
    except Exception as error:  # noqa: BLE001 - ditto
        return fall_back(op, chain, error, args, kwargs)
    if hasattr(value, "__await__"):
        return drive_chain_async(op, chain, value, args, kwargs)
    chain.keep(op, value, args, kwargs)
    return value


async def fall_back_async(
    op: Operation, chain: Chain, error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Perform the walk in a task; a step has the time limit of an attempt."""
    walk = walk_down(op, chain, error, args, kwargs)
    del error  # an exception in a frame that it passes through keeps itself alive
    with _in_scope(op, walk):
        try:
            call = next(walk)
            while True:
                try:
                    value = await limited(op, _awaiting, (call,), {})
                except Exception as failure:  # noqa: BLE001 - the walk decides
                    call = walk.throw(failure)
                else:
                    call = walk.send(value)
        except StopIteration as end:
            return end.value


def fall_back(op: Operation, chain: Chain, error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Perform the walk in a thread."""
    walk = walk_down(op, chain, error, args, kwargs)
    del error  # ditto
    with _in_scope(op, walk):
        try:
            call = next(walk)
            while True:
                try:
                    value = call.fn(*call.args, **call.kwargs)
                except Exception as failure:  # noqa: BLE001 - ditto
                    call = walk.throw(failure)
                else:
                    call = walk.send(value)
        except StopIteration as end:
            return end.value


@contextmanager
def _in_scope(op: Operation, walk: Generator[Call, Any, Any]) -> Iterator[None]:
    """Put the operation in force again while its fallbacks are tried; who stops it is told, and the walk is closed."""
    op.over = False
    token = AMBIENT.set(op)
    try:
        yield
    except Exception:
        raise
    except BaseException as stop:
        op.stopped(stop)
        raise
    finally:
        walk.close()
        op.over = True
        leave(token)


async def _awaiting(call: Call) -> Any:
    value = call.fn(*call.args, **call.kwargs)
    return await value if inspect.isawaitable(value) else value
