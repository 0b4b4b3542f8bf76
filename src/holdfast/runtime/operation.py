"""One operation: the calls, waits and verdicts between a user's call and its answer.

Drivers (async, sync, stream, block) make the calls and sleep; what happens next is decided here, once for all of them.
The duty of a driver:

    operation.admit()                  raises one of our own errors where no call may be made
    … make the call …
    operation.succeeded(value)         or
    delay = operation.failed(error)    None: raise the error again; else wait that long and begin again
    operation.stopped(error)           when the wait itself is cut short

Invariant: every permit is settled exactly once, cancellation passes through uncounted, and the exception that surfaces
is the one the call raised, unless the failure is ours.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.events import CircuitState
from holdfast.faults import (
    AbortedError,
    Attempt,
    BudgetError,
    CircuitOpenError,
    Code,
    DeadlineError,
    Fault,
    HoldfastError,
    OutcomeUnknownError,
    Scope,
)
from holdfast.policies.accounting import counted_by
from holdfast.policies.circuit import Rejection, Verdict
from holdfast.policies.effect import leaves_outcome_unknown
from holdfast.policies.repair import Repairs
from holdfast.policies.retry import Again, GiveUp, Reason, Retrying
from holdfast.runtime import reports
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.fault_of import FAULT_ATTRIBUTE, fault_of, forget_account, gave_up_in, leave_account
from holdfast.runtime.mending import Mending

if TYPE_CHECKING:
    from holdfast.policies.circuit import Permit
    from holdfast.runtime.abort import Abort
    from holdfast.runtime.ambient import Around
    from holdfast.runtime.binding import Binding
    from holdfast.runtime.budget import Budget
    from holdfast.runtime.lines import Line

__all__ = ["Operation"]

_TIMEOUT_CODES: dict[Scope, Code] = {Scope.PROVIDER: "PROVIDER_TIMEOUT", Scope.TOOL: "TOOL_TIMEOUT"}

# Looked up with every call: a global costs less than an enum's member.
_SUCCESS = Verdict.SUCCESS
_CLOSED = CircuitState.CLOSED

_runs = itertools.count(1)
_process = os.urandom(4).hex()


class Operation:
    """The state of one call through a binding. One is made for every call, so what few calls need stays in the class."""

    waited = 0.0
    """Seconds slept before the present attempt."""
    others: tuple[tuple[Line, Permit, Scope], ...] = ()
    """Permits of the circuits besides the main one."""
    retrying: Retrying | None = None
    history: tuple[Attempt, ...] = ()
    """The attempts that failed."""
    first_failure: float | None = None
    reason: Reason | None = None
    """Why it was given up."""
    via = "primary"
    degraded = False
    """A lesser answer was given."""
    has_fallbacks = False
    """What to do when it has failed for good is decided elsewhere, and told there."""
    repairs: Repairs | None = None
    mending: Mending | None = None
    """A repair that the driver must perform before the next attempt."""
    outer_deadline: float | None = None
    """The deadline of the scope around."""
    abort: Abort | None = None
    """The caller's signal to stop; a wait ends when it is set."""
    _run = ""

    def __init__(self, binding: Binding) -> None:
        # What every call reads is set here: through the instance, a class's attribute takes three times as long.
        self.binding = binding
        self.attempts = 0
        """Calls made so far."""
        self.permit: Permit | None = None
        self.budget: Budget | None = None
        self.around: Around | None = None
        """The scope it runs in."""
        self.eventful = False
        """There is more to do at the end than to settle one permit: somebody watches, pays, or something has failed."""
        self.started = self.attempt_started = now = binding.monotonic()
        self.deadline: float | None = None if binding.deadline is None else now + binding.deadline
        around = AMBIENT.get()
        if around is not None:
            self._narrow(around)

    @property
    def run(self) -> str:
        """What correlates this operation's events."""
        if not self._run:
            self._run = f"{_process}-{next(_runs):x}"
        return self._run

    def admit(self) -> None:
        """Begin an attempt, or raise why there is none: the circuit, the deadline or the budget forbids it."""
        binding = self.binding
        now = self.started
        if self.attempts or self.around is not None:
            now = self.attempt_started = binding.monotonic()
            self._check_scope(now)
        line = binding.line
        breaker = line.breaker
        if breaker.recorded_state is _CLOSED and self.permit is None:
            # No lock: nothing is decided here. A circuit that opens at this very moment takes this call as begun before.
            self.permit = breaker.admit(now)  # type: ignore[assignment] # a closed one refuses nobody
        elif self.permit is None:
            self._admit_with_care(now)
        self.attempts += 1
        if binding.eventful or self.budget is not None:
            self._admitted(now)

    def limit(self) -> float | None:
        """Return how many seconds the attempt just begun may take."""
        allowed = self.binding.timeout
        if self.deadline is None:
            return allowed
        left = self.deadline - self.attempt_started
        return left if allowed is None or left < allowed else allowed

    def succeeded(self, value: object = None) -> None:
        """The attempt just made gave a good answer."""
        binding = self.binding
        now = binding.monotonic()
        permit, self.permit = self.permit, None
        if permit is not None:
            line = binding.line
            breaker = line.breaker
            # As `with` does it, for half of what it costs on Python 3.11: every call comes here.
            line.lock.acquire()
            try:
                breaker.settle(permit, _SUCCESS, now)
            finally:
                line.lock.release()
            if breaker.pending:
                binding.runtime.report_transitions(line, self.run)
        if self.eventful:
            self._ended_well(value, now)

    def failed(self, error: BaseException) -> float | None:
        """Take in how the attempt ended; return the seconds to wait before the next one, or None to let `error` through.

        Where what surfaces is ours, it is raised from here.
        """
        if not isinstance(error, Exception) or isinstance(error, AbortedError):
            self.stopped(error)
            return None
        return self._answer(error, self._fault(error), self.binding.monotonic())

    def rejected(self, fault: Fault) -> float:
        """Take in an answer that was not accepted; return the seconds to wait, or raise an error that carries it."""
        error = HoldfastError(fault)
        delay = self._answer(error, fault, self.binding.monotonic())
        try:
            if delay is None:
                raise error
        finally:
            # An exception in a frame that it passes through keeps itself alive.
            del error
        return delay

    def stopped(self, error: BaseException) -> None:
        """Somebody asked to stop: give every permit back and count nothing (R45)."""
        now = self.binding.monotonic()
        self._settle(Verdict.CANCELLED, None, now)
        if self.others:
            self._settle_others(Verdict.CANCELLED, None, now)
        reports.cancelled(self, error)

    def heed_abort(self) -> None:
        """Raise where the caller's signal is set, between two ways of doing it."""
        if self.abort is not None and self.abort.is_set():
            error = self.aborted()
            self.stopped(error)
            raise error

    def abandoned(self, error: BaseException | None) -> None:
        """The caller turned away before the end: nothing is known about the callee (R78)."""
        now = self.binding.monotonic()
        self._settle(Verdict.IGNORED, None, now)
        if self.others:
            self._settle_others(Verdict.IGNORED, None, now)
        if self.attempts or (error is not None and not isinstance(error, Exception)):
            reports.cancelled(self, error)

    def cut_off(self, error: Exception) -> None:
        """It failed where nothing more may be tried: settle and give up."""
        fault, now = self._fault(error), self.binding.monotonic()
        self._settle_failure(fault, now)
        self._remember(fault, now)
        self._give_up(error, fault, Reason.PARTIAL, now)

    def timeline(self) -> tuple[Attempt, ...]:
        """Return every attempt, the good one last."""
        last = Attempt(
            number=self.attempts,
            started=self.wall(self.attempt_started),
            took=self.binding.monotonic() - self.attempt_started,
            waited=self.waited,
            via=self.via,
        )
        return (*self.history, last)

    def _ended_well(self, value: object, now: float) -> None:
        if self.others:
            self._settle_others(_SUCCESS, None, now)
        if self.budget is not None:
            self.budget.attempt_ended(value, again=self.attempts > 1)
        if self.binding.watched:
            reports.attempt_ended(self, now, None)
        if self.first_failure is not None:
            self.binding.line.retried_well(now, len(self.history))
            reports.recovered(self, now)

    # --- the scope around ---

    def _narrow(self, around: Around) -> None:
        """Take on what the scope around leaves."""
        self.around = around
        self.budget = around.budget
        outer = self.outer_deadline = around.deadline
        if outer is not None and (self.deadline is None or outer < self.deadline):
            self.deadline = outer

    def _check_scope(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            raise self.deadline_passed()
        if self.budget is not None:
            spent = self.budget.exhausted(now)
            if spent is not None:
                raise BudgetError.because(**spent)

    # --- circuits ---

    def _admit_with_care(self, now: float) -> None:
        """Ask a circuit that is not closed."""
        line = self.binding.line
        permit = line.admit(now)
        if line.breaker.pending:
            self.binding.runtime.report_transitions(line, self.run)
        if isinstance(permit, Rejection):
            raise self._refused(line, permit, now)
        self.permit = permit

    def _admitted(self, now: float) -> None:
        """Do what only some operations need at the beginning of an attempt."""
        self.eventful = True
        binding = self.binding
        if binding.other_lines and not self.others:
            self._admit_others(now)
        if self.attempts == 1:
            binding.line.called(now)
        if self.budget is not None:
            self.budget.attempt_begun(again=self.attempts > 1)
        if binding.watched:
            reports.attempt_started(self)

    def _admit_others(self, now: float) -> None:
        """Ask the circuits besides the main one; a refusal gives back what was had so far."""
        permits: list[tuple[Line, Permit, Scope]] = []
        for line, scope in self.binding.other_lines:
            permit = line.admit(now)
            if line.breaker.pending:
                self.binding.runtime.report_transitions(line, self.run)
            if isinstance(permit, Rejection):
                self.attempts -= 1
                self.others = tuple(permits)
                self._settle_others(Verdict.CANCELLED, None, now)
                self._settle(Verdict.CANCELLED, None, now)
                raise self._refused(line, permit, now)
            permits.append((line, permit, scope))
        self.others = tuple(permits)

    def _refused(self, line: Line, rejection: Rejection, now: float) -> CircuitOpenError:
        left = None if rejection.retry_at is None else max(0.0, rejection.retry_at - now)
        told = line.refusal
        if told is None or told[0] is not rejection:
            told = line.refusal = (rejection, self._refusal(rejection, left, now))
        fault = told[1]
        return CircuitOpenError(msgspec.structs.replace(fault, retry_after=left, context=fault.context.copy()))

    def _refusal(self, rejection: Rejection, left: float | None, now: float) -> Fault:
        context: dict[str, Any] = {"circuit": rejection.name, "reason": rejection.reason or "held open by hand"}
        if left is not None:
            context["retry_at"] = round(self.wall(now) + left, 3)
            context["until"] = reports.time_of_day(context["retry_at"])
        else:
            context["until"] = "it is released"
        return Fault.of(CircuitOpenError.code, context=context)

    def _settle_failure(self, fault: Fault, now: float) -> None:
        binding = self.binding
        main = binding.scopes[0]
        counted = main if binding.count_all else counted_by(fault, binding.scopes)
        self._settle(Verdict.FAILURE if counted is main else Verdict.IGNORED, fault, now)
        if self.others:
            self._settle_others(Verdict.IGNORED, fault, now, counted)

    def _settle(self, verdict: Verdict, fault: Fault | None, now: float) -> None:
        permit, self.permit = self.permit, None
        if permit is not None:
            self._settle_line(self.binding.line, permit, verdict, fault, now)

    def _settle_others(self, verdict: Verdict, fault: Fault | None, now: float, counted: Scope | None = None) -> None:
        others, self.others = self.others, ()
        for line, permit, scope in others:
            self._settle_line(line, permit, Verdict.FAILURE if scope is counted else verdict, fault, now)

    def _settle_line(self, line: Line, permit: Permit, verdict: Verdict, fault: Fault | None, now: float) -> None:
        line.settle(permit, verdict, now, None if fault is None else fault.code)
        if line.breaker.pending:
            self.binding.runtime.report_transitions(line, self.run)

    # --- what a failure means ---

    def _answer(self, error: Exception, fault: Fault, now: float) -> float | None:
        # A call that our own protections refused was not made: there is nothing to settle or to remember.
        if self.permit is not None:
            if not self.binding.per_operation:
                self._settle_failure(fault, now)
            self._remember(fault, now)
        if self.binding.repairs and self._mend(error, fault, now):
            return 0.0
        decision = self._decide(error, fault, now)
        if isinstance(decision, Again):
            reports.retry(self, fault, decision)
            self.waited = decision.delay
            return decision.delay
        self._give_up(error, fault, decision.reason, now)
        return None

    def _mend(self, error: Exception, fault: Fault, now: float) -> bool:
        """Whether a repair is due. It wins over sending the same again, and is bounded by its times and the scope."""
        binding = self.binding
        if self.repairs is None:
            self.repairs = Repairs(repair for repair, _ in binding.repairs)
        if leaves_outcome_unknown(binding.effect, fault) or (self.deadline is not None and now >= self.deadline):
            return False
        if self.budget is not None and self.budget.exhausted(now) is not None:
            return False
        chosen = self.repairs.choose(fault)
        if chosen is None:
            return False
        self.mending = Mending(*binding.repairs[chosen], fault, error)
        return True

    def give_up_unrepaired(self, error: Exception, fault: Fault) -> None:
        """The repair could not help: what the call failed with is final."""
        self._give_up(error, fault, Reason.UNREPAIRED, self.binding.monotonic())

    def _decide(self, error: Exception, fault: Fault, now: float) -> Again | GiveUp:
        binding = self.binding
        if self._gave_up_inside(error):
            return GiveUp(Reason.NESTED)
        retrying = self.retrying
        if retrying is None:
            retrying = self.retrying = Retrying(binding.policy)
        retrying.attempts = self.attempts
        wish = None if binding.wishes is None else binding.wishes.of(error, binding.runtime, self.run)
        decision = retrying.decide(
            fault, now=now, deadline=self.deadline, rng=binding.runtime.rng, effect=binding.effect, wish=wish
        )
        return decision if isinstance(decision, GiveUp) else self._granted(decision, now)

    def _granted(self, decision: Again, now: float) -> Again | GiveUp:
        """Ask what else must agree to another attempt: the budget, the circuit, the quota."""
        binding = self.binding
        if self.budget is not None and self.budget.exhausted(now) is not None:
            return GiveUp(Reason.BUDGET)
        if not binding.policy.wait_for_circuit and binding.line.refuses(now + decision.delay):
            # Waiting would end at a closed door; and who tripped the circuit must see why (R55).
            return GiveUp(Reason.CIRCUIT)
        return decision if binding.line.may_retry(now) else GiveUp(Reason.QUOTA)

    def _fault(self, error: Exception) -> Fault:
        if FAULT_ATTRIBUTE in error.__dict__ and not self._gave_up_inside(error):
            # Another operation raised this very object before; its verdict and history are not ours.
            forget_account(error)
        return fault_of(error, provider=self.binding.provider, now=self.binding.runtime.clock.wall())

    def _gave_up_inside(self, error: Exception) -> bool:
        """Whether a recovery inside this one has given up on the error. It would have asked for our run's name."""
        return bool(self._run) and gave_up_in(error, self._run)

    def _remember(self, fault: Fault, now: float) -> None:
        if self.first_failure is None:
            self.first_failure = now
        self.eventful = True
        attempt = Attempt(
            number=self.attempts,
            code=fault.code,
            message=fault.message,
            started=self.wall(self.attempt_started),
            took=now - self.attempt_started,
            waited=self.waited,
            cause=fault.cause,
            via=self.via,
        )
        self.history = (*self.history, attempt)
        if self.budget is not None:
            self.budget.attempt_ended(None, again=self.attempts > 1)
        if self.binding.watched:
            reports.attempt_ended(self, now, fault)

    def _give_up(self, error: Exception, fault: Fault, reason: Reason, now: float) -> None:
        self.reason = reason
        if self.binding.per_operation:
            self._settle_failure(fault, now)
        if reason is not Reason.NESTED:
            # For whoever sees it next this failure is final: what could be tried was tried (S2-14).
            fault = msgspec.structs.replace(fault, retryable=False, attempts=self.history)
        surfacing = OutcomeUnknownError(self._outcome_unknown(fault)) if reason is Reason.UNSAFE else error
        fault = surfacing.fault if isinstance(surfacing, OutcomeUnknownError) else fault
        around = "" if self.around is None else self.around.run
        leave_account(surfacing, fault, reports.account(self, fault, reason), around)
        reports.denied(self, fault, reason)
        if not self.has_fallbacks:
            reports.failed(self, fault)
        try:
            if surfacing is not error:
                raise surfacing from error
        finally:
            del surfacing  # ditto

    # --- errors that are ours ---

    def timed_out(self) -> DeadlineError:
        """Return what to raise when our own limit cancelled the attempt."""
        now = self.binding.monotonic()
        if self.deadline is not None and now >= self.deadline:
            return self.deadline_passed()
        binding = self.binding
        code = _TIMEOUT_CODES.get(binding.scopes[0], "SYS_TIMEOUT")
        limit = round(binding.timeout or now - self.attempt_started, 3)
        message = f"{binding.name or 'The call'} did not answer within {limit:g} s and was cancelled"
        return DeadlineError(Fault.of(code, message, context={"limit_s": limit, "operation": binding.name}))

    def deadline_passed(self, limit: float | None = None) -> DeadlineError:
        """Return what to raise when the time for the whole is over."""
        if limit is None:
            limit = 0.0 if self.deadline is None else max(0.0, self.deadline - self.started)
        limit = round(limit, 3)
        return DeadlineError(Fault.of("SYS_DEADLINE_EXCEEDED", context={"limit_s": limit}).with_attempts(self.history))

    def aborted(self) -> AbortedError:
        """Return what to raise when the caller's signal is set."""
        message = f"{self.binding.name or 'The call'} was cancelled by its caller after {self.attempts} attempts"
        return AbortedError(Fault.of("SYS_CANCELLED", message).with_attempts(self.history))

    def _outcome_unknown(self, fault: Fault) -> Fault:
        message = f"{self.binding.name or 'The call'} failed and may have happened: {fault.message}"
        context = {**fault.context, "key": self.run, "failed_with": fault.code}
        unknown = Fault.of("TOOL_OUTCOME_UNKNOWN", message, cause=fault.cause, context=context)
        return unknown.with_attempts(fault.attempts)

    def wall(self, monotonic: float) -> float:
        """Return a monotonic reading of this operation on the wall clock."""
        clock = self.binding.runtime.clock
        return clock.wall() - (clock.monotonic() - monotonic)


def _new_process() -> None:
    global _process  # noqa: PLW0603 - a forked worker would repeat its parent's run ids
    _process = os.urandom(4).hex()


os.register_at_fork(after_in_child=_new_process)
