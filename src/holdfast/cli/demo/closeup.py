"""One operation from near: its attempts, waits and fallbacks with their times, and the circuit it opened, from its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.events import AttemptEnded, CircuitStateChange, Event, Recovered, Retry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.faults import Fault

__all__ = ["closeup"]

_NAMED = 30


def closeup(events: Sequence[Event]) -> list[str]:
    """Return the lines of the operation that the first event belongs to; times are seconds from there."""
    if not events:
        return []
    run, began = events[0].run, events[0].at
    own = [event for event in events if event.run == run]
    # A circuit is told to be open before the attempt that opened it is told to be over; people read it the other way.
    own.sort(key=lambda event: isinstance(event, CircuitStateChange))
    told = (_line(event, began) for event in own)
    return [f" {own[0].operation}   run {run}", *(line for line in told if line)]


def _line(event: Event, began: float) -> str:
    match event:
        case AttemptEnded(attempt=number, via=via, fault=fault):
            mark = "✓" if fault is None else "✖"
            what = f"attempt {number}" if via == "primary" else f"fallback {via}"
            ends = event.at - began
            return f" {mark} {what:<{_NAMED}} {ends - event.took:4.1f}s → {ends:.1f}s   {_said(fault)}"
        case Retry(delay=delay, asked=asked):
            whose = "the server asked for it" if asked else "our own curve"
            return f" ⟳ {f'wait {delay:.1f}s':<{_NAMED}}  {event.text} {whose}"
        case Recovered(after=after, via=via):
            return f" ✓ recovered in {after:.1f}s via {via}"
        case CircuitStateChange(circuit=circuit, to=to, rule=rule):
            return f" ⊘ circuit {circuit.removeprefix('provider:')} {to} (rule: {rule})"
        case _:
            return ""


def _said(fault: Fault | None) -> str:
    if fault is None:
        return "answered"
    status = fault.context.get("status")
    return f"{fault.code} ({status})" if status else fault.code
