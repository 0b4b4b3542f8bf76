"""One operation: the attempts, waits and decisions between a user's call and its answer.

Drivers (async, sync, stream, block) make the calls and sleep. What happens next is decided in `policies/decide.py`; this
module gathers the facts for that decision and performs it. A driver does this:

    operation.admit()                  raises one of our own errors if no call may be made
    … make the call …
    operation.succeeded(value)         or
    delay = operation.failed(error)    None: raise the error again; else wait that long and begin again
    operation.stopped(error)           when the wait itself is cut short

An integration with rules of its own passes a proposal to `failed` or `unacceptable`. The caller stays protected: an unsafe
call is not repeated, no wait ends after the deadline, and budget, circuit and quota must agree.

Invariant: only this module writes an operation's attributes. Every permit is settled exactly once, cancellation passes
through uncounted, and the exception that surfaces is the one the call raised, unless the failure is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeAlias

import msgspec

from holdfast.faults import AbortedError, Attempt, CircuitOpenError, HoldfastError
from holdfast.policies.circuit import Rejection, Verdict, counted_by
from holdfast.policies.decide import SHORT_WAIT_S, Decider, GiveUp, Reason, Retry, RunRepair, gives_up_at_once
from holdfast.policies.repair import Repairs
from holdfast.runtime.ambient import AMBIENT, caller_of, in_force, new_run, on_clock, priority_of
from holdfast.runtime.budgets import charges
from holdfast.runtime.fault_of import GAVE_UP_IN, gave_up_in, leave_account
from holdfast.runtime.limits import extended, limit_of_attempt
from holdfast.runtime.operation import errors, facts, reports
from holdfast.runtime.operation.due_repair import DueRepair
from holdfast.runtime.operation.observation import Observation
from holdfast.runtime.operation.recovery_warnings import warn_of_retries_inside
from holdfast.runtime.targets.target_wait import TargetWait

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.events import Command
    from holdfast.faults import Fault
    from holdfast.policies.circuit import Permit
    from holdfast.policies.decide import Decision
    from holdfast.runtime.ambient import Ambient, Monotonic
    from holdfast.runtime.budgets.budget import Budget
    from holdfast.runtime.callables import Request
    from holdfast.runtime.operation.adapter import Abort, Adapter
    from holdfast.runtime.operation.facts import Untried
    from holdfast.runtime.operation.plan import Plan, ScopedPermit
    from holdfast.runtime.targets.target_state import TargetState

    Proposal: TypeAlias = Retry | GiveUp | None

__all__ = ["Operation"]

RESTS = 3
"""A retry waits for a moment at most so many times for each attempt: in a crowd there is always somebody who failed just now."""


class Operation:
    """The state of one call through a plan.

    Every call makes one, so an attribute that few calls change is a class attribute: it costs nothing until it is set.
    """

    waited = 0.0
    """Seconds slept before the present attempt."""
    waited_before = 0.0
    """What `waited` was before the present wait: a call may wait for its backoff, and then for its turn."""
    adapter: Adapter | None = None
    abort: Abort | None = None
    """The caller's signal to stop; it also ends waits."""
    others: tuple[ScopedPermit, ...] = ()
    """Permits of the circuits besides the main one."""
    decider: Decider | None = None
    history: tuple[Attempt, ...] = ()
    """The attempts that failed."""
    first_failure: float | None = None
    failed_first: tuple[float, float] | None = None
    """When its first attempt began and failed, if that was a failure that a request may cause."""
    blamed: Fault | None = None
    """The latest failure of the callee. It is used if the circuit counts one outcome per operation."""
    moves = 0
    """Attempts that moved on to another key at once; they are not retries of the same call."""
    reason: Reason | None = None
    """Why it was given up."""
    via = "primary"
    fallbacks_end: float | None = None
    """When the last of its fallbacks must end; None before the first one begins."""
    degraded = False
    """A cached or degraded answer was returned."""
    has_fallbacks = False
    """Something else answers, or reports the failure, when it has failed for good."""
    untried: Untried | None = None
    """Those of its fallbacks that were not tried yet; None: it has none."""
    due_repair: DueRepair | None = None
    outer_deadline: float | None = None
    """Until when the scope around lets attempts start."""
    cut_at: float | None = None
    """When an attempt under way is cut; None: never."""
    outer_cut: float | None = None
    """When the scope around cuts everything."""
    failed_with: tuple[Exception, Fault, bool] | None = None
    """The failure before the present wait, where there are fallbacks: a person may command them during the wait."""
    latest: tuple[Exception, Fault] | None = None
    """The failure of its latest attempt, while it waits for the next: it surfaces if our own protections reject that one."""
    charges: charges.Charges | None = None
    """What its attempts cost the budget around; None where there is no budget."""
    acted_inside = False
    """A recovery inside it was answered, and may have changed something."""
    reported_inside = 0
    """The latest attempt in which an operation inside has reported what was used."""
    left_running = False
    """The failed call was left behind in its thread and still runs."""
    target_wait: TargetWait | None = None
    """Its place among the calls that wait for a target; None: no circuit and no limit has rejected it."""
    waits = False
    """It waits for a target, readers know that, and no call was made since."""
    goes_at_once = False
    """It has waited for its turn as long as it could: the next attempt is made in any case."""
    failed_at = 0.0
    """When its latest attempt failed."""
    rests = 0
    """How often it waited for a moment because its target had just failed another call."""
    reopened_for: float | None = None
    """If the attempt just made was a failed probe: for how many seconds its circuit is open again."""
    window_began: float | None = None
    """When the time in which attempts start began anew; None: with the operation."""
    over = False
    """It has ended. Tasks that still run in its context are not in its scope."""
    observation: Observation | None = None
    """What watches its plain call in observe mode, and works out what would have been done."""
    _run = ""

    def __init__(self, plan: Plan, adapter: Adapter | None = None, abort: Abort | None = None) -> None:
        # Attributes that every call reads are set here: reading a class attribute through the instance takes three times as long.
        self.plan = plan
        self.attempts = 0
        """Calls made so far."""
        self.permit: Permit | None = None
        self.budget: Budget | None = None
        self.around: Ambient | None = None
        """The scope it runs in."""
        self.eventful = False
        """There is more to do than to settle one permit: events are read, a budget is charged, or something has failed."""
        self.started = self.attempt_started = now = plan.monotonic()
        self.deadline: float | None = None if plan.patience is None else now + plan.patience
        """Until when attempts may start."""
        if plan.deadline is not None:
            self.cut_at = self.deadline
        if adapter is not None or abort is not None:
            self.adapter, self.abort, self.eventful = adapter, abort, True
        around = AMBIENT.get()
        if plan.off:
            # A plain call is no scope: what runs inside it belongs to the scope around.
            self.around, self.over, self.eventful = around, True, True
            if plan.shadow is not None:
                self.observation = Observation(plan, adapter)
        elif around is not None and (around := in_force(around)) is not None:
            self._narrow(around)

    @property
    def run(self) -> str:
        """The id that all events of this operation carry."""
        # Made when it is first read: most operations emit nothing and need none.
        if not self._run:
            self._run = new_run()
        return self._run

    @property
    def outer(self) -> Operation | None:
        """The operation that it is part of."""
        around = self.around
        while around is not None and not isinstance(around, Operation):
            around = around.around
        return around

    @property
    def outer_run(self) -> str:
        """The run of the operation around it; empty if there is none."""
        # Not that of the scope around: the scope of a session's step is no operation, and has the step's key there.
        outer = None if self.around is None else self.outer
        return "" if outer is None else outer.run

    # --- attempts ---

    def admit(self) -> None:
        """Begin an attempt. Raises one of our own errors if the circuit, the deadline, the budget or the caller forbids it."""
        # The first attempt with nothing around it begins when the operation does: one reading of the clock serves both.
        now = self.started
        if self.attempts or self.eventful or self.around is not None:
            if self.plan.off:
                self.attempts += 1
                if self.observation is not None:
                    self.observation.begins(self)
                return
            now = self._check_scope()
        plan = self.plan
        if self.permit is None:
            self.permit = plan.admit(now)
            if self.permit is None and plan.obeys(plan.state):
                self.permit = self._request_permit(plan.state, now)
        self.attempts += 1
        if plan.eventful or self.budget is not None:
            self._admitted(now)

    def _check_scope(self) -> float:
        """Check what may forbid another attempt before a permit is requested from any circuit; return the time."""
        charges.take_back_outer_attempt(self)
        # The caller's signal comes first: a call that is no longer wanted must not take a key, a budget or a permit.
        self.raise_if_aborted()
        if self.adapter is not None and (plan := self.adapter.choose(self)) is not None:
            self._use(plan)
        now = self.attempt_started = self.plan.monotonic()
        if self.deadline is not None and now >= self.deadline:
            raise errors.deadline_passed(self)
        if self.plan.breaks and not facts.is_alone(self) and (rejection := self.plan.narrow.makes_way(now)) is not None:
            raise errors.rejected(self, self.plan.narrow, rejection, now)
        if (
            self.attempts >= facts.bare_attempts_of(self)
            and self.rests < RESTS * self.attempts
            and self.plan.breaks
            and self.plan.runtime.waits
        ):
            self._rest(now)
        if self.charges is not None:
            self.charges.check(self.plan.listed_model)
        return now

    def _rest(self, now: float) -> None:
        """Raise one of our own errors if a target failed another call just now: the retry waits for a moment."""
        for state in (self.plan.state, *(state for state, _ in self.plan.other_states)):
            if (rejection := state.rests(now, self.failed_at)) is not None:
                self.rests += 1
                raise errors.rejected(self, state, rejection, now)

    def _use(self, plan: Plan) -> None:
        """Go on with another plan, such as one with another key."""
        if self.others and plan is not self.plan:
            # With one outcome per operation, permits are held between attempts. Those of the key that is left go back.
            others, self.others = self.others, ()
            self.plan.settle(None, others, Verdict.IGNORED, self.plan.monotonic(), self)
        self.plan = plan

    def _request_permit(self, state: TargetState, now: float) -> Permit:
        """Request a permit from a circuit that is not closed. Raises `CircuitOpenError` if it rejects the call."""
        wait = self.target_wait
        if wait is None:
            wait = self.target_wait = TargetWait(priority_of(self), caller_of(self))
        forced = self.goes_at_once or facts.cannot_wait(self, now)
        permit = wait.request(self.plan, state, now, facts.tries_of(self, now), forced=forced)
        if state.has_transitions:
            self.plan.runtime.report_transitions(state, self.run)
        if isinstance(permit, Rejection):
            # Only a caller whose deadline comes after the next probe may count as the first to wait for the circuit.
            if facts.waits_for_circuit(self) and (self.deadline is None or (permit.retry_at or now) < self.deadline):
                wait.is_first = state.is_first_to_wait(permit)
            raise errors.rejected(self, state, permit, now)
        return permit

    def _admitted(self, now: float) -> None:
        """Do what only some operations need at the beginning of an attempt."""
        self.eventful = True
        plan = self.plan
        if plan.other_states and not self.others:
            self._request_other_permits(now)
        if self.attempts == 1 and plan.rationed:
            plan.state.called(now)
        charges.charge_attempt(self, sends=plan.limiter is None)
        reports.attempt_started(self)

    def _request_other_permits(self, now: float) -> None:
        """Request permits from the circuits besides the main one. If one rejects, the permits of the others go back."""
        for state, scope in self.plan.other_states:
            permit = state.admit_if_closed(now)
            if permit is None and self.plan.obeys(state):
                try:
                    permit = self._request_permit(state, now)
                except Exception:
                    # The attempt is counted already, but it is not made.
                    self.attempts -= 1
                    self._settle(Verdict.CANCELLED, now)
                    raise
            if permit is not None:
                self.others = (*self.others, (state, permit, scope))

    def limit(self) -> float | None:
        """Return how many seconds the attempt just begun may take."""
        return limit_of_attempt(self)

    def call_starts(self) -> None:
        """The call itself begins now: waiting for the limiter is not the callee's time.

        Raises `AbortedError` if the caller's signal was set during that wait.
        """
        self.raise_if_aborted()
        admitted, self.attempt_started = self.attempt_started, self.plan.monotonic()
        # The deadline came nearer during the wait, so the attempt needs a time limit of its own.
        self.eventful = True
        if self.plan.deadline is None and not self.plan.policy.has_own_patience:
            # A wait for a limit that the user chose is no failure: the time for retries does not count it.
            if not self.history:
                self.reopen_window()
            elif self.deadline is not None and (waited := self.attempt_started - admitted):
                self.window_began = (self.started if self.window_began is None else self.window_began) + waited
                self.deadline = extended(self.deadline, self.deadline + waited, self.outer_deadline)

    # --- how an attempt ends ---

    def succeeded(self, value: object = None) -> None:
        """The attempt just made returned a good answer."""
        plan = self.plan
        now = plan.monotonic()
        permit, self.permit = self.permit, None
        self.over = True
        if permit is not None and plan.succeed(permit, now):
            plan.runtime.report_transitions(plan.state, self.run)
        if self.around is not None and plan.effect != "read" and not plan.asks_model and (outer := self.outer):
            outer.acted_inside = True
        if self.eventful and not plan.bare:
            self._ended_well(value, now)

    def _ended_well(self, value: object, now: float) -> None:
        plan = self.plan
        if self.observation is not None:
            self.observation.answered(value)
            return
        self.latest = None
        if self.failed_first is not None:
            plan.narrow.requests.retry_helped()
        if self.others:
            others, self.others = self.others, ()
            plan.settle(None, others, Verdict.SUCCESS, now, self)
        if self.adapter is not None:
            self.adapter.succeeded(self, value)
        charges.charge_answer(self, value)
        self._report_end(now, answer=value)
        reports.returned(self)
        if self.first_failure is not None:
            if plan.rationed:
                plan.state.return_retries(now, len(self.history))
            reports.recovered(self, now)

    def _report_end(self, now: float, fault: Fault | None = None, answer: object = None) -> None:
        """Report the end of an attempt. What it used is reported once, by the operation that made the request."""
        reports.attempt_ended(self, now, fault, answer)
        if self.around is not None and (outer := self.outer):
            outer.reported_inside = outer.attempts

    def failed(self, error: BaseException, proposal: Proposal = None, request: Request | None = None) -> float | None:
        """Handle a failed attempt; return the seconds to wait before the next one, or None to let `error` through.

        `request` holds the arguments that the next attempt would be called with. If one of our own errors must surface, it is
        raised here.
        """
        if self.plan.off:
            self.over = True
            if self.observation is not None:
                self.observation.ended_with(error, self)
            return None
        if (
            not self.attempts
            and isinstance(error, CircuitOpenError)
            and gives_up_at_once(waits=facts.waits_for_circuit(self))
        ):
            # Nothing was called, so there is nothing to recognise or settle, and the error already says everything.
            self._rejected_at_once(error)
            return None
        if not isinstance(error, Exception) or isinstance(error, AbortedError):
            self.stopped(error)
            return None
        if self.passes(error):
            self._passed()
            return None
        # Only for calls that were made: an integration knows its own failures, not the rejections of our circuits and limits.
        if proposal is None and self.adapter is not None and self.attempts > len(self.history):
            proposal = self.adapter.propose(self, error)
        return self._respond(error, facts.fault_of_attempt(self, error), proposal, request)

    def unacceptable(self, fault: Fault, proposal: Proposal = None, request: Request | None = None) -> float:
        """Handle a rejected answer; return the seconds to wait, or raise an error that carries the answer."""
        error = HoldfastError(fault)
        delay = self._respond(error, fault, proposal, request)
        try:
            if delay is None:
                raise error
        finally:
            # A frame in an exception's traceback must not refer to the exception: the cycle would keep both alive.
            del error
        return delay

    def timed_out(self, fault: Fault) -> None:
        """Count a call as timed out. An outer limit cancelled it at the moment when this operation's own limit ended."""
        self._settle_failure(fault, self.plan.monotonic())

    def stopped(self, error: BaseException) -> None:
        """It was cancelled, interrupted or aborted: give every permit back and count nothing (R45)."""
        self.over = True
        # An error that is kept here would keep the frames of the failed call alive.
        self.failed_with = self.latest = None
        if not self.plan.off:
            self._settle(Verdict.CANCELLED, self.plan.monotonic())
            charges.charge_stopped(self)
            reports.cancelled(self, error)
        elif self.observation is not None:
            self.observation.left()

    def abandoned(self, error: BaseException | None) -> None:
        """The caller left before the end: nothing is known about the callee (R78)."""
        self.over = True
        self.latest = None
        if not self.plan.off:
            self._settle(Verdict.IGNORED, self.plan.monotonic())
            charges.charge_stopped(self)
            # A stream that was left before its first call has emitted nothing, so it has no end to report.
            if self.attempts or (error is not None and not isinstance(error, Exception)):
                reports.cancelled(self, error)
        elif self.observation is not None:
            self.observation.left()

    def cut_off(self, error: Exception) -> None:
        """It failed after a part was delivered, and the caller chose not to get any part twice: settle and give up."""
        fault, now = facts.fault_of_attempt(self, error), self.plan.monotonic()
        self._settle_failure(fault, now)
        self._count_failure(fault, now)
        decision = self._decide(error, fault, now, final=Reason.PARTIAL)
        self._add_attempt(fault, now, decision.then)
        self._perform(decision, error, fault, now)

    def passes(self, error: Exception) -> bool:
        """Whether the exception steers a framework and is no failure."""
        return self.adapter is not None and isinstance(error, self.adapter.passing)

    def _passed(self) -> None:
        self.over = True
        self.latest = None
        now = self.plan.monotonic()
        self._settle(Verdict.IGNORED, now)
        charges.charge_answer(self, None)
        reports.attempt_ended(self, now, None)
        if self.first_failure is not None:
            reports.recovered(self, now)

    def _rejected_at_once(self, error: CircuitOpenError) -> None:
        self.over = True
        self.reason = Reason.CIRCUIT
        charges.charge_stopped(self)
        error.__dict__[GAVE_UP_IN] = self.outer_run
        if not self.has_fallbacks:
            reports.failed(self, error.fault)
            if self.around is None and self.adapter is None and self.abort is None and self.plan.breaks:
                self.plan.shut()

    # --- what a failure leads to ---

    def ignores_cancellation(self, what: str) -> None:
        """A call of this operation ignores that it was cancelled: report what became of it."""
        reports.leaked(self, what)

    def leave_running(self) -> None:
        """The call of the present attempt did not end in time. It goes on in a thread that cannot be stopped."""
        self.left_running = True

    def _respond(self, error: Exception, fault: Fault, proposal: Proposal, request: Request | None) -> float | None:
        now = self.plan.monotonic()
        made = self.attempts > len(self.history)
        decision = self.judge(error, fault, now, proposal, request)
        latest, self.latest = self.latest, None
        if latest is not None and not made and errors.is_rejection(self, fault):
            if isinstance(decision, GiveUp):
                self._raise_latest(*latest, decision.reason, now)
            self.latest = latest
        return self._perform(decision, error, fault, now, made=made)

    def judge(
        self, error: Exception, fault: Fault, now: float, proposal: Proposal = None, request: Request | None = None
    ) -> Decision:
        """Settle a failed or rejected attempt, and return what to do next. Nothing of that is done yet."""
        # Where our own protections rejected the call, it was not made: there is nothing to settle or to remember.
        made = self.attempts > len(self.history)
        if made:
            if not self.plan.per_operation:
                self._settle_failure(fault, now)
            elif counted_by(fault, self.plan.scopes) is not None:
                self.blamed = fault
            self._count_failure(fault, now)
            self._keep_window_open(now)
        else:
            charges.charge_stopped(self)
            self.reopened_for = None
            self.eventful = True  # the next attempt must read the clock again
            request = None
        decision = self._decide(error, fault, now, proposal, request=request, rejected=not made)
        if made:
            self._add_attempt(fault, now, decision.then)
        return decision

    def _decide(
        self,
        error: Exception,
        fault: Fault,
        now: float,
        proposal: Proposal = None,
        *,
        final: Reason | None = None,
        request: Request | None = None,
        rejected: bool = False,
    ) -> Decision:
        """Gather the facts and let the decision machine decide."""
        plan = self.plan
        if self.decider is None:
            # Made with the first failure: a call that works at once needs no decision.
            repairs = Repairs(repair for repair, _ in plan.repairs) if plan.repairs else None
            self.decider = Decider(plan.policy, repairs)
        known = facts.facts_of(self, error, fault, now, request)
        known.final, known.proposal, known.rejected = final, proposal, rejected
        return self.decider.decide(known)

    def _perform(
        self, decision: Decision, error: Exception, fault: Fault, now: float, *, made: bool = False
    ) -> float | None:
        if isinstance(decision, GiveUp):
            self._give_up(error, fault, decision.reason, now)
            return None
        if isinstance(decision, RunRepair):
            self.due_repair = DueRepair(*self.plan.repairs[decision.index], fault, error)
            self.waited = self.waited_before = 0.0
            return 0.0
        self._report_wait(fault, decision, now, made=made)
        reports.waits(self, fault, decision)
        if made and self.plan.checks_left[0]:
            warn_of_retries_inside(self.plan, error)
        # A call that waits for a circuit or its turn may have waited after its last attempt already.
        self.waited_before = 0.0 if made else self.waited
        self.waited = self.waited_before + decision.delay
        self.moves += decision.elsewhere
        self.goes_at_once = decision.at_once
        if self.deadline is not None and now + decision.delay >= self.deadline:
            # Decided so, because nobody named a time.
            self._set_window(now + decision.delay)
        if made:
            self.latest = error, fault
        if self.has_fallbacks:
            self.failed_with = (error, fault, made)
        return decision.delay

    def _report_wait(self, fault: Fault, decision: Retry, now: float, *, made: bool) -> None:
        # A call that waits for a circuit or its turn looks again now and then. Only its first wait is news. A burst of calls
        # that is spread over some seconds is none: nothing has failed.
        if made:
            self.waits = False
        elif self.waits or (decision.why == "turn" and decision.delay < SHORT_WAIT_S):
            return
        else:
            # Readers that learn of the wait also learn how it ends.
            self.waits = self.eventful = True
            self.first_failure = now if self.first_failure is None else self.first_failure
        reports.retry(self, fault, decision)

    def take_repair(self) -> DueRepair:
        """Return the repair that is due; the driver performs it now."""
        due, self.due_repair = self.due_repair, None
        assert due is not None
        return due

    def not_repaired(self, due: DueRepair) -> Exception:
        """The repair did not help: the failure of the call is final. Return the error to raise."""
        now, error = self.plan.monotonic(), due.take_error()
        decision = self._decide(error, due.fault, now, final=Reason.UNREPAIRED)
        self._perform(decision, error, due.fault, now)
        return error

    def gave_up_inside(self, error: Exception) -> bool:
        """Whether a nested recovery gave up on the error. It would have read our run id, which is made at the first read."""
        return bool(self._run) and gave_up_in(error, self._run)

    def _count_failure(self, fault: Fault, now: float) -> None:
        self.failed_at = now
        self.first_failure = now if self.first_failure is None else self.first_failure
        if fault.code == "PROVIDER_INTERNAL_ERROR":
            watch = self.plan.narrow.requests
            self.failed_first = watch.failed(self.failed_first, self.attempts, self.attempt_started, now)
        self.eventful = True
        charges.charge_failure(self, fault)
        self._report_end(now, fault)

    def _add_attempt(self, fault: Fault, now: float, then: str = "") -> None:
        self.history = (*self.history, reports.attempt_of(self, fault, now, then))

    def _give_up(self, error: Exception, fault: Fault, reason: Reason, now: float) -> None:
        self.over, self.reason, self.latest = True, reason, None
        if self.plan.per_operation:
            self._settle_failure(self.blamed or fault, now)
        if fault.code == "PROVIDER_INTERNAL_ERROR" and self.attempts > facts.bare_attempts_of(self):
            self.plan.narrow.requests.gave_up(now, self.attempts)
        retryable = fault.retryable
        if reason is not Reason.NESTED or retryable:
            # Outer recoveries must not retry this failure: everything that could be tried was tried (S2-14). The fault of a
            # nested recovery says so already and has its own attempts, but not the fault of an error that wraps it.
            fault = msgspec.structs.replace(fault, retryable=False, attempts=self.history)
        surfacing, fault = errors.surfacing(self, error, fault, reason, retryable=retryable)
        leave_account(surfacing, fault, reports.account(self, fault, reason), self.outer_run)
        reports.denied(self, fault, reason)
        if not self.has_fallbacks:
            reports.failed(self, fault)
        try:
            if surfacing is not error:
                raise surfacing from error
        finally:
            # A frame in an exception's traceback must not refer to the exception: the cycle would keep both alive.
            del surfacing

    def _raise_latest(self, error: Exception, fault: Fault, reason: Reason, now: float) -> NoReturn:
        """No further attempt is made: raise the failure of the latest one. The plain call would have raised it, too."""
        try:
            self._give_up(error, fault, reason, now)
            errors.raise_earlier(error)
        finally:
            # A frame in an exception's traceback must not refer to the exception: the cycle would keep both alive.
            del error

    # --- permits ---

    def _settle(self, verdict: Verdict, now: float) -> None:
        permit, self.permit = self.permit, None
        others, self.others = self.others, ()
        self.plan.settle(permit, others, verdict, now, self)

    def _settle_failure(self, fault: Fault, now: float) -> None:
        permit, self.permit = self.permit, None
        others, self.others = self.others, ()
        self.reopened_for = self.plan.settle_failure(permit, others, fault, now, self)
        if self.reopened_for is not None and self.target_wait is not None:
            # Its probe has just failed, so it is the first to know when the next probe is due.
            self.target_wait.probe_failed()

    # --- waits ---

    def join(self, wake: Callable[[], None]) -> None:
        """The wait begins. If it is for a target, `wake` ends it as soon as the target may be called."""
        if self.target_wait is not None:
            self.target_wait.join(wake)

    def leave(self, *, is_cut: bool = False) -> None:
        """The wait is over. `is_cut`: the caller did not wait any longer."""
        if self.target_wait is not None:
            self.target_wait.leave(self.plan.monotonic(), is_cut=is_cut)

    def waited_for(self, seconds: float, command: Command | None, *, woken: bool = False) -> None:
        """The wait is over after `seconds`. If a command ended the wait, obey it: go on at once, or raise."""
        failed_with, self.failed_with = self.failed_with, None
        if woken:
            self.waited = self.waited_before + seconds
        if command is None:
            return
        if command == "cancel":
            stop = errors.aborted(self, by="a command")
            self.stopped(stop)
            raise stop
        if command == "fall-back" and failed_with is not None:
            error, fault, made = failed_with
            del failed_with
            now = self.plan.monotonic()
            decision = self._decide(error, fault, now, final=Reason.COMMANDED)
            if made:
                # A person has changed what was decided after the last attempt.
                self.history = (*self.history[:-1], msgspec.structs.replace(self.history[-1], then=str(decision.then)))
            self._perform(decision, error, fault, now)
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame: the cycle would keep both alive

    def raise_if_aborted(self) -> None:
        """Raise `AbortedError` if the caller's signal is set."""
        if self.abort is not None and self.abort.is_set():
            raise errors.aborted(self)

    # --- fallbacks ---

    def expect_fallbacks(self, untried: Untried) -> None:
        """Something else answers, or reports the failure, when this operation has failed for good."""
        self.untried = untried
        self.has_fallbacks = self.eventful = True

    def could_fall_back(self, fault: Fault) -> bool:
        """Whether one of its fallbacks could answer this failure now."""
        return self.untried is not None and self.untried.could_answer(self, fault)

    def rule_out_fallback(self) -> None:
        """No fallback can be commanded during the wait that begins now."""
        self.failed_with = None

    def enter(self) -> None:
        """Its scope is in force again: the awaited result or a fallback belongs to it."""
        self.over = self.plan.off

    def end(self) -> None:
        """Its scope ends: tasks that still run in its context are no longer part of it."""
        self.over = True

    def extend_deadline(self, at_least: float = 0.0) -> None:
        """Give the next fallback what is left of the deadline, but at least the time limit of one attempt, or the deadline anew.

        A callee that hangs uses up the whole deadline, and that is when its fallbacks are needed. All fallbacks together have
        the deadline once more. After that the next one has `at_least` seconds. The deadline of the scope around still holds.
        """
        now = self.attempt_started = self.plan.monotonic()
        least = self.plan.timeout or self.plan.patience
        if least is not None and self.deadline is not None:
            ends = max(min(now + least, self._bound_fallbacks(now)), now + min(least, at_least))
            self.deadline = extended(self.deadline, ends, self.outer_deadline)
            self.cut_at = extended(self.cut_at, ends, self.outer_cut)

    def _bound_fallbacks(self, now: float) -> float:
        """Return when the last fallback must end. It is set when the first one begins."""
        if self.fallbacks_end is None:
            # A plain function may have used up any time, and its fallbacks have theirs all the same.
            self.fallbacks_end = max(now, self.deadline or now) + (self.plan.patience or self.plan.timeout or 0.0)
        return self.fallbacks_end

    def reopen_window(self) -> None:
        """An answer broke off that had been coming for a while: the time to begin anew counts from here."""
        self.window_began = self.plan.monotonic()
        self._set_window(self.window_began)

    def shift_window(self, seconds: float) -> None:
        """It has waited for money of the user's own budget, which is no failure: the time for retries stood still."""
        if self.deadline is not None and self.plan.deadline is None and not self.plan.policy.names_patience:
            self.window_began = (self.started if self.window_began is None else self.window_began) + seconds
            self.deadline = extended(self.deadline, self.deadline + seconds, self.outer_deadline)

    def _set_window(self, began: float) -> None:
        """Let attempts start for the policy's patience."""
        if self.plan.deadline is None and self.plan.patience is not None:
            self.deadline = extended(began, began + self.plan.patience, self.outer_deadline)

    def _keep_window_open(self, now: float) -> None:
        """An attempt has failed. A window that nobody named leaves room for the attempts that the bare client makes.

        Until these were made, it counts neither the attempts nor the waits between them.
        """
        least = facts.least_attempts_of(self)
        if least > 1:
            began = self.started if self.window_began is None else self.window_began
            self._set_window(now if self.attempts < least else began)

    def begin_step(self, name: str) -> None:
        """The next fallback is called."""
        self.extend_deadline()
        self.via, self.waited = name, 0.0
        self.attempts += 1
        charges.charge_attempt(self)
        reports.attempt_started(self)

    def step_answered(self, value: object) -> None:
        """The fallback just called returned a good answer."""
        now = self.plan.monotonic()
        charges.charge_answer(self, value)
        if self.first_failure is None:
            # A circuit rejected the primary call, so no attempt failed. The recovery time counts from the beginning.
            self.first_failure = self.started
        self._report_end(now, answer=value)
        reports.recovered(self, now)

    def step_failed(self, fault: Fault, *, remember: bool) -> None:
        """The fallback just called failed; a defect in its code is not remembered as an attempt."""
        now = self.plan.monotonic()
        charges.charge_failure(self, fault)
        self._report_end(now, fault)
        if remember:
            self._add_attempt(fault, now)

    def degrade(self, via: str) -> None:
        """A cached or degraded answer is returned."""
        self.via, self.degraded = via, True

    def take_over(self, before: Operation, via: str, untried: Untried) -> None:
        """Go on where another operation has failed; both share one run in the events."""
        # Readers must see one operation that fell back, not a failed one and a new one.
        self._run = before.run
        self.first_failure = before.started if before.first_failure is None else before.first_failure
        self.expect_fallbacks(untried)
        self.via = via
        if before.deadline is not None:
            then = before.plan.monotonic
            ends = self.fallbacks_end = on_clock(before._bound_fallbacks(then()), then, self.plan.monotonic)
            self.deadline = ends if self.deadline is None or ends is None else min(self.deadline, ends)

    # --- the scope around, and time ---

    def _narrow(self, around: Ambient) -> None:
        """Take on the deadline and the budget of the scope around."""
        self.around, self.budget = around, around.budget
        if self.budget is not None:
            self.charges = charges.Charges.of(self.budget, self.plan, self.adapter)
        outer = self.outer_deadline = around.deadline_on(self.plan.monotonic)
        if outer is not None and (self.deadline is None or outer < self.deadline):
            self.deadline = outer
        cut = self.outer_cut = around.cut_on(self.plan.monotonic)
        if cut is not None and (self.cut_at is None or cut < self.cut_at):
            self.cut_at = cut

    def deadline_on(self, monotonic: Monotonic) -> float | None:
        """Return until when attempts inside may start, as a reading of the given clock. A window that nobody named is none."""
        is_named = self.plan.deadline is not None or self.plan.policy.has_own_patience
        return on_clock(self.deadline if is_named else self.outer_deadline, self.plan.monotonic, monotonic)

    def cut_on(self, monotonic: Monotonic) -> float | None:
        """Return when everything inside is cut, as a reading of the given clock."""
        return on_clock(self.cut_at, self.plan.monotonic, monotonic)
