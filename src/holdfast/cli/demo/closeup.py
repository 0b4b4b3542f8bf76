"""One operation from near: its attempts, waits and fallbacks with their times, from its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.events import AttemptEnded, CircuitState, CircuitStateChange, Degraded, Event, Failed, Recovered, Retry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.faults import Fault

__all__ = ["closeup"]

_NAMED = 24


def closeup(events: Sequence[Event]) -> list[str]:
    """Return the lines of the operation that the first event belongs to; times are seconds from there."""
    if not events:
        return []
    run, began = events[0].run, events[0].at
    own = [event for event in events if event.run == run]
    told = [line for event in own if (line := _line(event, began))]
    return [f" {own[0].operation}   run {run}", *told]


def _line(event: Event, began: float) -> str:
    match event:
        case AttemptEnded(attempt=number, via=via, fault=fault):
            mark = "✓" if fault is None else "✖"
            what = f"attempt {number}" if via == "primary" else f"fallback {via}"
            ends = event.at - began
            return f" {mark} {what:<{_NAMED}} {ends - event.took:5.1f}s → {ends:.1f}s   {_said(fault)}"
        case Retry(delay=delay, asked=asked):
            whose = "the server asked for it" if asked else "our own curve"
            return f" ⟳ {f'wait {delay:.1f}s':<{_NAMED}} {event.text}, {whose}"
        case CircuitStateChange(circuit=circuit, to=to):
            mark = "✓" if to is CircuitState.CLOSED else "⊘"
            return f" {mark} circuit {circuit.removeprefix('provider:')} {to}"
        case Recovered(after=after, via=via):
            return f" ✓ recovered in {after:.1f}s via {via}"
        case Degraded(reason=reason):
            return f" ◐ {reason}"
        case Failed(fault=fault):
            return f" ✖ given up: {fault.code}"
        case _:
            return ""


def _said(fault: Fault | None) -> str:
    if fault is None:
        return "answered"
    status = fault.context.get("status")
    return f"{status} {fault.code}" if status else fault.code
