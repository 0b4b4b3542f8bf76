"""The events of an operation, its list of attempts, and the short account left on the exception that surfaces.

Invariant: an event is built only if it has readers; nothing here changes what the operation does.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast._lazy import lazy_module
from holdfast.events import (
    AgentFallback,
    AttemptEnded,
    AttemptStarted,
    Cancelled,
    Failed,
    Fallback,
    Recovered,
    Retry,
    RetryDenied,
    SuppressedError,
    WaitBegan,
)
from holdfast.faults import Attempt
from holdfast.policies.budget import costs_nothing
from holdfast.policies.decide import Reason
from holdfast.policies.models.prices import LIST_PRICES
from holdfast.policies.models.usage import model_of, usage_of
from holdfast.runtime.ambient import new_run

if TYPE_CHECKING:
    import logging

    from holdfast.events import WaitReason
    from holdfast.faults import Code, Fault
    from holdfast.policies.decide import Retry as RetryDecision
    from holdfast.policies.models.prompt_cache import Weighed
    from holdfast.runtime.operation.operation import Operation
    from holdfast.runtime.operation.plan import Plan
else:
    logging = lazy_module("logging", globals())

__all__ = [
    "account",
    "attempt_ended",
    "attempt_of",
    "attempt_started",
    "cancelled",
    "denied",
    "failed",
    "fell_back",
    "leaked",
    "recovered",
    "rejected",
    "retry",
    "returned",
    "suppressed",
    "time_of_day",
    "timeline",
    "waiting",
    "waits",
    "waits_for_limiter",
]

_DENIED_BY: dict[Reason, Code] = {
    Reason.DEADLINE: "SYS_DEADLINE_EXCEEDED",
    Reason.RETRY_AFTER: "SYS_DEADLINE_EXCEEDED",
    Reason.QUOTA: "SYS_RETRY_QUOTA_SPENT",
    Reason.BUDGET: "SYS_BUDGET_EXHAUSTED",
}
"""The code of our own limit that prevented a retry of a retryable failure (R35)."""

_WHY = {
    Reason.PERMANENT: "sending the same request again would not help",
    Reason.ATTEMPTS: "all attempts were used",
    Reason.DEADLINE: "no time is left for another attempt",
    Reason.RETRY_AFTER: "the other side requests a longer wait than the policy accepts",
    Reason.UNSAFE: "the call may have happened and must not happen twice",
    Reason.UNKNOWN: "the failure is not recognised and the call's effect is not declared repeatable",
    Reason.UNDECLARED: "the call may have happened, and no effect is declared for it; `effect=` or `@tool` says if it may be repeated",
    Reason.RUNNING: "the call still runs in its thread, and `effect=` does not say that another may run beside it",
    Reason.ONE_SHOT: "an argument, such as a generator, can be read only once; pass a list, or a function that makes it",
    Reason.CIRCUIT: "the circuit is open",
    Reason.FULL: "all its places are taken, and no more calls may wait for one",
    Reason.MAKES_WAY: "it has failed for a while or names a long delay, and something else can answer",
    Reason.UNWANTED: "the caller does not want it retried",
    Reason.NOT_REPEATABLE: "the request cannot be sent twice",
    Reason.COMMANDED: "a person chose the fallbacks",
    Reason.UNREPAIRED: "the repair for it did not help",
    Reason.PARTIAL: "a part was delivered already",
    Reason.NESTED: "a recovery inside it has already tried everything",
    Reason.QUOTA: "retries have used their share of the traffic",
    Reason.BUDGET: "the budget is spent",
    Reason.PATIENCE: "an hour of waiting has not helped",
    Reason.POISON: "the service fails on this request each time, and answers others meanwhile",
}


_OUR_WHY: dict[Code, str] = {
    "SYS_DEADLINE_EXCEEDED": "its time is over",
    "SYS_BUDGET_EXHAUSTED": "the budget is spent",
}
"""Better reasons for faults that are permanent because one of our own limits was reached."""

# Each function below first checks for readers: building an event costs far more than the check.


def attempt_started(op: Operation) -> None:
    bus = op.plan.runtime.bus
    if op.plan.watched and bus.wants(AttemptStarted):
        bus.emit(AttemptStarted(**_head(op), attempt=op.attempts, via=op.via))


def attempt_ended(op: Operation, now: float, fault: Fault | None, answer: object = None) -> None:
    """Report the end of an attempt. `answer`: what reports its usage; None: nobody knows it."""
    bus = op.plan.runtime.bus
    if op.plan.watched and bus.wants(AttemptEnded):
        bus.emit(
            AttemptEnded(
                **_head(op),
                **({} if op.reported_inside == op.attempts else _used(op, fault, answer)),
                attempt=op.attempts,
                took=now - op.attempt_started,
                fault=fault,
                via=op.via,
                target=op.plan.narrow.name if op.via == "primary" else op.via,
            )
        )


def _used(op: Operation, fault: Fault | None, answer: object) -> dict[str, Any]:
    """Return which model an answer names and what it used, as fields of `AttemptEnded`."""
    if fault is not None:
        return {"maybe_billed": bool(op.plan.target.provider or op.plan.target.model) and not costs_nothing(fault)}
    if answer is None:
        return {}
    if op.adapter is not None:
        answer = op.adapter.reported(answer)
    model, usage = model_of(answer), usage_of(answer)
    if usage is None:
        return {"model": model or ""}
    return {
        "model": model or "",
        "tokens_in": usage.input + usage.written + usage.written_hour,
        "tokens_out": usage.output,
        "tokens_cached": usage.cached,
        "usd": LIST_PRICES.cost(model, usage),
    }


def waiting(op: Operation, reason: WaitReason, target: str = "", delay: float | None = None) -> None:
    """Report a wait that begins now."""
    bus = op.plan.runtime.bus
    if bus.wants(WaitBegan):
        until = None if delay is None else _now(op) + delay
        bus.emit(WaitBegan(**_head(op), reason=reason, attempt=op.attempts, target=target, until=until))


def waits(op: Operation, fault: Fault, decision: RetryDecision) -> None:
    """Report the wait for a target that rejects the call at present. The delay after a failed attempt is in the event of the retry."""
    match decision.why:
        case "circuit" | "turn" as reason if decision.delay > 0:
            name = fault.context.get("circuit") or fault.context.get("name")
            waiting(op, reason, name or op.plan.narrow.name, decision.delay)


def waits_for_limiter(op: Operation, name: str, reason: WaitReason, delay: float | None) -> None:
    """Report a wait for a place or a start that a limit of the user's gives."""
    waiting(op, reason, name, delay)


