"""How one operation, or one agent, is executed, and what answers when it fails (N1-8).

Invariant: an option given here wins over the configured policy; an option left out is as configured (C8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.events import AgentFallback
from holdfast.faults import Fault, InvalidError
from holdfast.policies.backoff import Tries
from holdfast.policies.circuit import Circuit
from holdfast.policies.fallback import Consent, When
from holdfast.policies.profiles import AGENT_CHAINS, CACHED, PROFILES, PROVIDER_CHAINS
from holdfast.policies.target import Target
from holdfast.runtime.callables import is_async
from holdfast.runtime.fallbacks.cache import CacheStore
from holdfast.runtime.fallbacks.fallback import Chain
from holdfast.runtime.fallbacks.step_parameters import takes_nothing
from holdfast.runtime.operation.adapter import Abort

if TYPE_CHECKING:
    from holdfast.policies import Policy

__all__ = [
    "AgentExecutionContext",
    "CachedAnswers",
    "ExecutionOptions",
    "FallbackChain",
    "FallbackStep",
    "chain_of_agents",
]


class FallbackStep(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to get an answer. It is called when the operation has failed for good. Part of a `FallbackChain`.

    Raises `InvalidError` if `operation` is not a function.

        from holdfast.manager import FallbackStep

        FallbackStep(name="openai", operation=ask_openai, when=("rate_limit", "PROVIDER_OVERLOADED"))
    """

    name: str
    """What events and messages call it."""
    operation: Callable[[], Any]
    when: When | None = None
    """When this step is called: if the operation itself failed with one of these codes or categories, or if this function of the latest
    and the first fault returns true. None means always."""
    condition: Callable[[Exception], object] | None = None
    """Whether this step is called, by the operation's own exception: `lambda error: isinstance(error, TimeoutError)`."""
    priority: int = 0
    """Steps with a lower number come first; steps with the same number keep their order."""
    offers: frozenset[str] | None = None
    """What it can do, such as `{"streaming"}`; it is skipped if the call needs more. None: not known."""
    consent: Consent = "configured"
    """`ask` asks the runtime's `consent` function first."""

    def __post_init__(self) -> None:
        if not callable(self.operation):
            raise InvalidError.at("fallback.operation", "a function", self.operation)
        if self.condition is not None and not callable(self.condition):
            raise InvalidError.at("fallback.condition", "a function of the operation's exception", self.condition)


class CachedAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Where good answers are kept, to be used when the operation fails.

    Part of a `FallbackChain`. The store may be your own: an object with `get` and `put` as `MemoryCache` has them.

        from holdfast.manager import CachedAnswers
        from holdfast.runtime import MemoryCache

        CachedAnswers(store=MemoryCache(), key="weather in Oslo", ttl=600)
    """

    store: CacheStore
    key: str
    """Names the question. Operations with the same key share their answers."""
    ttl: float = 300.0
    """For how many seconds an answer may be used."""


class FallbackChain(msgspec.Struct, frozen=True, kw_only=True):
    """What happens when the operation has failed for good: first the steps, then the cache, then a degraded answer.

    If nothing answers, `notify` is called and the operation's own error is raised.

        from holdfast.manager import ExecutionOptions, FallbackChain, FallbackStep

        chain = FallbackChain(fallbacks=(FallbackStep(name="openai", operation=ask_openai),), degraded=sorry)
        ExecutionOptions(provider="claude", fallback_chain=chain)

    `of_provider` makes the chain of a provider, in the usual order.
    """

    primary: Callable[[], Any] | None = None
    """The operation itself, for `with_fallback`, which gets nothing else. None if it is given beside the chain."""
    fallbacks: tuple[FallbackStep, ...] = ()
    """The other ways to get an answer."""
    cached: CachedAnswers | None = None
    """Where earlier answers are kept."""
    degraded: Callable[[Fault], Any] | Callable[[], Any] | None = None
    """Returns a lesser answer from the fault, or without it."""
    notify: Callable[[Fault], object] | None = None
    """Called with the fault when nothing answered."""

    @classmethod
    def of_provider(
        cls,
        provider: str,
        others: Mapping[str, Callable[[], Any]],
        *,
        cached: CachedAnswers | None = None,
        degraded: Callable[[Fault], Any] | Callable[[], Any] | None = None,
        notify: Callable[[Fault], object] | None = None,
    ) -> FallbackChain:
        """Return the chain of a provider, in the order of `holdfast.profiles.PROVIDER_CHAINS`: those of `others` that stand there.

        Naming a provider in `others` is the consent to it. Raises `InvalidError` for a provider without a chain, and for one that does
        not stand in its chain.

            FallbackChain.of_provider("claude", {"openai": ask_openai, "gemini": ask_gemini}, degraded=sorry)
        """
        if provider not in PROVIDER_CHAINS:
            raise InvalidError.at("fallback_chain.provider", f"one of {', '.join(PROVIDER_CHAINS)}", provider)
        order = [name for name in PROVIDER_CHAINS[provider] if name != CACHED]
        for name in others:
            if name not in order:
                raise InvalidError.at("fallback_chain.others", f"some of {', '.join(order)}", name)
        steps = tuple(FallbackStep(name=name, operation=others[name]) for name in order if name in others)
        return cls(fallbacks=steps, cached=cached, degraded=degraded, notify=notify)

    def chain_for(self, operation: Callable[[], Any]) -> Chain:
        """Return the runtime's chain for one operation."""
        # Operations are often lambdas, whose names are all the same: only the key tells questions apart.
        chain = Chain(operation, name="operation")
        chain.judges_primary = True
        for step in sorted(self.fallbacks, key=lambda step: step.priority):
            chain.fallback(step.operation, when=step.when, name=step.name, offers=step.offers, consent=step.consent)
            if step.condition is not None:
                chain.judge(step.condition)
        if self.cached is not None:
            key = self.cached.key
            chain.cached(ttl=self.cached.ttl, key=lambda: key, store=self.cached.store)
        if self.degraded is not None:
            chain.degraded(_of_fault(self.degraded))
        if self.notify is not None:
            chain.notify(self.notify)
        return chain


