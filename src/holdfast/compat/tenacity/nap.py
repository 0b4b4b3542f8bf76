"""How retries sleep. Tests may replace `nap.time.sleep` or `nap.sleep`, as they do with tenacity."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from holdfast._lazy import lazy_module
from holdfast.runtime.runtime import SystemClock, default_runtime

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = ["sleep", "sleep_async", "sleep_using_event"]


class _Event(Protocol):
    def wait(self, timeout: float | None = None) -> Any: ...


def sleep(seconds: float) -> None:
    """Sleep in this thread, on the clock of the default runtime. This is the default of `sleep=`.

    For example:
        monkeypatch.setattr("holdfast.compat.tenacity.nap.time.sleep", lambda seconds: None)
    """
    runtime = default_runtime()
    if runtime.waits and isinstance(runtime.clock, SystemClock):
        # Looked up in the module, so that a test that replaces it there is obeyed.
        time.sleep(seconds)
    else:
        runtime.sleep(seconds)


def sleep_async(seconds: float) -> Awaitable[None]:
    """Return the awaitable that sleeps in a task, of asyncio or of trio."""
    seconds = seconds if default_runtime().waits else 0
    trio = sys.modules.get("trio")
    # If trio is not imported, it does not run this task.
    if trio is not None and trio.lowlevel.in_trio_run():
        awaitable: Awaitable[None] = trio.sleep(seconds)
        return awaitable
    # A sleep of zero seconds still lets other tasks run.
    return asyncio.sleep(seconds)


class sleep_using_event:
    """A sleep that ends early when the event is set.

    For example:
        stopping = threading.Event()
        Retrying(sleep=sleep_using_event(stopping), stop=stop_when_event_set(stopping))(fetch)
    """

    def __init__(self, event: _Event) -> None:
        self.event = event

    def __call__(self, seconds: float) -> None:
        self.event.wait(timeout=seconds)
