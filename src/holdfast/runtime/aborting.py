"""An operation whose caller may call it off with a signal of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.runtime import errors
from holdfast.runtime.operation import Operation

if TYPE_CHECKING:
    from holdfast.runtime.abort import Abort
    from holdfast.runtime.plan import Plan

__all__ = ["AbortableOperation"]


class AbortableOperation(Operation):
    """Looks at the signal before every attempt; only operations that were given one pay for the look."""

    def __init__(self, plan: Plan, abort: Abort) -> None:
        super().__init__(plan)
        self.abort: Abort = abort

    def admit(self) -> None:
        """Begin an attempt, unless the caller has called it off."""
        if self.abort.is_set():
            raise errors.aborted(self)
        super().admit()
