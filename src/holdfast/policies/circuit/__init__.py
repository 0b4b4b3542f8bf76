"""The circuit: stop calling a service that is down, and notice when it is back.

    Circuit (a value) ─▶ Breaker ─ admit(now) ─▶ Permit ─▶ the call ─▶ settle(permit, verdict, now)
                                              └▶ Rejection: who, why, until when

`config` holds the options and the presets, `window` counts the recent calls and learns the usual failure rate, `rules`
decides which failures count and when there are too many, `machine` is the breaker itself, and `records` are the values
that go in and out of it.

Invariant: a permit is settled once, and only an outcome of the present generation changes the state.
"""

from __future__ import annotations

from holdfast.policies.circuit.config import (
    ACTOR,
    BRIDGE,
    GRADED,
    PROVIDER,
    SPEC016,
    Circuit,
    CircuitOptions,
    Counted,
    Mode,
)
from holdfast.policies.circuit.machine import Breaker
from holdfast.policies.circuit.records import BreakerMetrics, Permit, Rejection, Transition, Verdict
from holdfast.policies.circuit.rules import Rule, counted_by

__all__ = [
    "ACTOR",
    "BRIDGE",
    "GRADED",
    "PROVIDER",
    "SPEC016",
    "Breaker",
    "BreakerMetrics",
    "Circuit",
    "CircuitOptions",
    "Counted",
    "Mode",
    "Permit",
    "Rejection",
    "Rule",
    "Transition",
    "Verdict",
    "counted_by",
]
