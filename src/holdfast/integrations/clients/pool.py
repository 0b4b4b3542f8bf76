"""The clients behind one name: the state of each client's key, and which key the next attempt of a call uses.

Invariant: the machine is used behind one lock only, because calls from all threads and event loops share its state. One
attempt is one request. Deadline, budget, circuits and quota are checked before each attempt, even if only the key changes.
"""

from __future__ import annotations

import copy
import threading
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import msgspec

from holdfast._platform import after_fork
from holdfast.classify.hints import announced_limit, announced_limits, limit_headers
from holdfast.faults import Schedule, Scope
from holdfast.integrations.clients.bodies import charge_when_read, reported_by
from holdfast.integrations.clients.exchange import (
    Exchange,
    asks_model,
    can_replay,
    creates,
    effect_of,
    is_for_helper,
    is_free,
    is_raw,
    limit_reads,
    may_have_created,
    model_of,
    quote_of_request,
    repeated_by_sdk,
    should_retry,
)
from holdfast.policies.decide import GiveUp, Reason, Retry
from holdfast.policies.models.usage import usage_of
from holdfast.policies.pool import DENIED_REST_S, LIMITED_REST_S, PoolMachine
from holdfast.policies.target import Target
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.operation.adapter import Adapter
from holdfast.runtime.operation.errors import named_end
from holdfast.runtime.operation.plan import Plan, PlanCache
from holdfast.runtime.streams.stream import StreamOf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.clock import Clock
    from holdfast.integrations.clients.sdk import Sdk
    from holdfast.policies import Effect, Policy
    from holdfast.policies.decide import AfterFirst
    from holdfast.policies.models.quote import Quote
    from holdfast.runtime.operation.operation import Operation
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.streams.flow import StreamDialect

__all__ = ["SENDING", "ClientPool", "KeyChoice", "PoolMember", "learn_limits", "note_limits", "note_limits_async"]

_TOO_MANY = 429
_FAILED = 400

SENDING: ContextVar[ResponseObserver | None] = ContextVar("holdfast_sending", default=None)
"""The call whose request is being sent. The HTTP client's hook sees the response's headers, but no key and no model."""


class ResponseObserver(Protocol):
    """What wants to see the responses to its requests."""

    def learn(self, response: Any) -> None:
        """A response has arrived; its body is not read yet."""
        ...


class PoolMember:
    """One client of a pool."""

    __slots__ = ("client", "credential", "index", "retries", "send")

    def __init__(self, index: int, client: Any, credential: str, retries: int) -> None:
        self.index = index
        self.client = client
        self.credential = credential
        self.retries = retries
        """The retries that its owner gave the client. The client itself has none: they count while recovery is off."""
        self.send: Callable[..., Any] = client.request
        """The client's own `request`."""


