"""`PartStream`: the parts of a run as they come, from work that runs in a task of its own.

Invariant: leaving the block ends the work first. At most `_MOST` parts wait for a slow reader, then the work waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from holdfast.agents.parts import Done

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType

    from holdfast.agents.parts import AgentPart
    from holdfast.agents.reply import AgentReply

__all__ = ["PartStream", "Parts"]

_MOST = 64


class Parts:
    """Takes the parts of one run. This one lets them go: `run` needs only the reply."""

    def put(self, part: AgentPart) -> None:
        """Take a part. It never waits, so that handlers of events may call it."""

    async def room(self) -> None:
        """Wait while the reader is behind."""


class PartStream(Parts):
    """The parts of one run, for `async with agent.stream(prompt) as parts`."""

    def __init__(self, work: Callable[[Parts], Awaitable[AgentReply]]) -> None:
        self._work = work
        self._waiting: deque[AgentPart] = deque()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def put(self, part: AgentPart) -> None:
        """Take a part."""
        self._waiting.append(part)
        self._changed.set()

    async def room(self) -> None:
        """Wait while the reader is behind."""
        while len(self._waiting) >= _MOST:
            self._taken.clear()
            await self._taken.wait()

    async def __aenter__(self) -> AsyncIterator[AgentPart]:
        self._task = asyncio.ensure_future(self._run())
        return self._parts()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = self._task
        assert task is not None
        task.cancel()
        # If this task is cancelled meanwhile, the work must still have ended before the block is left.
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                await asyncio.wait((task,))
                raise
        if not task.cancelled():
            task.exception()

    async def _run(self) -> None:
        try:
            self.put(Done(reply=await self._work(self)))
        finally:
            self._changed.set()

    async def _parts(self) -> AsyncIterator[AgentPart]:
        task = self._task
        assert task is not None
        while True:
            while self._waiting:
                part = self._waiting.popleft()
                self._taken.set()
                yield part
            if task.done():
                # The error of the work surfaces where the parts are read, after the last of them.
                task.result()
                return
            self._changed.clear()
            if not self._waiting:
                waiter = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait((waiter, task), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiter.cancel()
