"""What an agent raises to end the process ends its turn, also in a task that the agent has started.

`asyncio` lets `SystemExit` and `KeyboardInterrupt` of any task end the event loop. In a server that loop belongs to all sessions.

Invariant: only tasks that are started inside `contained()` differ, and only in how these two leave them.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Context

__all__ = ["contained", "exit_text", "is_ctrl_c"]

_IN_TURN: ContextVar[bool] = ContextVar("holdfast_bridge_in_turn", default=False)


@contextmanager
def contained() -> Iterator[None]:
    """Contain the exits of all tasks that are started in this block, and of those that they start."""
    loop = asyncio.get_running_loop()
    factory: Any = loop.get_task_factory()
    if not isinstance(factory, _Factory):
        loop.set_task_factory(_Factory(factory))
    token = _IN_TURN.set(True)
    try:
        yield
    finally:
        _IN_TURN.reset(token)


def is_ctrl_c(error: BaseException) -> bool:
    """Whether Python's own handler of Ctrl-C may have raised it. `holdfast serve` has a handler that raises nothing."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def exit_text(error: BaseException) -> str:
    """Return what an agent did that raised `SystemExit` or `KeyboardInterrupt`."""
    if isinstance(error, SystemExit):
        return f"the agent called sys.exit({error.code!r})"
    return f"the agent raised {error!r}"


class _Factory:
    """A task factory that calls the one that was there before."""

    def __init__(self, before: Callable[..., asyncio.Future[Any]] | None) -> None:
        self._before = before

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Any, *, context: Context | None = None, **more: Any
    ) -> Any:
        if _IN_TURN.get() if context is None else context.get(_IN_TURN, False):
            coro = _Contained(coro)
        if context is not None:
            more["context"] = context
        return asyncio.Task(coro, loop=loop, **more) if self._before is None else self._before(loop, coro, **more)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine that raises RuntimeError where the one inside raises what would end the event loop."""

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        """Run it up to its next await."""
        try:
            return self._inner.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise self._instead_of(error) from None

    def throw(self, *error: Any) -> Any:
        """Raise an error where it waits."""
        try:
            return self._inner.throw(*error)
        except (SystemExit, KeyboardInterrupt) as raised:
            raise self._instead_of(raised) from None

    def close(self) -> None:
        """End it where it waits."""
        self._inner.close()

    def __await__(self) -> Any:
        raise NotImplementedError("a task drives it")

    def __getattr__(self, name: str) -> Any:
        # Tasks show the name and the frame of what they run.
        return getattr(self._inner, name)

    @staticmethod
    def _instead_of(error: BaseException) -> BaseException:
        return error if is_ctrl_c(error) else RuntimeError(exit_text(error))
