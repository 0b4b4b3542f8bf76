"""What goes in and out of a breaker: a permit, a verdict on the call, a rejection, a change of state.

Invariant: times are monotonic, and only a permit's `settled` ever changes.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.events import CircuitState
from holdfast.faults import Code
from holdfast.policies.circuit.rules import Rule

__all__ = ["BreakerMetrics", "Permit", "Rejection", "Transition", "Verdict"]


class Verdict(StrEnum):
    """What a call's end means for its circuit."""

    SUCCESS = "success"
    FAILURE = "failure"
    IGNORED = "ignored"
    """It failed in a way that says nothing about the service: the caller's own mistake."""
    CANCELLED = "cancelled"
    """Somebody asked to stop. It never happened."""


class Permit(msgspec.Struct, gc=False, eq=False):
    """Leave to make one call. Whoever holds it must settle it, whatever becomes of the call."""

    generation: int
    started: float
    probe: bool = False
    settled: bool = False


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """The call must not be made: who says so, why, and until when."""

    name: str
    state: CircuitState
    retry_at: float | None = None
    """When it lets a probe through. None: nobody knows; it is held open, or others are probing it right now."""
    reason: Code | None = None
    """The code of the failure that opened it."""
    last_failure: str | None = None
    """That failure's text."""
    rule: Rule | None = None
    """What opened it."""


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """The state changed. What `CircuitStateChange` is made of."""

    from_: CircuitState
    to: CircuitState
    at: float
    reason: Code | None = None
    """The code of the failure that opened it."""
    until: float | None = None
    """When an open circuit lets a probe through. None: nobody knows."""
    rule: Rule | None = None
    """What opened it."""


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
