"""The scope of a call: the deadline and the budget that hold for everything inside the call.

Invariant: a scope never allows more than the scope around it. If a task outlives the call that started it, the task
leaves the scope of that call and stays in the scope around it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, TypeAlias

from holdfast._platform import after_fork

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.policies.queue import Priority
    from holdfast.runtime.budgets.budget import Budget
    from holdfast.runtime.operation.operation import Operation

__all__ = [
    "AMBIENT",
    "WAITING",
    "Ambient",
    "Monotonic",
    "caller_of",
    "in_force",
    "new_run",
    "on_clock",
    "outwards",
    "priority_of",
]

Monotonic: TypeAlias = Callable[[], float]
"""The `monotonic` of a runtime's clock."""


class Ambient(Protocol):
    """The scope that a nested call reads: an operation under way, or a budget."""

    def deadline_on(self, monotonic: Monotonic) -> float | None:
        """Return until when attempts inside may start, as a reading of the given clock; None: at any time."""
        ...

    def cut_on(self, monotonic: Monotonic) -> float | None:
        """Return when everything inside must be over, as a reading of the given clock; None: nothing is cut."""
        ...

    @property
    def budget(self) -> Budget | None:
        """The innermost ledger that attempts are charged to."""
        ...

    @property
    def run(self) -> str:
        """The id that its events carry; empty for a budget outside of an operation."""
        ...

    @property
    def over(self) -> bool:
        """Whether it has ended; tasks that were started in it may go on."""
        ...

    @property
    def around(self) -> Ambient | None:
        """The scope around this one; None if there is none."""
        ...


# Tasks copy their context variables when they start, so a new task is in the scope without any argument.
AMBIENT: ContextVar[Ambient | None] = ContextVar("holdfast_ambient", default=None)
WAITING: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar("holdfast_waiting", default=nullcontext)
"""Entered while the work inside waits for a person. This is how a task knows that it is blocked."""


def in_force(around: Ambient | None) -> Ambient | None:
    """Return the innermost scope, from this one outwards, that is not over."""
    while around is not None and around.over:
        around = around.around
    return around


def on_clock(deadline: float | None, own: Monotonic, other: Monotonic) -> float | None:
    """Return a deadline, a reading of the clock `own`, as a reading of the clock `other`."""
    # Each runtime has its own clock, and readings of two clocks cannot be compared. So only the time that is left is
    # carried over.
    if deadline is None or own == other:
        return deadline
    return other() + (deadline - own())


_runs = itertools.count(1)
_process = os.urandom(4).hex()


def new_run() -> str:
    """Return the name of a new run: what correlates the events of one operation. No other process gives the same names."""
    return f"{_process}-{next(_runs):x}"


def _new_process() -> None:
    global _process  # noqa: PLW0603 - a forked worker would repeat its parent's names
    _process = os.urandom(4).hex()


after_fork(_new_process)


def caller_of(op: Operation) -> int:
    """Return who calls: the outermost recovery. Two functions around one client are two callers."""
    while op.outer is not None and not op.outer.over:
        op = op.outer
    return op.plan.caller


def priority_of(op: Operation) -> Priority:
    """Return the priority of an operation: that of its policy; inside another one, where nobody chose one, that of the other.

    A batch is a batch through every client that it calls.
    """
    while op.plan.policy.priority == "normal" and op.outer is not None and not op.outer.over:
        op = op.outer
    return op.plan.policy.priority


def outwards(op: Operation) -> Iterator[Operation]:
    """Yield an operation and those around it, the innermost first."""
    each: Operation | None = op
    while each is not None:
        yield each
        each = each.outer
