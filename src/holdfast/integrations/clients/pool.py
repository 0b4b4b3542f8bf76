"""The clients behind one name: the state of each client's key, and which key the next attempt of a call uses.

Invariant: the machine is used behind one lock only, because calls from all threads and event loops share its state. One
attempt is one request. Deadline, budget, circuits and quota are checked before each attempt, even if only the key changes.
"""

from __future__ import annotations

import copy
import threading
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from holdfast._platform import after_fork
from holdfast.classify.hints import announced_limit, announced_limits, limit_headers
from holdfast.faults import Fault, HoldfastError, Schedule, Scope
from holdfast.integrations.clients.exchange import (
    can_replay,
    effect_of,
    has_given_limit,
    is_for_helper,
    model_of,
    should_retry,
)
from holdfast.policies.decide import GiveUp, Reason
from holdfast.policies.models.usage import usage_of
from holdfast.policies.pool import PoolMachine
from holdfast.policies.target import Target
from holdfast.runtime.adapter import Adapter
from holdfast.runtime.plan import Plan, PlanCache
from holdfast.runtime.stream import StreamOf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.clock import Clock
    from holdfast.integrations.clients.sdk import Sdk
    from holdfast.policies import Effect, Policy
    from holdfast.policies.decide import AfterFirst, Retry
    from holdfast.runtime.flow import Dialect
    from holdfast.runtime.operation import Operation
    from holdfast.runtime.runtime import Runtime

__all__ = ["SENDING", "KeyChoice", "Member", "Pool", "note_limits", "note_limits_async"]

_TOO_MANY = 429

SENDING: ContextVar[KeyChoice | None] = ContextVar("holdfast_sending", default=None)
"""The call whose request is being sent. The HTTP client's hook sees the response's headers, but no key and no model."""


class Member:
    """One client of a pool."""

    __slots__ = ("client", "credential", "index", "send")

    def __init__(self, index: int, client: Any, credential: str, send: Callable[..., Any]) -> None:
        self.index = index
        self.client = client
        self.credential = credential
        self.send = send
        """The client's own `request`."""


class Keys:
    """The state of the keys of a pool. The copies of a pool share it."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.machine = PoolMachine(weights)
        self.lock = threading.Lock()
        _all_keys.add(self)


_all_keys: WeakSet[Keys] = WeakSet()


class Pool:
    """Clients behind one name, in the order they were given."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        sdk: Sdk,
        name: str,
        policy: Policy | None,
        weights: Sequence[float],
        after_first: AfterFirst = "raise",
        runtime: Runtime | None,
    ) -> None:
        self.members = tuple(members)
        self.sdk = sdk
        self.name = name
        self.policy = policy
        self.after_first: AfterFirst = after_first
        self.runtime = runtime
        self.several = len(self.members) > 1
        self.keys = Keys(weights)
        self._plans = PlanCache(self._make_plan)

    def like(self, members: Sequence[Member]) -> Pool:
        """Return a pool of other clients with the same keys. The two pools share the state of the keys."""
        other = copy.copy(self)
        other.members = tuple(members)
        return other

    def of_one(self, member: Member) -> Pool:
        """Return a pool of one client with a key of its own."""
        return Pool(
            (member,),
            sdk=self.sdk,
            name=self.name,
            policy=self.policy,
            weights=(1.0,),
            after_first=self.after_first,
            runtime=self.runtime,
        )

    def plan(self, member: Member, model: str, effect: Effect | None) -> Plan:
        """Return how calls to this model with this member's key recover."""
        return self._plans.get(member.credential, model, effect)

    def _make_plan(self, credential: str, model: str, effect: Effect | None) -> Plan:
        target = Target(provider=self.name, model=model, credential=credential)
        return Plan(target, self.policy, effect=effect, client_limits=True, runtime=self.runtime)

    def learn(self, index: int, headers: Mapping[str, str], clock: Clock) -> None:
        """Learn the limit that a response's headers announce for a key."""
        announced = announced_limit(headers, clock.wall())
        if announced is not None:
            with self.keys.lock:
                self.keys.machine.learn(index, announced, clock.monotonic())


