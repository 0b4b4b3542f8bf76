"""A run as rows of attempts and waits, each from when to when, and as text. Without I/O.

Invariant: the rows of a run follow each other. Every second of it is in one of them, or in a run inside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast.events import (
    AgentFallback,
    AttemptEnded,
    CircuitStateChange,
    Commanded,
    Event,
    Fallback,
    Repaired,
    Retry,
    RetryDenied,
    StreamResumed,
    Unknown,
    WaitBegan,
)
from holdfast.journal.runs import by_run, record_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.journal.runs import RunSummary

__all__ = ["Bar", "bars_of", "drawn"]

BarKind: TypeAlias = Literal["run", "attempt", "wait", "mark"]

_SHORTEST_S = 0.001
"""A gap that is shorter is no wait: two clocks were read one after the other."""
_WIDTH = 32
"""The characters of the time axis."""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One row: an attempt, a wait, a run inside, or something that happened at one moment (`mark`)."""

    kind: BarKind
    start: float
    """Seconds since the outermost run began."""
    seconds: float
    label: str
    code: str = ""
    depth: int = 0
    run: str = ""
    usd: float | None = None


def bars_of(events: Sequence[Event | Unknown]) -> list[Bar]:
    """Return the rows of a run and of all runs inside it: `bars_of(journal.events(run))`. What a newer version wrote has no row."""
    known = [event for event in events if not isinstance(event, Unknown)]
    runs = {run: found for run, found in by_run(known).items() if run}
    records = {run: record_of(run, found) for run, found in runs.items()}
    # An event without a known operation around it stands at the top.
    outermost = [run for run, record in records.items() if record.within not in records]
    zero = min((record.began for record in records.values()), default=0.0)
    found: list[Bar] = []
    for run in outermost:
        _add_run(found, run, runs, records, zero, 0)
    return found


def _add_run(  # noqa: PLR0917 - a walk down a tree
    found: list[Bar],
    run: str,
    runs: dict[str, list[Event]],
    records: dict[str, RunSummary],
    zero: float,
    depth: int,
) -> None:
    record = records[run]
    found.append(
        Bar(
            kind="run",
            start=record.began - zero,
            seconds=record.took,
            label=f"{record.operation or 'call'} {record.outcome}{'' if record.via == 'primary' else f' via {record.via}'}",
            code="" if record.outcome == "ok" else record.code,
            depth=depth,
            run=run,
            usd=record.usd,
        )
    )
    inside = sorted((each for each in records.values() if each.within == run), key=lambda each: each.began)
    for bar in _rows(runs[run], record, zero, depth + 1):
        # What begins with an attempt belongs to it.
        while inside and inside[0].began - zero < bar.start - _SHORTEST_S:
            _add_run(found, inside.pop(0).run, runs, records, zero, depth + 1)
        found.append(bar)
    for each in inside:
        _add_run(found, each.run, runs, records, zero, depth + 1)


def _rows(events: Sequence[Event], record: RunSummary, zero: float, depth: int) -> Iterator[Bar]:
    """Yield the attempts of a run, the waits between them, and what happened at one moment."""
    end, why = record.began, ""
    for event in events:
        match event:
            case AttemptEnded():
                start = event.at - event.took
                if start - end > _SHORTEST_S:
                    yield Bar(kind="wait", start=end - zero, seconds=start - end, label=why or "waits", depth=depth)
                yield Bar(
                    kind="attempt",
                    start=start - zero,
                    seconds=event.took,
                    label=f"attempt {event.attempt}{f' · {event.target}' if event.target else ''}{f' · {event.model}' if event.model else ''}",
                    code="" if event.fault is None else event.fault.code,
                    depth=depth,
                    usd=event.usd,
                )
                end, why = event.at, ""
            case WaitBegan(at=at) if at - end > _SHORTEST_S and why:
                # Another wait follows: what was waited for so far ends here.
                yield Bar(kind="wait", start=end - zero, seconds=at - end, label=why, depth=depth)
                end, why = at, _waits_for(event)
            case WaitBegan():
                why = _waits_for(event)
            case Retry():
                why = "server asked for the delay" if event.requested else "backoff"
            case _ if mark := _mark(event):
                yield Bar(kind="mark", start=event.at - zero, seconds=0.0, label=mark, depth=depth)
    if record.began + record.took - end > _SHORTEST_S:
        left = record.began + record.took - end
        yield Bar(kind="wait", start=end - zero, seconds=left, label=why or "until its end", depth=depth)


_WORDS = {
    "circuit": "circuit open",
    "turn": "its turn",
    "place": "a place of `concurrency`",
    "pace": "a start of `per_second`",
    "money": "money that others have reserved",
}


def _waits_for(event: WaitBegan) -> str:
    return f"{_WORDS.get(event.reason, event.reason)} · {event.target}"


def _mark(event: Event) -> str:
    match event:
        case Fallback() | AgentFallback():
            return f"falls back to {event.to}"
        case Repaired():
            return f"repaired: {event.action}"
        case RetryDenied():
            return f"no retry: {event.because}"
        case Commanded():
            return f"command {event.command}{f' by {event.by}' if event.by else ''}"
        case CircuitStateChange():
            return f"circuit {event.circuit} {event.to.value}"
        case StreamResumed():
            return f"stream: {event.how}"
    return ""


def drawn(bars: Sequence[Bar]) -> list[str]:
    """Return the rows as lines of text with a time axis, for a terminal or a log."""
    whole = max((bar.start + bar.seconds for bar in bars), default=0.0) or 1.0
    lines = []
    for bar in bars:
        money = "" if bar.usd is None else f"  ${bar.usd:.4f}"
        code = f"  {bar.code}" if bar.code else ""
        took = "" if bar.kind == "mark" else f"  {bar.seconds:.1f} s"
        lines.append(
            f"{bar.start:8.1f} s │{_axis(bar, whole)}│ {'  ' * bar.depth}{_SIGNS[bar.kind]} {bar.label}{took}{code}{money}"
        )
    return lines


_SIGNS: dict[BarKind, str] = {"run": "▸", "attempt": "→", "wait": "·", "mark": "!"}
_FILLS: dict[BarKind, str] = {"run": "━", "attempt": "█", "wait": "░", "mark": "▏"}


def _axis(bar: Bar, whole: float) -> str:
    start = min(_WIDTH - 1, int(bar.start / whole * _WIDTH))
    length = max(1, min(_WIDTH - start, round(bar.seconds / whole * _WIDTH)))
    return " " * start + _FILLS[bar.kind] * length + " " * (_WIDTH - start - length)
