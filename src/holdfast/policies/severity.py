"""What Holdfast does about a failure of each severity (S0-4), as a table. Sinks and the application perform it.

Document 000 lists for each severity only what it adds. Each severity also does what the milder ones do, except that a
terminated session is not retried.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.faults import Severity

if TYPE_CHECKING:
    from collections.abc import Mapping


class Reaction(StrEnum):
    """One thing that is done about a failure."""

    LOG = "log"
    METRICS = "metrics"
    """Count it."""
    NOTIFY = "notify"
    """Notify the user."""
    RETRY = "retry"
    """The policy of the call may retry. When a failure reaches the caller, the retries are over."""
    ALERT = "alert"
    """Alert an operator."""
    CIRCUIT = "circuit"
    """Stop calls to the service that failed."""
    TERMINATE = "terminate"
    """End the session."""


# Each row is built from the milder one, as document 000 lists them.
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
"""The table of document 000. A mapping proxy: nobody may change what a severity means for everybody else."""


def reactions_to(severity: Severity) -> tuple[Reaction, ...]:
    """Return the reactions in the order in which they happen: the log first, the end of the session last."""
    return tuple(reaction for reaction in Reaction if reaction in REACTIONS[severity])
