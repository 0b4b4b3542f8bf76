"""Call a plain function in a thread, from a task.

A thread cannot be stopped. When its caller is cancelled, the thread is left behind and counted until it ends by itself; beyond a
cap no new thread is started.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.limits import MOST_ABANDONED

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.limits import AbandonedThreads

__all__ = ["call_in_thread"]


async def call_in_thread(abandoned: AbandonedThreads, call: Callable[[], Any], *, name: str = "") -> Any:
    """Return what `call` returns in a thread of its own. It runs in the context of the caller, and raises what `call` raises.

    A call with a name begins when no thread with that name is left behind any more.
    """
    # A loop with virtual time does not see threads that it did not start.
    hold = getattr(asyncio.get_running_loop(), "hold", nullcontext)
    while name and (left := abandoned.named.get(name)) is not None:
        with hold():
            await asyncio.wrap_future(left)
    if abandoned.count >= MOST_ABANDONED:
        context = {"limit": MOST_ABANDONED, "name": "calls that never returned"}
        raise HoldfastError(Fault.of("SYS_BULKHEAD_FULL", retryable=False, context=context))
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    state = _State()
    thread_ended: Future[None] = Future()
    # So that nobody who waits for it can cancel it.
    thread_ended.set_running_or_notify_cancel()

    def work() -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as raised:  # noqa: BLE001 - it is raised in the caller's task
            error = raised
        with abandoned.lock:
            state.over = True
            abandoned.count -= state.abandoned
            if abandoned.named.get(name) is thread_ended:
                del abandoned.named[name]
        thread_ended.set_result(None)
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(_settle, done, value, error)

    # A daemon thread does not hold up the interpreter's exit.
    threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True, name="holdfast-tool").start()
    try:
        with hold():
            return await done
    finally:
        with abandoned.lock:
            if not state.over:
                state.abandoned = True
                abandoned.count += 1
                if name:
                    abandoned.named[name] = thread_ended


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
