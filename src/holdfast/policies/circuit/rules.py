"""When it is enough: the rules that open a circuit.

Invariant: a rule is asked only after a call that failed or was slow. A good call never opens a circuit, even where it is
the one that fills the window up to its volume.
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

__all__ = ["Rule", "broken_rule", "counted_by"]


class Rule(StrEnum):
    """What opened a circuit."""

    FAILURES = "failures"
    """So many failures, in a row or in the window."""
    RATE = "rate"
    """So large a share of the calls failed."""
    SLOW = "slow"
    """So large a share of the calls was slow."""
    PROBE = "probe"
    """A probe failed, or was slow where slow calls count."""
    FORCED = "forced"
    """Somebody, or the configuration, holds it open."""


def broken_rule(config: Circuit, streak: int, window: Window, factor: float) -> Rule | None:
    """Return the first rule that `streak` failures in a row and the window's calls break; None: none."""
    most = config.failures
    if most is not None and config.counted == "consecutive" and streak >= _scaled_count(most, factor):
        return Rule.FAILURES
    calls = window.calls
    # `or not calls`: a volume of zero asks for no calls, but there is no share of none.
    if calls < config.volume or not calls:
        return None
    if most is not None and config.counted == "window" and window.failures >= _scaled_count(most, factor):
        return Rule.FAILURES
    # Divide, never multiply: 0.7 * 10 is more than 7, 7 / 10 is 0.7.
    if config.rate is not None and window.failures / calls >= min(1.0, config.rate * factor):
        return Rule.RATE
    if config.slow_rate is not None and window.slow_calls / calls >= min(1.0, config.slow_rate * factor):
        return Rule.SLOW
    return None


def _scaled_count(count: int, factor: float) -> int:
    return count if factor == 1.0 else math.ceil(count * factor)


def counted_by(fault: Fault, scopes: Sequence[Scope]) -> Scope | None:
    """Return which of the circuits a call has (`scopes`, the main one first) counts this fault; None: none of them."""
    if fault.kind is Kind.CANCELLED or fault.layer is Layer.RECOVERY:
        # What our own protections refuse says nothing about the service behind them.
        return None
    own = fault.scope if fault.scope in scopes else None
    if fault.kind is Kind.TRANSIENT:
        return own or scopes[0]
    if fault.category is Category.AGENT_CRASH and Scope.AGENT in scopes:
        return Scope.AGENT
    if fault.scope is Scope.CREDENTIAL:
        # A key that is refused stays refused: its own circuit may open, the provider's must not (R53).
        return own
    return None
