"""The scope a call runs in: its deadline and its budget, seen by everything it calls.

Invariant: a scope is never wider than the one around it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.runtime.budget import Budget

__all__ = ["AMBIENT", "Around"]


class Around(Protocol):
    """What a nested call looks at: an operation under way, or a budget."""

    @property
    def deadline(self) -> float | None:
        """Monotonic seconds by which all must be over."""
        ...

    @property
    def budget(self) -> Budget | None:
        """The innermost ledger that attempts are charged to."""
        ...

    @property
    def run(self) -> str:
        """What its events are correlated by; empty for a budget."""
        ...


AMBIENT: ContextVar[Around | None] = ContextVar("holdfast_ambient", default=None)
