"""Observe mode: what would have been done about one plain call, worked out beside it by the same machine.

An observation drives an `Operation` of the plan's shadow along with the plain call: it admits it, settles it and asks what to
do next, and then does nothing of that. The shadow's circuits and limits learn from what the plain calls meet.

Invariant: the plain call is neither changed nor slowed nor broken. Nothing here waits, calls, charges or reports but the one
`Observed` event, nothing is left on an exception, and an error in here is reported once and ignored.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from holdfast.events import Observed
from holdfast.faults import AbortedError, HoldfastError
from holdfast.policies.decide import GiveUp, Reason, Retry
from holdfast.runtime.ambient import AMBIENT, in_force

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.events import Would
    from holdfast.faults import Fault
    from holdfast.policies.decide import Decision
    from holdfast.runtime.operation.operation import Operation
    from holdfast.runtime.operation.plan import Plan
    from holdfast.runtime.targets.limiter_shadow import Visit

__all__ = ["Observation", "RepeatedResponse"]

P = ParamSpec("P")


class RepeatedResponse(Exception):  # noqa: N818 - it is never raised
    """Stands for the failed response of a request that the client repeated by itself, so no exception was raised."""

    def __init__(self, response: Any) -> None:
        super().__init__(response.status_code)
        self.response = response
        self.status_code = response.status_code


def _beside_the_call(
    method: Callable[Concatenate[Observation, P], None],
) -> Callable[Concatenate[Observation, P], None]:
    """Let nothing that happens in a method reach the plain call."""

    @wraps(method)
    def safe(self: Observation, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.over:
            return
        # The shadow is in no scope: it must not charge the budget around, nor live in its time.
        token = AMBIENT.set(None)
        try:
            method(self, *args, **kwargs)
        except Exception as defect:  # noqa: BLE001 - whatever it is, the plain call goes on
            self.over = True
            runtime = self.plan.runtime
            runtime.bus.hook_raised(Observation, "observe mode", defect, at=runtime.clock.wall())
        finally:
            AMBIENT.reset(token)

    return safe


class Observation:
    """One plain call, and what would have been done about it. An operation in observe mode makes one."""

    is_cut = False
    """The call is a stream that has delivered something, and no item may come twice."""
    _op: Operation | None = None
    """The operation that the call would have been."""
    _admitted = False
    """Whether the request under way would have been sent."""
    _limit: float | None = None
    """Seconds after which the request under way would have been stopped."""
    _requests = 0
    _unwanted = 0
    _waits = 0.0
    _stops: float | None = None
    _gave_up_at: float | None = None
    _would: Would = "nothing"
    _delay = 0.0
    _reason = ""
    _fault: Fault | None = None
    _visit: Visit | None = None
    """The call at the limiter, as it would be."""
    _accepted = True
    _unjudged: tuple[str, ...] = ()

    # The operation and the adapter are `Any`, as in `facts`: their modules need this one.
    def __init__(self, plan: Plan, adapter: Any) -> None:
        assert plan.shadow is not None
        self.plan = plan
        self.shadow = plan.shadow
        """What the call would have recovered with."""
        self.over = False
        self._adapter = adapter
        self._began = plan.monotonic()
        around = AMBIENT.get()
        if around is not None and (around := in_force(around)) is not None and around.budget is not None:
            # What it would have reserved and spent is not known: the calls before it were not charged either.
            self.cannot_judge("budget")

    # --- what happens ---

    @_beside_the_call
    def begins(self, call: Any = None) -> None:
        """The plain call `call` sends its first request; without it, the client repeats the request by itself."""
        self._requests += 1
        self._limit = None
        if self._gave_up_at is not None or self._would == "reject":
            self._unwanted += self._requests > 1
            return
        op = self._op = self._op or self._shadow_of(call)
        try:
            op.admit()
            self._admitted = True
            if self._requests == 1 and self.shadow.limiter is not None:
                self._visit = self.shadow.limiter.shadow.arrives(self._began)
                if self._visit is None:
                    self._admitted = False
                    self._reject("SYS_BULKHEAD_FULL")
        except HoldfastError as rejection:
            self._admitted = False
            self._rejected(rejection)
        if self.plan.threads:
            self._limit = op.limit() if self._admitted else None

    def cannot_judge(self, what: str) -> None:
        """Something would have held for the call that is not worked out here. The report says so."""
        self._unjudged = (*self._unjudged, what)

    def _shadow_of(self, call: Any) -> Any:
        op = type(call)(self.shadow, self._adapter)
        if call.untried is not None:
            op.expect_fallbacks(call.untried)
        return op

    def _reject(self, code: str) -> None:
        """Note that the call would have been rejected before it was made."""
        self._would, self._reason = "reject", code
        assert self._op is not None
        self._op.abandoned(None)

    @_beside_the_call
    def looks_at(self, value: object, fault_in: Callable[[Any, Any], Fault | None]) -> None:
        """The plain call has answered: `accept` would have looked at the answer. `fault_in` has it look."""
        self._accepted = self.shadow.accept is None or fault_in(self._op, value) is None

    @_beside_the_call
    def would_limit(self) -> None:
        """The request under way would have had a time limit."""
        if self._admitted and self._op is not None:
            self._limit = self._op.limit()

    @_beside_the_call
    def repeats(self, failure: Any) -> None:
        """A request failed, and the client sends it again by itself: `failure` is the response, or an exception."""
        self._judge(failure)

    @_beside_the_call
    def failed(self, failure: Any, outcome: Any = "failed") -> None:
        """The plain call has failed, or has answered with something that is a failure (`outcome="answered"`)."""
        fault = self._judge(failure)
        self._fault = self._fault_of(failure) if fault is None else fault
        self._end(outcome)

    def ended_with(self, error: BaseException, call: Any) -> None:
        """The plain call `call` has raised: it failed, or its caller stopped it, or it steers a framework."""
        if not isinstance(error, Exception) or isinstance(error, AbortedError):
            self.left()
        elif call.passes(error):
            self.answered(None)
        else:
            self.failed(error)

    @_beside_the_call
    def answered(self, value: object) -> None:
        """The plain call has answered."""
        op = self._op
        if op is not None and self._admitted:
            now = self.plan.monotonic()
            if self._is_late(now):
                # It would have been stopped, and this is what its target would have counted.
                late = TimeoutError("it took longer than its time limit")
                op.judge(late, self._fault_of(late), now)
            else:
                op.succeeded(value)
        self._end("answered")

    @_beside_the_call
    def left(self) -> None:
        """The caller stopped the plain call, or left a stream: nothing is known about the other side."""
        if self._op is not None and self._admitted:
            self._op.abandoned(None)
        self._end("left")

    @_beside_the_call
    def beside(self, do: Callable[[], object]) -> None:
        """Do something for the observation that must not reach the plain call."""
        do()

    # --- what would have been done ---

    def _rejected(self, rejection: HoldfastError) -> None:
        assert self._op is not None
        decision = self._op.judge(rejection, rejection.fault, self.plan.monotonic())
        if isinstance(decision, Retry):
            # Only the first wait is known. What comes after it depends on calls that were not made.
            self._would = "wait"
            self._waits += decision.delay
        else:
            self._would, self._reason = "reject", rejection.fault.code
            self._note_end(decision)

    def _judge(self, failure: Any) -> Fault | None:
        """Settle the failed request in the shadow, and note what would have been done next; return its fault."""
        op = self._op
        if op is None or not self._admitted:
            return None
        self._admitted = False
        error, fault = _exception_of(failure), self._fault_of(failure)
        now = self.plan.monotonic()
        self._is_late(now)
        proposal = GiveUp(Reason.PARTIAL) if self.is_cut else None
        if proposal is None and self._adapter is not None:
            proposal = self._adapter.propose(op, error)
        decision = op.judge(error, fault, now, proposal)
        self._delay, self._reason = 0.0, ""
        if isinstance(decision, Retry):
            self._would, self._delay = "retry", decision.delay
        elif isinstance(decision, GiveUp):
            self._would = "fall-back" if op.could_fall_back(fault) else "give-up"
            self._reason = decision.reason.value
            self._note_end(decision)
        else:
            self._would = "repair"
        return fault

    def _note_end(self, decision: Decision) -> None:
        if isinstance(decision, GiveUp) and self._gave_up_at is None:
            self._gave_up_at = self.plan.monotonic()

    def _is_late(self, now: float) -> bool:
        """Whether the request that ends now would have been stopped before."""
        assert self._op is not None
        late = self._limit is not None and now - self._op.attempt_started > self._limit
        if late and self._stops is None:
            self._stops = self._limit
        return late

    def _fault_of(self, failure: Any) -> Fault:
        error = _exception_of(failure)
        known: Fault | None = None if self._adapter is None else self._adapter.fault_of(error)
        if known is not None:
            return known
        fault = self.plan.runtime.fault_of(failure, provider=self.plan.provider)
        return fault if isinstance(error, HoldfastError) or self.plan.is_tool else fault.outside_tools()

    def _leave_limiter(self, now: float) -> None:
        """Note how long the call would have waited for its place and its start."""
        visit, limiter = self._visit, self.shadow.limiter
        if visit is None or limiter is None or self._op is None:
            return
        wait = limiter.shadow.ends(visit, now)
        # As `facts.waits_until`: the shadow is in no scope.
        until = self._op.deadline if self.shadow.policy.has_own_patience else self._op.cut_at
        if until is not None and visit.arrived + wait >= until:
            self._would = "reject"
            self._reason = "SYS_RATE_LIMITED" if self.shadow.policy.concurrency is None else "SYS_BULKHEAD_FULL"
        elif wait:
            self._waits += wait
            if self._would == "nothing":
                self._would = "wait"

    def _end(self, outcome: Any) -> None:
        self.over = True
        self._leave_limiter(self.plan.monotonic())
        bus = self.plan.runtime.bus
        if not bus.wants(Observed):
            return
        now, clock = self.plan.monotonic(), self.plan.runtime.clock
        if outcome == "answered" and self._fault is None and self._would in ("retry", "repair"):
            # The client's own retry has answered, and ours would have been sent too.
            self._would = "nothing"
        gave_up = self._gave_up_at if self._unwanted else None
        bus.emit(
            Observed(
                at=clock.wall(),
                operation=self.plan.name,
                outcome=outcome,
                took=now - self._began,
                would=self._would,
                requests=max(1, self._requests),
                fault=self._fault,
                reason=self._reason,
                delay=self._delay if self._would == "retry" else 0.0,
                waits=self._waits,
                stops=self._stops,
                unwanted=self._unwanted,
                saved=0.0 if gave_up is None else now - gave_up,
                accepted=self._accepted,
                unjudged=self._unjudged,
            )
        )


def _exception_of(failure: Any) -> Exception:
    return failure if isinstance(failure, Exception) else RepeatedResponse(failure)
