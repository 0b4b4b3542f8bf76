"""Leaks: work that ignores its cancellation. Each is reported.

A task is left behind. A call in its caller's own task cannot be taken out of that task, and a task for every call would make
every call several times slower. So such a call is cancelled again and then closed, as Python closes a coroutine that nobody
awaits any more: its `finally` blocks run, and it ends.

Invariant: a task that was left behind blocks neither its caller nor the end of `asyncio.run`, and its late answer is closed.
A call that still handles its cancellation, for example to roll back, is not disturbed in that for `CLEANUP_S` seconds.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_module
from holdfast.events import SuppressedError
from holdfast.runtime.answers import throw_away_async

if TYPE_CHECKING:
    import asyncio
    import logging
    from asyncio import AbstractEventLoop

    from holdfast.runtime.operation import Operation
else:
    asyncio = lazy_module("asyncio", globals())
    logging = lazy_module("logging", globals())

__all__ = ["CANCEL_GRACE_S", "CLEANUP_S", "Overdue", "leave_behind"]

CANCEL_GRACE_S = 1.0
"""Seconds that a cancelled call has to end, for example to close its connection."""

CLEANUP_S = 30.0
"""Seconds that a cancelled call has as long as it is still inside the `except` or `finally` that received the cancellation."""

_MOST_CLOSES = 8
"""How often a call is closed that awaits something in its `finally` blocks."""
_DEEPEST = 1_000
"""How many coroutines of a call, each awaited by the one before, are looked at."""


class Overdue:
    """Ends a piece of work whose time is over: cancels it, cancels it again, closes it."""

    __slots__ = (
        "_call",
        "_cancelling",
        "_cancels",
        "_cleaned",
        "_is_closed",
        "_left",
        "_loop",
        "_op",
        "_task",
        "_timer",
    )

    def __init__(
        self, loop: AbstractEventLoop, task: asyncio.Task[Any], cancelling: int, op: Operation, call: Any
    ) -> None:
        self._loop, self._task, self._op, self._call = loop, task, op, call
        self._cancelling = self._left = cancelling
        self._cancels = 0
        self._cleaned = 0.0
        self._is_closed = False
        self._cancel()

    def _cancel(self) -> None:
        self._cancels += 1
        self._task.cancel()
        self._timer = self._loop.call_later(CANCEL_GRACE_S, self._goes_on)

    def _goes_on(self) -> None:
        """The work has not ended although its grace is over."""
        call = self._task.get_coro() if self._call is None else self._call
        if self._cleaned < CLEANUP_S and _handles_cancellation(call):
            self._cleaned += CANCEL_GRACE_S
            self._timer = self._loop.call_later(CANCEL_GRACE_S, self._goes_on)
        elif self._cancels == 1:
            # It may have lost only the first cancellation, in an `except` that is too broad.
            self._cancel()
        elif self._call is not None and _close(self._call):
            _report(self._op, "ignored its cancellation and was closed")
            self._is_closed = True
            # The task still waits for what the closed call awaited. The cancellation wakes it up.
            self._cancel()
        else:
            _report(self._op, "ignored its cancellation and goes on after its time limit; nothing can stop it")
            # If closing failed, the call awaits something else than its task waits for. The cancellation wakes up both.
            self._cancels += 1
            self._task.cancel()

    def end(self) -> None:
        """The work has ended: take our own cancellations back."""
        self._timer.cancel()
        for _ in range(self._cancels):
            self._left = self._task.uncancel()
        self._cancels = 0

    def caused(self, error: BaseException) -> bool:
        """Whether the work, which has ended, raised `error` because of our cancellations alone.

        Raises `asyncio.CancelledError` if somebody else cancelled a call that had to be closed.
        """
        # If more cancellations are pending than at the beginning, one came from outside.
        is_alone = self._left <= self._cancelling
        if self._is_closed and not is_alone:
            raise asyncio.CancelledError from error
        # Whoever awaits a coroutine that was closed meanwhile gets a RuntimeError.
        return is_alone and (self._is_closed or isinstance(error, asyncio.CancelledError))


def _handles_cancellation(call: Any) -> bool:
    """Whether a suspended call is inside an `except` or `finally` block that a cancellation brought it to."""
    for _ in range(_DEEPEST):
        if call is None:
            return False
        # A suspended coroutine refers to the exception that it handles. Nothing else shows it from outside.
        held = gc.get_referents(call)
        if any(isinstance(part, asyncio.CancelledError) for part in held):
            return True
        call = _awaited_by(call, held)
    return False


def _awaited_by(call: Any, held: list[Any]) -> Any:
    for name in ("cr_await", "ag_await", "gi_yieldfrom"):
        if hasattr(call, name):
            return getattr(call, name)
    # The awaitable of an async generator's next item, for example, only refers to its generator.
    return next((part for part in held if hasattr(part, "cr_await") or hasattr(part, "ag_await")), None)


def _close(call: Any) -> bool:
    """Close a suspended call; return whether it has ended."""
    throw = getattr(call, "throw", None)
    if throw is None:
        return False
    for _ in range(_MOST_CLOSES):
        # `throw` and not `close`: closing the awaitable of a generator's next item does not close the generator on Python 3.11.
        # A call that returns from `throw` awaits something else, for example in a `finally` block.
        try:
            throw(GeneratorExit())
        except BaseException:  # noqa: BLE001 - it has ended, and nobody waits for what it raises
            return True
    return False


def leave_behind(op: Operation, task: asyncio.Task[Any]) -> None:
    """Report a task that ignores its cancellation, and let it run without anybody waiting for it."""
    _report(op, "ignored its cancellation and was left running")
    # An event loop refers to its tasks weakly, so a task that nobody holds could vanish midway.
    leaked = op.plan.runtime.leaked_tasks
    leaked.add(task)
    # `asyncio.run` waits for every registered task when it ends. It would wait for this one for ever.
    asyncio.tasks._unregister_task(task)  # noqa: SLF001 - documented for authors of task classes
    task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - the leak was reported already

    def ended(task: asyncio.Task[Any]) -> None:
        leaked.discard(task)
        # Reading the exception marks it as seen; asyncio logs an exception that nobody reads.
        if not task.cancelled() and task.exception() is None:
            closing = asyncio.ensure_future(throw_away_async(op, task.result()))
            leaked.add(closing)
            closing.add_done_callback(leaked.discard)

    task.add_done_callback(ended)


def _report(op: Operation, what: str) -> None:
    cause = f"{op.plan.name or 'a call'} {what}"
    logging.getLogger("holdfast").warning("leaked: %s", cause)
    runtime = op.plan.runtime
    runtime.bus.emit(
        SuppressedError(at=runtime.clock.wall(), run=op.run, operation=op.plan.name, reason="leaked", cause=cause)
    )
