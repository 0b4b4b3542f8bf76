"""One connection to an MCP server, the task that holds it, and the callers that wait for it.

A session must be left in the task that entered it, so a task of its own holds each connection.

Invariant: a caller that is cancelled is released at once. What takes longer to close is closed without it.
"""

from __future__ import annotations

import asyncio
import copy
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.ambient import AMBIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

__all__ = ["ENDED", "Connecting", "McpConnection"]

ENDED = "_holdfast_ended"
"""The attribute of a session with a future that is done when the server has gone. Our own transport sets it."""


class McpConnection:
    """One connection and the task that holds it."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self.session: Any = None
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(connect))

    @classmethod
    async def opened(cls, connect: Callable[[], AbstractAsyncContextManager[Any]]) -> McpConnection:
        """Return a connection that is ready. Raises what connecting raises."""
        connection = cls(connect)
        try:
            # Shielded: a caller that is cancelled must not leave a future behind that nobody may set.
            connection.session = await asyncio.shield(connection._ready)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def over(self) -> bool:
        """Whether the server has gone, or the task that holds the connection has ended."""
        ended = getattr(self.session, ENDED, None)
        return self._task.done() or (ended is not None and ended.done())

    @property
    def closed(self) -> bool:
        """Whether nothing is left of it."""
        return self._task.done()

    def leave(self) -> None:
        """Let the task leave the session. What a dead session raises when it is left is not the caller's concern."""
        self._leave.set()
        if not self._ready.done():
            self._task.cancel()

    async def close(self) -> None:
        """Leave the session, and wait until it has ended."""
        self.leave()
        await asyncio.wait([self._task])

    async def _hold(self, connect: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        try:
            async with connect() as session:
                self._ready.set_result(session)
                await self._leave.wait()
        except BaseException as error:
            if self._ready.done():
                # The connection ended by itself. The next attempt notices that and connects again.
                return
            if not isinstance(error, Exception):
                self._ready.cancel()
                raise
            self._ready.set_exception(_alone(error))


class Connecting:
    """A connection that is being made. All callers wait for the same one; it is given up when the last of them has left.

    `work` makes it, in a task of its own. It belongs to no caller: the budget of the first one must not end it for the others.
    """

    def __init__(self, work: Coroutine[Any, Any, McpConnection], server: str) -> None:
        context = copy_context()
        context.run(AMBIENT.set, None)
        self._server = server
        self._task = asyncio.get_running_loop().create_task(work, context=context)
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = 0
        self._is_raised = False

    @property
    def over(self) -> bool:
        """Whether it has succeeded, has failed or was given up."""
        return self._task.done() or self._left.done()

    @property
    def closed(self) -> bool:
        """Whether nothing is left of it."""
        return self._task.done()

    async def wait(self) -> McpConnection:
        """Return the connection. Raises what connecting raises, and TOOL_CONNECTION_LOST if it was given up."""
        ends: set[asyncio.Future[Any]] = {self._task, self._left}
        self._waiting += 1
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1
            if not self._waiting and not self.over:
                self.leave()
        if self._left.done():
            message = f"The session with tool server {self._server} was left while it connected"
            context = {"server": self._server}
            raise HoldfastError(
                Fault.of("TOOL_CONNECTION_LOST", message, retryable=False, maybe_executed=False, context=context)
            )
        error = self._task.exception()
        if isinstance(error, Exception):
            raise self._error_of_one(error)
        return self._task.result()

    def leave(self) -> None:
        """Give it up. Callers that wait are released at once."""
        if not self.over:
            self._left.set_result(None)
            self._task.cancel()

    async def close(self) -> None:
        """Give it up, and wait until nothing is left of it."""
        self.leave()
        await asyncio.wait([self._task])

    def _error_of_one(self, error: Exception) -> Exception:
        """Return the error for one caller. Each gets an object of its own, on which its recovery leaves its account."""
        if not self._is_raised:
            self._is_raised = True
            return error
        try:
            other = copy.copy(error)
        except Exception:  # noqa: BLE001 - a foreign exception may not be made to be copied
            return error
        if type(other) is not type(error):
            return error
        other.__cause__, other.__suppress_context__ = error.__cause__, error.__suppress_context__
        return other.with_traceback(error.__traceback__)


def _alone(error: Exception) -> Exception:
    """Return the error itself: the SDK's sessions and transports have task groups, which wrap a single error in a group."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
