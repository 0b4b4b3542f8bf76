"""What all calls to one name share: its circuit, its retry quota, its places and its pace.

Invariant: one name has one state however many callers, threads and event loops use it, and in whatever order they come. What
a policy does not ask for (no circuit, no quota, no places) does not concern its calls; others may still ask for it. The registry
is bounded: lines that are closed and idle go first, and nobody keeps using a line that has gone.
"""

from __future__ import annotations

import operator
import os
import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from holdfast.events import CircuitState
from holdfast.faults import InvalidError
from holdfast.policies.circuit import Breaker, Circuit
from holdfast.policies.hedge import HedgeMachine
from holdfast.policies.quota import QuotaMachine
from holdfast.runtime.limiter import limiter_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.faults import Code, Fault
    from holdfast.policies import Policy
    from holdfast.policies.circuit import Permit, Rejection, Verdict
    from holdfast.policies.hedge import Hedge
    from holdfast.policies.quota import Quota
    from holdfast.runtime.limiter import Limiter

__all__ = ["Registry", "TargetState", "own_state"]

_METRICS_ONLY = Circuit(mode="metrics-only")
"""What counts calls where no circuit is wanted."""
_GATE = "concurrency, waiting, per_second"
_NO_GATE = (None, None, None)
_ALL = frozenset({"circuit", "retry_quota", "hedge", _GATE})
_NONE: frozenset[str] = frozenset()
# Needed for each of many circuits, and a global is looked up faster than an enum's member.
_CLOSED: Final = CircuitState.CLOSED


