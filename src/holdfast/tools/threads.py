"""Call a plain function in a thread, from a task.

A thread cannot be stopped. When its caller is cancelled, the thread is left behind and counted until it ends by itself; beyond a
cap no new thread is started.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.limits import MOST_ABANDONED

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.limits import AbandonedThreads

__all__ = ["call_in_thread"]


async def call_in_thread(abandoned: AbandonedThreads, call: Callable[[], Any]) -> Any:
    """Return what `call` returns in a thread of its own. It runs in the context of the caller, and raises what `call` raises."""
    if abandoned.count >= MOST_ABANDONED:
        context = {"limit": MOST_ABANDONED, "name": "calls that never returned"}
        raise HoldfastError(Fault.of("SYS_BULKHEAD_FULL", retryable=False, context=context))
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    state = _State()

    def work() -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as raised:  # noqa: BLE001 - it is raised in the caller's task
            error = raised
        with abandoned.lock:
            state.over = True
            abandoned.count -= state.abandoned
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(_settle, done, value, error)

    # A daemon thread does not hold up the interpreter's exit.
    threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True, name="holdfast-tool").start()
    try:
        # A loop with virtual time does not see threads that it did not start.
        with getattr(loop, "hold", nullcontext)():
            return await done
    finally:
        with abandoned.lock:
            if not state.over:
                state.abandoned = True
                abandoned.count += 1


class _State:
    over = False
    abandoned = False


def _settle(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if isinstance(error, StopIteration):
        # A future cannot hold it.
        error = RuntimeError(f"the tool raised {error!r}")
    if error is None:
        done.set_result(value)
    else:
        done.set_exception(error)
