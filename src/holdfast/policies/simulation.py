"""Simulate an outage under a policy in virtual time, with the same machines that decide in production.

Invariant: the same policy, outage, load and chance give the same result; nothing waits.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import Code, Fault, InvalidError, Scope
from holdfast.policies.circuit import Breaker, Circuit, Permit, Rejection, Verdict, counted_by
from holdfast.policies.decide import Decider, Facts, GiveUp, Reason, Retry
from holdfast.policies.quota import QuotaMachine

if TYPE_CHECKING:
    from holdfast.clock import Rng
    from holdfast.policies.policy import Policy

# A simulation of more operations would take minutes, and the shares in its report would hardly differ.
MOST_OPERATIONS = 1_000_000
_METRICS_ONLY = Circuit(mode="metrics-only")


Kind: TypeAlias = Literal["outage", "brownout", "blips", "flapping", "slow-return"]
"""`outage`: every call fails. `brownout`: a share of the seconds is bad. `blips`: 3 s in every 30 s are. `flapping`: 10 s bad, 10 s
good. `slow-return`: every call fails for the first half, then fewer and fewer seconds are bad."""


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated load, and when calls fail."""

    begins: float = 5.0
    ends: float = 60.0
    kind: Kind = "outage"
    share: float = 0.5
    """The share of bad seconds in a brownout."""
    code: Code = "PROVIDER_UNAVAILABLE"
    rate: float = 10.0
    """Operations per second, at random moments."""
    duration: float = 120.0
    """Seconds in which operations begin; each of them is simulated to its end."""
    answers_in: float = 0.5
    """Seconds a good call takes."""
    fails_in: float = 0.1
    """Seconds a call takes that fails."""

    def __post_init__(self) -> None:
        options.seconds("outage.begins", self.begins, zero=True)
        options.seconds("outage.ends", self.ends)
        options.one_of("outage.kind", self.kind, get_args(Kind))
        options.share("outage.share", self.share)
        options.at_least("outage.rate", self.rate, 0.001)
        options.seconds("outage.duration", self.duration)
        options.seconds("outage.answers_in", self.answers_in, zero=True)
        options.seconds("outage.fails_in", self.fails_in, zero=True)
        if self.ends <= self.begins:
            raise InvalidError.at("outage.ends", f"after it begins ({self.begins:g} s)", self.ends)
        if self.rate * self.duration > MOST_OPERATIONS:
            raise InvalidError.at("outage.rate", f"at most {MOST_OPERATIONS:,} operations in all", self.rate)

    def bad_seconds(self, rng: Rng) -> frozenset[int] | None:
        """Draw the seconds in which calls fail; None: all between the beginning and the end."""
        if self.kind == "outage":
            return None
        length = self.ends - self.begins
        return frozenset(
            second
            for second in range(int(self.begins), math.ceil(self.ends))
            if rng.random() < self._risk(second - self.begins, length)
        )

    def _risk(self, since: float, length: float) -> float:
        match self.kind:
            case "brownout":
                return self.share
            case "blips":
                return 1.0 if since % 30 < 3 else 0.0
            case "flapping":
                return 1.0 if since % 20 < 10 else 0.0
            case _:
                return min(1.0, 2 * (1 - since / length))


