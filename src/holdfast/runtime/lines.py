"""What all calls to one name share: its circuit, its retry quota, its places and its pace.

Invariant: one name has one state however many callers, threads and event loops use it. The registry is bounded: lines
that are closed and idle go first, and nobody keeps using a line that has gone.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.events import CircuitState
from holdfast.faults import InvalidError
from holdfast.policies.circuit import Breaker, Circuit
from holdfast.policies.quota import QuotaMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.faults import Code
    from holdfast.policies import Policy
    from holdfast.policies.circuit import Permit, Rejection, Verdict
    from holdfast.policies.quota import Quota

__all__ = ["Line", "Lines"]

_METRICS_ONLY = Circuit(mode="metrics-only")
"""What counts calls where no circuit is wanted."""


class Line:
    """The state behind one name. Its methods may be called from any thread."""

    __slots__ = ("breaker", "circuit", "lock", "name", "quota", "quota_machine")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.circuit: Circuit | None = None
        self.breaker = Breaker(_METRICS_ONLY, name)
        self.quota: Quota | None = None
        self.quota_machine: QuotaMachine | None = None

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

    def retried_well(self, now: float) -> None:
        """A retry paid off: the quota gets back what was withdrawn (R39)."""
        if self.quota_machine is not None:
            with self.lock:
                self.quota_machine.succeeded(now)

    def serve(self, policy: Policy, now: float) -> None:
        """Take on a policy's circuit and quota; two policies that disagree about one name are a mistake (R86)."""
        with self.lock:
            self._take_circuit(policy.circuit, now)
            self._take_quota(policy.retry_quota)

    def _take_circuit(self, circuit: Circuit | None, now: float) -> None:
        if circuit is None or circuit == self.circuit:
            return
        if self.circuit is not None:
            raise InvalidError.saying(
                f"policy.circuit of {self.name}", f"the circuit it already has, {self.circuit!r}", repr(circuit)
            )
        self.circuit = circuit
        self.breaker.reconfigure(circuit, now)

    def _take_quota(self, quota: Quota | None) -> None:
        if quota is None or quota == self.quota:
            return
        if self.quota is not None:
            raise InvalidError.saying(
                f"policy.retry_quota of {self.name}", f"the quota it already has, {self.quota!r}", repr(quota)
            )
        self.quota, self.quota_machine = quota, QuotaMachine(quota)


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

    def known(self, name: str) -> Line | None:
        return self._lines.get(name)

    def __iter__(self) -> Iterator[Line]:
        with self._lock:
            return iter(tuple(self._lines.values()))

    def __len__(self) -> int:
        return len(self._lines)

    def _evict_idle(self) -> None:
        """Drop the tenth that was quiet longest. An open circuit is knowledge and stays while there is a closed one."""
        ranked = sorted(self._lines.values(), key=_worth)
        for line in ranked[: max(1, len(ranked) // 10)]:
            del self._lines[line.name]
        self._evicted()


def _worth(line: Line) -> tuple[bool, float]:
    return (line.breaker.settled_state is not CircuitState.CLOSED, line.breaker.idle_since)
