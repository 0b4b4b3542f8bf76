"""One API call through a pool: before each attempt a key is chosen, and a key that fails is left for another at once.

Invariant: one attempt is one request, and whatever protects the caller (deadline, budget, circuits, quota) is asked before
each, also where only the key changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, HoldfastError, Scope
from holdfast.integrations.clients.flowing import Flowing
from holdfast.integrations.clients.requests import effect_of, model_of, replayable
from holdfast.policies.decide import GiveUp, Reason, Retry
from holdfast.policies.target import Target
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.operation import Operation

if TYPE_CHECKING:
    from holdfast.integrations.clients.dialect import Dialect
    from holdfast.integrations.clients.pool import Member, Pool
    from holdfast.runtime.surroundings import Tokens

__all__ = ["ClientOperation", "StreamOperation"]


class ClientOperation(Operation):
    """The state of one API call."""

    def __init__(self, pool: Pool, first: Member, options: Any) -> None:
        self.pool = pool
        self.member = first
        self.options = options
        self.model = model_of(options)
        self.declared = effect_of(options)
        self.avoid: int | None = None
        """The member that failed last."""
        super().__init__(pool.plan(first, self.model, self.declared))

    @property
    def waits_for_circuit(self) -> bool:
        """Whether it waits for an open circuit: as the policy says, else where nothing around it could answer."""
        wanted = self.plan.policy.wait_for_circuit
        return self._is_alone() if wanted is None else wanted

    def admit(self) -> None:
        """Begin an attempt with the key that is next."""
        if self.pool.several and not self.plan.off:
            self._choose()
        super().admit()

    def succeeded(self, value: object = None) -> None:
        self.pool.succeeded(self.member)
        super().succeeded(value)

    def failed(self, error: BaseException, decision: Retry | GiveUp | None = None) -> float | None:
        """Take in a failure; where it is the key's own, another key is asked at once."""
        if decision is None and isinstance(error, Exception) and self.attempts > len(self.history):
            decision = self._own_decision(error)
        return super().failed(error, decision)

    def surround(self) -> Tokens:
        """Put in force what the attempt's beginning changed in the context; `Surroundings.leave` with what this returns."""
        return ()

    def _choose(self) -> None:
        now = self.plan.monotonic()
        choice = self.pool.choose(now, self._shut(now), self.avoid)
        if choice.wait > 0:
            message = f"Every key of {self.pool.name} has reached its limit"
            raise HoldfastError(
                Fault.of("SYS_RATE_LIMITED", message, retry_after=choice.wait, context={"name": self.pool.name})
            )
        member = self.pool.members[choice.index]
        self.member = member
        self._use(self.pool.plan(member, self.model, self.declared))

    def _own_decision(self, error: Exception) -> Retry | GiveUp | None:
        if not replayable(self.options):
            return GiveUp(Reason.UNWANTED)
        if not self.pool.several:
            return None
        now = self.plan.monotonic()
        fault = fault_of(error, provider=self.plan.provider, now=self.plan.runtime.clock.wall())
        self.avoid = self.member.index
        if fault.scope is not Scope.CREDENTIAL:
            return None
        self.pool.failed(self.member, fault, now)
        return self._moving_on(fault, now)

    def _moving_on(self, fault: Fault, now: float) -> Retry | GiveUp | None:
        """Go on with another key: now if one is ready, else when the first will be, if that is before this one."""
        wait = self.pool.soonest(now, self._shut(now))
        if wait is None:
            return None
        tries = self.plan.policy.tries(fault)
        if wait <= 0.0 and self.moves < len(self.pool.members) - 1:
            self.moves += 1
            return Retry(0.0, max(tries.attempts, self.attempts + 1))
        sooner = fault.retryable and fault.retry_after is not None and wait < fault.retry_after
        return Retry(wait, tries.attempts, requested=True) if sooner and self._tried() < tries.attempts else None

    def _tried(self) -> int:
        return self.attempts - self.moves

    def _shut(self, now: float) -> frozenset[int]:
        """Return the members whose own circuit is open."""
        lines = self.plan.runtime.registry
        name = self.pool.name
        names = ((m.index, Target(provider=name, credential=m.credential).names[-1][1]) for m in self.pool.members)
        known = ((index, lines.known(circuit)) for index, circuit in names)
        return frozenset(index for index, line in known if line is not None and line.rejects(now))


class StreamOperation(Flowing, ClientOperation):
    """An API call whose answer is a stream."""

    @property
    def dialect(self) -> Dialect:
        """What the stream's events mean."""
        return self.pool.dialect
