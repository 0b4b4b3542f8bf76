"""The permits of an operation: leave from each of its circuits for one call, and how that call ended.

Invariant: every permit is settled exactly once, whatever becomes of the call. A refusal by one circuit gives back what the
others had granted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.events import CircuitState
from holdfast.faults import Schedule
from holdfast.policies.circuit import Rejection, Verdict, counted_by
from holdfast.runtime import errors

if TYPE_CHECKING:
    from holdfast.faults import Fault, Scope
    from holdfast.policies.circuit import Permit
    from holdfast.runtime.operation import Operation
    from holdfast.runtime.registry import TargetState

__all__ = ["admit_others", "admit_with_care", "settle", "settle_failure", "settle_others"]


def admit_with_care(op: Operation, now: float) -> None:
    """Ask the main circuit where it is not closed."""
    if op.plan.heeds(op.plan.line):
        op.permit = _ask(op, op.plan.line, now)


def admit_others(op: Operation, now: float) -> None:
    """Ask the circuits besides the main one."""
    for line, scope in op.plan.other_lines:
        if line.breaker.recorded_state is not CircuitState.CLOSED and not op.plan.heeds(line):
            continue
        try:
            op.others = (*op.others, (line, _ask(op, line, now), scope))
        except Exception:
            op.attempts -= 1
            settle(op, Verdict.CANCELLED, now)
            raise


def settle(op: Operation, verdict: Verdict, now: float, fault: Fault | None = None) -> None:
    """Settle every permit of the present attempt in the same way."""
    permit, op.permit = op.permit, None
    if permit is not None:
        _settle(op, op.plan.line, permit, verdict, now, fault)
    if op.others:
        settle_others(op, verdict, now, fault)


def settle_others(
    op: Operation, verdict: Verdict, now: float, fault: Fault | None = None, counted: Scope | None = None
) -> None:
    """Settle the permits besides the main one; the circuit of the scope `counted` takes it for a failure."""
    others, op.others = op.others, ()
    for line, permit, scope in others:
        _settle(op, line, permit, Verdict.FAILURE if scope is counted else verdict, now, fault)


def settle_failure(op: Operation, fault: Fault, now: float) -> None:
    """Settle after a failure: it counts on one circuit at most, the one of its scope."""
    op.reopened = None
    plan = op.plan
    main = plan.scopes[0]
    counted = main if plan.count_all else counted_by(fault, plan.scopes)
    permit, op.permit = op.permit, None
    if permit is not None:
        verdict = Verdict.FAILURE if counted is main else Verdict.IGNORED
        _settle(op, plan.line, permit, verdict, now, fault)
    if op.others:
        settle_others(op, Verdict.IGNORED, now, fault, counted)


def _ask(op: Operation, line: TargetState, now: float) -> Permit:
    permit = line.admit(now)
    if line.breaker.pending:
        op.plan.runtime.report_transitions(line, op.run)
    if isinstance(permit, Rejection):
        if op.waits_for_circuit and (op.deadline is None or (permit.retry_at or now) < op.deadline):
            op.first_to_wait = line.awaited is not permit
            line.awaited = permit
        raise errors.refused(op, line, permit, now)
    return permit


def _settle(  # noqa: PLR0917 - each is of another type, and none has a default
    op: Operation, line: TargetState, permit: Permit, verdict: Verdict, now: float, fault: Fault | None
) -> None:
    if fault is None:
        line.settle(permit, verdict, now)
    else:
        line.settle(permit, verdict, now, fault.code, _asked(op, fault))
        if permit.probe and verdict is Verdict.FAILURE:
            _note_reopening(op, line, now)
    if line.breaker.pending:
        op.plan.runtime.report_transitions(line, op.run)


def _note_reopening(op: Operation, line: TargetState, now: float) -> None:
    """The call was a probe and has failed: where the operation waits for the next, it is the first to do so."""
    until = line.breaker.open_until
    if until is not None:
        op.reopened = max(0.0, until - now)
        op.first_to_wait = True
        line.awaited = line.breaker.rejection


def _asked(op: Operation, fault: Fault) -> float | None:
    """Return how long a rate limit lasts, if it says so. Others who name a time only guess when they will be back."""
    if fault.schedule is not Schedule.RATE_LIMIT or fault.retry_after is None:
        return None
    return min(fault.retry_after, op.plan.policy.max_retry_after)
