"""What `ResilienceManager.execute` is told about one call, and the policy and the chain that come of it (N1-8).

Invariant: what is said here wins over the configured policy, field by field; what is not said is as configured (C8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.events import AgentFallback
from holdfast.faults import Fault, InvalidError
from holdfast.policies.backoff import Tries
from holdfast.policies.chains import agent_chain
from holdfast.policies.circuit import Circuit
from holdfast.policies.fallback import Consent, When
from holdfast.policies.profiles import PROFILES
from holdfast.policies.target import Target
from holdfast.runtime.adapter import Abort
from holdfast.runtime.cache import CacheStore
from holdfast.runtime.fallback import Chain

if TYPE_CHECKING:
    from holdfast.policies import Policy

__all__ = [
    "AgentExecutionContext",
    "CachedAnswers",
    "ExecutionOptions",
    "FallbackChain",
    "FallbackStep",
    "agents_in_place",
    "limited_to",
]


class FallbackStep(msgspec.Struct, frozen=True, kw_only=True):
    """One other way of doing it (S1-16)."""

    name: str
    operation: Callable[[], Any]
    when: When | None = None
    """Codes, categories or a function of the latest and the primary fault. None: always."""
    priority: int = 0
    """Lower ones first; those that have the same in the order given (N1-7)."""
    offers: frozenset[str] | None = None
    consent: Consent = "configured"

    def __post_init__(self) -> None:
        if not callable(self.operation):
            raise InvalidError.at("fallback.operation", "a function", self.operation)


class CachedAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Where good answers are kept for a worse day."""

    store: CacheStore
    key: str
    """What is asked for: the same question, the same key."""
    ttl: float = 300.0
    """Seconds that an answer is good enough."""


class FallbackChain(msgspec.Struct, frozen=True, kw_only=True):
    """What to do when the operation has failed for good: steps, cache, a lesser answer, telling somebody (S1-15)."""

    fallbacks: tuple[FallbackStep, ...] = ()
    cached: CachedAnswers | None = None
    degraded: Callable[[Fault], Any] | None = None
    notify: Callable[[Fault], object] | None = None

    def chain_for(self, operation: Callable[[], Any]) -> Chain:
        """Return the chain behind one operation."""
        # The key alone says what was asked: operations are often lambdas, and their names say nothing.
        chain = Chain(operation, name="operation")
        for step in sorted(self.fallbacks, key=lambda step: step.priority):
            chain.fallback(step.operation, when=step.when, name=step.name, offers=step.offers, consent=step.consent)
        if self.cached is not None:
            key = self.cached.key
            chain.cached(ttl=self.cached.ttl, key=lambda: key, store=self.cached.store)
        if self.degraded is not None:
            chain.degraded(self.degraded)
        if self.notify is not None:
            chain.notify(self.notify)
        return chain


