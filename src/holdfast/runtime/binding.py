"""`Binding`: everything an operation reads, looked up once: runtime, policy, circuits, limits.

Invariant: a binding never changes once it is in use. When `CHANGES` says so, `fresh` gives another one, and calls under way
finish on theirs (R85). A binding made at import time serves every thread and event loop.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.faults import InvalidError, Scope
from holdfast.policies.effect import repeats_unknown
from holdfast.policies.policy import Policy
from holdfast.runtime.driving import limited
from holdfast.runtime.gates import gated, gated_by
from holdfast.runtime.hedging import hedging
from holdfast.runtime.kinds import name_of
from holdfast.runtime.limits import Wheels
from holdfast.runtime.lines import Line, line_of_its_own
from holdfast.runtime.runtime import CHANGES, Runtime, default_runtime
from holdfast.runtime.target import Target, target_of
from holdfast.runtime.threads import threaded
from holdfast.runtime.tool import ToolContract, contract_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.policies.effect import Effect
    from holdfast.policies.repair import Repair
    from holdfast.runtime.results import Accept
    from holdfast.runtime.target import Aim
    from holdfast.runtime.wishes import Wishes

__all__ = ["BINDING_ATTRIBUTE", "Binding"]

BINDING_ATTRIBUTE = "__holdfast_binding__"
"""Where a decorated function keeps its binding."""

_NOWHERE = ((Scope.PROCESS, ""),)
"""The circuit of a recovery without a target: its own."""


class Binding:
    """How calls to one target recover, ready for use."""

    runtime: Runtime
    policy: Policy
    accept: Accept | None
    line: Line
    other_lines: tuple[tuple[Line, Scope], ...]

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
        wishes: Wishes | None = None,
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
        self.wishes = wishes
        """What the caller says about its own failures."""
        self.contract = contract
        self._given_policy = policy
        self._given_runtime = runtime
        self.own_line = line_of_its_own("")
        self.repairs: list[tuple[Repair, Callable[..., Any]]] = []
        """What may be put right, and by whom; in the order they were added."""
        self.look_up()

    def look_up(self) -> None:
        """Look everything up: the runtime, the policy, the circuits. For a binding that nobody uses yet."""
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
        self.gate = None if self.off or (policy.concurrency is None and policy.per_second is None) else self.line.gate
        self.call = threaded if self.threads and not self.off else None
        """How a sync attempt is made behind its gate; None: plainly."""
        self.perform = gated if self.gate else self.call
        self.perform_async = None if self.off else self._way_of_calling()
        self.accept = None if self.off else self._given_accept

    def _bind_lines(self, runtime: Runtime, policy: Policy) -> None:
        now = self.monotonic()
        names = self.target.names
        self.scopes = tuple(scope for scope, _ in names or _NOWHERE)
        shared = [] if self.alone else [runtime.lines.get(name) for _, name in names]
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
            return gated_by(way) if self.gate else way
        return gated_by(limited) if self.gate else None

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

    def fresh(self) -> Binding:
        """Return this binding or, where something has changed, another that was looked up again."""
        if self.seen == CHANGES.count:
            return self
        other = copy.copy(self)
        other.look_up()
        return other

    def copy_for(self, fn: Any) -> Binding:
        """Return a binding of `fn`'s own, with what it declares about itself; without a target, with a circuit of its own."""
        other = self._with(contract_of(fn) or self.contract, fn)
        if not self.target.names:
            other.own_line = line_of_its_own(f"function:{other.name}")
        other.look_up()
        return other

    def once(self) -> Binding:
        """Return a binding for one plain attempt beside this one: its limits and runtime, no circuit, no retries."""
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
        other = Binding(None, policy, runtime=self._given_runtime)
        other.name = self.name
        return other

    def named(self, fn: Any) -> Binding:
        """Return this binding or, where it has no name, one that is called as `fn` is."""
        if self.name:
            return self
        other = copy.copy(self)
        other.name = name_of(fn)
        return other

    def of(self, fn: Any) -> Binding:
        """Return this binding, or one with what `fn` declares about itself."""
        contract = contract_of(fn)
        if contract is None or contract is self.contract:
            return self
        other = self._with(contract, fn)
        other.look_up()
        return other

    def _with(self, contract: ToolContract | None, fn: Any) -> Binding:
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

    def heeds(self, line: Line) -> bool:
        """Whether a call is refused where this circuit is open."""
        return self.breaks or line.breaker.held
