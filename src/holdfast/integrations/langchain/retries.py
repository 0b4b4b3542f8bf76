"""Turns LangChain's own retries off on a copy of the model. Where that is not possible, there is a `RecoveryWarning`.

Invariant: nothing changes on the model that was given.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableBinding, RunnableParallel, RunnableSequence
from langchain_core.runnables.retry import RunnableRetry

from holdfast.integrations.clients.client import checked_client
from holdfast.integrations.recovery_warnings import RecoveryWarning, warn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from holdfast.integrations.clients.sdk import Sdk
    from holdfast.runtime.runtime import Runtime

__all__ = ["LAZY_CLIENTS", "checked", "is_bound_model", "warn_of_loops_around", "warn_of_retries_in", "without_retries"]

M = TypeVar("M", bound=BaseChatModel)

LAZY_CLIENTS = ("_client", "_async_client")
"""The attributes in which ChatAnthropic keeps its clients. It makes them when they are first needed."""
_LAZY = ("_client_params", *LAZY_CLIENTS)
_SDKS = frozenset({"openai", "anthropic"})
_EAGER_CLIENTS = (("root_client", "client"), ("root_async_client", "async_client"))
"""The attributes in which ChatOpenAI and its subclasses keep their clients, and the part of each client that they use."""


def without_retries(model: M, runtime: Runtime | None) -> M:
    """Return a copy of the model whose client does not retry. Warn if the client may still retry."""
    retries = getattr(model, "max_retries", None)
    copy = model.model_copy(update={} if retries is None and not _has_clients(model) else {"max_retries": 0})
    held = vars(copy)
    # The copy holds clients that the model made before, with their retries. Remove them, so that it makes new clients.
    for name in _LAZY:
        held.pop(name, None)
    for root, part in _EAGER_CLIENTS:
        client: Any = held.get(root)
        if hasattr(client, "with_options"):
            held[root] = checked(client, runtime)
            held[part] = held[root].chat.completions
    if retries and not _is_known(model):
        warn(
            f"{type(model).__name__} has max_retries={retries}, and its client may already use that value: "
            "give the model max_retries=0",
        )
    return copy


def checked(client: Any, runtime: Runtime | None, retries: int | None = None) -> Any:
    """Return the client without its own retries. A client of the two SDKs also raises for a response that is a failure.

    While recovery is off, a client of the two SDKs has the given retries, by default its own.
    """
    name = next((name for cls in type(client).__mro__ if (name := cls.__module__.partition(".")[0]) in _SDKS), None)
    if name is None:
        return client.with_options(max_retries=0)
    # We only know that the SDK of this client is installed, so only that SDK's module may be imported.
    sdk: Sdk = getattr(import_module(f"holdfast.integrations.clients.{name}"), name.upper())
    return checked_client(client, sdk, runtime, retries)


def _has_clients(model: Any) -> bool:
    return any(hasattr(model, root) for root, _ in _EAGER_CLIENTS)


def _is_known(model: Any) -> bool:
    """Return whether this model keeps its clients in one of the two ways above. Then its retries are off."""
    return _has_clients(model) or all(hasattr(type(model), name) for name in _LAZY)


def warn_of_retries_in(runnable: Any) -> None:
    """Warn of every part that retries by itself inside a runnable that recovers as a whole."""
    for part in _parts(runnable, depth=8):
        if isinstance(part, RunnableRetry):
            warn(
                f"with_retry inside retries up to {part.max_attempt_number} times by itself, so attempts multiply: "
                "remove one of the two",
            )
        elif isinstance(part, BaseChatModel) and not hasattr(part, "recovery"):
            # None means the SDK's default, which is two retries.
            retries = getattr(part, "max_retries", 0)
            if retries or (retries is None and _has_clients(part)):
                warn(
                    f"{type(part).__name__} inside retries by itself (max_retries={retries}), so attempts multiply: "
                    "recover the model, or give it max_retries=0",
                )


def _parts(runnable: Any, depth: int) -> Iterator[Any]:
    """Yield the runnable and the runnables it consists of."""
    yield runnable
    # The depth is limited, because a wrapper of another package may refer to itself.
    if not depth:
        return
    inner: list[Any] = []
    if isinstance(runnable, RunnableSequence):
        inner = list(runnable.steps)
    elif isinstance(runnable, RunnableParallel):
        inner = list(runnable.steps__.values())
    else:
        # Bindings, retries and fallbacks keep the runnable inside under these names. Wrappers of other packages may too.
        inner = [*_held(runnable, "bound"), *_held(runnable, "runnable"), *_held(runnable, "fallbacks")]
    for one in inner:
        yield from _parts(one, depth - 1)


def _held(runnable: Any, name: str) -> list[Any]:
    held = vars(runnable).get(name) if hasattr(runnable, "__dict__") else None
    if held is None:
        return []
    return list(held) if isinstance(held, (list, tuple)) else [held]


def is_bound_model(runnable: Any) -> bool:
    """Return whether a runnable is a chat model with arguments bound to it, such as tools."""
    return (
        isinstance(runnable, RunnableBinding)
        and not isinstance(runnable, RunnableRetry)
        and isinstance(runnable.bound, BaseChatModel)
    )


# --- loops around a recovery ---

_LOOPS = {
    ("langchain_core.runnables.retry", "_invoke"): ".with_retry()",
    ("langchain_core.runnables.retry", "_ainvoke"): ".with_retry()",
    ("langchain.agents.middleware.model_retry", "wrap_model_call"): "ModelRetryMiddleware",
    ("langchain.agents.middleware.model_retry", "awrap_model_call"): "ModelRetryMiddleware",
}
"""The functions of LangChain that call what is inside them again: module and name."""
_MAX_STACK = 400
_MAX_TASKS = 20


def warn_of_loops_around() -> bool:
    """Warn, at the user's line, if one of LangChain's loops is around the caller; return whether there is one."""
    frames = list(_frames_around())
    loops = ((index, _LOOPS.get((_module(frame), frame.f_code.co_name))) for index, frame in enumerate(frames))
    index, who = next(((index, who) for index, who in loops if who is not None), (0, None))
    if who is None:
        return False
    # The user's line is around the loop. Where a task has none, it is the line that runs the event loop.
    around = (frame for frame in (*frames[index:], *frames[:index]) if not _is_library(frame))
    line = next(around, frames[index])
    warnings.warn_explicit(
        f"{who} around a recovery calls it again after it has given up, so attempts multiply: remove one of the two",
        RecoveryWarning,
        line.f_code.co_filename,
        line.f_lineno,
        _module(line),
        line.f_globals.setdefault("__warningregistry__", {}),
    )
    return True


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_library(frame: FrameType) -> bool:
    root = _module(frame).partition(".")[0]
    return root == "holdfast" or root in sys.stdlib_module_names or "site-packages" in frame.f_code.co_filename


def _frames_around() -> Iterator[FrameType]:
    """Yield the frames around the caller, innermost first, and then those of the tasks that wait for it.

    LangChain makes async calls in tasks of their own, so the loop that started a call is not on its stack.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the public functions for the stack read source files, which is slow
    for _ in range(_MAX_STACK):
        if frame is None:
            break
        yield frame
        frame = frame.f_back
    task = _current_task()
    for _ in range(_MAX_TASKS):
        task = None if task is None else next((one for one in asyncio.all_tasks() if _awaits(one, task)), None)
        if task is None:
            return
        yield from reversed(list(_frames_of(task)))


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _awaits(one: asyncio.Task[Any], other: asyncio.Task[Any]) -> bool:
    # `gather` puts a future of its own between the two.
    awaited = getattr(one, "_fut_waiter", None)
    return awaited is other or other in (getattr(awaited, "_children", None) or ())


def _frames_of(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """Yield the frames of a task that waits, outermost first."""
    awaited: Any = task.get_coro()
    for _ in range(_MAX_STACK):
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is None:
            return
        yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
