"""`Plan`: everything an operation reads, looked up once: runtime, policy, target states, limits.

Invariant: a plan never changes once it is in use. When `CHANGES` counts a change, `fresh` returns another plan, and calls
under way finish on theirs (R85). A plan made at import time serves every thread and event loop.
"""

from __future__ import annotations

import copy
import inspect
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast import options
from holdfast.faults import InvalidError, Schedule, Scope
from holdfast.policies.backoff import NEVER, Tries
from holdfast.policies.circuit import Verdict, counted_by
from holdfast.policies.decide import TIME_LIMITS, is_repeatable
from holdfast.policies.policy import DEFAULT_CIRCUIT, DOCUMENT_CIRCUIT, Policy
from holdfast.policies.target import Target, target_of
from holdfast.runtime.callables import PLAN_ATTRIBUTE, is_async, name_of
from holdfast.runtime.limits import Wheels
from holdfast.runtime.runtime import CHANGES, Runtime, default_runtime
from holdfast.runtime.tool import ToolContract, contract_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.classify.hints import AnnouncedLimits
    from holdfast.faults import Code, Fault
    from holdfast.policies.circuit import Permit
    from holdfast.policies.decide import Effect
    from holdfast.policies.repair import Repair
    from holdfast.policies.target import TargetLike
    from holdfast.runtime.ambient import Ambient
    from holdfast.runtime.operation.due_repair import Repairer
    from holdfast.runtime.operation.overrides import Overrides
    from holdfast.runtime.targets.target_state import TargetState

__all__ = ["MAX_PLANS", "PLAN_ATTRIBUTE", "Accept", "Plan", "PlanCache", "ScopedPermit"]

_MAX_CHECKS = 8
"""How many failures of a plan are checked for retries inside an attempt. Afterwards a retry costs nothing more."""

MAX_PLANS = 1024
"""The most plans that a cache keeps, so that memory stays bounded: models, keys and addresses may be any number."""

_QUOTA = Policy()
"""What a group that shares a rate limit has: a graded circuit, which paces."""

_NO_TARGET = ((Scope.PROCESS, ""),)
"""The scope of a recovery without a target."""

_LIMITED = frozenset({Scope.MODEL, Scope.CREDENTIAL})
"""Model providers limit calls per model and per key."""

_PROVIDERS = frozenset({Scope.PROVIDER, Scope.MODEL, Scope.CREDENTIAL})
"""Scopes of a call to a provider. Its failures are counted at the narrowest of them."""

Accept: TypeAlias = "Callable[[Any], bool | Code | Fault | None]"
"""Looks at an answer: True or None accepts it; False, a code or a Fault rejects it, and the call is made again.

An error that it raises, and any other value, rejects the answer too.
"""

ScopedPermit: TypeAlias = "tuple[TargetState, Permit, Scope]"
"""A permit of a circuit besides the main one."""


_CALLERS = count(1)


def _check(policy: Any, accept: Any, runtime: Any) -> None:
    """Raise `InvalidError` for what is not what it should be."""
    if policy is not None and not isinstance(policy, Policy):
        raise InvalidError.at("recover.policy", "a Policy such as INTERACTIVE", policy)
    if accept is not None and not callable(accept):
        raise InvalidError.at("recover.accept", "a function that looks at the answer", accept)
    if is_async(accept):
        # A coroutine object is no verdict, and nothing could await it after a plain call.
        raise InvalidError.saying("recover.accept", "a plain function of the answer", "an async function")
    if runtime is not None and not isinstance(runtime, Runtime):
        raise InvalidError.at("recover.runtime", "a Runtime", runtime)


class Attempting(Protocol):
    """An operation whose attempt has failed."""

    attempts: int
    attempt_started: float

    @property
    def run(self) -> str:
        """The id that its events carry."""
        ...


def _no_permit(now: float) -> None:
    """Admit a call without counting it, because recovery is switched off."""


