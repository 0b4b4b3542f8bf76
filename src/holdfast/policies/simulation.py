"""An outage under a policy, played through in virtual time with the very machines that decide in earnest.

Invariant: the same policy, outage, load and chance give the same result; nothing waits.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import msgspec

from holdfast import options
from holdfast.events import CircuitState
from holdfast.faults import Code, Fault, InvalidError, Scope
from holdfast.policies.circuit import Breaker, Circuit, Permit, Rejection, Verdict, counted_by
from holdfast.policies.quota import QuotaMachine
from holdfast.policies.retry import Again, Retrying

if TYPE_CHECKING:
    from holdfast.clock import Rng
    from holdfast.policies.policy import Policy

__all__ = ["Moment", "Outage", "Report", "simulate"]

MOST_OPERATIONS = 1_000_000
_METRICS_ONLY = Circuit(mode="metrics-only")


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """What happens: who calls how often, and when every call fails."""

    begins: float = 5.0
    ends: float = 60.0
    code: Code = "PROVIDER_UNAVAILABLE"
    rate: float = 10.0
    """Operations per second, at random moments."""
    duration: float = 120.0
    """Seconds in which operations begin; all of them are seen to their end."""
    answers_in: float = 0.5
    """Seconds a good call takes."""
    fails_in: float = 0.1
    """Seconds a call takes that fails."""

    def __post_init__(self) -> None:
        options.seconds("outage.begins", self.begins, zero=True)
        options.seconds("outage.ends", self.ends)
        options.at_least("outage.rate", self.rate, 0.001)
        options.seconds("outage.duration", self.duration)
        options.seconds("outage.answers_in", self.answers_in, zero=True)
        options.seconds("outage.fails_in", self.fails_in, zero=True)
        if self.ends <= self.begins:
            raise InvalidError.at("outage.ends", f"after it begins ({self.begins:g} s)", self.ends)
        if self.rate * self.duration > MOST_OPERATIONS:
            raise InvalidError.at("outage.rate", f"at most {MOST_OPERATIONS:,} operations in all", self.rate)


class Moment(msgspec.Struct, kw_only=True):
    """What happened in one second."""

    good: int = 0
    failed: int = 0
    blocked: int = 0
    """Calls that were not made, because the circuit was open."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    operations: int
    calls: int
    wasted_calls: int
    """Calls made during the outage: each of them failed."""
    succeeded: int
    hit: int
    """Operations that failed or were refused at least once."""
    recovered: int
    """Those of them that succeeded in the end."""
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


def simulate(policy: Policy, outage: Outage, rng: Rng) -> Report:
    """Play the outage through and return what came of it."""
    play = _Play(policy, outage, rng)
    play.run()
    return play.report()


class _Op:
    """One operation under way."""

    __slots__ = ("deadline", "hit", "permit", "retries", "retrying")

    def __init__(self, policy: Policy, began: float) -> None:
        self.deadline = None if policy.deadline is None else began + policy.deadline
        self.retrying = Retrying(policy)
        self.permit: Permit | None = None
        self.retries = 0
        self.hit = False


