"""What share of failures is usual here, for circuits with adaptive thresholds.

A failure that breaks a spotless record says more than one more failure of a tool that always fails now and then. Only calls
that left the window while the circuit stayed closed are learned from, so an outage does not become the usual.

Invariant: the factor stays within `LEAST` and `MOST`, and is 1 until enough was seen.
"""

from __future__ import annotations

__all__ = ["LEAST", "MOST", "Usual"]

LEAST, MOST = 0.5, 2.0
"""How far the thresholds may move."""
SLOPE = 5.0
"""A usual share of 10 % leaves the thresholds as they are: LEAST + SLOPE × 0.1 = 1."""
MEMORY = 0.98
"""What a part of the window leaves of what was known before: about fifty busy parts, two and a half windows, count."""
ENOUGH = 20.0
"""Calls before anything is called usual."""


class Usual:
    """Calls and failures of the past, the older the less they weigh."""

    __slots__ = ("bad", "calls")

    def __init__(self, calls: float = 0.0, bad: float = 0.0) -> None:
        self.calls = calls
        self.bad = bad

    def learn(self, calls: int, bad: int) -> None:
        """Take in a part of the window that has become history. Parts without calls teach nothing."""
        if calls:
            self.calls = self.calls * MEMORY + calls
            self.bad = self.bad * MEMORY + bad

    def factor(self) -> float:
        """Return what to multiply the thresholds with."""
        if self.calls < ENOUGH:
            return 1.0
        return min(MOST, LEAST + SLOPE * self.bad / self.calls)
