"""Call a plain function in a thread, from a task.

A thread cannot be stopped. When its caller is cancelled, the thread is left behind and counted until it ends by itself; beyond a
cap no new thread of the same owner is started. What it calls can ask `begin_effect` before it changes anything: whoever was left behind changes nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.callables import is_async
from holdfast.runtime.failures.left_behind import LEFT_BEHIND, OURS
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.tool import call_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.runtime.limits import AbandonedThreads
    from holdfast.runtime.runtime import Runtime

__all__ = ["begin_effect", "call_function", "call_in_thread"]


def begin_effect() -> None:
    """What follows changes something. Raise TOOL_CANCELLED if the caller has gone; from here on its cancellation waits for the end."""
    call = _CALL.get()
    if call is not None:
        call.begin_effect()


async def call_function(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    runtime: Runtime | None = None,
    name: str = "",
    owner: str = "",
) -> Any:
    """Call a function and return its result. A plain one may block, so it runs in a thread: see `call_in_thread`."""
    if is_async(fn):
        return await fn(*args, **kwargs)
    abandoned = (runtime or default_runtime()).abandoned_threads
    value = await call_in_thread(abandoned, lambda: fn(*args, **kwargs), name=name, owner=owner)
    return await value if inspect.isawaitable(value) else value


async def call_in_thread(
    abandoned: AbandonedThreads, call: Callable[[], Any], *, name: str = "", owner: str = ""
) -> Any:
    """Return what `call` returns in a thread of its own. It runs in the context of the caller, and raises what `call` raises.

    A call with a name begins when no thread with that name is left behind any more. `owner`: whose threads it counts among, such as a
    tool's.
    """
    # A loop with virtual time does not see threads that it did not start.
    hold = getattr(asyncio.get_running_loop(), "hold", nullcontext)
    while name and (left := abandoned.named.get(name)) is not None:
        with hold():
            await asyncio.wrap_future(left)
    abandoned.check(owner)
    running = _ThreadCall(abandoned, call, name, owner)
    # A daemon thread does not hold up the interpreter's exit.
    threading.Thread(
        target=contextvars.copy_context().run, args=(running.run,), daemon=True, name=f"{OURS}tool"
    ).start()
    try:
        with hold():
            return await running.done
    finally:
        if not running.leave(unless_it_changes=True):
            try:
                await asyncio.wait((asyncio.wrap_future(running.ended),))
            finally:
                running.leave()


class _ThreadCall:
    """A call in its thread. What both threads change is changed under the lock."""

    def __init__(self, abandoned: AbandonedThreads, call: Callable[[], Any], name: str, owner: str) -> None:
        self._abandoned = abandoned
        self._owner = owner
        self._call = call
        self._name = name
        self._key = call_key()
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Any] = self._loop.create_future()
        self.ended: Future[None] = Future()
        # So that nobody who waits for it can cancel it.
        self.ended.set_running_or_notify_cancel()
        self._is_over = False
        self._is_abandoned = False
        self._changes = False
        """It has begun to change something, and will have done so in a moment."""

    def run(self) -> None:
        value, error = None, None
        _CALL.set(self)
        try:
            value = self._call()
        except BaseException as raised:  # noqa: BLE001 - it is raised in the caller's task
            error = raised
        abandoned = self._abandoned
        with abandoned.lock:
            self._is_over = True
            if self._is_abandoned:
                abandoned.remove(self._owner)
                LEFT_BEHIND.remove(self._key)
            if abandoned.named.get(self._name) is self.ended:
                del abandoned.named[self._name]
        self.ended.set_result(None)
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(_settle, self.done, value, error)

    def begin_effect(self) -> None:
        with self._abandoned.lock:
            if self._is_abandoned:
                raise HoldfastError(Fault.of("TOOL_CANCELLED", maybe_executed=False))
            self._changes = True

    def leave(self, *, unless_it_changes: bool = False) -> bool:
        """Leave the thread behind if it still runs. Return False if its caller has to wait for its end instead."""
        abandoned = self._abandoned
        with abandoned.lock:
            if self._is_over:
                return True
            if self._changes and unless_it_changes:
                return False
            self._is_abandoned = True
            abandoned.add(self._owner)
            LEFT_BEHIND.add(self._key)
            if self._name:
                abandoned.named[self._name] = self.ended
        return True


_CALL: ContextVar[_ThreadCall | None] = ContextVar("holdfast_tool_thread", default=None)


def _settle(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if isinstance(error, StopIteration | GeneratorExit):
        # A future cannot hold the one, and the other would close the coroutine that waits for it.
        error = RuntimeError(f"the tool raised {error!r}")
    if error is None:
        done.set_result(value)
    else:
        done.set_exception(error)
