"""One connection to an MCP server, and the task that holds it.

A session must be left in the task that entered it, so a task of its own holds each connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

__all__ = ["ENDED", "Connection"]

ENDED = "_holdfast_ended"
"""The attribute of a session with a future that is done when the server has gone. Our own transport sets it."""


class Connection:
    """One connection and the task that holds it."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self.session: Any = None
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(connect))

    @classmethod
    async def opened(cls, connect: Callable[[], AbstractAsyncContextManager[Any]]) -> Connection:
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


def _alone(error: Exception) -> Exception:
    """Return the error itself: the SDK's sessions and transports have task groups, which wrap a single error in a group."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
