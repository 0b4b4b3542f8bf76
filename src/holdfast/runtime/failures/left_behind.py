"""The calls of this process whose threads still run although their callers have gone.

A thread cannot be stopped, so such a call may still take effect. Until its thread has ended, nobody can say that it did not happen. The
threads that we start are counted. Those that a function starts itself are found by the context in which they run: `asyncio.to_thread` and
`anyio.to_thread` copy the one of the call. A thread without it, such as one of `loop.run_in_executor`, cannot be told from others.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from collections import Counter
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

__all__ = ["LEFT_BEHIND", "OURS", "LeftBehind"]

OURS = "holdfast-"
"""Begins the names of threads that we start for a call: they are counted when their caller leaves them behind."""


class LeftBehind:
    """The keys (`call_key`) of these calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: Counter[str] = Counter()

    def add(self, key: str) -> None:
        """The caller of this call has gone, and its thread runs on."""
        with self._lock:
            self._keys[key] += 1

    def remove(self, key: str) -> None:
        """The thread has ended."""
        with self._lock:
            self._keys -= Counter((key,))

    def counted(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function in its thread, and remove the call when it has ended. Add it before, when the thread is asked for."""
        try:
            return fn(*args, **kwargs)
        finally:
            self.remove(key)

    def runs(self, key: str) -> bool:
        """Whether a thread of the call with this key, or of a call inside of it, still runs."""
        with self._lock:
            left = list(self._keys)
        return bool(key) and any(each == key or each.startswith(f"{key}/") for each in (*left, *_keys_of_threads()))

    def after_fork(self) -> None:
        """The threads of the parent process do not exist in this one, and one of them may hold the lock."""
        self.__init__()  # type: ignore[misc] # it begins anew


def _keys_of_threads() -> Iterator[str]:
    """Yield the keys of the calls in whose context other threads run now."""
    own = threading.get_ident()
    for ident, frame in _frames().items():
        each: Any = None if ident == own else frame
        while each is not None:
            # `run` of a thread, or of a work item in a thread of a pool, is what calls `Context.run`.
            if each.f_code.co_name == "run":
                for value in (each.f_locals.get("self"), each.f_locals.get("context")):
                    if (context := _context_in(value)) is not None:
                        yield from _keys_in(context)
            each = each.f_back


def _frames() -> dict[int, FrameType]:
    """Return the frames of all threads. Python makes them under a lock that a garbage collection in there would wait for itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()  # noqa: SLF001 - documented, and there is no other way
    finally:
        if was_enabled:
            gc.enable()


def _context_in(value: Any) -> Context | None:
    """Return the context in which a thread or a work item runs its function; None if it has none, or has run it."""
    if isinstance(value, Context):
        return value if _is_entered(value) else None
    called: Any = None
    if isinstance(value, threading.Thread) and not value.name.startswith(OURS):
        called = getattr(value, "_target", None)
    elif type(value).__module__ == "concurrent.futures.thread" and not value.future.done():
        # One that has ended is in `run` for a moment more. Its function is in `fn`, and from Python 3.14 on in `task`.
        called = getattr(value, "fn", None) or value.task[0]
    called = called.func if isinstance(called, functools.partial) else called
    found = getattr(called, "__self__", None)
    return found if isinstance(found, Context) else None


def _is_entered(context: Context) -> bool:
    try:
        context.run(int)
    except RuntimeError:
        return True
    return False


def _keys_in(context: Context) -> Iterator[str]:
    """Yield the keys of the calls around what runs in a context."""
    # By the name of `ambient.AMBIENT`: what that imports imports this module.
    around: Any = next((value for variable, value in context.items() if variable.name == "holdfast_ambient"), None)
    runs: list[str] = []
    while around is not None:
        yield around.run
        # In a durable step the calls have keys of their own.
        known = getattr(around, "keys", {})
        yield from (known[run] for run in runs if run in known)
        runs.append(around.run)
        around = around.around


LEFT_BEHIND = LeftBehind()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LEFT_BEHIND.after_fork)
