"""A time limit on a sync function, for those who ask for it: the call runs in a thread that can be left behind.

A thread cannot be stopped. When its time is over the caller goes on, the thread is counted until it ends by itself, and
beyond a cap no new one is started: a leak is bounded and seen, not hidden.

Invariant: no thread started here keeps the interpreter from exiting (R67).
"""

from __future__ import annotations

import contextvars
import os
import threading
from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, HoldfastError
from holdfast.runtime import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.runtime.operation import Operation

__all__ = ["MOST_LEFT_BEHIND", "left_behind", "threaded"]

MOST_LEFT_BEHIND = 64
"""Threads that may still be running after their callers went on."""

_lock = threading.Lock()
_behind = 0


def left_behind() -> int:
    """Return how many threads are still busy with calls whose time was over."""
    return _behind


def threaded(op: Operation, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make one sync call in a thread and wait for it no longer than its limit."""
    limit = op.limit()
    if limit is None:
        return fn(*args, **kwargs)
    if _behind >= MOST_LEFT_BEHIND:
        context = {"limit": MOST_LEFT_BEHIND, "name": "calls that never returned"}
        raise HoldfastError(Fault.of("SYS_BULKHEAD_FULL", retryable=False, context=context))
    call = _Call(fn, args, kwargs)
    # A daemon thread does not hold up the interpreter's exit.
    threading.Thread(target=contextvars.copy_context().run, args=(call.run,), daemon=True).start()
    if not call.wait(limit):
        raise errors.timed_out(op)
    return call.result()


class _Call:
    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._fn, self._args, self._kwargs = fn, args, kwargs
        self._over = threading.Event()
        self._left = False
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        global _behind  # noqa: PLW0603 - the count is the process's
        try:
            self._value = self._fn(*self._args, **self._kwargs)
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            self._error = error
        with _lock:
            self._over.set()
            if self._left:
                _behind -= 1

    def wait(self, seconds: float) -> bool:
        global _behind  # noqa: PLW0603 - ditto
        if self._over.wait(seconds):
            return True
        with _lock:
            if self._over.is_set():
                return True
            self._left = True
            _behind += 1
            return False

    def result(self) -> Any:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # in a frame that it passes through it would keep itself alive
        return self._value


def _after_fork() -> None:
    """The threads of the parent are not in the child; its lock may have been held by one of them."""
    global _behind, _lock
    _behind, _lock = 0, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
