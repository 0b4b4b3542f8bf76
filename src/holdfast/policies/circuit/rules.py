"""Which failures a circuit counts, and how many of them open it.

Invariant: the rules are checked only after a call that failed or was slow. A good call never opens a circuit, even if it is
the call that fills the window up to its volume. A caller's own mistake never trips the circuit of the service it called,
and a cancelled call trips none (C12).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.faults import Category, Kind, Layer, Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.faults import Fault
    from holdfast.policies.circuit.config import Circuit
    from holdfast.policies.circuit.window import Window


class Rule(StrEnum):
    """What opened a circuit."""

    FAILURES = "failures"
    """There were too many failures, in a row or in the window."""
    RATE = "rate"
    """Too large a share of the calls failed."""
    SLOW = "slow"
    """Too large a share of the calls was slow."""
    PROBE = "probe"
    """A probe failed, or was slow and slow calls count."""
    PACE = "pace"
    """It is closed, but the service accepts only so many calls, and others go first."""
    FALLBACK = "fallback"
    """It is closed, but the service has failed for a while, and a fallback answers instead."""
    FORCED = "forced"
    """An operator or the configuration holds it open."""


def broken_rule(config: Circuit, streak: int, window: Window, factor: float) -> Rule | None:
    """Return the first rule that is broken by `streak` failures in a row and the calls of the window; None: no rule."""
    most = config.failures
    if most is not None and config.counted != "window":
        # With `either`, a row needs as many calls as the window does, and no window: none of them was answered, however long it took.
        in_a_row = _scaled_count(most, factor)
        if streak >= (in_a_row if config.counted == "consecutive" else max(in_a_row, config.volume)):
            return Rule.FAILURES
    calls = window.calls
    # A volume of zero requires no calls, but a share of zero calls cannot be computed.
    if calls < config.volume or not calls:
        return None
    if most is not None and config.counted != "consecutive" and window.failures >= _scaled_count(most, factor):
        return Rule.FAILURES
    # Divide and never multiply: as floats, 0.7 * 10 is more than 7, while 7 / 10 equals 0.7.
    if config.rate is not None and window.failures / calls >= min(1.0, config.rate * factor):
        return Rule.RATE
    if config.slow_rate is not None and window.slow_calls / calls >= min(1.0, config.slow_rate * factor):
        return Rule.SLOW
    return None


def _scaled_count(count: int, factor: float) -> int:
    return count if factor == 1.0 else math.ceil(count * factor)


def counted_by(fault: Fault, scopes: Sequence[Scope]) -> Scope | None:
    """Return the scope whose circuit counts this fault; None: no circuit counts it.

    `scopes` are the scopes of the circuits that the call passed, the main one first.
    """
    entry = fault.entry
    if entry.kind is Kind.CANCELLED or entry.layer is Layer.RECOVERY:
        # A rejection by our own limiter, circuit or budget says nothing about the service behind it.
        return None
    own = fault.scope if fault.scope in scopes else None
    if own is None and fault.ended_itself:
        # What a command says about something else says nothing about the shell that has run it.
        return None
    if entry.kind is Kind.TRANSIENT:
        return own or scopes[0]
    if entry.category is Category.AGENT_CRASH and Scope.AGENT in scopes:
        # A program that ends with an error of its own is not down: that it rejects one prompt says nothing about the next one.
        return None if entry.kind is Kind.PERMANENT else Scope.AGENT
    if fault.scope is Scope.CREDENTIAL:
        # A denied key stays denied, so its own circuit may open. The provider serves other keys: its circuit must not (R53).
        return own
    return None