class _Play:
    def __init__(self, policy: Policy, outage: Outage, rng: Rng) -> None:
        self.policy = policy
        self.outage = outage
        self.rng = rng
        self.breaker = Breaker(policy.circuit or _METRICS_ONLY, "simulated")
        self.quota = None if policy.retry_quota is None else QuotaMachine(policy.retry_quota)
        self.fault = Fault.of(outage.code)
        self.verdict = Verdict.IGNORED if counted_by(self.fault, (Scope.PROVIDER,)) is None else Verdict.FAILURE
        self.heap: list[tuple[float, int, _Op | None, bool | None]] = []
        """When, which, and what: an operation begins (None), a call begins (None), or one ends (good or not)."""
        self.order = 0
        self.moments: list[Moment] = []
        self.operations = self.calls = self.wasted = self.succeeded = self.hit = self.recovered = self.blocked = 0
        self.back: float | None = None
        self.awaited: Rejection | None = None
        """The opening that somebody waits for."""

    def run(self) -> None:
        self._later(self._pause(), None, None)
        while self.heap:
            now, _, op, ended = heapq.heappop(self.heap)
            if op is None:
                self._operation(now)
            elif ended is None:
                self._attempt(op, now)
            else:
                self._ended(op, now, good=ended)

    def report(self) -> Report:
        return Report(
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
        self._attempt(_Op(self.policy, now), now)
        self._later(now + self._pause(), None, None)

    def _attempt(self, op: _Op, now: float) -> None:
        if op.permit is None:
            permit = self.breaker.admit(now)
            if isinstance(permit, Rejection):
                self._refused(op, permit, now)
                return
            op.permit = permit
        self.calls += 1
        down = self.outage.begins <= now < self.outage.ends
        self.wasted += down
        op.retrying.attempts += 1
        self._later(now + (self.outage.fails_in if down else self.outage.answers_in), op, not down)

    def _refused(self, op: _Op, rejection: Rejection, now: float) -> None:
        self._moment(now).blocked += 1
        self._mark_hit(op)
        left = None if rejection.retry_at is None else max(0.0, rejection.retry_at - now)
        again = op.retrying.decide(
            Fault.of("CIRCUIT_OPEN", retry_after=left),
            now=now,
            deadline=op.deadline,
            rng=self.rng,
            effect=None,
            prompt=rejection is not self.awaited,
        )
        self.awaited = rejection
        if isinstance(again, Again):
            self._later(now + again.delay, op, None)
        else:
            self.blocked += 1

    def _ended(self, op: _Op, now: float, *, good: bool) -> None:
        if good:
            self._settle(op, Verdict.SUCCESS, now)
            self._moment(now).good += 1
            self.succeeded += 1
            self.recovered += op.hit
            if self.back is None and now >= self.outage.ends:
                self.back = now - self.outage.ends
            if self.quota is not None and op.retries:
                self.quota.succeeded(now, op.retries)
            return
        self._moment(now).failed += 1
        self._mark_hit(op)
        per_operation = self.policy.counts == "operation"
        reopened = None if per_operation else self._settle(op, self.verdict, now)
        again = op.retrying.decide(
            self.fault,
            now=now,
            deadline=op.deadline,
            rng=self.rng,
            effect=None,
            prompt=reopened is not None,
            reopened=reopened,
        )
        if isinstance(again, Again) and self._may_retry(now, again.delay):
            op.retries += 1
            self._later(now + again.delay, op, None)
        elif per_operation:
            self._settle(op, self.verdict, now)

    def _may_retry(self, now: float, delay: float) -> bool:
        if not self.policy.wait_for_circuit and self.breaker.state(now + delay) is CircuitState.OPEN:
            self.blocked += 1
            return False
        return self.quota is None or self.quota.ask(now)

    def _settle(self, op: _Op, verdict: Verdict, now: float) -> float | None:
        """Return for how long the circuit is open again, if the call was a bad probe of it."""
        permit, op.permit = op.permit, None
        if permit is None:
            return None
        self.breaker.settle(permit, verdict, now, code=self.outage.code)
        self.breaker.take_transitions()
        until = self.breaker.open_until
        if not permit.probe or verdict is not Verdict.FAILURE or until is None:
            return None
        self.awaited = self.breaker.rejection
        return max(0.0, until - now)

    def _mark_hit(self, op: _Op) -> None:
        self.hit += not op.hit
        op.hit = True

    def _later(self, at: float, op: _Op | None, ended: bool | None) -> None:  # noqa: FBT001 - three states of one event
        self.order += 1
        heapq.heappush(self.heap, (at, self.order, op, ended))

    def _pause(self) -> float:
        """Return the time to the next operation: they come independently of each other."""
        return -math.log(1.0 - self.rng.random()) / self.outage.rate

    def _moment(self, now: float) -> Moment:
        second = int(now)
        while len(self.moments) <= second:
            self.moments.append(Moment())
        return self.moments[second]