class Moment(msgspec.Struct, kw_only=True):
    """What happened in one second."""

    good: int = 0
    failed: int = 0
    blocked: int = 0
    """Calls that were not made, because the circuit was open."""


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a simulation."""

    operations: int
    calls: int
    wasted_calls: int
    """Calls made during the outage: each of them failed."""
    succeeded: int
    hit: int
    """Operations that failed or were rejected at least once."""
    recovered: int
    """Of the operations in `hit`, those that succeeded in the end."""
    blocked: int
    """Operations that ended because the circuit was open."""
    time_to_recovery: float | None
    """Seconds from the end of the outage to the first good answer; None: there was none."""
    seconds: tuple[Moment, ...]
    """Second by second."""

    @property
    def failed(self) -> int:
        return self.operations - self.succeeded

    @property
    def recovered_share(self) -> float:
        return self.recovered / self.hit if self.hit else 1.0

    @property
    def blocked_share(self) -> float:
        return self.blocked / self.operations if self.operations else 0.0

    @property
    def calls_per_operation(self) -> float:
        return self.calls / self.operations if self.operations else 0.0


def simulate(policy: Policy, outage: Outage, rng: Rng) -> SimulationReport:
    """Run the simulation and return its result."""
    simulation = _Simulation(policy, outage, rng)
    simulation.run()
    return simulation.report()


class _Call:
    """One operation under way."""

    __slots__ = ("attempts", "deadline", "decider", "hit", "permit")

    def __init__(self, policy: Policy, began: float) -> None:
        self.deadline = None if policy.window is None else began + policy.window
        self.decider = Decider(policy)
        self.permit: Permit | None = None
        self.attempts = 0
        self.hit = False


class _Simulation:
    """A queue of moments in virtual time, and the machines that decide at each of them."""

    def __init__(self, policy: Policy, outage: Outage, rng: Rng) -> None:
        self.policy = policy
        self.outage = outage
        self.rng = rng
        self.breaker = Breaker(policy.circuit or _METRICS_ONLY, "simulated")
        self.quota = None if policy.retry_quota is None else QuotaMachine(policy.retry_quota)
        self.bad = outage.bad_seconds(rng)
        self.fault = Fault.of(outage.code)
        self.verdict = Verdict.IGNORED if counted_by(self.fault, (Scope.PROVIDER,)) is None else Verdict.FAILURE
        self.heap: list[tuple[float, int, _Call | None, bool | None]] = []
        """Time, order, call (None: a new operation begins), and how an attempt ended (True: well; None: it begins)."""
        self.order = 0
        self.moments: list[Moment] = []
        self.operations = self.calls = self.wasted = self.succeeded = self.hit = self.recovered = self.blocked = 0
        self.back: float | None = None
        self.awaited: Rejection | None = None
        """The rejection whose end another caller already waits for."""
        self.waiting: dict[int, _Call] = {}
        """The calls that wait for the circuit, in the order of their arrival, by the number of the event that ends the wait."""
        self.woken: set[int] = set()
        """The numbers of the events whose calls were woken before."""

    def run(self) -> None:
        # Each operation schedules the next one; after the duration none is scheduled, and the queue runs dry.
        self._later(self._pause(), None, None)
        while self.heap:
            now, order, call, ended = heapq.heappop(self.heap)
            if call is None:
                self._operation(now)
            elif order in self.woken:
                self.woken.remove(order)
            elif ended is None:
                self.waiting.pop(order, None)
                self._attempt(call, now)
            elif ended:
                self._succeeded(call, now)
            else:
                self._failed(call, now)

    def report(self) -> SimulationReport:
        return SimulationReport(
            operations=self.operations,
            calls=self.calls,
            wasted_calls=self.wasted,
            succeeded=self.succeeded,
            hit=self.hit,
            recovered=self.recovered,
            blocked=self.blocked,
            time_to_recovery=self.back,
            seconds=tuple(self.moments),
        )

    def _operation(self, now: float) -> None:
        if now >= self.outage.duration:
            return
        self.operations += 1
        if self.quota is not None:
            self.quota.called(now)
        self._attempt(_Call(self.policy, now), now)
        self._later(now + self._pause(), None, None)

    def _attempt(self, call: _Call, now: float) -> None:
        # If the circuit counts one outcome per operation, a retry still holds the permit of the first attempt.
        if call.permit is None:
            permit = self.breaker.admit(now)
            if isinstance(permit, Rejection):
                self._rejected(call, permit, now)
                return
            call.permit = permit
        self.calls += 1
        down = self.outage.begins <= now < self.outage.ends and (self.bad is None or int(now) in self.bad)
        self.wasted += down
        call.attempts += 1
        self._later(now + (self.outage.fails_in if down else self.outage.answers_in), call, not down)

    def _rejected(self, call: _Call, rejection: Rejection, now: float) -> None:
        self._moment(now).blocked += 1
        self._mark_hit(call)
        left = None if rejection.retry_at is None else max(0.0, rejection.retry_at - now)
        first_to_wait = rejection is not self.awaited
        self.awaited = rejection
        self._decide(call, Fault.of("CIRCUIT_OPEN", retry_after=left), now, first_to_wait=first_to_wait)

    def _succeeded(self, call: _Call, now: float) -> None:
        self._settle(call, Verdict.SUCCESS, now)
        self._moment(now).good += 1
        self.succeeded += 1
        self.recovered += call.hit
        if self.back is None and now >= self.outage.ends:
            self.back = now - self.outage.ends
        if self.quota is not None and call.attempts > 1:
            self.quota.succeeded(now, call.attempts - 1)
        self._wake(now)

    def _wake(self, now: float) -> None:
        """Let calls that wait follow a good answer, as many as a graded circuit has room for."""
        if not self.breaker.config.graded:
            return
        if not self.waiting:
            self.breaker.nobody_waits(now)
        for order in list(self.waiting)[: max(0, self.breaker.room(now))]:
            self.woken.add(order)
            self._attempt(self.waiting.pop(order), now)

    def _failed(self, call: _Call, now: float) -> None:
        self._moment(now).failed += 1
        self._mark_hit(call)
        per_operation = self.policy.counts == "operation"
        reopened_for = None if per_operation else self._settle(call, self.verdict, now)
        # As in the runtime: an operation whose probe has just failed is the first to wait for the next probe.
        goes_on = self._decide(call, self.fault, now, first_to_wait=reopened_for is not None, reopened_for=reopened_for)
        if per_operation and not goes_on:
            self._settle(call, self.verdict, now)

    def _decide(
        self, call: _Call, fault: Fault, now: float, *, first_to_wait: bool, reopened_for: float | None = None
    ) -> bool:
        """Let the decision machine decide and perform its decision; return whether the operation goes on."""
        facts = Facts(
            fault=fault,
            now=now,
            rng=self.rng,
            attempts=call.attempts,
            deadline=call.deadline,
            waits_for_circuit=self.policy.waits is not False,
            rejected=fault.code == "CIRCUIT_OPEN",
            open_until=self.breaker.rejects_until,
            first_to_wait=first_to_wait,
            reopened_for=reopened_for,
            lasts=self.breaker.failure_lasts(now),
        )
        if self.quota is not None:
            quota = self.quota
            facts.withdraw_retry = lambda: quota.withdraw(now)
        decision = call.decider.decide(facts)
        if isinstance(decision, Retry):
            self._later(now + decision.delay, call, None)
            if fault.code == "CIRCUIT_OPEN":
                self.waiting[self.order] = call
            return True
        self.blocked += isinstance(decision, GiveUp) and decision.reason is Reason.CIRCUIT
        return False

    def _settle(self, call: _Call, verdict: Verdict, now: float) -> float | None:
        """Settle the permit; return for how long the circuit is open again where the call was a failed probe."""
        permit, call.permit = call.permit, None
        if permit is None:
            return None
        self.breaker.settle(permit, verdict, now, code=self.outage.code)
        # Nobody reads the changes here, and the breaker would collect them.
        self.breaker.take_transitions()
        until = self.breaker.open_until
        if not permit.probe or verdict is not Verdict.FAILURE or until is None:
            return None
        self.awaited = self.breaker.rejection
        return max(0.0, until - now)

    def _mark_hit(self, call: _Call) -> None:
        self.hit += not call.hit
        call.hit = True

    def _later(self, at: float, call: _Call | None, ended: bool | None) -> None:  # noqa: FBT001 - three states of one event
        # The number keeps events of the same moment in order; calls cannot be compared.
        self.order += 1
        heapq.heappush(self.heap, (at, self.order, call, ended))

    def _pause(self) -> float:
        """Return the time to the next operation."""
        # Exponential gaps are what independent callers produce: bursts and lulls, not a steady beat.
        return -math.log(1.0 - self.rng.random()) / self.outage.rate

    def _moment(self, now: float) -> Moment:
        second = int(now)
        while len(self.moments) <= second:
            self.moments.append(Moment())
        return self.moments[second]
