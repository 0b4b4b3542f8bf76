"""The errors that Holdfast itself raises for an operation: timed out, rejected by a circuit, aborted, outcome unknown.

Invariant: each error carries the attempts that the operation has made so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from holdfast.events import CircuitState, Failed
from holdfast.faults import (
    CATALOG,
    AbortedError,
    CircuitOpenError,
    Code,
    DeadlineError,
    Fault,
    HoldfastError,
    OutcomeUnknownError,
    Scope,
)
from holdfast.faults.sentences import operation_timed_out
from holdfast.faults.surfaces import fill
from holdfast.policies.circuit import Rule
from holdfast.policies.decide import Reason
from holdfast.policies.profiles import SPEC016
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.failures.shown_request import unrepeatable_request
from holdfast.runtime.failures.tool_fault import in_own_words
from holdfast.runtime.fault_of import GAVE_UP_IN
from holdfast.runtime.operation import reports

if TYPE_CHECKING:
    from holdfast.policies.circuit import Rejection
    from holdfast.runtime.operation.operation import Operation
    from holdfast.runtime.operation.plan import Plan
    from holdfast.runtime.targets.target_state import TargetState

__all__ = [
    "aborted",
    "deadline_passed",
    "is_cut",
    "is_rejection",
    "lateness",
    "named_end",
    "outcome_unknown",
    "raise_earlier",
    "reject_again",
    "rejected",
    "surfacing",
    "timed_out",
]

_TIMEOUT_CODES: dict[Scope, Code] = {Scope.PROVIDER: "PROVIDER_TIMEOUT", Scope.TOOL: "TOOL_TIMEOUT"}

_REJECTIONS: frozenset[Code] = frozenset({"CIRCUIT_OPEN", "SYS_RATE_LIMITED"})
_EARLY_S = 1e-3
"""A socket's own limit may end early by so much."""
_ROUNDING = 1e-6
"""Seconds. A timer for the rest of a deadline may fire early by a rounding error."""


def timed_out(op: Operation) -> DeadlineError:
    """Return what to raise when our own limit cancelled the attempt."""
    plan = op.plan
    now = plan.monotonic()
    # If the limit of this attempt was the rest of the deadline, the whole operation is late and not only the attempt.
    if op.cut_at is not None and now >= op.cut_at - _ROUNDING:
        return deadline_passed(op)
    return DeadlineError(lateness(op, now))


def lateness(op: Operation, now: float) -> Fault:
    """Return the failure of an attempt that did not end within its limit."""
    plan = op.plan
    code = _TIMEOUT_CODES.get(plan.scopes[0], "SYS_TIMEOUT")
    limit = round(plan.timeout or now - op.attempt_started, 3)
    if plan.policy.profile == SPEC016.name:
        message = operation_timed_out(round(limit * 1000))
    else:
        message = f"{plan.name or 'The call'} did not answer within {limit:g} s and was cancelled"
    return Fault.of(code, message, context={"limit_s": limit, "operation": plan.name})


def deadline_passed(op: Operation, limit: float | None = None) -> DeadlineError:
    """Return what to raise when the deadline of the whole operation has passed."""
    if limit is None:
        limit = 0.0 if op.deadline is None else max(0.0, op.deadline - op.started)
    fault = Fault.of("SYS_DEADLINE_EXCEEDED", context={"limit_s": round(limit, 3)})
    return DeadlineError(fault.with_attempts(op.history))


def named_end(op: Operation) -> float | None:
    """Return when a limit that somebody named ends it, also an answer that is coming; None: none does.

    Unlike `cut_at`, it leaves out a scope around that has ended meanwhile: a stream may be read on after its block.
    """
    own = None if op.plan.deadline is None else op.started + op.plan.deadline
    around = op.around and in_force(op.around)
    outer = None if around is None else around.cut_on(op.plan.monotonic)
    return outer if own is None or (outer is not None and outer < own) else own


def is_cut(op: Operation) -> bool:
    """Whether a deadline that somebody named has passed."""
    ends = named_end(op)
    return ends is not None and op.plan.monotonic() >= ends - _EARLY_S


def rejected(op: Operation, state: TargetState, rejection: Rejection, now: float) -> HoldfastError:
    """Return what to raise where a circuit rejects the call: which circuit, why, and until when."""
    at = rejection.retry_at
    left = None if at is None else at - now if at > now else 0.0
    if rejection.rule is Rule.PACE:
        message = f"{_in_words(rejection.name)} has limited the calls before this one, and accepts no more at present"
        return HoldfastError(Fault.of("SYS_RATE_LIMITED", message, retry_after=left, context={"name": rejection.name}))
    fault = state.fault_of(rejection)
    if fault is None:
        fault = _rejection_fault(op, rejection, left, now)
        state.keep_fault(rejection, fault)
    # In an outage many callers share this fault. Each gets the seconds that are left now, and a context it may write to.
    return CircuitOpenError(msgspec.structs.replace(fault, retry_after=left, context=fault.context.copy()))


