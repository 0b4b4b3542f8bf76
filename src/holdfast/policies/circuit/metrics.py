"""How a circuit is doing, in numbers (S1-13, N1-6).

Invariant: a count means what its name says, and every call that has ended is in exactly one of four (N1-9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.events import CircuitState

if TYPE_CHECKING:
    from holdfast.policies.circuit.machine import Breaker

__all__ = ["BreakerMetrics", "read_metrics"]


class BreakerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How a circuit is doing. Counts are of its whole life unless they say otherwise; times are monotonic."""

    name: str
    state: CircuitState
    failures: int
    """Calls that failed and were counted."""
    successes: int
    ignored: int
    """Calls whose failure says nothing about the service."""
    cancelled: int
    total_calls: int
    """Calls that were let through and have ended: failures, successes, ignored and cancelled ones."""
    rejected: int
    """Calls that were not let through. They are in no other count."""
    opens: int
    """How often it opened, reopening after a bad probe included."""
    consecutive_failures: int
    window_calls: int
    """Good and failed calls in the window; while open, in the window as it was when it opened."""
    failure_rate: float
    """The share of them that failed; 0 without any."""
    slow_rate: float
    """The share of them that was slow; 0 without any."""
    last_failure: float | None
    last_success: float | None
    last_state_change: float | None
    open_until: float | None
    """When an open circuit lets a probe through. None: not open, or held open."""


def read_metrics(breaker: Breaker, now: float) -> BreakerMetrics:
    """Return how the breaker is doing."""
    window, calls = breaker.window, breaker.window.calls
    return BreakerMetrics(
        name=breaker.name,
        state=breaker.state(now),
        failures=breaker.failures,
        successes=breaker.successes,
        ignored=breaker.ignored,
        cancelled=breaker.cancelled,
        total_calls=breaker.successes + breaker.failures + breaker.ignored + breaker.cancelled,
        rejected=breaker.rejected,
        opens=breaker.opens,
        consecutive_failures=breaker.streak,
        window_calls=calls,
        failure_rate=window.failures / calls if calls else 0.0,
        slow_rate=window.slow_calls / calls if calls else 0.0,
        last_failure=breaker.last_failure,
        last_success=breaker.last_success,
        last_state_change=breaker.last_change,
        open_until=breaker.open_until,
    )
