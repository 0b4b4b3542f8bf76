"""`TargetWait`: how one operation waits for its targets, from the first time that a circuit or a limit rejects it.

Invariant: an operation keeps its turn over all its waits, until it was a probe that failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.policies.circuit import Rejection
from holdfast.policies.decide import stays_open

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.circuit import Permit
    from holdfast.policies.queue import Priority, QueueTurn
    from holdfast.runtime.operation.plan import Plan
    from holdfast.runtime.targets.target_state import TargetState

__all__ = ["TargetWait"]


class TargetWait:
    """The place of one operation among those that wait for a target."""

    __slots__ = ("_caller", "_held_since", "_priority", "_target", "_turns", "in_vain", "is_first")

    def __init__(self, priority: Priority, caller: int) -> None:
        self._priority = priority
        self._caller = caller
        self._turns: dict[TargetState, QueueTurn] = {}
        """Its turn at each target that it has asked."""
        self._target: TargetState | None = None
        """The target that rejected it last, until the wait for that is over."""
        self.is_first = False
        """No other caller waits for the circuit that rejected it."""
        self.in_vain = False
        """That circuit was opened by a failure that does not pass by itself."""
        self._held_since: float | None = None
        """Since when it waits for its turn where the plain client would have made its attempt at once."""

    def request(self, plan: Plan, state: TargetState, now: float, tries: int, *, forced: bool) -> Permit | Rejection:
        """Request a permit from a target, and remember the target that rejects. `tries`, `forced`: see `TargetState.admit`."""
        turn = self._turns.get(state)
        if turn is None:
            turn = self._turns[state] = state.take_turn(self._priority, self._caller)
        answer = state.admit(
            now,
            turn,
            queues=plan.runtime.waits,
            limited_as=plan.limited_as,
            tries=tries,
            low=self._priority == "low",
            forced=forced,
        )
        if isinstance(answer, Rejection):
            self._target, self.in_vain = state, stays_open(answer.reason)
            since = now if self._held_since is None else self._held_since
            self._held_since = since if answer.holds else None
        elif self._held_since is not None:
            answer.waited, self._held_since = now - self._held_since, None
        return answer

    def probe_failed(self) -> None:
        """Its probe failed. Others go before it now: a request that always fails must not be the probe each time."""
        self.is_first = True
        for state in self._turns:
            self._turns[state] = state.take_turn(self._priority, self._caller)

    def join(self, wake: Callable[[], None]) -> None:
        """The wait begins; `wake` ends it as soon as the target may be called."""
        if self._target is not None:
            self._target.join(self._turns[self._target], wake)

    def leave(self, now: float, *, is_cut: bool) -> None:
        """The wait is over. `is_cut`: the caller did not wait any longer."""
        target, self._target = self._target, None
        if target is not None:
            target.leave(self._turns[target], now, is_lost=is_cut and self._held_since is not None)
