"""The open connections of a listening socket: all of them end when the crash test ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Links:
    """Serves connections, and closes them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    def serving(self, serve: Serve) -> Serve:
        """Return the handler of a server: it serves a connection and closes it."""

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await serve(reader, writer)
            except (ConnectionError, asyncio.CancelledError):
                # The program was killed, or the test is over.
                pass
            finally:
                self._tasks.discard(task)
                writer.close()

        return handle

    def add(self, server: asyncio.Server) -> None:
        """Close this server, too."""
        self._servers.append(server)

    async def close(self) -> None:
        """Stop to listen, and end what is served."""
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The transports close in the next round of the loop.
        await asyncio.sleep(0)