class ExecutionOptions(options.Options, frozen=True, kw_only=True, repr_omit_defaults=True):
    """How one operation is executed.

    Every option may be left out. Wrong options raise `InvalidError`.

        from holdfast import Backoff, Tries
        from holdfast.manager import ExecutionOptions

        ExecutionOptions(provider="claude", retry=Tries(attempts=3, backoff=Backoff(initial=1)), timeout=30)
    """

    operation_name: str = ""
    """What events and messages call it."""
    provider: str = ""
    """The provider it calls; it uses the circuit `provider:NAME`."""
    agent: str = ""
    """The agent it runs; it uses the circuit `agent:NAME`."""
    retry: Tries | None = None
    """How often and when it is retried, whatever the failure. None: as the policy says for each failure."""
    circuit_breaker: Circuit | None = None
    """The settings of the circuit. None: those that the circuit has, else the policy's."""
    timeout: float | None = None
    """Seconds for one attempt."""
    operation_type: str = ""
    """`llm-call`, `tool-execution`, `file-read` …: the profile has a time limit for each. `timeout` wins over it, and so does
    one that is configured for the target."""
    fallback_chain: FallbackChain | None = None
    """What happens when it has failed for good."""
    skip_circuit_breaker: bool = False
    """Neither check the circuit nor count the outcome there."""
    skip_retry: bool = False
    """Call it once."""
    abort: Abort | None = None
    """A signal to stop: a `threading.Event`, an `asyncio.Event`, or anything else with `is_set`."""
    threads: bool = False
    """Apply the time limit to a sync operation too. It then runs in a thread, which is left behind at the limit."""

    def __post_init__(self) -> None:
        options.seconds("options.timeout", self.timeout, optional=True)
        for name in ("operation_name", "provider", "agent", "operation_type"):
            if not isinstance(getattr(self, name), str):
                raise InvalidError.at(f"options.{name}", "a name", getattr(self, name))
        for name, kind in (("retry", Tries), ("circuit_breaker", Circuit), ("fallback_chain", FallbackChain)):
            if not isinstance(getattr(self, name), kind | None):
                raise InvalidError.at(f"options.{name}", f"{options.an(kind.__name__)} or None", getattr(self, name))
        if self.abort is not None and not callable(getattr(self.abort, "is_set", None)):
            raise InvalidError.at("options.abort", "a signal with is_set(), such as threading.Event", self.abort)
        if self.circuit_breaker is not None and not self.provider and not self.agent:
            raise InvalidError.saying("options.circuit_breaker", "a provider or an agent beside it", "neither")
        if self.skip_circuit_breaker and self.circuit_breaker is not None:
            raise InvalidError.saying("options.circuit_breaker", "None beside skip_circuit_breaker", "a Circuit")
        if self.skip_retry and self.retry is not None:
            raise InvalidError.saying("options.retry", "None beside skip_retry", "a Tries")

    @property
    def for_plan(self) -> ExecutionOptions:
        """The same options without those that belong to one call. Executions that are equal here share a plan."""
        if self.fallback_chain is None and self.abort is None:
            return self
        return msgspec.structs.replace(self, fallback_chain=None, abort=None)

    @property
    def target(self) -> Target:
        """The provider and the agent whose circuits the operation uses."""
        return Target(provider=self.provider, agent=self.agent)

    def applied_to(self, policy: Policy, *, is_limited: bool = False) -> Policy:
        """Return the policy, changed by these options. `is_limited`: its time limit was named for this very target."""
        if self.retry is not None:
            # The policy's schedules for single codes would win over the given one.
            policy = policy.replace(attempts=self.retry.attempts, backoff=self.retry.backoff, per_code={})
        if self.skip_retry:
            # Waiting for an open circuit and calling then would be a retry too.
            policy = policy.replace(attempts=1, per_code={}, wait_for_circuit=False)
        if self.circuit_breaker is not None:
            policy = policy.replace(circuit=self.circuit_breaker)
        elif self.skip_circuit_breaker or not self.target.names:
            # Operations without a provider or an agent have nothing in common, so they must not share a circuit.
            policy = policy.replace(circuit=None)
        if self.timeout is not None:
            return _limited_to(policy, self.timeout)
        if self.operation_type and not is_limited:
            return _limited_to(policy, PROFILES[policy.profile].timeout(self.operation_type))
        return policy