def is_rejection(op: Operation, fault: Fault) -> bool:
    """Whether a call was not made for a reason that nobody named: a circuit, a learned pace, or the time in which attempts start."""
    if fault.code == DeadlineError.code:
        return op.cut_at is None and op.outer_deadline is None
    return fault.code in _REJECTIONS


def raise_earlier(error: Exception) -> NoReturn:
    """Raise an exception of an earlier attempt. What is handled now did not lead to it."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error  # its traceback refers to this frame: the cycle would keep both alive


def reject_again(plan: Plan) -> None:
    """Raise `CircuitOpenError` if the circuit rejects this call as it rejected the one before. Else the call goes its usual way.

    In an outage thousands of calls come here. An operation would take twice as long to say the same.
    """
    # A scope around has limits of its own, which come first.
    if AMBIENT.get() is not None:
        return
    known = plan.state.reject_again(plan.monotonic())
    if known is None:
        return
    fault = msgspec.structs.replace(known[0], retry_after=known[1], context=known[0].context.copy())
    if plan.runtime.bus.wants(Failed):
        reports.rejected(plan, fault)
    error = CircuitOpenError(fault)
    error.__dict__[GAVE_UP_IN] = ""
    try:
        raise error
    finally:
        # A frame in an exception's traceback must not refer to the exception: the cycle would keep both alive.
        del error


def _rejection_fault(op: Operation, rejection: Rejection, left: float | None, now: float) -> Fault:
    context: dict[str, Any] = {"circuit": rejection.name}
    if rejection.reason is not None:
        context["reason"] = rejection.reason
    elif rejection.rule is Rule.FORCED:
        context["reason"] = "held open by hand"
    if left is None:
        # Nobody knows when a probe ends or when a person releases the circuit, so the message names no time.
        is_probed = rejection.state is CircuitState.HALF_OPEN
        context["until"] = "the probe under way has ended" if is_probed else "it is released"
    else:
        context["retry_at"] = round(op.plan.wall(now) + left, 3)
        context["until"] = reports.time_of_day(context["retry_at"])
    if rejection.rule is Rule.FALLBACK:
        op.plan.runtime.report_diverted(rejection.name, rejection.reason, context.get("retry_at"), op.run)
        # No circuit has opened. A call without a fallback would be made.
        why = f": {rejection.reason}" if rejection.reason else ""
        message = (
            f"{_in_words(rejection.name)} has failed for a while, so the fallback answers until {context['until']}{why}"
        )
        return Fault.of(CircuitOpenError.code, message, context=context)
    message = fill(CATALOG[CircuitOpenError.code].message, {**context, "circuit": _in_words(rejection.name)})
    return Fault.of(CircuitOpenError.code, message, context=context)


def _in_words(name: str) -> str:
    """Return the name of a circuit as logs and events show its target: `claude`, not `provider:claude`."""
    return name.removeprefix("provider:")


def aborted(op: Operation, by: str = "its caller") -> AbortedError:
    """Return what to raise when the caller's signal is set, or a person commands it."""
    message = f"{op.plan.name or 'The call'} was cancelled by {by} after {op.attempts} attempts"
    return AbortedError(Fault.of("SYS_CANCELLED", message).with_attempts(op.history))


def surfacing(
    op: Operation, error: Exception, fault: Fault, reason: Reason, *, retryable: bool
) -> tuple[Exception, Fault]:
    """Return the exception that the caller of an operation that gave up gets, and its fault.

    `retryable`: another call could have helped. Other exceptions, such as a `KeyError`, surface as they are; their fault says that the
    call may have happened.
    """
    may_have_happened = retryable or op.plan.runtime.fault_of(error).maybe_executed
    if reason is Reason.UNSAFE and may_have_happened and not fault.ended_itself:
        unknown = outcome_unknown(op, fault)
        return unknown, unknown.fault
    if reason is Reason.UNDECLARED and (request := unrepeatable_request(error, op.plan)) is not None:
        message = f"{fault.message} ({request} may have happened; `effect=` says whether it may be repeated)"
        fault = msgspec.structs.replace(fault, message=message)
    # The log and the events of a tool have the code that the model gets.
    return error, in_own_words(error, fault) if op.plan.is_tool else fault


def outcome_unknown(op: Operation, fault: Fault) -> OutcomeUnknownError:
    """Return what to raise if an unsafe call may have happened. Its key helps to find out whether it did."""
    message = f"{op.plan.name or 'The call'} failed and may have happened: {fault.message}"
    # With the key, the caller can look up in the called service whether the call happened.
    context = {**fault.context, "key": op.run, "failed_with": fault.code}
    unknown = Fault.of("TOOL_OUTCOME_UNKNOWN", message, cause=fault.cause, context=context, partial=fault.partial)
    return OutcomeUnknownError(unknown.with_attempts(fault.attempts))
