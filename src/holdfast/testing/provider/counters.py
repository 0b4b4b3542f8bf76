"""What reached the provider, counted: the proof of how many requests a recovery really sent.

Invariant: every request that was received was answered, met a fault, or was refused: the three add up.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

__all__ = ["Counters"]


class Counters:
    """Requests by what became of them, and connections."""

    def __init__(self) -> None:
        self.received = 0
        """Requests for an answer; those to the control interface are not counted."""
        self.answered = 0
        """Answered well."""
        self.injected: Counter[str] = Counter()
        """Met a fault of the script, by its name."""
        self.refused = 0
        """Refused by the provider itself: no key, no such path, no JSON."""
        self.abandoned = 0
        """Left by the client before the answer was over; one of the above as well."""
        self.connections = 0
        self.tls = 0
        """Connections that spoke TLS and were turned away."""

    def document(self) -> dict[str, Any]:
        """Return them as the control interface does."""
        return {
            "received": self.received,
            "answered": self.answered,
            "injected": dict(self.injected),
            "refused": self.refused,
            "abandoned": self.abandoned,
            "connections": self.connections,
            "tls": self.tls,
        }

    def __repr__(self) -> str:
        return f"Counters({', '.join(f'{name}={value}' for name, value in self.document().items() if value)})"