def retry(op: Operation, fault: Fault, decision: RetryDecision) -> None:
    bus = op.plan.runtime.bus
    if bus.wants(Retry):
        bus.emit(
            Retry(
                **_head(op),
                attempt=op.attempts,
                max_attempts=decision.of,
                delay=decision.delay,
                fault=fault,
                requested=decision.requested,
                left=None if op.deadline is None else op.deadline - op.plan.monotonic(),
                why="" if (weighed := _weighed(op, fault)) is None else weighed.why,
            )
        )


def recovered(op: Operation, now: float) -> None:
    bus = op.plan.runtime.bus
    if bus.wants(Recovered):
        since = now if op.first_failure is None else op.first_failure
        bus.emit(
            Recovered(
                **_head(op),
                after=now - since,
                attempts=op.attempts,
                via=op.via,
                took=now - op.started,
            )
        )


def returned(op: Operation) -> None:
    """Report that its target has answered again, if its calls went to fallbacks before."""
    plan = op.plan
    if plan.runtime.diverted:
        plan.runtime.report_returned((plan.state.name, *(state.name for state, _ in plan.other_states)), op.run)


def cancelled(op: Operation, error: BaseException | None) -> None:
    bus = op.plan.runtime.bus
    if bus.wants(Cancelled):
        reason = "left early" if error is None else type(error).__name__
        bus.emit(Cancelled(**_head(op), reason=reason, attempts=op.attempts))


def denied(op: Operation, fault: Fault, reason: Reason) -> None:
    bus = op.plan.runtime.bus
    because = _DENIED_BY.get(reason)
    if because is not None and bus.wants(RetryDenied):
        bus.emit(RetryDenied(**_head(op), attempt=op.attempts, because=because, fault=fault))


def failed(op: Operation, fault: Fault) -> None:
    bus = op.plan.runtime.bus
    if bus.wants(Failed):
        # All attempts were made. A deadline, a budget or a circuit would have ended the operation before that.
        exhausted = op.reason is Reason.ATTEMPTS
        bus.emit(
            Failed(
                **_head(op),
                fault=fault,
                exhausted=exhausted,
                attempts=op.attempts,
                reason="" if op.reason is None else op.reason.value,
            )
        )


def rejected(plan: Plan, fault: Fault) -> None:
    """Report a call that a circuit rejected before its operation began."""
    runtime = plan.runtime
    at = runtime.clock.wall()
    runtime.bus.emit(Failed(at=at, run=new_run(), operation=plan.name, fault=fault, exhausted=False, attempts=0))


def suppressed(op: Operation, error: Exception, reason: str) -> None:
    """Report an error that is ignored on purpose, with the reason (S2-10)."""
    # Without a check for readers: this is rare, and no call that works comes here.
    if not op.plan.off:
        op.plan.runtime.bus.emit(SuppressedError.of(op.plan.runtime.fault_of(error), reason, at=_now(op), run=op.run))


