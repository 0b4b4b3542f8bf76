"""`TargetWait`: how one operation waits for its targets, from the first time that a circuit or a limit rejects it.

Invariant: an operation has one turn, which it keeps over all its waits: nobody who came later goes before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.policies.circuit import Rejection
from holdfast.policies.decide import stays_open
from holdfast.policies.queue import turn_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.circuit import Permit
    from holdfast.runtime.plan import Plan
    from holdfast.runtime.registry import TargetState

__all__ = ["TargetWait"]


class TargetWait:
    """The place of one operation among those that wait for a target."""

    __slots__ = ("_target", "_turn", "in_vain", "is_first")

    def __init__(self, plan: Plan, arrived: float) -> None:
        self._turn = turn_of(arrived, plan.policy.priority)
        self._target: TargetState | None = None
        """The target that rejected it last, until the wait for that is over."""
        self.is_first = False
        """No other caller waits for the circuit that rejected it."""
        self.in_vain = False
        """That circuit was opened by a failure that does not pass by itself."""

    def request(self, plan: Plan, state: TargetState, now: float) -> Permit | Rejection:
        """Request a permit from a target, and remember the target that rejects."""
        answer = state.admit(now, self._turn, queues=plan.runtime.waits, limited_as=plan.limited_as)
        if isinstance(answer, Rejection):
            self._target, self.in_vain = state, stays_open(answer.reason)
        return answer

    def join(self, wake: Callable[[], None]) -> None:
        """The wait begins; `wake` ends it as soon as the target may be called."""
        if self._target is not None:
            self._target.join(self._turn, wake)

    def leave(self, now: float) -> None:
        """The wait is over."""
        target, self._target = self._target, None
        if target is not None:
            target.leave(self._turn, now)
