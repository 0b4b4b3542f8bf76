"""How every call ended, by the events of its recovery, and what the servers counted.

An event handler runs in the context of the call that emits the event. So a context variable shows which call it
belongs to.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from holdfast.events import (
    AttemptEnded,
    AttemptStarted,
    CircuitState,
    CircuitStateChange,
    Commanded,
    Degraded,
    Event,
    Fallback,
    Recovered,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.cli.demo.storm import DemoCaller
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime
    from holdfast.testing import FaultProvider

ENDS = ("answered", "recovered", "fell_back", "degraded", "given_up")
"""How a call may end, from best to worst."""

_NOW: ContextVar[DemoCall | None] = ContextVar("holdfast_demo_call", default=None)


class DemoCall:
    """One call of one worker, and its events."""

    def __init__(self, act: str, worker: DemoCaller) -> None:
        self.act = act
        self.worker = worker
        self.recovered = self.fell_back = self.degraded = self.given_up = False
        self.events: list[Event] = []

    def has(self, kind: type[Event]) -> bool:
        """Whether it had an event of this kind."""
        return any(isinstance(event, kind) for event in self.events)

    @property
    def end(self) -> str:
        """How it ended: the worst of its events decides."""
        return next((end for end in reversed(ENDS[1:]) if getattr(self, end)), ENDS[0])


class Counted:
    """One provider in one act: attempts and failures by our events, requests and faults by its own counters."""

    def __init__(self) -> None:
        self.attempts = self.failures = self.not_sent = 0
        self.requests = self.answered = 0
        self.injected: Counter[str] = Counter()

    @property
    def faults(self) -> int:
        """How many requests met a fault."""
        return self.injected.total()

    @property
    def matches(self) -> bool:
        """Whether every attempt was one request, and every fault one failure."""
        return (self.attempts, self.failures) == (self.requests, self.faults)

    def add(self, other: Counted) -> None:
        """Add the counts of another `Counted`."""
        self.attempts += other.attempts
        self.failures += other.failures
        self.not_sent += other.not_sent
        self.requests += other.requests
        self.answered += other.answered
        self.injected += other.injected


class DemoTally:
    """All counts, by act and provider."""

    def __init__(self) -> None:
        self.calls: list[DemoCall] = []
        self.open_until: float | None = None
        """The wall-clock time at which the open circuit lets a call through; None if no circuit is open."""
        self.commanded = False
        """True if the user pressed a key. Then the counts do not depend on the seed alone."""
        self._counted: dict[tuple[str, str], Counted] = {}

    def listen(self, runtime: Runtime) -> Subscription:
        """Count the events of the runtime until the subscription is cancelled."""
        return runtime.on(self._take)

    @contextmanager
    def call(self, act: str, worker: DemoCaller) -> Iterator[DemoCall]:
        """Assign the events inside the block to a new call."""
        call = DemoCall(act, worker)
        self.calls.append(call)
        # It is a context variable, not an attribute, because the calls of all workers run at the same time.
        token = _NOW.set(call)
        try:
            yield call
        finally:
            _NOW.reset(token)

    def take_counters(self, act: str, servers: Mapping[str, FaultProvider]) -> None:
        """Take over the servers' counters after an act."""
        for name, server in servers.items():
            counted, counters = self.counted(act, name), server.counters
            counted.requests = counters.received
            counted.answered = counters.answered
            counted.injected = Counter(counters.injected)

    def counted(self, act: str, server: str) -> Counted:
        """Return the counts of a provider in an act."""
        return self._counted.setdefault((act, server), Counted())

    def total(self, server: str) -> Counted:
        """Return the counts of a provider in all acts."""
        total = Counted()
        for (_, name), counted in self._counted.items():
            if name == server:
                total.add(counted)
        return total

    def ends(self, act: str) -> dict[str, int]:
        """Return how the calls of an act ended."""
        found = Counter(call.end for call in self.calls if call.act == act)
        return {"calls": found.total(), **{end: found[end] for end in ENDS}}

    def mismatches(self) -> list[str]:
        """Return where our events and the servers' counters differ."""
        return [
            f"{act}: {counted.attempts} attempts and {counted.failures} failures reported, but {server} counted "
            f"{counted.requests} requests and {counted.faults} faults"
            for (act, server), counted in self._counted.items()
            if not counted.matches
        ]

    def _take(self, event: Event) -> None:
        if isinstance(event, CircuitStateChange):
            self.open_until = event.until if event.to is CircuitState.OPEN else None
        self.commanded = self.commanded or isinstance(event, Commanded)
        # Events outside a call, such as a circuit that half-opens by itself, belong to no call.
        call = _NOW.get()
        if call is not None:
            call.events.append(event)
            self._count(call, event)

    def _count(self, call: DemoCall, event: Event) -> None:
        # The name of an operation is provider/model; the counters are per provider.
        counted = self.counted(call.act, event.operation.partition("/")[0])
        match event:
            # A fallback is an operation of its own and reports its own attempts.
            case AttemptStarted(via="primary"):
                counted.attempts += 1
            case AttemptEnded(via="primary", fault=fault) if fault is not None:
                counted.failures += 1
            case Fallback(fault=fault):
                call.fell_back = True
                counted.not_sent += fault is not None and fault.code == "CIRCUIT_OPEN"
            case Recovered():
                call.recovered = True
            case Degraded():
                call.degraded = True
            case _:
                pass
