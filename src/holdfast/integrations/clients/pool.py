"""The clients behind one name: which one is next, and what is known about each one's key.

Invariant: every look at the machine is behind one lock; calls from any thread and event loop share its state.
"""

from __future__ import annotations

import copy
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from holdfast._platform import after_fork
from holdfast.classify.hints import announced_limit
from holdfast.faults import Kind
from holdfast.policies.pool import PoolMachine
from holdfast.policies.target import Target
from holdfast.runtime.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.faults import Fault
    from holdfast.integrations.clients.dialect import Dialect
    from holdfast.policies import Effect, Policy
    from holdfast.policies.pool import Choice
    from holdfast.runtime.runtime import Runtime

__all__ = ["ASKING", "Member", "Pool", "listen", "listen_async"]

_MOST_PLANS = 1024
"""Models times keys; who calls more of them at once pays for making plans anew."""

ASKING: ContextVar[tuple[Pool, int] | None] = ContextVar("holdfast_asking", default=None)
"""Whose answer the HTTP client is about to get: there the headers are seen, here the key is known."""


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
    """What is known about the keys of a pool; the pool's copies share it."""

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
        dialect: Dialect,
        name: str,
        policy: Policy | None,
        weights: Sequence[float],
        runtime: Runtime | None,
    ) -> None:
        self.members = tuple(members)
        self.dialect = dialect
        self.name = name
        self.policy = policy
        self.runtime = runtime
        self.several = len(self.members) > 1
        self._keys = Keys(weights)
        self._plans: dict[tuple[str, str, Effect | None], Plan] = {}

    def like(self, members: Sequence[Member]) -> Pool:
        """Return a pool of other clients with the same keys: what is known about the keys is known to both."""
        other = copy.copy(self)
        other.members = tuple(members)
        return other

    def of_one(self, member: Member) -> Pool:
        """Return a pool of one client with a key of its own."""
        return Pool(
            (member,), dialect=self.dialect, name=self.name, policy=self.policy, weights=(1.0,), runtime=self.runtime
        )

    def plan(self, member: Member, model: str, effect: Effect | None) -> Plan:
        """Return how calls to this model with this member's key recover."""
        key = (member.credential, model, effect)
        known = self._plans.get(key)
        if known is not None and (plan := known.fresh()) is known:
            return plan
        if known is None:
            target = Target(provider=self.name, model=model, credential=member.credential)
            plan = Plan(target, self.policy, effect=effect, runtime=self.runtime)
        with self._keys.lock:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def choose(self, now: float, shut: frozenset[int], avoid: int | None) -> Choice:
        with self._keys.lock:
            return self._keys.machine.choose(now, shut=shut, avoid=avoid)

    def soonest(self, now: float, shut: frozenset[int]) -> float | None:
        with self._keys.lock:
            return self._keys.machine.soonest(now, shut=shut)

    def succeeded(self, member: Member) -> None:
        if self.several:
            with self._keys.lock:
                self._keys.machine.succeeded(member.index)

    def failed(self, member: Member, fault: Fault, now: float) -> None:
        """Take in a failure of the key's own: what passes by itself is a limit, the rest is a refusal."""
        with self._keys.lock:
            if fault.kind is Kind.TRANSIENT:
                self._keys.machine.limited(member.index, now, fault.retry_after)
            else:
                self._keys.machine.denied(member.index, now)

    def answered(self, index: int, headers: Mapping[str, str]) -> None:
        """Take in what an answer's headers announce."""
        clock = self.plan(self.members[index], "", None).runtime.clock
        # Read in one go: each look into an HTTP library's headers goes through all of them.
        told = announced_limit(dict(headers.items()), clock.wall())
        if told is not None:
            with self._keys.lock:
                self._keys.machine.learn(index, told, clock.monotonic())


def listen(response: Any) -> None:
    """Hear what an answer announces; stands among the response hooks of a pool's HTTP clients."""
    asking = ASKING.get()
    if asking is not None:
        pool, index = asking
        pool.answered(index, response.headers)


async def listen_async(response: Any) -> None:
    """The same among the hooks of an async client."""
    listen(response)


def _new_process() -> None:
    # A lock that another thread of the parent held would never open here.
    for keys in list(_all_keys):
        keys.lock = threading.Lock()


after_fork(_new_process)