class KeyStates:
    """The state of the keys of a pool. The copies of a pool share it."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.machine = PoolMachine(weights)
        self.lock = threading.Lock()
        self.lacking: dict[tuple[int, str], float] = {}
        """Until when members are not asked for models that they do not have, although others do."""
        _all_keys.add(self)


_all_keys: WeakSet[KeyStates] = WeakSet()


class ClientPool:
    """Clients behind one name, in the order they were given."""

    def __init__(
        self,
        members: Sequence[PoolMember],
        *,
        sdk: Sdk,
        name: str,
        policy: Policy | None,
        weights: Sequence[float],
        after_first: AfterFirst = "raise",
        bare_attempts: int,
        runtime: Runtime | None,
    ) -> None:
        self.members = tuple(members)
        self.bare_attempts = bare_attempts
        """Requests that the clients make for one call without Holdfast."""
        self.named_retries: int | None = None
        """Retries that the caller named for calls of this copy of the client."""
        self.sdk = sdk
        self.name = name
        self.policy = policy
        self.after_first: AfterFirst = after_first
        self.runtime = runtime
        self.several = len(self.members) > 1
        self.keys = KeyStates(weights)
        self._plans = PlanCache(self._make_plan)

    def like(self, members: Sequence[PoolMember]) -> ClientPool:
        """Return a pool of other clients with the same keys. The two pools share the state of the keys."""
        other = copy.copy(self)
        other.members = tuple(members)
        return other

    def with_retries(self, retries: int | None) -> ClientPool:
        """Return a pool whose calls have as many retries as the caller named with `with_options`; None if the caller named no number."""
        if retries is None:
            return self
        other = copy.copy(self)
        other.named_retries, other.bare_attempts = retries, retries + 1
        return other

    def of_one(self, member: PoolMember) -> ClientPool:
        """Return a pool of one client with a key of its own."""
        other = ClientPool(
            (member,),
            sdk=self.sdk,
            name=self.name,
            policy=self.policy,
            weights=(1.0,),
            after_first=self.after_first,
            bare_attempts=self.bare_attempts,
            runtime=self.runtime,
        )
        other.named_retries = self.named_retries
        return other

    def plan(self, member: PoolMember, model: str, effect: Effect | None, *, asks_model: bool = False) -> Plan:
        """Return how calls to this model with this member's key recover."""
        return self._plans.get(member.credential, model, effect, asks_model)

    def _make_plan(self, credential: str, model: str, effect: Effect | None, asks_model: bool) -> Plan:  # noqa: FBT001 - a part of a key
        target = Target(provider=self.name, model=model, credential=credential)
        plan = Plan(
            target, self.policy, effect=effect, through_client=True, asks_model=asks_model, runtime=self.runtime
        )
        # The plans of a pool are made anew when settings change. Its calls are one caller's all the same.
        plan.caller = id(self.keys)
        return plan

    def learn(self, index: int, headers: Mapping[str, str], clock: Clock) -> None:
        """Learn the limit that a response's headers announce for a key."""
        announced = announced_limit(headers, clock.wall())
        if announced is not None:
            with self.keys.lock:
                self.keys.machine.learn(index, announced, clock.monotonic())