class ExecutionOptions(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """How one operation is executed. Everything may be left out."""

    operation_name: str = ""
    """What events and messages call it."""
    provider: str = ""
    agent: str = ""
    retry: Tries | None = None
    """How often and how far apart, whatever failed."""
    circuit_breaker: Circuit | None = None
    timeout: float | None = None
    """Seconds for one attempt."""
    operation_type: str = ""
    """`llm-call`, `tool-execution`, `file-read` …: the profile knows its limit. `timeout` wins."""
    fallback_chain: FallbackChain | None = None
    skip_circuit_breaker: bool = False
    skip_retry: bool = False
    abort: Abort | None = None
    """A `threading.Event`, an `asyncio.Event`, or anything else with `is_set`."""
    threads: bool = False
    """Hold sync operations to the limit too, by leaving a thread behind."""

    def __post_init__(self) -> None:
        options.seconds("options.timeout", self.timeout, optional=True)
        for name in ("operation_name", "provider", "agent", "operation_type"):
            if not isinstance(getattr(self, name), str):
                raise InvalidError.at(f"options.{name}", "a name", getattr(self, name))
        for name, kind in (("retry", Tries), ("circuit_breaker", Circuit), ("fallback_chain", FallbackChain)):
            if not isinstance(getattr(self, name), kind | None):
                raise InvalidError.at(f"options.{name}", f"a {kind.__name__} or None", getattr(self, name))
        if self.abort is not None and not callable(getattr(self.abort, "is_set", None)):
            raise InvalidError.at("options.abort", "a signal with is_set(), such as threading.Event", self.abort)
        if self.circuit_breaker is not None and not self.provider and not self.agent:
            raise InvalidError.saying("options.circuit_breaker", "a provider or an agent beside it", "neither")
        if self.skip_circuit_breaker and self.circuit_breaker is not None:
            raise InvalidError.saying("options.circuit_breaker", "None beside skip_circuit_breaker", "a Circuit")
        if self.skip_retry and self.retry is not None:
            raise InvalidError.saying("options.retry", "None beside skip_retry", "a Tries")

    @property
    def key(self) -> tuple[Any, ...]:
        """What two executions have in common when they can share a plan."""
        return (
            self.operation_name,
            self.provider,
            self.agent,
            self.retry,
            self.circuit_breaker,
            self.timeout,
            self.operation_type,
            self.skip_circuit_breaker,
            self.skip_retry,
            self.threads,
        )

    @property
    def target(self) -> Target:
        return Target(provider=self.provider, agent=self.agent)

    def applied_to(self, policy: Policy) -> Policy:
        """Return the policy with these options over it."""
        if self.retry is not None:
            policy = policy.replace(attempts=self.retry.attempts, backoff=self.retry.backoff, per_code={})
        if self.skip_retry:
            policy = policy.replace(attempts=1, per_code={}, wait_for_circuit=False)
        if self.circuit_breaker is not None:
            policy = policy.replace(circuit=self.circuit_breaker)
        elif self.skip_circuit_breaker or not self.target.names:
            # Operations that name nobody have nobody in common whose circuit they could share.
            policy = policy.replace(circuit=None)
        if self.timeout is not None:
            return limited_to(policy, self.timeout)
        if self.operation_type:
            return limited_to(policy, PROFILES[policy.profile].timeout(self.operation_type))
        return policy


class AgentExecutionContext(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """How one agent is run (S1-17)."""

    agent_id: str
    circuit_breaker: Circuit | None = None
    retry: Tries | None = None
    timeout: float | None = None
    fallback_agents: tuple[str, ...] | None = None
    """Who takes over, in order. None: document 001's chain for this agent (S1-18)."""
    notify: Callable[[Fault], object] | None = None
    """Told when all of them have failed."""
    abort: Abort | None = None

    def __post_init__(self) -> None:
        if not self.agent_id:
            raise InvalidError.at("context.agent_id", "the name of an agent", self.agent_id)

    @property
    def options(self) -> ExecutionOptions:
        return ExecutionOptions(
            agent=self.agent_id,
            retry=self.retry,
            circuit_breaker=self.circuit_breaker,
            timeout=self.timeout,
            abort=self.abort,
        )


def agents_in_place(context: AgentExecutionContext, run: Callable[[str], Any], first: Callable[[], Any]) -> Chain:
    """Return the chain of agents that take over when `first`, the agent itself, has failed."""
    names = agent_chain(context.agent_id) if context.fallback_agents is None else context.fallback_agents
    chain = Chain(first)
    chain.event = AgentFallback
    chain.primary_name = context.agent_id
    for name in names:
        chain.fallback(lambda name=name: run(name), name=name)
    if context.notify is not None:
        chain.notify(context.notify)
    return chain


def limited_to(policy: Policy, seconds: float) -> Policy:
    """Return the policy with another limit per attempt; the whole takes at least as long."""
    deadline = None if policy.deadline is None else max(policy.deadline, seconds)
    return policy.replace(timeout=seconds, deadline=deadline)
