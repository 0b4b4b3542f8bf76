"""Document 004's decision tree: four questions about a failure, asked in order, and what to do (S4-2).

Invariant: the first yes decides; without any yes the failure is escalated.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.faults import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Strategy", "decide"]


class Strategy(StrEnum):
    """What to do about a failure."""

    RETURN = "return"
    """Hand it back as a result."""
    RETRY = "retry"
    """Try again, with backoff."""
    CONTINUE = "continue"
    """Log a warning and go on without it."""
    RESTART = "restart"
    """Restart the actor."""
    ESCALATE = "escalate"
    """Tell the supervisor."""

    @property
    def kind(self) -> Kind:
        """What kind of failure is answered like this."""
        return _KINDS[self]


_KINDS: Mapping[Strategy, Kind] = {
    Strategy.RETURN: Kind.RECOVERABLE,
    Strategy.RETRY: Kind.TRANSIENT,
    Strategy.CONTINUE: Kind.RECOVERABLE,
    Strategy.RESTART: Kind.FATAL,
    Strategy.ESCALATE: Kind.PERMANENT,
}


def decide(
    *, expected: bool = False, temporary: bool = False, can_continue: bool = False, restart_helps: bool = False
) -> Strategy:
    """Return what to do about a failure; `.kind` says what kind it then is.

    `expected`: validation or business logic. `temporary`: network, rate limit. `can_continue`: an optional feature or a
    degraded mode. `restart_helps`: the state is corrupt.
    """
    if expected:
        return Strategy.RETURN
    if temporary:
        return Strategy.RETRY
    if can_continue:
        return Strategy.CONTINUE
    return Strategy.RESTART if restart_helps else Strategy.ESCALATE
