"""A circuit written to be understood: it keeps every outcome and counts all of them each time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from circuit_bench import CLOSED, FAILURE, HALF_OPEN, OPEN, SUCCESS

from holdfast.events import CircuitState
from holdfast.policies.circuit import Circuit, Verdict

PARTS = 20


@dataclass
class Ticket:
    """A call that was let through, and its generation."""

    period: int
    started: float
    probe: bool
    counted: bool = True


@dataclass
class Outcome:
    at: float
    failed: bool
    slow: bool


@dataclass
class Reference:
    config: Circuit
    state: CircuitState = CLOSED
    until: float | None = None
    open_time: float = 0.0
    between_probes: float = 0.0
    period: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    """Of the present closed time, all of them."""
    probes: list[Ticket] = field(default_factory=list)
    good_probes: int = 0
    held: int = 0
    disabled: bool = False
    changes: list[tuple[CircuitState, CircuitState]] = field(default_factory=list)
    totals: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))
    rejected: int = 0

    def admit(self, now: float) -> Ticket | None:
        if self.mode == "disabled":
            return Ticket(-1, now, probe=False, counted=False)
        if self.state is OPEN and self.until is not None and now >= self.until:
            self.go(HALF_OPEN)
        if self.state is CLOSED:
            return Ticket(self.period, now, probe=False)
        if self.state is HALF_OPEN and self.probes_held(now) < self.config.probes:
            self.probes.append(Ticket(self.period, now, probe=True))
            return self.probes[-1]
        self.rejected += 1
        return None

    def probes_held(self, now: float) -> int:
        return sum(now - probe.started < self.config.probe_limit for probe in self.probes)

    def settle(self, ticket: Ticket, verdict: Verdict, now: float) -> None:
        if not ticket.counted:
            return
        ticket.counted = False
        self.totals[verdict] += 1
        if ticket.period != self.period:
            return
        slow = self.config.slow is not None and now - ticket.started >= self.config.slow
        if ticket.probe:
            self.probes = [probe for probe in self.probes if probe is not ticket]
            if verdict is FAILURE or (verdict is SUCCESS and slow):
                self.reopen(ticket, now)
            elif verdict is SUCCESS:
                self.good_probes += 1
                if self.good_probes >= self.config.successes:
                    self.close()
        elif verdict in {SUCCESS, FAILURE}:
            self.outcomes.append(Outcome(now, verdict is FAILURE, slow))
            if (verdict is FAILURE or slow) and self.mode == "normal" and self.too_much(now):
                self.open(now)

    def too_much(self, now: float) -> bool:
        config, recent = self.config, self.recent(now)
        failed = sum(outcome.failed for outcome in recent)
        slow = sum(outcome.slow for outcome in recent)
        rows = {"consecutive": config.failures, "either": max(config.failures or 0, config.volume)}
        if config.failures is not None and self.streak() >= (rows.get(config.counted) or math.inf):
            return True
        if not recent or len(recent) < config.volume:
            return False
        return (
            (config.failures is not None and config.counted != "consecutive" and failed >= config.failures)
            or (config.rate is not None and failed / len(recent) >= config.rate)
            or (config.slow_rate is not None and slow / len(recent) >= config.slow_rate)
        )

    def recent(self, now: float) -> list[Outcome]:
        width = self.config.window / PARTS
        return [outcome for outcome in self.outcomes if outcome.at // width > now // width - PARTS]

    def streak(self) -> int:
        streak = 0
        for outcome in reversed(self.outcomes):
            if not outcome.failed:
                break
            streak += 1
        return streak

    @property
    def mode(self) -> str:
        if self.held or self.config.mode == "forced-open":
            return "forced-open"
        return "disabled" if self.disabled else self.config.mode

    def obey(self) -> None:
        held_open = self.state is OPEN and self.until is None
        if self.mode == "forced-open":
            if not held_open:
                self.until = None
                self.go(OPEN)
        elif held_open or (self.mode != "normal" and self.state is not CLOSED):
            self.close()

    def reconfigure(self, config: Circuit, now: float) -> None:
        self.config = config
        if self.until is not None:
            self.open_time = min(self.open_time, config.open_cap)
            self.until = min(self.until, now + self.open_time)
        self.obey()

    def reset(self) -> None:
        self.held, self.disabled = 0, False
        self.obey()
        if self.mode != "forced-open":
            self.close()

    def open(self, now: float) -> None:
        self.open_time = self.config.open_for
        self.until = now + self.open_time
        self.go(OPEN)

    def reopen(self, probe: Ticket, now: float) -> None:
        shortest = min(self.config.reopen_for or self.config.open_for, self.config.open_for)
        self.between_probes = min(max(self.between_probes, shortest) * self.config.open_growth, self.config.open_cap)
        self.until = max(now, probe.started + self.between_probes)
        self.open_time = self.until - now
        self.go(OPEN)

    def close(self) -> None:
        self.outcomes = []
        self.open_time = 0.0
        self.between_probes = 0.0
        self.go(CLOSED)

    def go(self, state: CircuitState) -> None:
        if state is not self.state:
            self.changes.append((self.state, state))
        self.state = state
        self.period += 1
        self.probes, self.good_probes = [], 0
        if state is not OPEN:
            self.until = None
