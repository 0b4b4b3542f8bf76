"""A test bench: a breaker and a clock that the test moves by hand, so that a test reads like its case."""

from __future__ import annotations

from holdfast.events import CircuitState
from holdfast.faults import Code
from holdfast.policies.circuit import Breaker, BreakerMetrics, Circuit, Permit, Rejection, Transition, Verdict

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
SUCCESS, FAILURE, IGNORED, CANCELLED = Verdict.SUCCESS, Verdict.FAILURE, Verdict.IGNORED, Verdict.CANCELLED
START = 1024.0
"""On the grid of every window used here, and exact in binary."""


class Bench:
    """A breaker and its time."""

    def __init__(self, config: Circuit, *, start: float = START) -> None:
        self.breaker = Breaker(config, "provider:claude")
        self.now = start

    @property
    def state(self) -> CircuitState:
        return self.breaker.state(self.now)

    @property
    def metrics(self) -> BreakerMetrics:
        return self.breaker.metrics(self.now)

    def wait(self, seconds: float) -> Bench:
        self.now += seconds
        return self

    def permit(self) -> Permit:
        """Return a permit; fail if the call is rejected."""
        answer = self.breaker.admit(self.now)
        assert isinstance(answer, Permit), f"expected a permit, got {answer}"
        return answer

    def rejection(self) -> Rejection:
        """Return a rejection; fail if the call gets a permit."""
        answer = self.breaker.admit(self.now)
        assert isinstance(answer, Rejection), f"expected a rejection, got {answer}"
        return answer

    def end(self, permit: Permit, verdict: Verdict, code: Code | None = None, text: str | None = None) -> None:
        self.breaker.settle(permit, verdict, self.now, code=code, text=text)

    def call(self, verdict: Verdict, *, took: float = 0.0, code: Code | None = None) -> None:
        permit = self.permit()
        self.now += took
        self.end(permit, verdict, code)

    def good(self, calls: int = 1, *, took: float = 0.0) -> Bench:
        for _ in range(calls):
            self.call(SUCCESS, took=took)
        return self

    def bad(self, calls: int = 1, *, took: float = 0.0) -> Bench:
        for _ in range(calls):
            self.call(FAILURE, took=took, code="PROVIDER_OVERLOADED")
        return self

    def changes(self) -> list[tuple[CircuitState, CircuitState]]:
        return [(change.from_, change.to) for change in self.taken()]

    def taken(self) -> tuple[Transition, ...]:
        return self.breaker.take_transitions()
