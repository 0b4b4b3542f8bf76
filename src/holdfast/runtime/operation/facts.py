"""The facts about a failed attempt, gathered from the operation, its plan and the target, for the decision machine.

Invariant: gathering changes nothing. The decision itself may: it takes a retry from the quota.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.faults import Fault, HoldfastError
from holdfast.policies.backoff import PLAIN_ATTEMPTS
from holdfast.policies.decide import BEFORE_FALLBACK, BEFORE_LESSER_ANSWER, TIME_LIMITS, Facts
from holdfast.policies.profiles import PROFILES
from holdfast.runtime.ambient import outwards
from holdfast.runtime.budgets.charges import is_budget_spent
from holdfast.runtime.callables import used_up
from holdfast.runtime.failures.shown_request import may_have_happened, unrepeatable_request
from holdfast.runtime.fault_of import forget_account, has_account, permanent_by_status, with_outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.callables import Request
    from holdfast.runtime.operation.operation import Operation

__all__ = [
    "Untried",
    "bare_attempts_of",
    "cannot_wait",
    "facts_of",
    "fault_of_attempt",
    "is_alone",
    "is_fallback_time_over",
    "is_of_tool",
    "least_attempts_of",
    "named_wait_end",
    "tries_of",
    "waits_for_circuit",
    "waits_until",
]

_RETRY_AFTER = frozenset({"retry-after", "retry-after-ms"})
"""The headers that an SDK reads a delay from."""
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

    def could_answer(self, op: Operation, fault: Fault) -> bool:
        """Whether one of them could answer this failure of the `Operation` now."""
        ...


def facts_of(op: Operation, error: Exception, fault: Fault, now: float, request: Request | None) -> Facts:
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
        shows_request=plan.watches_requests and fault.maybe_executed and unrepeatable_request(error, plan) is not None,
        is_running=op.left_running,
        nested=op.gave_up_inside(error),
        budget_spent=is_budget_spent(op),
        before_another=_before_another(op, alone=alone),
        waits_for_circuit=waits_for_circuit(op, alone=alone),
        open_until=plan.narrow.rejects_until if plan.obeys(plan.narrow) else None,
        makes_way_until=plan.narrow.makes_way_until if plan.breaks and not alone else None,
        reopened_for=op.reopened_for,
        limited_for=plan.limited_state.limited_for(now),
        is_poison=op.failed_first is not None
        and plan.breaks
        and plan.narrow.requests.is_poison(op.failed_first, op.attempts),
        bare_attempts=bare_attempts_of(op),
        has_moved=op.moves > 0,
        moves_on=op.adapter is not None and op.adapter.moves_on,
        only_we_read_delay=fault.retry_after is not None and _lacks_retry_after(error),
        is_window_open=least_attempts_of(op) > 1 and op.cut_at is None and op.outer_deadline is None,
        is_in_vain=_is_in_vain(op, fault, now),
        is_full=fault.code == "SYS_BULKHEAD_FULL" and _is_of_own_limiter(plan, fault),
        no_such_name=fault.code == "CONN_DNS_FAILED" and _is_unknown_name(error),
        first_to_wait=op.target_wait is not None and op.target_wait.is_first,
        lasts=plan.narrow.failure_lasts(now) if plan.breaks else 0.0,
    )
    if plan.overrides is not None:
        facts.override = plan.overrides.of(error, plan.runtime, op.run)
    if facts.override is None and op.adapter is not None:
        is_plain = facts.attempts < facts.bare_attempts and op.adapter.repeats_plainly(error)
        facts.override = True if is_plain or op.adapter.insists(error) else None
    if plan.rationed:
        facts.withdraw_retry = partial(plan.state.withdraw_retry, now)
    if request is not None and (request[0] or request[1]):
        facts.arguments_used_up = partial(used_up, *request)
    return facts


def _lacks_retry_after(error: Exception) -> bool:
    """Whether the error has the headers of a response, and none of them is `Retry-After`."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    return isinstance(headers, Mapping) and _RETRY_AFTER.isdisjoint(name.lower() for name in headers)


def _is_in_vain(op: Operation, fault: Fault, now: float) -> bool:
    """Whether a time limit ended the call, and nothing shows that the next answer could come sooner.

    Who named a time limit, or a patience, sits out an outage that hangs. It shows by a silence far longer than any answer.
    """
    plan = op.plan
    if fault.code not in TIME_LIMITS:
        return False
    named = plan.timeout is not None or plan.policy.names_patience
    return not (named and plan.narrow.is_far_beyond(now - op.attempt_started))


def _is_of_own_limiter(plan: Any, fault: Fault) -> bool:
    return plan.limiter is not None and fault.context.get("name") == plan.limiter.name


_UNKNOWN_NAME = frozenset({-2, -5, 8, 11001, 11004})
"""Numbers by which resolvers say that a name does not exist: EAI_NONAME and EAI_NODATA on Linux, macOS and Windows. A resolver that
does not answer (EAI_AGAIN, -3) says something else."""
_MAX_CAUSES = 12


