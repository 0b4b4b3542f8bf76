"""What the events of a call, and of the calls inside it, add up to. Without I/O.

Invariant: a number that is not known is None, and never zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast.events import (
    AgentFallback,
    AttemptEnded,
    Cancelled,
    Degraded,
    Event,
    Failed,
    Fallback,
    Recovered,
    Repaired,
    Retry,
    RetryDenied,
    TaskFinished,
    TaskStarted,
    WaitBegan,
)
from holdfast.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OF_RUNS", "Minute", "RunOutcome", "RunSummary", "by_run", "is_end", "record_of", "whole"]

RunOutcome: TypeAlias = Literal["ok", "recovered", "degraded", "failed", "cancelled", "unknown"]
"""How a run ended; `unknown`: its end was never reported."""

_ENDS = (Recovered, Failed, Degraded, Cancelled, TaskFinished)
"""What ends a run in which something failed. A call that works at once ends with its attempt."""
_FAILS = (Retry, Fallback, AgentFallback, Repaired, RetryDenied)
"""What is reported only in a run in which something has failed. Its end is reported too."""
OF_RUNS: tuple[type[Event], ...] = (*_ENDS, *_FAILS, AttemptEnded, TaskStarted, WaitBegan)
"""The events that a run may begin with."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call as the journal lists it: `record.outcome == "recovered"`."""

    run: str
    operation: str = ""
    began: float
    """Wall clock."""
    took: float
    """Seconds."""
    outcome: RunOutcome
    code: str = ""
    """Why it failed, or the latest failure that it recovered from."""
    attempts: int = 0
    waited: float = 0.0
    """Seconds in which no attempt was under way."""
    via: str = "primary"
    """Who answered: `primary`, or the name of a fallback."""
    model: str = ""
    usd: float | None = None
    """What all its answers cost, and those of the calls inside it; None: unknown."""
    extra_usd: float = 0.0
    """Of that, what answers of retries and fallbacks cost."""
    tokens: int | None = None
    request: str = ""
    session: str = ""
    turn: int = 0
    step: str = ""
    within: str = ""
    root: str = ""
    process: str = ""
    """Who made it: host and process id."""


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls of one operation came to in one minute."""

    minute: int
    """Minutes since the epoch."""
    operation: str
    outcome: str
    calls: int
    attempts: int
    took: float
    waited: float
    usd: float
    extra_usd: float
    tokens: int


def is_end(event: Event, earlier: Sequence[Event]) -> bool:
    """Whether no event of its run follows, after those of the same run or of others."""
    if not isinstance(event, AttemptEnded):
        return isinstance(event, _ENDS)
    return event.fault is None and not any(_fails(each) for each in earlier if each.run == event.run)


def _fails(event: Event) -> bool:
    return isinstance(event, (*_FAILS, TaskStarted)) or (isinstance(event, AttemptEnded) and event.fault is not None)


def by_run(events: Sequence[Event]) -> dict[str, list[Event]]:
    """Return the events of each run, in the order in which the runs began to report."""
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event.run, []).append(event)
    return found


def record_of(run: str, events: Sequence[Event], process: str = "") -> RunSummary:
    """Return what the events of one run add up to. There is at least one."""
    first, last = events[0], events[-1]
    ended = [event for event in events if isinstance(event, AttemptEnded)]
    starts = [event.at - event.took for event in ended]
    named = [event.began for event in events if event.began is not None]
    began = min([*named, *starts, first.at])
    took = max(0.0, last.at - began)
    outcome, via = _outcome(events)
    costs = [event.usd for event in ended if event.usd is not None]
    tokens = [(event.tokens_in or 0) + (event.tokens_out or 0) for event in ended if event.tokens_in is not None]
    place = next((event for event in reversed(events) if event.session), first)
    return RunSummary(
        run=run,
        operation=next((event.operation for event in events if event.operation), ""),
        began=began,
        took=took,
        outcome=outcome,
        code=_code(events),
        attempts=max((event.attempt for event in ended), default=0),
        waited=max(0.0, took - sum(event.took for event in ended)),
        via=via,
        model=next((event.model for event in reversed(ended) if event.model), ""),
        usd=sum(costs) if costs else None,
        extra_usd=sum(event.usd or 0.0 for event in ended if event.attempt > 1 or event.via != "primary"),
        tokens=sum(tokens) if tokens else None,
        request=next((event.request for event in events if event.request), ""),
        session=place.session,
        turn=place.turn,
        step=place.step,
        within=next((event.within for event in events if event.within), ""),
        root=next((event.root for event in events if event.root), ""),
        process=process,
    )


def whole(records: Sequence[RunSummary]) -> RunSummary:
    """Return the outermost of these runs with what all of them came to: a call that works because one inside recovered has recovered."""
    found = {record.run for record in records}
    root = next((record for record in records if record.within not in found), records[0])
    inside = [record for record in records if record is not root]
    bad = next((record for record in inside if record.outcome != "ok"), None)
    costs = [record.usd for record in records if record.usd is not None]
    tokens = [record.tokens for record in records if record.tokens is not None]
    return msgspec.structs.replace(
        root,
        outcome="recovered" if root.outcome == "ok" and bad is not None else root.outcome,
        code=root.code or ("" if bad is None else bad.code),
        model=root.model or next((record.model for record in inside if record.model), ""),
        usd=sum(costs) if costs else None,
        extra_usd=sum(record.extra_usd for record in records),
        tokens=sum(tokens) if tokens else None,
        waited=root.waited + sum(record.waited for record in inside),
    )


def _outcome(events: Sequence[Event]) -> tuple[RunOutcome, str]:
    """Return how a run ended, and who answered."""
    for event in reversed(events):
        match event:
            case Recovered(via=via):
                return "recovered", via
            case Degraded(via=via):
                return "degraded", via
            case Failed() | TaskFinished(fault=Fault()):
                return "failed", "primary"
            case TaskFinished():
                return "ok", "primary"
            case Cancelled():
                return "cancelled", "primary"
            case AttemptEnded(fault=None, via=via):
                return "ok", via
            case AttemptEnded() | Retry() | Fallback() | AgentFallback():
                return "unknown", "primary"
    return "unknown", "primary"


def _code(events: Sequence[Event]) -> str:
    """Return the code of the latest failure."""
    for event in reversed(events):
        if (fault := getattr(event, "fault", None)) is not None:
            return str(fault.code)
    return ""
