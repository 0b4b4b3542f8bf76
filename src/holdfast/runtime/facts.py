"""The facts about a failed attempt, gathered from the operation, its plan and the target, for the decision machine.

Invariant: gathering changes nothing. The decision itself may: it takes a retry from the quota.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.faults import Fault
from holdfast.policies.decide import BEFORE_FALLBACK, BEFORE_LESSER_ANSWER, Facts
from holdfast.runtime.budget import is_budget_spent
from holdfast.runtime.callables import used_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.callables import Request

__all__ = ["Untried", "facts_of", "is_alone", "is_of_tool", "waits_for_circuit"]

_REJECTED = Fault.of("CIRCUIT_OPEN")
"""What the condition of a fallback is checked with before a call is made: the call is rejected, or there is nothing to answer."""


class Untried(Protocol):
    """The fallbacks of an operation that were not tried yet."""

    @property
    def has_last_resort(self) -> bool:
        """Whether a degraded answer or a notification comes when nothing else has answered."""
        ...

    @property
    def has_lesser_answer(self) -> bool:
        """Whether a degraded answer comes when nothing else has answered."""
        ...

    def could_answer(self, op: Any, fault: Fault) -> bool:
        """Whether one of them could answer this failure of the `Operation` now."""
        ...


def facts_of(op: Any, error: Exception, fault: Fault, now: float, request: Request | None) -> Facts:
    """Return what is known when an attempt has failed, or was rejected before it was made.

    `op` is the `Operation`; `request` are the arguments that the next attempt would be made with.
    """
    plan, alone = op.plan, is_alone(op, fault)
    facts = Facts(
        fault=fault,
        now=now,
        rng=plan.runtime.rng,
        attempts=op.attempts - op.moves,
        deadline=op.deadline,
        effect=plan.effect,
        is_tool=plan.is_tool,
        is_running=op.left_running,
        nested=op.gave_up_inside(error),
        budget_spent=is_budget_spent(op),
        before_another=_before_another(op, alone=alone),
        waits_for_circuit=waits_for_circuit(op, alone=alone),
        open_until=plan.state.rejects_until if plan.obeys(plan.state) else None,
        makes_way_until=plan.state.makes_way_until if plan.breaks and not alone else None,
        reopened_for=op.reopened_for,
        first_to_wait=op.target_wait is not None and op.target_wait.is_first,
        lasts=plan.state.failure_lasts(now) if plan.breaks else 0.0,
    )
    if plan.overrides is not None:
        facts.override = plan.overrides.of(error, plan.runtime, op.run)
    if facts.override is None and op.adapter is not None and op.adapter.insists(error):
        facts.override = True
    if plan.rationed:
        facts.withdraw_retry = partial(plan.state.withdraw_retry, now)
    if request is not None and (request[0] or request[1]):
        facts.arguments_used_up = partial(used_up, *request)
    return facts


def waits_for_circuit(op: Any, *, alone: bool | None = None) -> bool:
    """Whether it waits for an open circuit instead of giving up at once (R34). `alone`: what `is_alone` returned just now."""
    wanted: bool | None = op.plan.policy.waits
    if wanted is not None:
        return wanted
    # Where waits are skipped, the circuit is still open after one.
    in_vain = op.target_wait is not None and op.target_wait.in_vain
    if in_vain or not op.plan.runtime.waits or _is_next(op, _LAST_RESORT):
        return False
    return is_alone(op) if alone is None else alone


_LAST_RESORT = attrgetter("has_last_resort")
_LESSER_ANSWER = attrgetter("has_lesser_answer")


def _is_next(op: Any, has: Callable[[Untried], bool]) -> bool:
    """Whether the operation, or one around it, has this behind it, and nobody named a time to wait before."""
    while op is not None:
        if not op.over:
            if op.plan.is_patient or op.plan.policy.deadline is not None:
                return False
            if op.untried is not None and has(op.untried):
                return True
        op = op.outer
    return False


def _before_another(op: Any, *, alone: bool) -> int | None:
    if not alone:
        return BEFORE_FALLBACK
    return BEFORE_LESSER_ANSWER if _is_next(op, _LESSER_ANSWER) else None


def is_alone(op: Any, fault: Fault = _REJECTED) -> bool:
    """Whether nothing here or around would answer this failure in its place, or its patience was named and must be used up."""
    while op is not None:
        if not op.over:
            if op.plan.is_patient:
                return True
            if op.plan.has_fallback or op.could_fall_back(fault):
                return False
        op = op.outer
    return True


def is_of_tool(op: Any) -> bool:
    """Whether it calls a tool, or is part of a tool's call."""
    while op is not None and not op.plan.is_tool:
        op = op.outer
    return op is not None
