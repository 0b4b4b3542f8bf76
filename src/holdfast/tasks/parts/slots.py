"""How many parts of tasks are performed at once: those of a task, and of its parts that are split again, together.

Invariant: a part that waits for its own parts holds no slot, so they always find one.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Self

    from holdfast.tasks.task import Task

__all__ = ["PartSlot", "Slots"]


class Slots:
    """The slots of one task that was split. `owner` is the task system that performs its parts."""

    def __init__(self, most: int, owner: object) -> None:
        self.owner = owner
        self.free = asyncio.Semaphore(most)


class PartSlot:
    """The slot of one part: `async with slot:` while it is performed.

    failures: of the parts beside it, each with its task. around: the slot of the part that it is a part of.
    """

    def __init__(self, slots: Slots, failures: list[tuple[Task, Exception]], around: PartSlot | None) -> None:
        self.slots = slots
        self.failures = failures
        self.around = around
        self.is_held = False

    async def __aenter__(self) -> Self:
        await self.slots.free.acquire()
        self.is_held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._release()

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Others have the slot inside of this block. After a failure the part does not need it: a split is not tried again."""
        was_held = self.is_held
        self._release()
        yield
        if was_held and not self.is_held:
            await self.__aenter__()

    def fail(self) -> None:
        """Give the slot to the part around, which fails too: nobody else begins before that is known."""
        if self.around is not None and self.is_held and not self.around.is_held:
            self.is_held, self.around.is_held = False, True

    def stopped_by(self) -> Task | None:
        """Return the part beside this one, or beside one around it, that has failed."""
        slot: PartSlot | None = self
        while slot is not None and not slot.failures:
            slot = slot.around
        return None if slot is None else slot.failures[0][0]

    def _release(self) -> None:
        if self.is_held:
            self.is_held = False
            self.slots.free.release()