class KeyChoice(Adapter):
    """Chooses the key for each attempt of one call. After a key fails, the next attempt uses another key at once."""

    def __init__(self, pool: Pool, first: Member, options: Any) -> None:
        self.pool = pool
        self.member = first
        """The client of the present attempt."""
        self.options = options
        self._model = model_of(options)
        self._effect = effect_of(options)
        self.stops_hangs = not has_given_limit(options, first.client)
        self._avoid: int | None = None
        """The member that failed last."""
        self._since = 0.0
        """When the present request was sent."""

    def plan(self) -> Plan:
        """Return the plan of the present member's key."""
        return self.pool.plan(self.member, self._model, self._effect)

    def sends(self) -> KeyChoice:
        """A request is sent now."""
        self._since = self.plan().monotonic()
        return self

    def learn(self, response: Any) -> None:
        """Learn the limits that the response announces for the present key and model."""
        found = limit_headers(response.headers.raw)
        if not found:
            return
        plan = self.plan()
        clock = plan.runtime.clock
        limits = announced_limits(found, clock.wall())
        if limits is not None:
            plan.announced(limits, self._since, accepted=response.status_code != _TOO_MANY)
            if self.pool.several and plan.policy.quota_group is None:
                self.pool.learn(self.member.index, found, clock)

    def stream_of(self, dialect: Dialect) -> Callable[[Callable[..., Any]], StreamOf[Any, Any]]:
        """Return what makes the stream of this call out of a function that opens it."""
        # A helper keeps what it has assembled when a stream begins again, so it would join two answers.
        after_first = "raise" if is_for_helper(self.options) else self.pool.after_first
        return partial(StreamOf, self.plan(), dialect=dialect, adapter=self, after_first=after_first)

    def choose(self, op: Operation) -> Plan | None:
        """Choose the key of the next attempt; raise if all keys have reached their limits."""
        pool = self.pool
        if not pool.several:
            return None
        now = op.plan.monotonic()
        with pool.keys.lock:
            choice = pool.keys.machine.choose(now, shut=self._shut(op, now), avoid=self._avoid)
        if choice.wait > 0:
            message = f"Every key of {pool.name} has reached its limit"
            raise HoldfastError(
                Fault.of("SYS_RATE_LIMITED", message, retry_after=choice.wait, context={"name": pool.name})
            )
        self.member = pool.members[choice.index]
        return self.plan()

    def propose(self, op: Operation, error: Exception) -> Retry | GiveUp | None:
        """Give up on a request that cannot be sent again; use another key if the failure concerns only this key."""
        # This check comes first: no other key can send a body that the first attempt has consumed.
        if not can_replay(self.options):
            return GiveUp(Reason.NOT_REPEATABLE)
        proposal = self._use_another(op, error) if self.pool.several else None
        # The service forbids a retry of the same request; another key may still be used.
        return GiveUp(Reason.PERMANENT) if proposal is None and should_retry(error) is False else proposal

    def insists(self, error: Exception) -> bool:
        """Return whether the response requests a retry."""
        return should_retry(error) is True

    def _use_another(self, op: Operation, error: Exception) -> Retry | None:
        pool = self.pool
        self._avoid = self.member.index
        plan, now = op.plan, op.plan.monotonic()
        fault = plan.runtime.fault_of(error, provider=plan.provider)
        if fault.scope is not Scope.CREDENTIAL:
            # An overloaded or broken provider fails with every key, so the policy's backoff applies.
            return None
        if fault.schedule is Schedule.RATE_LIMIT and plan.policy.quota_group is not None:
            # All keys share the limit, so another one is limited too.
            return None
        allowed = plan.policy.tries(fault).attempts
        shut = self._shut(op, now)
        with pool.keys.lock:
            machine = pool.keys.machine
            machine.failed(self.member.index, fault, now)
            return machine.move_on(fault, now, shut=shut, moves=op.moves, attempts=op.attempts, allowed=allowed)

    def succeeded(self, op: Operation, value: object) -> None:
        """Forget the failures of the key that was used, and learn how many tokens the call took where these are limited."""
        if op.plan.limited_state.counts_tokens and (usage := usage_of(value)) is not None:
            op.plan.used(usage.total)
        if self.pool.several:
            with self.pool.keys.lock:
                self.pool.keys.machine.succeeded(self.member.index)

    def _shut(self, op: Operation, now: float) -> frozenset[int]:
        """Return the members whose own circuit is open."""
        # Use `known`, not `get`: a lookup must not create a state for a key that was never used.
        registry, name = op.plan.runtime.registry, self.pool.name
        circuits = ((m.index, Target(provider=name, credential=m.credential).names[-1][1]) for m in self.pool.members)
        known = ((index, registry.known(circuit)) for index, circuit in circuits)
        return frozenset(index for index, state in known if state is not None and state.rejects(now))


def note_limits(response: Any) -> None:
    """Learn the limits that a response announces for its key. It is a response hook of the HTTP clients."""
    sending = SENDING.get()
    if sending is not None:
        sending.learn(response)


async def note_limits_async(response: Any) -> None:
    """The same as `note_limits`, for async clients."""
    note_limits(response)


def _new_process() -> None:
    # If another thread of the parent held a lock during the fork, it would stay locked in this process forever.
    for keys in list(_all_keys):
        keys.lock = threading.Lock()


after_fork(_new_process)