class KeyChoice(Adapter):
    """Chooses the key for each attempt of one call. After a key fails, the next attempt uses another key at once."""

    def __init__(self, pool: ClientPool, first: PoolMember, options: Any, retries: int | None = None) -> None:
        """`retries` are those that the caller named for this one request."""
        self.pool = pool
        self.member = first
        """The client of the present attempt."""
        self.options = options
        self._model = model_of(options)
        self._effect = effect_of(options)
        self._asks_model = asks_model(options)
        self.moves_on = pool.several
        self.observes = False
        """In observe mode the plain call uses the first key, and nothing is learned about any."""
        self._named_retries = pool.named_retries if retries is None else retries
        self.bare_attempts = pool.bare_attempts if self._named_retries is None else self._named_retries + 1
        self._creates = creates(options)
        """A second request may do what the first has done already."""
        self._in_doubt = False
        """One of its requests may have been carried out."""
        self._is_stream = False
        self._is_answering = False
        """The present request has a good response, whose body may not have come yet."""
        self._op: Operation | None = None
        """The operation whose request a blocking client sends."""
        self._avoid: int | None = None
        """The member that failed last."""
        self._since = 0.0
        """When the present request was sent."""
        self._number = 0
        """Its number among those of its key."""
        self._lacking: frozenset[int] = frozenset()
        """The members that do not have the model."""

    @property
    def is_free(self) -> bool:
        """Whether the request asks no model to answer."""
        return is_free(self.options)

    def plan(self) -> Plan:
        """Return the plan of the present member's key."""
        return self.pool.plan(self.member, self._model, self._effect, asks_model=self._asks_model)

    def sends(self, op: Operation | None = None) -> KeyChoice:
        """A request is sent now. `op`: its operation, where nothing but its time limits ends a blocking read."""
        self._op, self._since, self._is_answering = op, self.plan().monotonic(), False
        if self.pool.several:
            with self.pool.keys.lock:
                self._number = self.pool.keys.machine.sent(self.member.index, self._since)
        return self

    def ends(self) -> None:
        """The request has ended, or its answer has begun."""
        if self.pool.several:
            now = self.plan().monotonic()
            with self.pool.keys.lock:
                self.pool.keys.machine.ended(self.member.index, self._number, now)

    def _limit_reads(self, response: Any) -> None:
        """Let no read of the response's connection outlast a deadline that the user named."""
        if self._op is not None and named_end(self._op) is not None:
            limit_reads(response, self._op)

    def learn(self, response: Any) -> None:
        """Learn the limits that the response announces for the present key and model."""
        plan, self._is_answering = self.plan(), response.status_code < _FAILED
        if self.pool.several:
            with self.pool.keys.lock:
                self.pool.keys.machine.heard(self.member.index, self._number, good=self._is_answering)
        found = learn_limits(response, plan, self._since)
        if found and self.pool.several and plan.policy.quota_group is None:
            self.pool.learn(self.member.index, found, plan.runtime.clock)
        self._limit_reads(response)

    def stream_of(self, dialect: StreamDialect) -> Callable[[Callable[..., Any]], StreamOf[Any, Any]]:
        """Return what makes the stream of this call out of a function that opens it."""
        self._is_stream = True
        # A helper keeps what it has assembled when a stream begins again, so it would join two answers.
        after_first = "raise" if is_for_helper(self.options) or self._creates else self.pool.after_first
        if self._creates:
            # The stream cannot begin again, and its first event has the id of what it has created.
            dialect = msgspec.structs.replace(dialect, opens=_never)
        return partial(StreamOf, self.plan(), dialect=dialect, adapter=self, after_first=after_first)

    def request_usage(self, dialect: StreamDialect) -> StreamDialect:
        """Let the stream of this call report its usage if a budget limits that. Return the dialect of such a stream.

        The caller has not requested the usage, so its stream does not show the event with it.
        """
        around = in_force(AMBIENT.get())
        budget = None if around is None else around.budget
        if budget is None or not budget.limits_usage or is_raw(self.options):
            return dialect
        changed = self.pool.sdk.with_usage(self.options, self.member.client.base_url.host)
        if changed is None:
            return dialect
        self.options = changed
        return msgspec.structs.replace(dialect, hides=self.pool.sdk.is_usage_only)

    def quote(self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Quote | None:  # noqa: ARG002 - the request says it all
        """Return what the request may use at most."""
        return quote_of_request(self.options)

    def received(self, response: Any, op: Operation) -> Any:
        """Return the response that the SDK returns. A body that has not come yet is charged when its caller has read it."""
        charge_when_read(response, op.charges)
        return response

    def reported(self, value: object) -> object:
        """Return the part of an answer that reports its usage, also where the caller reads the response itself."""
        return reported_by(value)

    def choose(self, op: Operation) -> Plan | None:
        """Choose the key of the next attempt."""
        pool = self.pool
        if not pool.several or self.observes:
            return None
        now = op.plan.monotonic()
        shut = self._shut(op, now)
        waits = {member.index: self._wait(member, now) for member in pool.members}
        with pool.keys.lock:
            index = pool.keys.machine.choose(now, shut=shut, avoid=self._avoid, waits=waits.__getitem__)
        self.member = pool.members[index]
        return self.plan()

    def propose(self, op: Operation, error: Exception) -> Retry | GiveUp | None:
        """Give up on a request that cannot be sent again; use another key if the failure concerns only this key."""
        # This check comes first: no other key can send a body that the first attempt has consumed.
        if not can_replay(self.options):
            return GiveUp(Reason.NOT_REPEATABLE)
        if self._has_had_enough(op, error):
            return GiveUp(Reason.ATTEMPTS)
        proposal = self._use_another(op, error) if self.pool.several else None
        if proposal is None and self._is_cut_answer(op, error):
            return GiveUp(Reason.ATTEMPTS)
        # The service forbids a retry of the same request; another key may still be used.
        return GiveUp(Reason.PERMANENT) if proposal is None and should_retry(error) is False else proposal

    def _has_had_enough(self, op: Operation, error: Exception) -> bool:
        """Whether the plain client would make no further request, where that counts: retries were named, or a second one may do harm."""
        made, named, policy = op.attempts - op.moves, self._named_retries, op.plan.policy
        if not self._creates:
            return named == 0 and policy.attempts is None
        if named is not None and made > named:
            return True
        if self._is_answering and (self._is_stream or not isinstance(error, self.pool.sdk.unreachable)):
            # It was accepted. The SDK makes a second request only where it could not read the whole answer.
            return True
        fault = op.plan.runtime.fault_of(error, provider=op.plan.provider)
        self._in_doubt = self._in_doubt or may_have_created(error, fault)
        return self._in_doubt and made >= (policy.attempts or self.bare_attempts)

    def _is_cut_answer(self, op: Operation, error: Exception) -> bool:
        """Whether the client's own time limit ended an answer that had begun. It must be paid for, and the SDK makes no second request then."""
        # A limit that the policy names may be what the client keeps.
        if op.plan.policy.attempts is not None or op.plan.timeout is not None or not self._is_answering:
            return False
        return Exchange(self.pool.sdk, self.member.client, None, self.options).is_own_timeout(error)

    def insists(self, error: Exception) -> bool:
        """Return whether the response requests a retry."""
        return should_retry(error) is True

    def repeats_plainly(self, error: Exception) -> bool:
        """Return whether the SDK repeats this request by itself, whatever the words of the answer are."""
        return repeated_by_sdk(error)

    def _use_another(self, op: Operation, error: Exception) -> Retry | None:
        pool = self.pool
        self._avoid = self.member.index
        plan, now = op.plan, op.plan.monotonic()
        fault = plan.runtime.fault_of(error, provider=plan.provider)
        lacks_model = fault.code == "PROVIDER_MODEL_NOT_FOUND"
        if fault.scope is not Scope.CREDENTIAL and not lacks_model:
            # An overloaded or broken provider fails with every key, so the policy's backoff applies.
            return None
        if fault.schedule is Schedule.RATE_LIMIT and plan.policy.quota_group is not None:
            # All keys share the limit, so another one is limited too.
            return None
        if self.observes:
            return Retry(0.0, None, "another-key")
        allowed = plan.policy.tries(fault).attempts
        if lacks_model:
            # Whether the key lacks it, or nobody has it, shows the answer of another key.
            self._lacking |= {self.member.index}
        shut = self._shut(op, now)
        # What it repeated in this moment, as the service requested, counts like a move: each key gets one call in a moment.
        is_moment = op.first_failure is not None and now - op.first_failure < LIMITED_REST_S
        at_once = max(op.moves, op.attempts - 1) if is_moment else op.moves
        with pool.keys.lock:
            machine = pool.keys.machine
            if not lacks_model:
                machine.failed(self.member.index, fault, now)
            return machine.move_on(
                fault, now, shut=shut, moves=op.moves, at_once=at_once, attempts=op.attempts, allowed=allowed
            )

    def succeeded(self, op: Operation, value: object) -> None:
        """Forget the failures of the key that was used, and learn how many tokens the call took where these are limited."""
        if op.plan.limited_state.counts_tokens and (usage := usage_of(reported_by(value))) is not None:
            op.plan.used(usage.total)
        if self.pool.several and not self.observes:
            until = op.plan.monotonic() + DENIED_REST_S
            with self.pool.keys.lock:
                self.pool.keys.machine.succeeded(self.member.index, self._since)
                self.pool.keys.lacking |= dict.fromkeys(((index, self._model) for index in self._lacking), until)

    def _shut(self, op: Operation, now: float) -> frozenset[int]:
        """Return the members whose own circuit is open, or that do not have the model."""
        lacking = {
            index for (index, model), until in self.pool.keys.lacking.items() if model == self._model and now < until
        }
        return self._lacking | lacking | self._rejecting(op, now)

    def _wait(self, member: PoolMember, now: float) -> float:
        """Return the seconds for which a call with this member's key would wait behind others, or for the pace of the key."""
        target = Target(provider=self.pool.name, credential=member.credential, model=self._model)
        state = self.plan().runtime.registry.known(target.narrowest)
        return 0.0 if state is None else state.wait_of_next(now)

    def _rejecting(self, op: Operation, now: float) -> frozenset[int]:
        # Use `known`, not `get`: a lookup must not create a state for a key that was never used.
        registry, name = op.plan.runtime.registry, self.pool.name
        return frozenset(
            member.index
            for member in self.pool.members
            for circuit in (
                Target(provider=name, credential=member.credential).narrowest,
                Target(provider=name, credential=member.credential, model=self._model).narrowest,
            )
            if (state := registry.known(circuit)) is not None and state.rejects(now)
        )


def _never(event: Any) -> bool:  # noqa: ARG001 - the events of such a stream are not held back
    return False


def learn_limits(response: Any, plan: Plan, since: float) -> Mapping[str, str] | None:
    """Let a plan learn the limits that a response announces, and return their headers, or None if it announces no limit."""
    found = limit_headers(response.headers.raw)
    limits = announced_limits(found, plan.runtime.clock.wall()) if found else None
    if limits is None:
        if response.status_code < _FAILED:
            plan.announced_nothing(since)
        return None
    plan.announced(limits, since, accepted=response.status_code != _TOO_MANY)
    return found


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
