"""What all calls to one name share: its circuit, its retry quota, its places and its pace.

Invariant: one name has one state however many callers, threads and event loops use it. The registry is bounded: lines
that are closed and idle go first, and nobody keeps using a line that has gone.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from holdfast.events import CircuitState
from holdfast.faults import InvalidError
from holdfast.policies.circuit import Breaker, Circuit
from holdfast.policies.hedge import HedgeMachine
from holdfast.policies.quota import QuotaMachine
from holdfast.runtime.gates import gate_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.faults import Code
    from holdfast.policies import Policy
    from holdfast.policies.circuit import Permit, Rejection, Verdict
    from holdfast.policies.hedge import Hedge
    from holdfast.policies.quota import Quota
    from holdfast.runtime.gates import Gate

__all__ = ["Line", "Lines", "line_of_its_own"]

_METRICS_ONLY = Circuit(mode="metrics-only")
"""What counts calls where no circuit is wanted."""
_NO_GATE = (None, None, None)


class Line:
    """The state behind one name. Its methods may be called from any thread."""

    __slots__ = (
        "__weakref__",
        "breaker",
        "circuit",
        "gate",
        "gate_of",
        "hedge",
        "hedge_machine",
        "lock",
        "name",
        "quota",
        "quota_machine",
        "renewed",
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
        self.gate: Gate | None = None
        self.renewed = True
        """The configuration has changed, or is new: the next policy it serves may be another one."""

    def admit(self, now: float) -> Permit | Rejection:
        with self.lock:
            return self.breaker.admit(now)

    def settle(self, permit: Permit, verdict: Verdict, now: float, code: Code | None = None) -> None:
        with self.lock:
            self.breaker.settle(permit, verdict, now, code=code)

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
        """Take on a policy's options behind a name; two policies that disagree about one name are a mistake (R86)."""
        with self.lock:
            if self.renewed:
                self._begin_anew(policy, now)
            if self._is_new("circuit", self.circuit, policy.circuit):
                self.circuit = policy.circuit
                self.breaker.reconfigure(policy.circuit or _METRICS_ONLY, now)
            if self._is_new("retry_quota", self.quota, policy.retry_quota):
                self.quota = policy.retry_quota
                self.quota_machine = None if self.quota is None else QuotaMachine(self.quota)
            if self._is_new("hedge", self.hedge, policy.hedge):
                self.hedge = policy.hedge
                self.hedge_machine = None if self.hedge is None else HedgeMachine(self.hedge)
            gate = (policy.concurrency, policy.waiting, policy.per_second)
            if gate != _NO_GATE and self._is_new("concurrency, waiting, per_second", self.gate_of, gate):
                self.gate_of = gate
                self.gate = gate_for(self.name, *gate)

    def renew(self) -> None:
        """Forget what was configured, not what happened: the state of the circuit survives (R85)."""
        with self.lock:
            self.renewed = True

    def after_fork(self) -> None:
        """What other threads of the parent held here, locks and places, nobody will give back."""
        self.lock = threading.Lock()
        if self.gate is not None and self.gate_of is not None:
            self.gate = gate_for(self.name, *self.gate_of)

    def _begin_anew(self, policy: Policy, now: float) -> None:
        self.renewed = False
        self.circuit, self.quota, self.hedge, self.gate_of = policy.circuit, None, None, None
        self.quota_machine, self.hedge_machine, self.gate = None, None, None
        self.breaker.reconfigure(policy.circuit or _METRICS_ONLY, now)

    def _is_new(self, option: str, had: Any, wanted: Any) -> bool:
        if wanted is None or wanted == had:
            return False
        if had is not None:
            raise InvalidError.saying(f"policy.{option} of {self.name}", f"what it already has, {had!r}", repr(wanted))
        return True


_nameless: WeakSet[Line] = WeakSet()
"""The lines that stand in no registry."""


def line_of_its_own(name: str) -> Line:
    """Return the line of a recovery without a target: nobody finds it by name."""
    line = Line(name)
    _nameless.add(line)
    return line


class Lines:
    """The lines of a runtime by name."""

    def __init__(self, most: int, evicted: Callable[[], None]) -> None:
        self._most = most
        self._evicted = evicted
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}

    def get(self, name: str) -> Line:
        """Return the line of this name, new if there is none."""
        line = self._lines.get(name)
        if line is None:
            with self._lock:
                line = self._lines.get(name)
                if line is None:
                    if len(self._lines) >= self._most:
                        self._evict_idle()
                    line = self._lines[name] = Line(name)
        return line

    def renew(self) -> None:
        """There is a new configuration: every line takes on the policy that it serves next."""
        for line in self:
            line.renew()

    def known(self, name: str) -> Line | None:
        return self._lines.get(name)

    def __iter__(self) -> Iterator[Line]:
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
        """Drop the tenth that was quiet longest. An open circuit is knowledge, one held by hand a decision: they stay longest."""
        ranked = sorted(self._lines.values(), key=_worth)
        for line in ranked[: max(1, len(ranked) // 10)]:
            del self._lines[line.name]
        self._evicted()


def _worth(line: Line) -> tuple[bool, float]:
    breaker = line.breaker
    return (breaker.held or breaker.recorded_state is not CircuitState.CLOSED, breaker.idle_since)


def _after_fork() -> None:
    for line in tuple(_nameless):
        line.after_fork()


os.register_at_fork(after_in_child=_after_fork)