def leaked(op: Operation, what: str) -> None:
    """Report, in the log too, a call that ignores its cancellation."""
    cause = f"{op.plan.name or 'a call'} {what}"
    logging.getLogger("holdfast").warning("leaked: %s", cause)
    event = SuppressedError(**_head(op), reason="leaked", cause=cause)
    op.plan.runtime.bus.emit(event)


def attempt_of(op: Operation, fault: Fault, now: float, then: str) -> Attempt:
    """Return the record of the attempt that has just failed, and of what was decided then."""
    took = now - op.attempt_started
    return Attempt(
        number=op.attempts,
        code=fault.code,
        message=fault.message,
        started=_now(op) - took,
        took=took,
        waited=op.waited,
        cause=fault.cause,
        via=op.via,
        # A plain string also for whoever prints it in a tuple: the decision has a member of `Reason`.
        then=str(then),
    )


def timeline(op: Operation, value: object) -> tuple[Attempt, ...]:
    """Return every attempt; the good one comes last, with the usage its answer reports. A lesser answer is no attempt."""
    if op.degraded:
        return op.history
    usage = usage_of(value)
    # At list prices: an outcome also shows its cost where no budget with other prices is around.
    last = Attempt(
        number=op.attempts,
        started=op.plan.wall(op.attempt_started),
        took=op.plan.monotonic() - op.attempt_started,
        waited=op.waited,
        via=op.via,
        usd=None if usage is None else LIST_PRICES.cost(model_of(value), usage),
        tokens=None if usage is None else usage.total,
    )
    return (*op.history, last)


def fell_back(
    op: Operation,
    primary: str,
    step: str,
    fault: Fault,
    *,
    kind: type[Fallback | AgentFallback] = Fallback,
    failed: str = "",
) -> None:
    """Report that the next step of a chain is called. `failed` is who had the fault; only events of agents name it."""
    bus = op.plan.runtime.bus
    if not bus.wants(kind):
        return
    weighed = _weighed(op, fault)
    event = kind(
        **_head(op),
        from_=primary,
        to=step,
        fault=fault,
        usd=None if weighed is None else weighed.usd,
        why="" if weighed is None else weighed.why,
    )
    if isinstance(event, AgentFallback) and failed != primary:
        event = msgspec.structs.replace(event, failed=failed)
    bus.emit(event)


def _weighed(op: Operation, fault: Fault) -> Weighed | None:
    return None if op.adapter is None else op.adapter.weighed(fault)


def account(op: Operation, fault: Fault, reason: Reason) -> str:
    """Return the one line that is added to the exception as a note."""
    calls = f"{op.attempts} attempt{'' if op.attempts == 1 else 's'}"
    took = op.plan.monotonic() - op.started
    why = _OUR_WHY.get(fault.code, _WHY[reason]) if reason is Reason.PERMANENT else _WHY[reason]
    if reason is Reason.DEADLINE:
        why += _limit_of_time(op)
    elif reason is Reason.ATTEMPTS:
        why += _limit_of_attempts(op)
    return (
        f"holdfast: gave up on {op.plan.name or 'the call'} after {calls} in {took:.1f} s: {why}. "
        f"{fault.code}; next to act: {fault.next_actor}. `holdfast explain {fault.code}`"
    )


def _limit_of_attempts(op: Operation) -> str:
    """Return the number that limits the attempts and the file that has it; empty if no number was chosen."""
    attempts = op.plan.policy.attempts
    if attempts is None:
        return ""
    source = op.plan.configured_from
    return f" (attempts={attempts}, from {source})" if source else f" (attempts={attempts})"


def _limit_of_time(op: Operation) -> str:
    """Return which limit left no time for another attempt, so that the reader knows what to raise; empty for a fallback, which has the rest."""
    plan = op.plan
    if op.outer_deadline is not None and op.deadline == op.outer_deadline:
        return " before the deadline of the scope around it"
    if op.fallbacks_end is not None or plan.patience is None:
        return ""
    limit = "patience" if plan.deadline is None else "deadline"
    return f" within {limit}={plan.patience:g} s; raise it for more attempts"


def time_of_day(wall: float) -> str:
    """Return a wall clock reading as people read it in a log, in UTC."""
    return datetime.fromtimestamp(wall, UTC).strftime("%H:%M:%SZ")


def _head(op: Operation) -> dict[str, Any]:
    """Return what every event of an operation says."""
    plan = op.plan
    return {"at": _now(op), "run": op.run, "operation": plan.name, "began": plan.wall(op.started)}


def _now(op: Operation) -> float:
    return op.plan.runtime.clock.wall()
