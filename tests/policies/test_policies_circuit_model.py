"""The breaker against a reference that keeps every outcome, through any sequence of calls, manual control and time."""

from __future__ import annotations

from circuit_bench import CLOSED, HALF_OPEN, OPEN, START
from circuit_reference import Reference, Ticket
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from holdfast.policies.circuit import Breaker, Circuit, Permit, Verdict

WINDOW = 80.0
"""Twenty parts of four seconds: with steps of a quarter second every time is exact in binary."""

CONFIGS = [
    Circuit(window=WINDOW, failures=3, rate=0.5, volume=4),
    Circuit(window=WINDOW, failures=3, counted="window", rate=None, volume=4, probes=2, successes=2),
    Circuit(window=WINDOW, failures=3, counted="either", rate=None, volume=4),
    Circuit(window=WINDOW, failures=None, rate=0.25, volume=5, open_growth=2.0, open_cap=100.0),
    Circuit(window=WINDOW, failures=None, rate=None, slow=2.0, slow_rate=0.5, volume=3, probe_limit=8.0),
    Circuit(
        window=WINDOW,
        failures=2,
        rate=None,
        probes=3,
        successes=3,
        open_for=4.0,
        reopen_for=2.0,
        open_cap=8.0,
        open_growth=1.5,
    ),
    Circuit(window=WINDOW, failures=2, volume=0, mode="metrics-only"),
    Circuit(window=WINDOW, mode="disabled"),
    Circuit(window=WINDOW, mode="forced-open"),
]
configs = st.one_of(st.sampled_from(CONFIGS[:6]), st.sampled_from(CONFIGS))
verdicts = st.one_of(st.sampled_from([Verdict.FAILURE, Verdict.SUCCESS]), st.sampled_from(Verdict))
steps = st.one_of(st.integers(0, 8), st.integers(0, 400), st.sampled_from([16, 120, 240, 320])).map(lambda n: n / 4)


class CircuitMachine(RuleBasedStateMachine):
    calls = Bundle("calls")

    @initialize(config=configs, offset=steps)
    def begin(self, config: Circuit, offset: float) -> None:
        self.now = START + offset
        self.breaker = Breaker(config, "model")
        self.reference = Reference(config)
        if config.mode == "forced-open":
            self.reference.state = OPEN
        self.changes: list[tuple[object, object]] = []

    @rule(seconds=steps)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(target=calls)
    def ask(self):
        answer, ticket = self.breaker.admit(self.now), self.reference.admit(self.now)
        if ticket is None:
            assert not isinstance(answer, Permit)
            assert answer.state is self.reference.state
            assert answer.retry_at == self.reference.until
            return multiple()
        assert isinstance(answer, Permit)
        assert answer.probe is ticket.probe
        return (answer, ticket)

    @rule(call=calls, verdict=verdicts)
    def end(self, call: tuple[Permit, Ticket], verdict: Verdict) -> None:
        """A call may end a second time, which must change nothing."""
        permit, ticket = call
        self.breaker.settle(permit, verdict, self.now)
        self.reference.settle(ticket, verdict, self.now)

    @rule(verdicts=st.lists(verdicts, min_size=1, max_size=6), took=st.sampled_from([0.0, 0.25, 2.0]))
    def calls_end_one_by_one(self, verdicts: list[Verdict], took: float) -> None:
        self._calls(verdicts, took)

    def _calls(self, verdicts: list[Verdict], took: float) -> None:
        for verdict in verdicts:
            answer, ticket = self.breaker.admit(self.now), self.reference.admit(self.now)
            assert isinstance(answer, Permit) == (ticket is not None)
            self.now += took
            if isinstance(answer, Permit) and ticket is not None:
                self.breaker.settle(answer, verdict, self.now)
                self.reference.settle(ticket, verdict, self.now)

    @rule(bad=st.integers(2, 8), patience=st.sampled_from([4.0, 30.0, 100.0]), good=st.integers(0, 3))
    def an_outage_comes_and_goes(self, bad: int, patience: float, good: int) -> None:
        self._calls([Verdict.FAILURE] * bad, 0.0)
        self.now += patience
        self._calls([Verdict.SUCCESS] * good, 0.0)

    @rule()
    def hold_open(self) -> None:
        self.breaker.force_open(self.now)
        self.reference.held += 1
        self.reference.obey()

    @rule()
    def release(self) -> None:
        self.breaker.release(self.now)
        self.reference.held = max(0, self.reference.held - 1)
        self.reference.obey()

    @rule(off=st.booleans())
    def disable_or_enable(self, off: bool) -> None:
        (self.breaker.disable if off else self.breaker.enable)(self.now)
        self.reference.disabled = off
        self.reference.obey()

    @rule()
    def reset(self) -> None:
        self.breaker.reset(self.now)
        self.reference.reset()

    @rule(config=configs)
    def reconfigure(self, config: Circuit) -> None:
        self.breaker.reconfigure(config, self.now)
        self.reference.reconfigure(config, self.now)

    @precondition(lambda self: hasattr(self, "breaker"))
    @invariant()
    def they_agree(self) -> None:
        breaker, reference, metrics = self.breaker, self.reference, self.breaker.metrics(self.now)
        due = reference.until is not None and self.now >= reference.until
        assert breaker.state(self.now) is (HALF_OPEN if due else reference.state)
        self._take()
        assert self.changes == reference.changes
        assert metrics.opens == sum(to is OPEN for _, to in reference.changes)
        assert metrics.rejected == reference.rejected
        assert metrics.total_calls == sum(reference.totals.values())
        assert metrics.failures == reference.totals[Verdict.FAILURE]
        assert metrics.successes == reference.totals[Verdict.SUCCESS]
        assert metrics.open_until == reference.until
        if reference.state is CLOSED:
            recent = reference.recent(self.now)
            assert metrics.window_calls == len(recent)
            assert metrics.consecutive_failures == reference.streak()
            assert metrics.failure_rate == sum(outcome.failed for outcome in recent) / max(1, len(recent))
            assert metrics.slow_rate == sum(outcome.slow for outcome in recent) / max(1, len(recent))

    def _take(self) -> None:
        self.changes += [(change.from_, change.to) for change in self.breaker.take_transitions()]


CircuitMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestCircuitModel = CircuitMachine.TestCase