class AgentExecutionContext(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """How one agent is run, and which agents take over from it.

    `ResilienceManager.execute_agent` takes one. A blank `agent_id` raises `InvalidError`.

        from holdfast.manager import AgentExecutionContext

        AgentExecutionContext(agent_id="builder", timeout=300, fallback_agents=("builder-simple",))
    """

    agent_id: str
    """The agent's name; it uses the circuit `agent:NAME`."""
    circuit_breaker: Circuit | None = None
    """The settings of the circuit. None: those that the circuit has, else the policy's."""
    retry: Tries | None = None
    """How often and when it is retried. None: as the policy says for each failure."""
    timeout: float | None = None
    """Seconds for one attempt."""
    fallback_agents: tuple[str, ...] | None = None
    """The agents that take over, in order. None: those of `holdfast.profiles.AGENT_CHAINS`."""
    notify: Callable[[Fault], object] | None = None
    """Called with the fault when all agents have failed."""
    abort: Abort | None = None
    """A signal to stop: a `threading.Event`, an `asyncio.Event`, or anything else with `is_set`."""

    def __post_init__(self) -> None:
        if not self.agent_id:
            raise InvalidError.at("context.agent_id", "the name of an agent", self.agent_id)

    @property
    def options(self) -> ExecutionOptions:
        """The options for executing the agent itself."""
        return ExecutionOptions(
            agent=self.agent_id,
            retry=self.retry,
            circuit_breaker=self.circuit_breaker,
            timeout=self.timeout,
            abort=self.abort,
        )


def chain_of_agents(context: AgentExecutionContext, run: Callable[[str], Any], first: Callable[[], Any]) -> Chain:
    """Return the chain of agents that take over when `first`, the agent itself, has failed."""
    names = AGENT_CHAINS.get(context.agent_id, ()) if context.fallback_agents is None else context.fallback_agents
    chain = Chain(first)
    chain.event = AgentFallback
    chain.primary_name = context.agent_id
    # The agents that take over may be those of the profile, of which the program need not have any. What `run` raises for an
    # unknown name must not hide why the first agent failed.
    chain.answers_defects = True
    for name in names:
        chain.fallback(lambda name=name: run(name), name=name)
    if context.notify is not None:
        chain.notify(context.notify)
    return chain


def _of_fault(degraded: Callable[..., Any]) -> Callable[..., Any]:
    """Return a degraded function as the runtime calls it, with the fault."""
    if not takes_nothing(degraded):
        return degraded
    if is_async(degraded):

        async def answer(fault: Fault) -> Any:  # noqa: ARG001 - it is the one that takes nothing
            return await degraded()

        return answer
    return lambda fault: degraded()  # noqa: ARG005 - as above


_ATTEMPTS = 3
"""Attempts that a deadline leaves room for where no number limits them."""


def _limited_to(policy: Policy, seconds: float) -> Policy:
    """Return the policy with another time limit per attempt, and a deadline that leaves room for its attempts."""
    deadline = policy.deadline
    if deadline is not None and deadline <= seconds:
        # The deadline was made for shorter attempts. With it, an attempt that is late could never be retried.
        tries = policy.tries(Fault.of("SYS_TIMEOUT"))
        attempts = tries.attempts or _ATTEMPTS
        waits = sum(tries.backoff.longest(retry) for retry in range(1, attempts))
        # The second more makes the last attempt late by its own limit. At the deadline it would be the operation that is late.
        deadline = attempts * seconds + waits + 1
    return policy.replace(timeout=seconds, deadline=deadline)