class Plan:
    """How calls to one target recover, ready for use."""

    runtime: Runtime
    policy: Policy
    accept: Accept | None
    state: TargetState
    """The state of the main target: the first name of agent, tool, provider, model, credential that the call has."""
    other_states: tuple[tuple[TargetState, Scope], ...]
    shadow: Plan | None = None
    """In observe mode: what its calls would recover with. Its circuits and limits are in the runtime's shadow."""
    always_acts = False
    """In observe mode it acts all the same: what it does is the program's own, and no decision of ours."""

    def __init__(
        self,
        target: TargetLike | None,
        policy: Policy | None,
        *,
        effect: Effect | None = None,
        accept: Accept | None = None,
        needs: frozenset[str] = frozenset(),
        threads: bool = False,
        alone: bool = False,
        keeps_circuits: bool = False,
        counts_all: bool = False,
        through_client: bool = False,
        asks_model: bool = False,
        limited_as: str = "",
        overrides: Overrides | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        _check(policy, accept, runtime)
        options.names("recover.needs", needs)
        options.flag("recover.threads", threads)
        self.target = Target() if target is None else target_of(target)
        self.name = str(self.target)
        self.provider = self.target.provider
        self.listed_model = self.target.model if through_client and "@" not in self.provider else ""
        """The model under the name that its provider sells it by; empty where a person or another server chose the name."""
        self._given_limited_as = limited_as
        self._has_fallback = False
        self.needs = needs
        self.threads = threads
        """Sync attempts run in a thread that can be abandoned when their time is over."""
        self.alone = alone
        """It shares nothing with other calls to its target, not even a circuit."""
        self.keeps_circuits = keeps_circuits
        """Its policy names no circuit: each name keeps the settings that it already has, or takes the configured ones."""
        self._counts_all = counts_all
        self.through_client = through_client
        """It calls through the client of an SDK: the model has the name that its provider sells it by."""
        self.asks_model = asks_model
        """Its calls ask a model and change nothing, so that they may be hedged without a declared effect."""
        self.overrides = overrides
        self.caller = next(_CALLERS)
        """Calls of one caller wait in one line. Copies of the plan are the same caller."""
        self.contract = None if effect is None else ToolContract(effect=effect)
        self.declared: list[ToolContract] = []
        """What `@tool` above the recovery declares. It wins. Copies of the plan share it."""
        self.repairs: list[tuple[Repair, Repairer]] = []
        """The repairs and the functions that perform them, in the order they were added."""
        self.reported: set[str] = set()
        """The defects of `accept` that were reported. Copies of the plan share it, so each is reported once."""
        self.checks_left = [_MAX_CHECKS]
        """How many more failures are checked for retries inside an attempt. Copies of the plan share it."""
        self._given_accept = accept
        self._given_policy = policy
        self._given_runtime = runtime
        self._own_state: tuple[Runtime, TargetState] | None = None
        self.look_up()

    def look_up(self) -> None:
        """Look up the runtime, the policy and the target states. Only for a plan that is not in use yet."""
        # Read first: if something changes during the lookup, the next call looks up again.
        self.seen = self.looked_up = CHANGES.count
        self.is_shut = False
        """Its circuit rejects calls at once."""
        runtime = self.runtime = self._given_runtime or default_runtime()
        # A reload that a signal handler requested is done here, before its settings are read.
        runtime.catch_up()
        mode = runtime.mode_for(self.target)
        observes = mode == "observe" and not self.always_acts
        self.off = mode == "off" or observes
        """Its calls are plain calls."""
        self.bare = mode == "off"
        """Nobody looks at its plain calls either."""
        self.monotonic = runtime.clock.monotonic
        if self.declared:
            self.contract = self.declared[-1]
        policy = self.policy = self._with_contract(self._chosen_policy(runtime))
        wanted = policy.has_fallback
        self.is_patient = wanted is False or (wanted is None and policy.names_patience)
        """Its time for retries is used up, whatever else could answer."""
        self.has_fallback = wanted or self._has_fallback
        """Something outside of Holdfast answers when a call has failed for good."""
        self.limited_as = "" if policy.quota_group is not None else self._given_limited_as or self.target.model
        """What the other side limits, beside the key: the model."""
        self.effect = None if self.contract is None else self.contract.effect
        is_undeclared = self.effect is None and not self.asks_model and not self.through_client
        self.watches_requests = is_undeclared or self.effect == "unsafe"
        """A failure that shows a POST which may have happened is not repeated. A client's adapter knows its requests itself."""
        self._look_up_limits(runtime, policy)
        self._look_up_states(runtime, policy)
        self.watched = runtime.bus.wants_attempts and not self.off
        """The events of every attempt have readers."""
        self.rationed = policy.retry_quota is not None
        """A quota limits its retries to a share of its calls."""
        self.eventful = not self.off and (self.watched or bool(self.other_states) or self.rationed)
        """Even a successful attempt has more to do than to settle one permit."""
        self.accept = self._given_accept if observes or not self.off else None
        self.shadow = self._look_up_shadow(runtime) if observes else None

    def _look_up_shadow(self, runtime: Runtime) -> Plan:
        other = copy.copy(self)
        other._given_runtime = runtime.shadow  # noqa: SLF001 - its own class
        # What it has learned about a function without a target is its own, and stays when something else changes.
        other._own_state = None if self.shadow is None else self.shadow._own_state  # noqa: SLF001 - its own class
        other.look_up()
        return other

    @property
    def configured_from(self) -> str:
        """Where its policy comes from if the caller gave none: a file, `the environment`; empty if the caller or nobody chose it."""
        source = self.runtime.configured_from if self._given_policy is None else ""
        return "" if source in ("code", "defaults") else source

    def _chosen_policy(self, runtime: Runtime) -> Policy:
        """Return the policy that the caller gave, else the configured one."""
        given, configured = self._given_policy, runtime.policy_for(self.target)
        if given is None:
            return configured
        if given.circuit is DEFAULT_CIRCUIT and configured.circuit is not DEFAULT_CIRCUIT:
            # All calls to a target share its circuit. If the default counted as named, a reload that changes the
            # circuit in the settings would make this policy and the configured one disagree, and calls would raise.
            return given.replace(circuit=configured.circuit)
        return given

    def _look_up_limits(self, runtime: Runtime, policy: Policy) -> None:
        self.timeout = None if self.off else policy.timeout
        self.deadline = None if self.off else policy.deadline
        self.patience = None if self.off else policy.window
        """Seconds in which attempts may start."""
        # The first attempt gets the smaller of timeout and deadline. `Operation.limit` shortens the limit of later attempts.
        limits = [limit for limit in (self.timeout, self.deadline) if limit is not None]
        self.wheels = Wheels(min(limits), runtime.clock) if limits else None
        # A hedge repeats the call, so it needs an effect that may be repeated.
        self.hedge = policy.hedge if is_repeatable(self.effect) or self.asks_model else None

    def _look_up_states(self, runtime: Runtime, policy: Policy) -> None:
        names = self.target.names
        narrowest = self.target.narrowest
        if policy.circuit is not None and policy.circuit.graded and names and names[-1][1] != narrowest:
            names += ((Scope.MODEL, narrowest),)
        self.scopes = tuple(scope for scope, _ in names or _NO_TARGET)
        self.is_tool = Scope.TOOL in self.scopes
        shared = [] if self.alone else [runtime.registry.get(name) for _, name in names]
        states = shared or [self._unshared_state(runtime)]
        now = self.monotonic()
        for state in states:
            if state.serve(self._with_own_circuit(policy, runtime, state), now):
                # Other plans hold the limiter that was replaced: they must look up again.
                CHANGES.happened()
        self.state = states[0]
        self.narrow = states[-1] if self.scopes[0] in _PROVIDERS and states[-1].is_graded else states[0]
        """The state whose circuit counts what fails: the narrowest one of a provider's, so that a sick model harms no other."""
        self._counting: dict[Scope, TargetState] = {}
        """Which state counts the failures of a scope."""
        for state, scope in zip(states, self.scopes, strict=False):
            is_narrow = state.is_graded and scope in _PROVIDERS and self.scopes[0] in _PROVIDERS
            self._counting.setdefault(scope, self.narrow if is_narrow else state)
        if self.alone:
            # Its one state shares nothing with the names of the target, and counts whatever fails.
            self._counting = dict.fromkeys(self.scopes, states[0])
        if self.scopes[-1] in _LIMITED and policy.circuit is not None and policy.quota_group is None:
            states[-1].expect_limits()
        self.quota_state = self._look_up_quota(runtime, policy, now)
        self.limited_state = self.quota_state or states[-1]
        """The state whose calls share the limits of the other side: that of the group, or of the key, the model, the provider."""
        self.other_states = tuple(zip(states[1:], self.scopes[1:], strict=False))
        if self.quota_state is not None:
            self.other_states += ((self.quota_state, Scope.CREDENTIAL),)
        # Bound methods, stored here once: every call uses them, and each attribute on the way to them costs time.
        self.admit: Callable[[float], Permit | None] = _no_permit if self.off else self.state.admit_if_closed
        self.succeed = self.state.succeed
        self.breaks = policy.circuit is not None
        """It obeys the circuits of its names. A circuit that is held open by hand is obeyed even where this is False."""
        self.per_operation = policy.counts == "operation"
        self.counts_all = policy.circuit is not None and (self._counts_all or policy.circuit.count_all)
        """Every failure counts, also the caller's own mistakes."""
        limits_calls = policy.concurrency is not None or policy.per_second is not None
        self.limiter = self.state.limiter if limits_calls and not self.off else None
        self.settles = self.contract is not None and self.contract.settles and not self.off
        """Its tool checks results, or finds out whether a call happened."""
        self.is_plain = self.limiter is None and (self.hedge is None or self.off) and not self.settles
        """An async attempt is nothing but the call under its time limit."""
        self.is_plain_sync = self.limiter is None and not self.threads and not self.settles
        """A sync attempt is nothing but the call."""

    def _look_up_quota(self, runtime: Runtime, policy: Policy, now: float) -> TargetState | None:
        """Return the state of the group that shares a rate limit; None: the policy names none."""
        if policy.quota_group is None or self.alone or self.off:
            return None
        state = runtime.registry.get(f"quota:{policy.quota_group}")
        # Not the policy's own circuit: the policies of a group may have different ones.
        state.serve(_QUOTA, now)
        state.expect_limits()
        state.shares_declared = True
        return state

    def _with_own_circuit(self, policy: Policy, runtime: Runtime, state: TargetState) -> Policy:
        """Return the policy with the circuit of this name, unless the caller chose one for all names."""
        given = self._given_policy
        chosen = given is not None and given.circuit is not DEFAULT_CIRCUIT and not self.keeps_circuits
        if chosen or policy.circuit is None or self.alone:
            return policy
        # The settings of an agent are not those of the provider that it calls.
        own = runtime.policy_named(state.name).circuit
        if self.keeps_circuits and state.has_current_circuit:
            own = state.circuit
        elif own is DEFAULT_CIRCUIT and (
            state.circuit is DOCUMENT_CIRCUIT or (self.keeps_circuits and state.circuit is not DEFAULT_CIRCUIT)
        ):
            # Nobody named a circuit. A manager and a recovery share the one of who used the name first.
            own = DOCUMENT_CIRCUIT
        return policy if own is policy.circuit else policy.replace(circuit=own)

    def _unshared_state(self, runtime: Runtime) -> TargetState:
        # Its circuit holds readings of its runtime's clock, so it cannot move to another runtime.
        if (
            self._own_state is None
            or self._own_state[0] is not runtime
            or not runtime.registry.holds(self._own_state[1])
        ):
            state = runtime.registry.unnamed(f"function:{self.name}" if self.name else "")
            self._own_state = (runtime, state)
        return self._own_state[1]

    def _with_contract(self, policy: Policy) -> Policy:
        """Apply a tool's own contract, which wins over the policy it is called with."""
        contract = self.contract
        if contract is None:
            return policy
        if contract.timeout is not None:
            # A tool that declares it needs ten minutes must be able to use them. The second more makes a late attempt late by
            # its own limit. At the deadline it would be the operation that is late, which is never retried.
            deadline = None if policy.deadline is None else max(policy.deadline, contract.timeout + 1)
            policy = policy.replace(timeout=contract.timeout, deadline=deadline)
        if contract.retry is not None:
            policy = policy.replace(attempts=contract.retry.attempts, backoff=contract.retry.backoff)
        if contract.codes:
            retried = contract.retry or Tries()
            per_code: dict[Any, Tries] = {code: retried if wanted else NEVER for code, wanted in contract.codes.items()}
            policy = policy.replace(per_code={**policy.per_code, **per_code})
        return policy

    # --- other plans ---

    def fresh(self) -> Plan:
        """Return this plan or, if something has changed, a new plan that is looked up again."""
        if self.seen == CHANGES.count:
            return self
        if self.is_shut and self.looked_up == CHANGES.count:
            if self.state.is_closed:
                self.is_shut, self.seen = False, self.looked_up
            return self
        other = copy.copy(self)
        other.look_up()
        return other

    def shut(self) -> None:
        """A circuit rejected a call that neither waits nor falls back: later calls ask it first (`errors.reject_again`)."""
        # No count is negative. So decorated functions notice it by a check that they make anyway, and calls that succeed
        # pay nothing for it.
        self.is_shut, self.seen = True, -1

    def copy_for(self, fn: Any) -> Plan:
        """Return a plan of `fn`'s own, with what `fn` declares about itself; without a target, with a circuit of its own."""
        other = self._with(contract_of(fn) or self.contract, fn)
        # Two functions that one `recover()` decorates must not trip each other's circuit.
        other._own_state = None  # noqa: SLF001 - its own class
        other.look_up()
        return other

    def acting(self) -> Plan:
        """Return a plan that acts in observe mode too."""
        other = copy.copy(self)
        other.always_acts = True
        other.look_up()
        return other

    def before_fallback(self) -> Plan:
        """Return a plan for calls that something outside of Holdfast answers when they have failed for good."""
        other = copy.copy(self)
        other._has_fallback = True  # noqa: SLF001 - its own class
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
            burst=1,
            retry_quota=None,
            hedge=None,
            quota_group=None,
            has_fallback=None,
        )
        other = Plan(None, policy, runtime=self._given_runtime)
        other.name = self.name
        return other

    def for_reads(self) -> Plan:
        """Return a plan for reads beside this one: the default policy in its runtime, and nothing shared."""
        return Plan(None, None, effect="read", alone=True, runtime=self._given_runtime)

    def declare(self, contract: ToolContract) -> None:
        """Obey what `@tool` declares about the decorated function, from its next call on."""
        self.declared.append(contract)
        CHANGES.happened()

    def named(self, fn: Any) -> Plan:
        """Return this plan or, where it has no name, one with the name of `fn`."""
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
        # Repairs and declarations belong to one decorated function; a copied list would be shared.
        other.repairs, other.declared = [], []
        other.contract = contract
        other.name = self.name or name_of(fn)
        return other

    def without_effect(self, fn: Any) -> Iterator[str]:
        """Yield the options that somebody chose and that have no effect on calls of `fn`, with what to do."""
        given, contract = self._given_policy, self.contract
        chose_timeout = contract is not None and contract.timeout is not None
        if given is not None and given.profile == "holdfast":
            chose_timeout = chose_timeout or given.timeout is not None
        is_plain = not is_async(fn)
        # A lambda or a wrapper often returns the coroutine of an async function, and its call does have the limit.
        returns_coroutine = name_of(fn).endswith("<lambda>") or is_async(inspect.unwrap(fn))
        if is_plain and chose_timeout and not self.threads and not returns_coroutine:
            yield (
                "`timeout` has no effect on a plain function, which cannot be cancelled: "
                "add threads=True, make it async, or give timeout=None"
            )
        if given is None or given.hedge is None:
            return
        if is_plain:
            yield "`hedge` has no effect on a plain function: only async functions are hedged"
        elif self.hedge is None:
            yield '`hedge` has no effect without effect="read", "idempotent" or "keyed": a second call may do harm'

    def wall(self, monotonic: float) -> float:
        """Return a reading of the monotonic clock on the wall clock."""
        clock = self.runtime.clock
        return clock.wall() - (clock.monotonic() - monotonic)

    # --- circuits ---

    def obeys(self, state: TargetState) -> bool:
        """Whether an open circuit or a pace of this state holds back the calls of this plan.

        Of the graded circuits only the narrowest does. Others may call a provider under its name alone, and what they meet says
        nothing about this model and key.
        """
        is_wider = state.is_graded and state is not self.narrow
        return (self.breaks and not is_wider) or state is self.quota_state or state.is_held

    def rejects(self) -> bool:
        """Whether a circuit would reject a call now."""
        now = self.monotonic()
        states = (self.state, *(state for state, _ in self.other_states))
        return any(self.obeys(state) and state.rejects(now) for state in states)

    def settle(
        self, permit: Permit | None, others: tuple[ScopedPermit, ...], verdict: Verdict, now: float, op: Ambient
    ) -> None:
        """Settle every permit of an attempt of this operation in the same way."""
        # The run's name is made when it is read. Most operations change no circuit and need none.
        if permit is not None and self.state.settle(permit, verdict, now):
            self.runtime.report_transitions(self.state, op.run)
        for state, other, _ in others:
            if state.settle(other, verdict, now):
                self.runtime.report_transitions(state, op.run)

    def settle_failure(
        self, permit: Permit | None, others: tuple[ScopedPermit, ...], fault: Fault, now: float, op: Attempting
    ) -> float | None:
        """Settle every permit after a failure, which counts on one circuit at most: the one of its scope.

        If the attempt was a probe, return for how long its circuit is open again.
        """
        # A revoked key must not open the circuit of the whole provider, so the other circuits ignore the failure.
        main = self.scopes[0]
        is_limit = fault.schedule is Schedule.RATE_LIMIT
        # Other failures that name a time only guess.
        requested = self._requested_pause(fault) if is_limit else None
        counted = self._counted_on(fault, now - op.attempt_started)
        reopened = None
        permits = others if permit is None else ((self.state, permit, main), *others)
        for state, held, _ in permits:
            counts = state is counted
            verdict = Verdict.FAILURE if counts else Verdict.IGNORED
            if counts and is_limit:
                state.limited(held, now, requested)
            changed = state.settle(held, verdict, now, fault.code, requested, counts and op.attempts == 1)
            if held.probe and verdict is Verdict.FAILURE:
                reopened = state.reopened_for(now)
            if changed:
                self.runtime.report_transitions(state, op.run)
        return reopened

    def _counted_on(self, fault: Fault, took: float) -> TargetState | None:
        """Return the state whose circuit counts this failure of a call that took so long; None: none does."""
        scope = self.scopes[0] if self.counts_all else counted_by(fault, self.scopes)
        if scope is None:
            return None
        if self.quota_state is not None and fault.schedule is Schedule.RATE_LIMIT:
            # Where a group shares a limit, its calls are slowed, and no single key or model counts as failing.
            return self.quota_state
        state = self._counting[scope]
        is_patience = fault.code in TIME_LIMITS and state.is_graded and not state.is_far_beyond(took)
        return None if is_patience else state

    def announced(self, limits: AnnouncedLimits, since: float, *, accepted: bool) -> None:
        """An answer announced the limits of the other side. Its call started at `since`, and was accepted or rejected."""
        if self.obeys(self.limited_state):
            now, limited_as = self.monotonic(), self.limited_as
            self.limited_state.announced(limits, since, now, accepted=accepted, limited_as=limited_as)

    def announced_nothing(self, since: float) -> None:
        """A good answer announced no limits. Its call started at `since`."""
        if self.limited_state.is_announced:
            self.limited_state.announced_nothing(since, self.limited_as)

    def used(self, tokens: int) -> None:
        """An answer reports how many tokens its call took."""
        self.limited_state.used(tokens, self.limited_as)

    def _requested_pause(self, fault: Fault) -> float | None:
        """Return how long a rate limit lasts, if it names a time."""
        return None if fault.retry_after is None else min(fault.retry_after, self.policy.max_retry_after)


class PlanCache:
    """Plans by key. A plan is made when it is first needed, and again when settings, circuits or subscribers have changed.

    It serves several threads: if two make the same plan at once, the two plans are equal.
    """

    __slots__ = ("_make", "_plans")

    def __init__(self, make: Callable[..., Plan]) -> None:
        self._make = make
        """Takes the parts of a key."""
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def get(self, *key: Any) -> Plan:
        """Return the plan for these parts of a key."""
        plan = self._plans.get(key)
        if plan is None or plan.seen != CHANGES.count:
            plan = self._make(*key)
            if len(self._plans) >= MAX_PLANS:
                # All are dropped at once, because keeping track of the oldest would slow down every call.
                self._plans = {}
            self._plans[key] = plan
        return plan
