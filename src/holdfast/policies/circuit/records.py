"""The values that go in and out of a breaker: permit, verdict, rejection, transition and metrics.

Invariant: times are monotonic, and of a permit only what became of its call changes.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.events import CircuitState
from holdfast.faults import Code
from holdfast.policies.circuit.rules import Rule
from holdfast.policies.early import AnnouncedCalls, EarlyCalls


class Verdict(StrEnum):
    """What the end of a call means for its circuit."""

    SUCCESS = "success"
    FAILURE = "failure"
    IGNORED = "ignored"
    """It failed by the caller's own mistake, which says nothing about the service."""
    CANCELLED = "cancelled"
    """The caller stopped it. It counts as if it was never made."""


# Compared by identity: two probes that start at the same moment are still two. Never part of a reference cycle, so the
# garbage collector need not track the permits of running calls.
class Permit(msgspec.Struct, gc=False, eq=False):
    """The permission to make one call. Its holder must settle it, however the call ends."""

    generation: int
    started: float
    probe: bool = False
    settled: bool = False
    forced: bool = False
    """The call did not wait for its turn."""
    early: EarlyCalls | AnnouncedCalls | None = None
    """What learns from its outcome whether it helps to wait; None: it says nothing about that."""
    again: bool = False
    """It is not the first attempt of its operation."""
    number: int = 0
    """Its number there; 0: its outcome does not count."""
    first: int = 0
    """Its number there among the first attempts that did not wait; 0: it is none."""
    caller: int = 0
    """Who makes it; 0: nothing is paced."""
    start: int = 0
    """The number of its start, where several processes share a pace; -1: it had none; 0: there is no such pace."""
    waited: float = 0.0
    """Seconds that it waited for its turn where the plain client would have made it at once."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """The call must not be made: which circuit rejects it, why, and until when."""

    name: str
    state: CircuitState
    retry_at: float | None = None
    """When it lets a probe through. None: unknown, because it is held open or probes are running right now."""
    reason: Code | None = None
    """The code of the failure that opened it."""
    last_failure: str | None = None
    """The text of that failure."""
    rule: Rule | None = None
    """What opened it."""
    holds: bool = False
    """The plain client would make this attempt now, and it waits for its turn."""


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """A change of state. The event `CircuitStateChange` is built from it."""

    from_: CircuitState
    to: CircuitState
    at: float
    reason: Code | None = None
    """The code of the failure that opened it."""
    until: float | None = None
    """When an open circuit lets a probe through. None: unknown."""
    rule: Rule | None = None
    """What opened it."""


class BreakerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts, rates and times of a circuit. Counts cover its whole life unless they name the window.

    Every call that was let through and has ended is in exactly one of `failures`, `successes`, `ignored` and `cancelled`.
    """

    name: str
    state: CircuitState
    failures: int
    """Calls that failed and were counted."""
    successes: int
    ignored: int
    """Calls whose failure says nothing about the service."""
    cancelled: int
    total_calls: int
    """Calls that were let through and have ended."""
    rejected: int
    """Calls that were not let through. No other count includes them."""
    opens: int
    """How often it opened, including after a failed probe."""
    consecutive_failures: int
    window_calls: int
    """Succeeded and failed calls in the window; while open, in the window at the moment it opened."""
    failure_rate: float
    """The share of the window's calls that failed; 0 without calls."""
    slow_rate: float
    """The share of the window's calls that were slow; 0 without calls."""
    last_failure: float | None
    last_success: float | None
    last_state_change: float | None
    open_until: float | None
    """When an open circuit lets a probe through. None: not open, or held open."""
