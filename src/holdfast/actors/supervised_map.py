"""A map over items with one supervised child for each item.

Invariant: a map has at most `concurrency` children at any time, and none of them once it is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from holdfast import options
from holdfast.actors.child import Child
from holdfast.actors.crash import crash_of
from holdfast.actors.errors import ChildNotFoundError, ChildStoppedError
from holdfast.faults import Err, Fault, HoldfastError, Ok
from holdfast.supervision.exits import Error, Exit, Normal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from holdfast.actors.supervisor import Supervisor
    from holdfast.actors.task import Handle
    from holdfast.faults import Outcome

__all__ = ["OnTimeout", "supervised_map"]

T = TypeVar("T")

OnTimeout: TypeAlias = Literal["kill", "raise"]
"""What happens to an item that takes too long: its place has an `Err`, or the whole map ends with `TimeoutError`."""


async def supervised_map(
    supervisor: Supervisor,
    fn: Callable[[Any], Awaitable[T]],
    items: Iterable[Any],
    *,
    concurrency: int,
    seconds: float | None,
    on_timeout: OnTimeout,
) -> AsyncIterator[Outcome[T]]:
    """See `Supervisor.map`."""
    options.function("map", fn, "map(f, items)")
    options.count("map.concurrency", concurrency)
    options.seconds("map.timeout", seconds, optional=True)
    options.one_of("map.on_timeout", on_timeout, get_args(OnTimeout))
    left = iter(items)
    # All items that were begun and whose outcomes were not yet yielded, in order.
    begun: deque[asyncio.Task[Outcome[T]]] = deque()
    try:
        while True:
            active = [task for task in begun if not task.done()]
            while len(active) < concurrency and (item := next(left, _END)) is not _END:
                task = asyncio.ensure_future(_outcome(supervisor, fn, item, seconds, on_timeout))
                begun.append(task)
                active.append(task)
            while begun and begun[0].done():
                yield begun.popleft().result()
            if not begun:
                return
            await asyncio.wait([task for task in begun if not task.done()], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in begun:
            task.cancel()
        if begun:
            await asyncio.wait(begun)
            for task in begun:
                # Reading the exception marks it as seen.
                _ = task.cancelled() or task.exception()


_END = object()


async def _outcome(
    supervisor: Supervisor,
    fn: Callable[[Any], Awaitable[T]],
    item: Any,
    seconds: float | None,
    on_timeout: OnTimeout,
) -> Outcome[T]:
    """Run one item as a child of its own."""
    # Brutal: a caller that gives up an item has no time to wait for it.
    child = Child(fn, item, restart="temporary", shutdown="brutal")
    handle: Handle[T] = await supervisor._add(child, always_numbered=True)  # noqa: SLF001 - a part of the supervisor
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            how = await handle.wait()
    except TimeoutError:
        if not limit.expired():
            raise
        await _stop(supervisor, handle)
        fault = Fault.of("SYS_TIMEOUT", context={"actor": handle.path, "timeout_s": seconds})
        if on_timeout == "raise":
            message = f"{handle.path} took longer than {seconds:g} s"
            raise TimeoutError(message) from None
        return Err(fault=fault, error=TimeoutError(fault.message))
    except asyncio.CancelledError:
        await _stop(supervisor, handle)
        raise
    return _read(how, supervisor, handle)


def _read(how: Exit, supervisor: Supervisor, handle: Handle[T]) -> Outcome[T]:
    match how:
        case Normal(value=value):
            return Ok(value=value)
        case Error(error=error):
            # The same fault as in the event of this child: the words of a program's own exception choose no code.
            runtime = supervisor._loop.runtime  # noqa: SLF001 - as above
            fault = crash_of(error, runtime.fault_of(error), handle.path)
            return Err(fault=fault, error=error if isinstance(error, Exception) else _wrapped(fault, error))
        case _:
            stopped = ChildStoppedError.because(actor=handle.path, reason=str(how))
            return Err(fault=stopped.fault, error=stopped)


def _wrapped(fault: Fault, error: BaseException) -> HoldfastError:
    """Return an error that can be raised anywhere: a SystemExit would end the program."""
    wrapped = HoldfastError(fault)
    wrapped.__cause__ = error
    return wrapped


async def _stop(supervisor: Supervisor, handle: Handle[Any]) -> None:
    # It may have ended meanwhile.
    with suppress(ChildNotFoundError, ChildStoppedError):
        await asyncio.shield(supervisor.terminate_child(handle.id))
