"""What a severity sets in motion (S0-4), as a table. Sinks and the application perform it.

Document 000 names for each severity what is new about it; each also does what the milder ones do, except that what is
terminated is not tried again.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.faults import Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REACTIONS", "Reaction", "reactions_to"]


class Reaction(StrEnum):
    """One thing that is done about a failure."""

    LOG = "log"
    METRICS = "metrics"
    """It is counted."""
    NOTIFY = "notify"
    """The user is told."""
    RETRY = "retry"
    """Trying again is up to the policy of the call; when a failure surfaces, that is over."""
    ALERT = "alert"
    """Somebody is called."""
    CIRCUIT = "circuit"
    """Calls to what failed stop."""
    TERMINATE = "terminate"
    """The session ends."""


_INFO = frozenset({Reaction.LOG})
_WARNING = _INFO | {Reaction.METRICS}
_ERROR = _WARNING | {Reaction.NOTIFY, Reaction.RETRY}
_CRITICAL = _ERROR | {Reaction.ALERT, Reaction.CIRCUIT}
_FATAL = _CRITICAL - {Reaction.RETRY} | {Reaction.TERMINATE}

REACTIONS: Mapping[Severity, frozenset[Reaction]] = MappingProxyType(
    {
        Severity.INFO: _INFO,
        Severity.WARNING: _WARNING,
        Severity.ERROR: _ERROR,
        Severity.CRITICAL: _CRITICAL,
        Severity.FATAL: _FATAL,
    }
)
"""Document 000's table."""


def reactions_to(severity: Severity) -> tuple[Reaction, ...]:
    """Return what is done, in the order it is done: the log first, the end last."""
    return tuple(reaction for reaction in Reaction if reaction in REACTIONS[severity])
