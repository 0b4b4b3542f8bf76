"""The event loop that waits and time limits need: asyncio's. Which task or thread makes a call."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from holdfast._lazy import lazy_module
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    import asyncio
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = ["ThreadOwner", "is_abandoned", "present_owner", "running_loop", "runs_loop"]


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop. Raises `InvalidError` where another library, such as Trio, runs the coroutine."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise InvalidError.saying(
            "recover",
            "an asyncio event loop (`asyncio.run`, uvloop, or AnyIO with its asyncio backend); a sync function works under Trio too, "
            "in `trio.to_thread.run_sync`",
            "a coroutine outside of asyncio, such as one that Trio runs",
        ) from error


def runs_loop() -> bool:
    """Return whether this thread runs an event loop. Waiting here would stop the very calls whose end is waited for."""
    # asyncio is loaded with the first async call. Before that no event loop runs.
    if "asyncio" not in sys.modules:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class ThreadOwner:
    """A thread that makes calls. It is equal to any other object for the same thread."""

    __slots__ = ("_thread",)

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ThreadOwner) and self._thread is other._thread

    def __hash__(self) -> int:
        return hash(self._thread)

    def done(self) -> bool:
        """Whether the thread has ended, as a task says it of itself."""
        return not self._thread.is_alive()


def present_owner() -> object:
    """Return the task or thread that makes a call. While it waits, nothing else that it has begun goes on."""
    if "asyncio" in sys.modules:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is not None:
            return task
    return ThreadOwner(threading.current_thread())


def is_abandoned(owner: object) -> bool:
    """Return whether an owner is a task whose event loop was closed before the task had ended: nothing ends its calls any more."""
    if isinstance(owner, ThreadOwner) or "asyncio" not in sys.modules:
        return False
    return isinstance(owner, asyncio.Task) and not owner.done() and owner.get_loop().is_closed()