def _is_unknown_name(error: BaseException) -> bool:
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return False
        # By its name, because importing `socket` takes time, and a program that has this error has imported it.
        if type(cause).__name__ == "gaierror":
            return getattr(cause, "errno", None) in _UNKNOWN_NAME
        cause = cause.__cause__ or cause.__context__
    return False


def fault_of_attempt(op: Operation, error: Exception) -> Fault:
    """Return the fault of an error that an attempt of the operation raised."""
    if op.adapter is not None and (fault := op.adapter.fault_of(error)) is not None:
        return fault
    if has_account(error) and not op.gave_up_inside(error):
        # Another operation raised this very object before; its verdict and history are not ours.
        forget_account(error)
    made = op.attempts > len(op.history)
    fault = with_outcome(may_have_happened(error, op.plan, acted=op.acted_inside, made=made), error)
    if fault.code == "SYS_OUT_OF_MEMORY" and isinstance(error, (MemoryError, OSError)) and is_of_tool(op):
        # One call of a tool wanted too much. Its memory is free again, so it may be the work of others that took the rest.
        fault = Fault.of(
            "TOOL_OUT_OF_MEMORY", context=fault.context, cause=fault.cause, maybe_executed=fault.maybe_executed
        )
    if permanent := PROFILES[op.plan.policy.profile].permanent:
        fault = permanent_by_status(fault, error, permanent)
    # The words of a bare exception do not say whether a tool was called. The target does.
    return fault if isinstance(error, HoldfastError) or is_of_tool(op) else fault.outside_tools()


LONG_S = 60.0
"""With less time than this until it is cut, an operation makes the plain client's attempts at once, whatever others met."""


def cannot_wait(op: Operation, now: float) -> bool:
    """Whether a wait for a circuit or a turn could be the end of the call, and the plain client would make its attempt now."""
    return (
        op.cut_at is not None
        and op.cut_at - now < LONG_S
        and len(op.history) < max(PLAIN_ATTEMPTS, bare_attempts_of(op))
    )


def tries_of(op: Operation, now: float) -> int:
    """Return the attempts made so far, for circuit and pace: they hold back from `PLAIN_ATTEMPTS` on.

    A client that makes more attempts by itself has as many more before they are held back.
    """
    # A call that cannot wait counts as a new one.
    made = 0 if cannot_wait(op, now) else len(op.history)
    more = bare_attempts_of(op) - PLAIN_ATTEMPTS
    return min(made, max(1, made - more)) if more > 0 else made


def bare_attempts_of(op: Operation) -> int:
    """Return the attempts that the client would make without us."""
    # A function of the user's may hold a client whose own retries were switched off, as it should be.
    return PLAIN_ATTEMPTS if op.adapter is None else op.adapter.bare_attempts


def least_attempts_of(op: Operation) -> int:
    """Return the attempts that are made whatever time each of them takes; 1: somebody named a limit."""
    if op.plan.policy.names_patience or op.plan.timeout is not None:
        return 1
    return bare_attempts_of(op)


def is_fallback_time_over(op: Operation) -> bool:
    """Whether the fallbacks of an operation have used up the time that all of them together have."""
    return op.fallbacks_end is not None and op.plan.monotonic() >= op.fallbacks_end


def waits_until(op: Operation) -> float | None:
    """Return until when an operation waits for a place or a start that a limit of the user's gives; None: as long as it takes."""
    if op.plan.policy.has_own_patience:
        return op.deadline
    return min((end for end in (op.cut_at, op.outer_deadline) if end is not None), default=None)


def named_wait_end(op: Operation) -> float | None:
    """Return until when an operation waits for money that other calls have reserved: only to a limit that somebody named."""
    own = op.deadline if op.plan.policy.names_patience else None
    return min((end for end in (own, op.cut_at, op.outer_deadline) if end is not None), default=None)


def waits_for_circuit(op: Operation, *, alone: bool | None = None) -> bool:
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


def _is_next(op: Operation, has: Callable[[Untried], bool]) -> bool:
    """Whether the operation, or one around it, has this behind it, and nobody named a time to wait before."""
    for each in outwards(op):
        if not each.over:
            if each.plan.is_patient or each.plan.policy.deadline is not None:
                return False
            if each.untried is not None and has(each.untried):
                return True
    return False


def _before_another(op: Operation, *, alone: bool) -> int | None:
    if not alone:
        return BEFORE_FALLBACK
    return BEFORE_LESSER_ANSWER if _is_next(op, _LESSER_ANSWER) else None


def is_alone(op: Operation, fault: Fault = _REJECTED) -> bool:
    """Whether nothing here or around would answer this failure in its place, or its patience was named and must be used up."""
    for each in outwards(op):
        if not each.over:
            if each.plan.is_patient:
                return True
            if each.plan.has_fallback or each.could_fall_back(fault):
                return False
    return True


def is_of_tool(op: Operation) -> bool:
    """Whether it calls a tool, or is part of a tool's call."""
    return any(each.plan.is_tool for each in outwards(op))
