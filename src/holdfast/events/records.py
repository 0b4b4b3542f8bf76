"""What happened, as frozen tagged records: document 001's recovery events (S1-21) and what recovering itself reports.

Invariant: an event is a fact. It names its kind (`type`), its version (`v`), when it happened and which run it belongs
to; it holds values only and is never changed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.faults import REDACTOR, AnyCode, Fault, Redactor

__all__ = [
    "KINDS",
    "VERSION",
    "AgentFallback",
    "AttemptEnded",
    "AttemptStarted",
    "BudgetWarning",
    "Cancelled",
    "CircuitState",
    "CircuitStateChange",
    "Command",
    "Commanded",
    "Degraded",
    "Event",
    "Failed",
    "Fallback",
    "Recovered",
    "RecoveryEvent",
    "Repaired",
    "Retry",
    "RetryDenied",
    "StreamResumed",
    "SuppressedError",
    "Unknown",
]

VERSION = 1
"""The version of the records below. A reader takes newer ones and ignores fields it does not know."""


class CircuitState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    at: float
    """Wall clock, seconds since the epoch."""
    run: str = ""
    """The operation it belongs to: what correlates its attempts, waits and fallbacks."""
    operation: str = ""
    """What was being done, for people: `claude messages.create`."""
    v: int = msgspec.field(default_factory=lambda: VERSION)
    """Always written, so that a reader of an old log knows what it reads (a plain default would be left out)."""


class Retry(_Record, frozen=True, kw_only=True, tag="retry"):
    """An attempt failed and another will be made after `delay`."""

    attempt: int
    """The attempt that failed, counted from 1."""
    max_attempts: int
    delay: float
    """Seconds until the next attempt."""
    fault: Fault
    asked: bool = False
    """The delay is the one the other side asked for, not our curve's."""

    @property
    def text(self) -> str:
        """The line a UI shows (S1-28); the count is of the attempt to come."""
        return f"Retrying… ({self.attempt + 1}/{self.max_attempts})"


class CircuitStateChange(_Record, frozen=True, kw_only=True, tag="circuit-state-change", rename={"from_": "from"}):
    """A circuit opened, closed or let a probe through."""

    circuit: str
    from_: CircuitState
    to: CircuitState
    reason: AnyCode | None = None
    """The code of the failure that opened it."""
    rule: str = ""
    """What opened it: failures in a row, their share, slow calls, or somebody by hand."""
    until: float | None = None
    """Wall clock at which an open circuit lets a probe through."""


class Fallback(_Record, frozen=True, kw_only=True, tag="fallback", rename={"from_": "from"}):
    """The next step of the chain is tried."""

    from_: str
    to: str
    fault: Fault | None = None
    """Why."""


class AgentFallback(_Record, frozen=True, kw_only=True, tag="agent-fallback", rename={"from_": "from"}):
    """A simpler agent takes over (S1-19)."""

    from_: str
    to: str
    fault: Fault | None = None


class Degraded(_Record, frozen=True, kw_only=True, tag="degraded"):
    """A lesser answer was given."""

    reason: str
    fault: Fault | None = None


class Recovered(_Record, frozen=True, kw_only=True, tag="recovered"):
    """It worked in the end. Once per operation, and only where something had failed before."""

    after: float
    """Seconds from the first failure to success."""
    attempts: int
    via: str = "primary"


class Failed(_Record, frozen=True, kw_only=True, tag="failed"):
    """Given up."""

    fault: Fault
    exhausted: bool
    """All attempts were used; False where the failure forbade another."""
    attempts: int = 1


class Cancelled(_Record, frozen=True, kw_only=True, tag="cancelled"):
    """Somebody asked to stop. Not a failure."""

    reason: str = ""
    attempts: int = 1


Command: TypeAlias = Literal["retry-now", "fall-back", "cancel"]
"""What somebody may tell an operation that waits."""


class Commanded(_Record, frozen=True, kw_only=True, tag="commanded"):
    """Somebody told an operation that waits what to do, and it obeys. Told before anything comes of it."""

    command: Command
    by: str = ""
    """Who: `terminal`, or the name of a person or program."""


class AttemptStarted(_Record, frozen=True, kw_only=True, tag="attempt-started"):
    """A call begins."""

    attempt: int
    via: str = "primary"


class AttemptEnded(_Record, frozen=True, kw_only=True, tag="attempt-ended"):
    """A call ended, well (`fault` is None) or not."""

    attempt: int
    took: float
    fault: Fault | None = None
    via: str = "primary"


class RetryDenied(_Record, frozen=True, kw_only=True, tag="retry-denied"):
    """A retry that the failure deserved was not made: the quota, the budget or the deadline forbade it (R35)."""

    attempt: int
    because: AnyCode
    fault: Fault


class BudgetWarning(_Record, frozen=True, kw_only=True, tag="budget-warning"):
    """A budget is nearly spent (N3-6: at 80 %)."""

    unit: str
    used: float
    limit: float


class Repaired(_Record, frozen=True, kw_only=True, tag="repaired"):
    """The request, its credential or its model was changed, and the call is made again."""

    attempt: int
    """The attempt that failed, counted from 1."""
    action: str
    """What was done: `compact`, or the name of the function that did it."""
    fault: Fault


class StreamResumed(_Record, frozen=True, kw_only=True, tag="stream-resumed"):
    """A stream broke off after its first item and goes on: what follows is a continuation, or begins again."""

    how: Literal["continue", "restart"]
    items: int
    """Items delivered before; after a restart they will come again and those are void."""


class SuppressedError(_Record, frozen=True, kw_only=True, tag="suppressed-error"):
    """A failure was ignored on purpose, and this is why (S2-10)."""

    reason: str
    cause: str
    """The failure's text."""
    code: AnyCode | None = None

    @classmethod
    def of(
        cls, fault: Fault, reason: str, *, at: float, run: str = "", redactor: Redactor = REDACTOR
    ) -> SuppressedError:
        """Return the record of a fault that is ignored on purpose, its text with secrets masked."""
        return cls(at=at, run=run, reason=reason, cause=redactor.text(fault.message), code=fault.code)


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """A record that only a newer writer knows. It is kept whole, so that a log can be copied without losing it."""

    type: str
    at: float
    run: str
    operation: str
    v: int
    raw: bytes
    """The record as it came, on one line."""

    @property
    def document(self) -> dict[str, Any]:
        """What it says."""
        return msgspec.json.decode(self.raw, type=dict[str, Any])


RecoveryEvent: TypeAlias = Retry | CircuitStateChange | Fallback | AgentFallback | Degraded | Recovered | Failed
"""Document 001's union, with the `agent-fallback` its own code emits."""

Event: TypeAlias = (
    RecoveryEvent
    | Cancelled
    | Commanded
    | AttemptStarted
    | AttemptEnded
    | RetryDenied
    | Repaired
    | StreamResumed
    | BudgetWarning
    | SuppressedError
)
"""What this version writes. A log may also hold `Unknown` ones."""

KINDS: tuple[type[Event], ...] = get_args(Event)
"""Every kind of event."""
