"""What a person reads of an operation: one line per fact, and one that sums it up.

    claude recovered after 3 attempts in 3.2 s (PROVIDER_OVERLOADED ×2)

Invariant: a line holds names, codes, counts and times, never a failure's own text: that may quote a prompt or a key.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from holdfast.events import (
    AgentFallback,
    AttemptEnded,
    AttemptStarted,
    BudgetWarning,
    Cancelled,
    CircuitState,
    CircuitStateChange,
    Commanded,
    Degraded,
    Event,
    Failed,
    Fallback,
    Recovered,
    Repaired,
    Retry,
    RetryDenied,
    StreamResumed,
    SuppressedError,
)
from holdfast.faults import InvalidError
from holdfast.sinks.reader import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults import AnyCode, Fault

__all__ = ["Levels", "LogLines"]


class Levels(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """How loud each fact is, as `logging` counts it. `None`: it is not logged."""

    recovered: int | None = logging.INFO
    failed: int | None = logging.WARNING
    degraded: int | None = logging.WARNING
    circuit_opened: int | None = logging.WARNING
    circuit_changed: int | None = logging.INFO
    """A circuit closed, or lets a probe through."""
    warned: int | None = logging.WARNING
    """A budget is nearly spent; a failure was ignored on purpose."""
    step: int | None = logging.DEBUG
    """A retry, a repair, a fallback, a cancellation, a command, a stream that goes on."""
    attempt: int | None = logging.DEBUG
    """A call begins or ends. Even a call without failures has these."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            level = getattr(self, field)
            if level is not None and (not isinstance(level, int) or isinstance(level, bool) or level < 0):
                raise InvalidError.at(f"levels.{field}", "a level of `logging` such as logging.INFO, or None", level)


class _Trouble:
    """What went wrong in an operation that may still end well."""

    __slots__ = ("codes", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.codes: Counter[AnyCode] = Counter()


class LogLines:
    """Lines for events, in the order they happened. It remembers the failures of an operation until it has ended."""

    def __init__(self, levels: Levels | None = None) -> None:
        if levels is not None and not isinstance(levels, Levels):
            raise InvalidError.at("levels", "a Levels", levels)
        self.levels = levels = levels or Levels()
        self._troubles: Tracker[_Trouble] = Tracker()
        self.lines: dict[type[Event], tuple[int | None, Callable[..., str]]] = {
            Recovered: (levels.recovered, self._recovered),
            Failed: (levels.failed, self._failed),
            Degraded: (levels.degraded, self._degraded),
            Cancelled: (levels.step, self._cancelled),
            Commanded: (levels.step, _commanded),
            Retry: (levels.step, self._retry),
            Repaired: (levels.step, self._repaired),
            RetryDenied: (levels.step, _denied),
            Fallback: (levels.step, self._fallback),
            AgentFallback: (levels.step, self._fallback),
            StreamResumed: (levels.step, _resumed),
            AttemptStarted: (levels.attempt, _attempt_started),
            AttemptEnded: (levels.attempt, _attempt_ended),
            CircuitStateChange: (levels.circuit_changed, _circuit),
            BudgetWarning: (levels.warned, _budget),
            SuppressedError: (levels.warned, _suppressed),
        }
        """For each kind of event how loud its line is and what writes it. Every event must be written, wanted or not:
        a summary is made of what came before it."""

    def of(self, event: Event) -> tuple[int | None, str]:
        """Return the event's level and line."""
        level, line = self.lines[type(event)]
        if isinstance(event, CircuitStateChange) and event.to is CircuitState.OPEN:
            level = self.levels.circuit_opened
        return level, line(event)

    def _retry(self, event: Retry) -> str:
        self._remember(event, event.fault.code)
        asked = ", as the other side asked" if event.asked else ""
        return f"{_name(event)} retries in {event.delay:.1f} s{asked} ({event.attempt + 1}/{event.max_attempts}, {event.fault.code})"

    def _repaired(self, event: Repaired) -> str:
        self._remember(event, event.fault.code)
        return f"{_name(event)} tries again after {event.action}{_after(event.fault)}"

    def _fallback(self, event: Fallback | AgentFallback) -> str:
        if event.fault is not None:
            self._remember(event, event.fault.code)
        return f"{_name(event)} falls back from {event.from_} to {event.to}{_after(event.fault)}"

    def _recovered(self, event: Recovered) -> str:
        trouble = self._troubles.take(event.run)
        via = "" if event.via == "primary" else f" via {event.via}"
        return f"{_name(event)} recovered{via} after {_calls(event.attempts)} in {event.after:.1f} s{_counted(trouble)}"

    def _failed(self, event: Failed) -> str:
        trouble = self._troubles.take(event.run)
        fault = event.fault
        since = fault.attempts[0].started if fault.attempts else None if trouble is None else trouble.since
        took = "" if since is None else f" in {max(0.0, event.at - since):.1f} s"
        return (
            f"{_name(event)} failed after {_calls(event.attempts)}{took} ({fault.code}); "
            f"next to act: {fault.next_actor}; holdfast explain {fault.code}"
        )

    def _degraded(self, event: Degraded) -> str:
        self._troubles.take(event.run)
        return f"{_name(event)} gave a lesser answer: {event.reason}{_after(event.fault)}"

    def _cancelled(self, event: Cancelled) -> str:
        self._troubles.take(event.run)
        why = f" ({event.reason})" if event.reason else ""
        return f"{_name(event)} was stopped in attempt {event.attempts}{why}"

    def _remember(self, event: Event, code: AnyCode) -> None:
        trouble = self._troubles.get(event.run)
        if trouble is None:
            trouble = _Trouble(event.at)
            self._troubles.put(event.run, trouble)
        trouble.codes[code] += 1


def _attempt_started(event: AttemptStarted) -> str:
    return f"{_name(event)} attempt {event.attempt} begins{_via(event.via)}"


def _attempt_ended(event: AttemptEnded) -> str:
    how = "ended well" if event.fault is None else f"failed with {event.fault.code}"
    return f"{_name(event)} attempt {event.attempt} {how} after {event.took:.3f} s{_via(event.via)}"


def _commanded(event: Commanded) -> str:
    return f"{_name(event)} was told to {event.command}{f' by {event.by}' if event.by else ''}"


def _denied(event: RetryDenied) -> str:
    return f"{_name(event)} may not retry after attempt {event.attempt}: {event.because}"


def _resumed(event: StreamResumed) -> str:
    how = "goes on" if event.how == "continue" else "begins again"
    return f"{_name(event)} stream {how} after {event.items} items"


def _circuit(event: CircuitStateChange) -> str:
    return f"circuit {event.circuit} {event.from_} → {event.to}{_because(event.reason)}"


def _budget(event: BudgetWarning) -> str:
    return f"budget nearly spent: {event.used:g} of {event.limit:g} {event.unit}"


def _suppressed(event: SuppressedError) -> str:
    return f"a failure was ignored: {event.reason}{_because(event.code)}"


def _name(event: Event) -> str:
    return event.operation or "the call"


def _via(via: str) -> str:
    return "" if via == "primary" else f" via {via}"


def _calls(attempts: int) -> str:
    return f"{attempts} attempt{'' if attempts == 1 else 's'}"


def _after(fault: Fault | None) -> str:
    return "" if fault is None else _because(fault.code)


def _because(code: str | None) -> str:
    return "" if code is None else f" ({code})"


def _counted(trouble: _Trouble | None) -> str:
    if trouble is None or not trouble.codes:
        return ""
    return f" ({', '.join(code if n == 1 else f'{code} ×{n}' for code, n in trouble.codes.most_common())})"
