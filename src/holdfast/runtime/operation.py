"""One operation: the calls, waits and verdicts between a user's call and its answer.

Drivers (async, sync, stream, block) make the calls and sleep; what happens next is decided here, once for all of them.
The duty of a driver:

    operation.admit()                  raises one of our own errors where no call may be made
    … make the call …
    operation.succeeded(value)         or
    delay = operation.failed(error)    None: raise the error again; else wait that long and begin again
    operation.stopped(error)           when the wait itself is cut short

A driver that decides by rules of its own hands its decision to `failed` or `rejected`; what protects the caller still
holds: an unsafe call is not repeated, no wait ends after the deadline, budget, circuit and quota must agree.

Invariant: every permit is settled exactly once, cancellation passes through uncounted, and the exception that surfaces
is the one the call raised, unless the failure is ours.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.events import CircuitState
from holdfast.faults import (
    AbortedError,
    Attempt,
    BudgetError,
    CircuitOpenError,
    Fault,
    HoldfastError,
    OutcomeUnknownError,
    Scope,
)
from holdfast.policies.circuit import Verdict, counted_by
from holdfast.policies.effect import leaves_outcome_unknown
from holdfast.policies.models.prices import LIST_PRICES
from holdfast.policies.models.usage import model_of, usage_of
from holdfast.policies.repair import Repairs
from holdfast.policies.retry import Again, GiveUp, Reason, Retrying
from holdfast.runtime import charging, errors, permits, reports
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.fault_of import FAULT_ATTRIBUTE, GAVE_UP_IN, fault_of, forget_account, gave_up_in, leave_account
from holdfast.runtime.repair import DueRepair

if TYPE_CHECKING:
    from holdfast.policies.circuit import Permit
    from holdfast.policies.retry import Decision
    from holdfast.runtime.abort import Abort
    from holdfast.runtime.ambient import Ambient
    from holdfast.runtime.budget import Budget
    from holdfast.runtime.commands import Wait
    from holdfast.runtime.plan import Plan
    from holdfast.runtime.registry import TargetState

__all__ = ["Operation"]

# Looked up with every call: a global costs less than an enum's member.
_SUCCESS = Verdict.SUCCESS
_CLOSED = CircuitState.CLOSED

_runs = itertools.count(1)
_process = os.urandom(4).hex()


class Operation:
    """The state of one call through a plan. One is made for every call, so what few calls need stays in the class."""

    waited = 0.0
    """Seconds slept before the present attempt."""
    others: tuple[tuple[TargetState, Permit, Scope], ...] = ()
    """Permits of the circuits besides the main one."""
    retrying: Retrying | None = None
    history: tuple[Attempt, ...] = ()
    """The attempts that failed."""
    first_failure: float | None = None
    blamed: Fault | None = None
    """Where one outcome is counted for the whole: the latest failure that was the callee's."""
    moves = 0
    """Attempts after which it went on elsewhere at once, with another key: they are no retries of the same."""
    reason: Reason | None = None
    """Why it was given up."""
    via = "primary"
    degraded = False
    """A lesser answer was given."""
    has_fallbacks = False
    """What to do when it has failed for good is decided elsewhere, and told there."""
    last_resort = False
    """It has come to the last of its fallbacks."""
    repairs: Repairs | None = None
    mending: DueRepair | None = None
    """A repair that the driver must perform before the next attempt."""
    outer_deadline: float | None = None
    """The deadline of the scope around."""
    abort: Abort | None = None
    """The caller's signal to stop; a wait ends when it is set."""
    failed_with: tuple[Exception, Fault] | None = None
    """For the wait that comes next, where there are fallbacks: somebody may ask for them."""
    inside: list[object] | None = None
    """Answers of recoveries inside the present attempt, which were charged for them; None where there are none."""
    first_to_wait = False
    """Nobody else waits for the circuit that refused it."""
    reopened: float | None = None
    """The attempt just made was a circuit's probe, and has opened it again for so many seconds."""
    over = False
    """It has ended: what still runs in its context is not in its scope."""
    _run = ""

    def __init__(self, plan: Plan) -> None:
        # What every call reads is set here: through the instance, a class's attribute takes three times as long.
        self.plan = plan
        self.attempts = 0
        """Calls made so far."""
        self.permit: Permit | None = None
        self.budget: Budget | None = None
        self.around: Ambient | None = None
        """The scope it runs in."""
        self.eventful = False
        """There is more to do at the end than to settle one permit: somebody watches, pays, or something has failed."""
        self.started = self.attempt_started = now = plan.monotonic()
        self.deadline: float | None = None if plan.deadline is None else now + plan.deadline
        around = AMBIENT.get()
        if around is not None and (around := in_force(around)) is not None:
            self._narrow(around)

    @property
    def run(self) -> str:
        """What correlates this operation's events."""
        if not self._run:
            self._run = f"{_process}-{next(_runs):x}"
        return self._run

    @property
    def outer(self) -> Operation | None:
        """The operation that it is part of."""
        around = self.around
        while around is not None and not isinstance(around, Operation):
            around = around.around
        return around

    @property
    def waits_for_circuit(self) -> bool:
        """Whether it waits for an open circuit instead of giving up at once (R34)."""
        return bool(self.plan.policy.wait_for_circuit)

    @property
    def is_alone(self) -> bool:
        """Whether nothing around it would answer in its place: no fallbacks, or this is the last of them."""
        outer = self.outer
        while outer is not None and (outer.over or outer.last_resort or not outer.has_fallbacks):
            outer = outer.outer
        return outer is None

    def admit(self) -> None:
        """Begin an attempt, or raise why there is none: the circuit, the deadline or the budget forbids it."""
        plan = self.plan
        now = self.started
        if self.attempts or self.eventful or self.around is not None:
            now = self.attempt_started = plan.monotonic()
            self._check_scope(now)
        line = plan.line
        breaker = line.breaker
        if breaker.recorded_state is _CLOSED and self.permit is None:
            # No lock: nothing is decided here. A circuit that opens at this very moment takes this call as begun before.
            self.permit = breaker.admit(now)  # type: ignore[assignment] # a closed one refuses nobody
        elif self.permit is None:
            permits.admit_with_care(self, now)
        self.attempts += 1
        if plan.eventful or self.budget is not None:
            self._admitted(now)

    def takes_over(self, before: Operation, via: str) -> None:
        """Go on where another way has failed: one story, told under one run."""
        self._run = before.run
        self.first_failure = before.started if before.first_failure is None else before.first_failure
        self.eventful = True
        self.has_fallbacks = True
        self.via = via

    def limit(self) -> float | None:
        """Return how many seconds the attempt just begun may take."""
        allowed = self.plan.timeout
        if self.deadline is None:
            return allowed
        left = self.deadline - self.attempt_started
        return left if allowed is None or left < allowed else allowed

    def succeeded(self, value: object = None) -> None:
        """The attempt just made gave a good answer."""
        plan = self.plan
        now = plan.monotonic()
        permit, self.permit = self.permit, None
        if permit is not None:
            line = plan.line
            breaker = line.breaker
            # As `with` does it, for half of what it costs on Python 3.11: every call comes here.
            line.lock.acquire()
            try:
                breaker.settle(permit, _SUCCESS, now)
            finally:
                line.lock.release()
            if breaker.pending:
                plan.runtime.report_transitions(line, self.run)
        if self.eventful:
            self._ended_well(value, now)

    def failed(self, error: BaseException, decision: Decision | None = None) -> float | None:
        """Take in how the attempt ended; return the seconds to wait before the next one, or None to let `error` through.

        Where what surfaces is ours, it is raised from here.
        """
        if not isinstance(error, Exception) or isinstance(error, AbortedError):
            self.stopped(error)
            return None
        if not self.attempts and isinstance(error, CircuitOpenError) and not self.waits_for_circuit:
            # Nothing was called, so there is nothing to recognise, settle or tell on the error that it does not say.
            self._refused(error)
            return None
        return self._answer(error, self._fault(error), self.plan.monotonic(), decision)

    def _refused(self, error: CircuitOpenError) -> None:
        self.reason = Reason.CIRCUIT
        if self.around is not None:
            error.__dict__[GAVE_UP_IN] = self.around.run
        if not self.has_fallbacks:
            reports.failed(self, error.fault)

    def rejected(self, fault: Fault, decision: Decision | None = None) -> float:
        """Take in an answer that was not accepted; return the seconds to wait, or raise an error that carries it."""
        error = HoldfastError(fault)
        delay = self._answer(error, fault, self.plan.monotonic(), decision)
        try:
            if delay is None:
                raise error
        finally:
            # An exception in a frame that it passes through keeps itself alive.
            del error
        return delay

    def stopped(self, error: BaseException) -> None:
        """Somebody asked to stop: give every permit back and count nothing (R45)."""
        now = self.plan.monotonic()
        permits.settle(self, Verdict.CANCELLED, now)
        reports.cancelled(self, error)

    def commanded(self, wait: Wait) -> None:
        """Obey what somebody told it during a wait: go on at once, or raise (see `Commands`)."""
        self.waited = wait.lasted()
        if wait.told == "cancel":
            stop = errors.aborted(self, by="a command")
            self.stopped(stop)
            raise stop
        if wait.told == "fall-back" and wait.failed_with is not None:
            (error, fault), wait.failed_with = wait.failed_with, None
            self._decided(Reason.COMMANDED, made=True)
            self._give_up(error, fault, Reason.COMMANDED, self.plan.monotonic())
            try:
                raise error
            finally:
                # An exception in a frame that it passes through keeps itself alive.
                del error

    def heed_abort(self) -> None:
        """Raise where the caller's signal is set, between two ways of doing it."""
        if self.abort is not None and self.abort.is_set():
            error = errors.aborted(self)
            self.stopped(error)
            raise error

    def abandoned(self, error: BaseException | None) -> None:
        """The caller turned away before the end: nothing is known about the callee (R78)."""
        now = self.plan.monotonic()
        permits.settle(self, Verdict.IGNORED, now)
        if self.attempts or (error is not None and not isinstance(error, Exception)):
            reports.cancelled(self, error)

    def cut_off(self, error: Exception) -> None:
        """It failed where nothing more may be tried: settle and give up."""
        fault, now = self._fault(error), self.plan.monotonic()
        permits.settle_failure(self, fault, now)
        self._remember(fault, now)
        self._give_up(error, fault, Reason.PARTIAL, now)

    def timeline(self, value: object) -> tuple[Attempt, ...]:
        """Return every attempt, the good one last with what its answer says it used."""
        usage = usage_of(value)
        last = Attempt(
            number=self.attempts,
            started=self.wall(self.attempt_started),
            took=self.plan.monotonic() - self.attempt_started,
            waited=self.waited,
            via=self.via,
            usd=LIST_PRICES.cost(model_of(value), usage),
            tokens=None if usage is None else usage.total,
        )
        return (*self.history, last)

    def _ended_well(self, value: object, now: float) -> None:
        if self.others:
            permits.settle_others(self, _SUCCESS, now)
        charging.ended(self, value)
        if self.plan.watched:
            reports.attempt_ended(self, now, None)
        if self.first_failure is not None:
            if self.plan.rationed:
                self.plan.line.retried_well(now, len(self.history))
            reports.recovered(self, now)

    # --- the scope around ---

    def _narrow(self, around: Ambient) -> None:
        """Take on what the scope around leaves."""
        self.around = around
        self.budget = around.budget
        outer = self.outer_deadline = around.deadline
        if outer is not None and (self.deadline is None or outer < self.deadline):
            self.deadline = outer

    def _check_scope(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            raise errors.deadline_passed(self)
        if self.budget is not None:
            if not self.attempts:
                charging.entered(self)
            spent = self.budget.exhausted(now)
            if spent is not None:
                raise BudgetError.because(**spent)

    def _admitted(self, now: float) -> None:
        """Do what only some operations need at the beginning of an attempt."""
        self.eventful = True
        plan = self.plan
        if plan.other_lines and not self.others:
            permits.admit_others(self, now)
        if self.attempts == 1 and plan.rationed:
            plan.line.called(now)
        charging.begun(self)
        if plan.watched:
            reports.attempt_started(self)

    # --- what a failure means ---

    def _answer(self, error: Exception, fault: Fault, now: float, decided: Decision | None) -> float | None:
        # A call that our own protections refused was not made: there is nothing to settle or to remember.
        made = self.attempts > len(self.history)
        if made:
            if not self.plan.per_operation:
                permits.settle_failure(self, fault, now)
            elif counted_by(fault, self.plan.scopes) is not None:
                self.blamed = fault
            self._remember(fault, now)
        else:
            self.eventful = True  # it will ask again later than it began
        if self.plan.repairs and self._mend(error, fault, now):
            self._decided("repair", made=made)
            return 0.0
        decision = self._decide(error, fault, now) if decided is None else self._allowed(decided, fault, now)
        if isinstance(decision, Again):
            self._decided("retry", made=made)
            reports.retry(self, fault, decision)
            self.waited = decision.delay
            if self.has_fallbacks:
                self.failed_with = (error, fault)
            return decision.delay
        self._decided(decision.reason, made=made)
        self._give_up(error, fault, decision.reason, now)
        return None

    def _decided(self, then: str, *, made: bool) -> None:
        """Write down what follows from the attempt just remembered."""
        if made:
            self.history = (*self.history[:-1], msgspec.structs.replace(self.history[-1], then=then))

    def _mend(self, error: Exception, fault: Fault, now: float) -> bool:
        """Whether a repair is due. It wins over sending the same again, and is bounded by its times and the scope."""
        plan = self.plan
        if self.repairs is None:
            self.repairs = Repairs(repair for repair, _ in plan.repairs)
        if leaves_outcome_unknown(plan.effect, fault) or (self.deadline is not None and now >= self.deadline):
            return False
        if self.budget is not None and self.budget.exhausted(now) is not None:
            return False
        chosen = self.repairs.choose(fault)
        if chosen is None:
            return False
        self.mending = DueRepair(*plan.repairs[chosen], fault, error)
        return True

    def give_up_unrepaired(self, error: Exception, fault: Fault) -> None:
        """The repair could not help: what the call failed with is final."""
        self._give_up(error, fault, Reason.UNREPAIRED, self.plan.monotonic())

    def _decide(self, error: Exception, fault: Fault, now: float) -> Decision:
        plan = self.plan
        if self._gave_up_inside(error):
            return GiveUp(Reason.NESTED)
        retrying = self.retrying
        if retrying is None:
            retrying = self.retrying = Retrying(plan.policy, waits=self.waits_for_circuit)
        retrying.attempts = self.attempts - self.moves
        wish = None if plan.overrides is None else plan.overrides.of(error, plan.runtime, self.run)
        decision = retrying.decide(
            fault,
            now=now,
            deadline=self.deadline,
            rng=plan.runtime.rng,
            effect=plan.effect,
            wish=wish,
            prompt=self.first_to_wait,
            reopened=self.reopened,
        )
        return decision if isinstance(decision, GiveUp) else self._granted(decision, now)

    def _allowed(self, decided: Decision, fault: Fault, now: float) -> Decision:
        """Hold a driver's own decision against what protects the caller."""
        if leaves_outcome_unknown(self.plan.effect, fault):
            return GiveUp(Reason.UNSAFE)
        if isinstance(decided, GiveUp):
            return decided
        if self.deadline is not None and now + decided.delay >= self.deadline:
            return GiveUp(Reason.DEADLINE)
        return self._granted(decided, now)

    def _granted(self, decision: Again, now: float) -> Decision:
        """Ask what else must agree to another attempt: the budget, the circuit, the quota."""
        plan = self.plan
        if self.budget is not None and self.budget.exhausted(now) is not None:
            return GiveUp(Reason.BUDGET)
        line = plan.line
        if not self.waits_for_circuit and plan.heeds(line) and line.refuses(now + decision.delay):
            # Waiting would end at a closed door; and who tripped the circuit must see why (R55).
            return GiveUp(Reason.CIRCUIT)
        return decision if not plan.rationed or line.may_retry(now) else GiveUp(Reason.QUOTA)

    def _fault(self, error: Exception) -> Fault:
        if FAULT_ATTRIBUTE in error.__dict__ and not self._gave_up_inside(error):
            # Another operation raised this very object before; its verdict and history are not ours.
            forget_account(error)
        return fault_of(error, provider=self.plan.provider, now=self.plan.runtime.clock.wall())

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
        charging.ended(self, None)
        if self.plan.watched:
            reports.attempt_ended(self, now, fault)

    def _give_up(self, error: Exception, fault: Fault, reason: Reason, now: float) -> None:
        self.reason = reason
        if self.plan.per_operation:
            permits.settle_failure(self, self.blamed or fault, now)
        if reason is not Reason.NESTED:
            # For whoever sees it next this failure is final: what could be tried was tried (S2-14).
            fault = msgspec.structs.replace(fault, retryable=False, attempts=self.history)
        surfacing = errors.outcome_unknown(self, fault) if reason is Reason.UNSAFE else error
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

    def wall(self, monotonic: float) -> float:
        """Return a monotonic reading of this operation on the wall clock."""
        clock = self.plan.runtime.clock
        return clock.wall() - (clock.monotonic() - monotonic)


def _new_process() -> None:
    global _process  # noqa: PLW0603 - a forked worker would repeat its parent's run ids
    _process = os.urandom(4).hex()


os.register_at_fork(after_in_child=_new_process)
