"""`Plan`: everything an operation reads, looked up once: runtime, policy, circuits, limits.

Invariant: a plan never changes once it is in use. When `CHANGES` says so, `fresh` gives another one, and calls under way
finish on theirs (R85). A plan made at import time serves every thread and event loop.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.faults import InvalidError, Scope
from holdfast.policies.effect import repeats_unknown
from holdfast.policies.policy import Policy
from holdfast.policies.target import Target, target_of
from holdfast.runtime.callables import name_of
from holdfast.runtime.drivers import limited
from holdfast.runtime.hedge import hedging
from holdfast.runtime.limiter import limited_by, limited_call
from holdfast.runtime.limits import Wheels
from holdfast.runtime.registry import TargetState, own_state
from holdfast.runtime.runtime import CHANGES, Runtime, default_runtime
from holdfast.runtime.threads import threaded
from holdfast.runtime.tool import ToolContract, contract_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.policies.effect import Effect
    from holdfast.policies.repair import Repair
    from holdfast.policies.target import Aim
    from holdfast.runtime.overrides import Overrides
    from holdfast.runtime.results import Accept

__all__ = ["PLAN_ATTRIBUTE", "Plan"]

PLAN_ATTRIBUTE = "__holdfast_plan__"
"""Where a decorated function keeps its plan."""

_NOWHERE = ((Scope.PROCESS, ""),)
"""The circuit of a recovery without a target: its own."""


class Plan:
    """How calls to one target recover, ready for use."""

    runtime: Runtime
    policy: Policy
    accept: Accept | None
    line: TargetState
    other_lines: tuple[tuple[TargetState, Scope], ...]

    def __init__(
        self,
        aim: Aim | None,
        policy: Policy | None,
        *,
        effect: Effect | None = None,
        accept: Accept | None = None,
        needs: frozenset[str] = frozenset(),
        threads: bool = False,
        alone: bool = False,
        overrides: Overrides | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if policy is not None and not isinstance(policy, Policy):
            raise InvalidError.at("recover.policy", "a Policy such as INTERACTIVE", policy)
        if accept is not None and not callable(accept):
            raise InvalidError.at("recover.accept", "a function that looks at the answer", accept)
        options.names("recover.needs", needs)
        options.flag("recover.threads", threads)
        if runtime is not None and not isinstance(runtime, Runtime):
            raise InvalidError.at("recover.runtime", "a Runtime", runtime)
        contract = None if effect is None else ToolContract(effect=effect)
        self.target = Target() if aim is None else target_of(aim)
        self.name = str(self.target)
        self.provider = self.target.provider
        self._given_accept = accept
        self.needs = needs
        self.threads = threads
        self.alone = alone
        """It shares nothing with other calls to its target, no circuit either."""
        self.overrides = overrides
        """What the caller says about its own failures."""
        self.contract = contract
        self._given_policy = policy
        self._given_runtime = runtime
        self.own_line = own_state("")
        self.repairs: list[tuple[Repair, Callable[..., Any]]] = []
        """What may be put right, and by whom; in the order they were added."""
        self.look_up()

    def look_up(self) -> None:
        """Look everything up: the runtime, the policy, the circuits. For a plan that nobody uses yet."""
        self.seen = CHANGES.count
        runtime = self.runtime = self._given_runtime or default_runtime()
        runtime.catch_up()
        self.monotonic = runtime.clock.monotonic
        policy = self._contracted(self._given_policy or runtime.policy_for(self.target))
        self.policy = policy
        self.effect = None if self.contract is None else self.contract.effect
        self.off = not runtime.enabled
        self.timeout = policy.timeout
        self.deadline = policy.deadline
        limits = [limit for limit in (policy.timeout, policy.deadline) if limit is not None]
        self.wheels = Wheels(min(limits), runtime.clock) if limits and not self.off else None
        self.per_operation = policy.counts == "operation"
        self.count_all = policy.circuit is not None and policy.circuit.count_all
        self.watched = runtime.bus.wants_attempts
        self._bind_lines(runtime, policy)
        self.breaks = policy.circuit is not None
        """It heeds the circuits of its names; one that is held open by hand everybody heeds."""
        self.rationed = policy.retry_quota is not None
        """Its retries are a share of its calls."""
        self.eventful = self.watched or bool(self.other_lines) or self.rationed
        self.limiter = (
            None if self.off or (policy.concurrency is None and policy.per_second is None) else self.line.limiter
        )
        self.call = threaded if self.threads and not self.off else None
        """How a sync attempt is made behind its limiter; None: plainly."""
        self.perform = limited_call if self.limiter else self.call
        self.perform_async = None if self.off else self._way_of_calling()
        self.accept = None if self.off else self._given_accept

    def _bind_lines(self, runtime: Runtime, policy: Policy) -> None:
        now = self.monotonic()
        names = self.target.names
        self.scopes = tuple(scope for scope, _ in names or _NOWHERE)
        shared = [] if self.alone else [runtime.registry.get(name) for _, name in names]
        lines = shared or [self.own_line]
        for line in lines:
            line.serve(policy, now)
        self.line = lines[0]
        self.other_lines = tuple(zip(lines[1:], self.scopes[1:], strict=False))

    def _way_of_calling(self) -> Callable[..., Awaitable[Any]] | None:
        """Return how one async attempt is made; None: plainly. Hedges only where a repeated call does no harm."""
        line = self.line
        if self.policy.hedge is not None and line.hedge_machine is not None and repeats_unknown(self.effect):
            way = hedging(self.policy.hedge, line.hedge_machine)
            return limited_by(way) if self.limiter else way
        return limited_by(limited) if self.limiter else None

    def _contracted(self, policy: Policy) -> Policy:
        """A tool's own contract wins over the policy it is called with (Part 6 c)."""
        contract = self.contract
        if contract is None:
            return policy
        if contract.timeout is not None:
            deadline = None if policy.deadline is None else max(policy.deadline, contract.timeout)
            policy = policy.replace(timeout=contract.timeout, deadline=deadline)
        if contract.retry is not None:
            policy = policy.replace(attempts=contract.retry.attempts, backoff=contract.retry.backoff)
        return policy

    def fresh(self) -> Plan:
        """Return this plan or, where something has changed, another that was looked up again."""
        if self.seen == CHANGES.count:
            return self
        other = copy.copy(self)
        other.look_up()
        return other

    def copy_for(self, fn: Any) -> Plan:
        """Return a plan of `fn`'s own, with what it declares about itself; without a target, with a circuit of its own."""
        other = self._with(contract_of(fn) or self.contract, fn)
        if not self.target.names:
            other.own_line = own_state(f"function:{other.name}")
        other.look_up()
        return other

    def once(self) -> Plan:
        """Return a plan for one plain attempt beside this one: its limits and runtime, no circuit, no retries."""
        policy = self.policy.replace(
            attempts=1,
            per_code={},
            circuit=None,
            concurrency=None,
            waiting=None,
            per_second=None,
            retry_quota=None,
            hedge=None,
        )
        other = Plan(None, policy, runtime=self._given_runtime)
        other.name = self.name
        return other

    def named(self, fn: Any) -> Plan:
        """Return this plan or, where it has no name, one that is called as `fn` is."""
        if self.name:
            return self
        other = copy.copy(self)
        other.name = name_of(fn)
        return other

    def of(self, fn: Any) -> Plan:
        """Return this plan, or one with what `fn` declares about itself."""
        contract = contract_of(fn)
        if contract is None or contract is self.contract:
            return self
        other = self._with(contract, fn)
        other.look_up()
        return other

    def _with(self, contract: ToolContract | None, fn: Any) -> Plan:
        other = copy.copy(self)
        other.repairs = []
        other.contract = contract
        other.name = self.name or name_of(fn)
        return other

    def refuses(self) -> bool:
        """Whether a call now would be refused by a circuit."""
        now = self.monotonic()
        return any(
            self.heeds(line) and line.refuses(now) for line in (self.line, *(line for line, _ in self.other_lines))
        )

    def heeds(self, line: TargetState) -> bool:
        """Whether a call is refused where this circuit is open."""
        return self.breaks or line.breaker.held