class TargetState:
    """The state behind one name. Its methods may be called from any thread."""

    __slots__ = (
        "__weakref__",
        "awaited",
        "breaker",
        "circuit",
        "gate_of",
        "hedge",
        "hedge_machine",
        "limiter",
        "lock",
        "name",
        "quota",
        "quota_machine",
        "refusal",
        "renewing",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.circuit: Circuit | None = None
        self.breaker = Breaker(_METRICS_ONLY, name)
        self.quota: Quota | None = None
        self.quota_machine: QuotaMachine | None = None
        self.hedge: Hedge | None = None
        self.hedge_machine: HedgeMachine | None = None
        self.gate_of: tuple[int | None, int | None, float | None] | None = None
        self.limiter: Limiter | None = None
        self.refusal: tuple[Rejection, Fault] | None = None
        """What the callers it refuses are told: in an outage they are many, and until the next change it is the same."""
        self.awaited: Rejection | None = None
        """The refusal that somebody waits for already; who comes later need not be there the moment it ends."""
        self.renewing = _NONE
        """The settings have changed: in these options the next policy that it serves may differ from the last."""

    def admit(self, now: float) -> Permit | Rejection:
        with self.lock:
            return self.breaker.admit(now)

    def settle(
        self, permit: Permit, verdict: Verdict, now: float, code: Code | None = None, asked: float | None = None
    ) -> None:
        with self.lock:
            self.breaker.settle(permit, verdict, now, code=code, requested=asked)

    def refuses(self, now: float) -> bool:
        """Whether a call now would be refused; asking changes nothing."""
        with self.lock:
            return self.breaker.state(now) is CircuitState.OPEN

    def may_retry(self, now: float) -> bool:
        """Withdraw one retry from the quota."""
        machine = self.quota_machine
        if machine is None:
            return True
        with self.lock:
            return machine.ask(now)

    def called(self, now: float) -> None:
        """A first attempt is made; it earns a share of a retry."""
        if self.quota_machine is not None:
            with self.lock:
                self.quota_machine.called(now)

    def retried_well(self, now: float, retries: int) -> None:
        """Retries paid off: the quota gets back what was withdrawn (R39)."""
        if self.quota_machine is not None:
            with self.lock:
                self.quota_machine.succeeded(now, retries)

    def serve(self, policy: Policy, now: float) -> None:
        """Take on a policy's circuit, quota, hedges and places; two that disagree about one name are a mistake (R86)."""
        with self.lock:
            if self._is_new("circuit", self.circuit, policy.circuit):
                self.circuit = policy.circuit
                self.breaker.reconfigure(policy.circuit or _METRICS_ONLY, now)
            if self._is_new("retry_quota", self.quota, policy.retry_quota):
                self.quota = policy.retry_quota
                self.quota_machine = None if self.quota is None else QuotaMachine(self.quota)
            if self._is_new("hedge", self.hedge, policy.hedge):
                self.hedge = policy.hedge
                self.hedge_machine = None if self.hedge is None else HedgeMachine(self.hedge)
            limiter = (policy.concurrency, policy.waiting, policy.per_second)
            wanted = None if limiter == _NO_GATE else limiter
            if self._is_new(_GATE, self.gate_of, wanted):
                self.gate_of = wanted
                self.limiter = None if wanted is None else limiter_for(self.name, *wanted)

    def after_fork(self) -> None:
        """What other threads of the parent held here, locks and places, nobody will give back."""
        self.lock = threading.Lock()
        if self.limiter is not None and self.gate_of is not None:
            self.limiter = limiter_for(self.name, *self.gate_of)

    def _is_new(self, option: str, had: Any, wanted: Any) -> bool:
        """Whether a policy brings something else than there was. One that asks for nothing leaves it to the others (R85)."""
        if wanted is None:
            return False
        renewing = option in self.renewing
        if renewing:
            self.renewing -= {option}
        if wanted == had:
            return False
        if had is None or renewing:
            return True
        raise InvalidError.saying(f"policy.{option} of {self.name}", f"what it already has, {had!r}", repr(wanted))


_nameless: WeakSet[TargetState] = WeakSet()
"""The lines that stand in no registry."""


def own_state(name: str) -> TargetState:
    """Return the line of a recovery without a target: nobody finds it by name."""
    line = TargetState(name)
    _nameless.add(line)
    return line


class Registry:
    """The lines of a runtime by name."""

    def __init__(self, most: int, evicted: Callable[[], None]) -> None:
        self._most = most
        self._evicted = evicted
        self._lock = threading.Lock()
        self._lines: dict[str, TargetState] = {}
        self._opens_gone = 0

    def get(self, name: str) -> TargetState:
        """Return the line of this name, new if there is none."""
        line = self._lines.get(name)
        if line is None:
            with self._lock:
                line = self._lines.get(name)
                if line is None:
                    if len(self._lines) >= self._most:
                        self._evict_idle()
                    line = self._lines[name] = TargetState(name)
        return line

    def renew(self) -> None:
        """The settings have changed: each line takes the next policy it serves for its own. Its state survives (R85)."""
        for line in self:
            line.renewing = _ALL

    def opens(self) -> int:
        """Return how often circuits opened, those that have gone included."""
        with self._lock:
            return self._opens_gone + sum(line.breaker.opens for line in self._lines.values())

    def known(self, name: str) -> TargetState | None:
        return self._lines.get(name)

    def __iter__(self) -> Iterator[TargetState]:
        with self._lock:
            return iter(tuple(self._lines.values()))

    def __len__(self) -> int:
        return len(self._lines)

    def after_fork(self) -> None:
        """A lock that another thread of the parent held would never be released here."""
        self._lock = threading.Lock()
        for line in self._lines.values():
            line.after_fork()

    def _evict_idle(self) -> None:
        """Drop the tenth that was quiet longest. An open circuit is knowledge and stays while there is a closed one.

        One that somebody holds by hand stays anyway: they would not hear that it is gone.
        """
        closed: list[TargetState] = []
        others: list[TargetState] = []
        for line in self._lines.values():
            if not line.breaker.held:
                (closed if line.breaker.recorded_state is _CLOSED else others).append(line)
        count = max(1, len(self._lines) // 10)
        closed.sort(key=_QUIET_SINCE)
        if len(closed) < count:
            closed += sorted(others, key=_QUIET_SINCE)
        for line in closed[:count]:
            del self._lines[line.name]
            self._opens_gone += line.breaker.opens
        self._evicted()


# A key in C that gives plain floats: all calls wait for this, and a tuple for each of many circuits wakes the collector.
_QUIET_SINCE = operator.attrgetter("breaker.idle_since")


def _after_fork() -> None:
    for line in tuple(_nameless):
        line.after_fork()


os.register_at_fork(after_in_child=_after_fork)
