"""Where a task stands among tasks: how deep it is nested, and what it is a part of.

Invariant: a chain of tasks has no task twice and is never deeper than its limit. What is called inside a task is below it, also through
an agent and its tools.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.policies.profiles import TASK
from holdfast.tasks.parts.slots import PartSlot
from holdfast.tasks.task import DataUsage

if TYPE_CHECKING:
    from holdfast.tasks.task import Task

__all__ = ["DEPTH", "HARD_DEPTH", "HERE", "TaskPlace", "UsageMeter", "check_depth"]

DEPTH = int(TASK.limits["depth"])
"""How deep subtasks are nested at most, by default."""
HARD_DEPTH = 10
"""The most that can be configured."""


class UsageMeter:
    """Counts what a task uses in all of its tries, and what the tasks use that it starts."""

    __slots__ = ("_around", "usage")

    def __init__(self, around: UsageMeter | None = None) -> None:
        self.usage = DataUsage()
        self._around = around

    def add(self, prompt: int, output: int) -> None:
        """Count an answer, with the tokens of its prompt and its own."""
        self.usage = self.usage.with_answer(prompt, output)
        if self._around is not None:
            self._around.add(prompt, output)


class TaskPlace(msgspec.Struct, frozen=True):
    """The place of one task in its chain."""

    depth: int = 0
    """0: the task that was given to the system."""
    splits: int = 0
    """How often the task that this is a part of was split."""
    limit: int = DEPTH
    chain: tuple[tuple[str, str], ...] = ()
    """Signature and title of each task above it, the outermost first."""
    background: str = ""
    """What the tasks above know."""
    slot: PartSlot | None = None
    """Of the part that it is, or is in."""
    meter: UsageMeter = msgspec.field(default_factory=UsageMeter)
    """Of the task that is here."""

    def metered(self) -> TaskPlace:
        """Return the place with a meter of its own."""
        return msgspec.structs.replace(self, meter=UsageMeter(self.meter))

    def below(self, task: Task, *, background: str = "", is_split: bool = False) -> TaskPlace:
        """Return the place of what `task`, which is here, starts."""
        return TaskPlace(
            depth=self.depth + 1,
            splits=self.splits + is_split,
            limit=self.limit if task.max_depth is None else min(self.limit, self.depth + task.max_depth),
            chain=(*self.chain, (task.signature, task.title)),
            background=background,
            slot=self.slot,
            meter=self.meter,
        )

    def check(self, task: Task) -> None:
        """Raise TASK_DEPTH_EXCEEDED or TASK_CYCLE if the task may not stand here."""
        titles = [title for _, title in self.chain]
        if self.depth > self.limit:
            context = {"limit": self.limit, "chain": [*titles, task.title]}
            raise HoldfastError(Fault.of("TASK_DEPTH_EXCEEDED", context=context))
        for place, (signature, _) in enumerate(self.chain):
            if signature == task.signature:
                chain = " → ".join([*titles[place:], task.title])
                raise HoldfastError(
                    Fault.of("TASK_CYCLE", f"The task asks for itself: {chain}", context={"chain": titles})
                )


def check_depth(limit: Any) -> int:
    """Return the limit, or raise `InvalidError`."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= HARD_DEPTH:
        raise InvalidError.at("tasks.max_depth", f"a number from 0 to {HARD_DEPTH}", limit)
    return limit


HERE: ContextVar[TaskPlace | None] = ContextVar("holdfast_task_place", default=None)
"""The place below the task that is being performed."""
