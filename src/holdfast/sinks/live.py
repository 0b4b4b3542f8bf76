"""The present state as lines: one line per operation that failed and has not ended, and per circuit that is not closed.

    with watch_live(show, runtime):     # show(line): `line.text` is "Retrying... (2/3)", `line.mark` is "⟳"
        …

Terminals, pages and remote clients draw the same lines (S1-28). Invariant: a line holds names, codes, counts and times, never
the text of a failure. A line replaces the earlier line with the same `key`. The last line of a key is `over`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from holdfast.events import (
    AgentFallback,
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
    StreamResumed,
    SubtaskFailed,
    TaskDecomposed,
    TaskFinished,
    TaskHalted,
    TaskOutputRejected,
)
from holdfast.events.lines import WAITS_FOR
from holdfast.events.tracker import Tracker
from holdfast.faults import InvalidError
from holdfast.sinks.reader import subscribe

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

    from holdfast.faults import Fault
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime

__all__ = ["LONG_WAIT_S", "LiveLine", "LiveState", "LiveWord", "watch_events", "watch_live"]

LONG_WAIT_S = 60.0
"""For a longer wait we show the time of day at which it ends, because nobody watches such a long countdown."""


class LiveWord(StrEnum):
    """The states of a line."""

    OK = "ok"
    FAILED = "failed"
    RETRYING = "retrying"
    PAUSED = "paused"
    """It waits for more than a minute."""
    CIRCUIT_OPEN = "circuit open"
    FALLBACK = "fallback"
    DEGRADED = "degraded"
    CANCELLED = "cancelled"


_MARKS = {
    LiveWord.OK: "✓",
    LiveWord.FAILED: "✖",
    LiveWord.RETRYING: "⟳",
    LiveWord.PAUSED: "⏸",
    LiveWord.CIRCUIT_OPEN: "⊘",
    LiveWord.FALLBACK: "↳",
    LiveWord.DEGRADED: "◐",
    LiveWord.CANCELLED: "✖",
}


class LiveLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one operation, or of one circuit: `print(line.shown(time.time()))`."""

    key: str
    """What the line is about: a run, or `circuit:NAME`."""
    name: str
    """The operation's name for people: `claude/opus`."""
    at: float
    """Wall clock of the change."""
    state: LiveWord
    text: str
    """What a UI shows: `Retrying... (2/3)`."""
    short: str
    """The same for a log: `retry 2/3`."""
    until: float | None = None
    """Wall clock at which the wait ends."""
    code: str = ""
    """The failure: `PROVIDER_OVERLOADED (529)`."""
    note: str = ""
    """A hint, such as `server asked for 4s`."""
    over: bool = False
    """There will be no further change."""

    @property
    def mark(self) -> str:
        """The state as one character. The text says the same."""
        return _MARKS[self.state]

    def shown(self, now: float, zone: tzinfo | None = None, width: int | None = None) -> str:
        """Return the line for a terminal at `now`; times of day are in `zone`, or in the machine's own time zone.

        If it does not fit into `width` columns, the note is left out, then the state is written in its short form:
        `⟳ retry 2/3 in 3.4s · claude · PROVIDER_OVERLOADED`.
        """
        when = self._when(now, zone)
        state, short = f"{self.mark} {self.text}{when}", f"{self.mark} {self.short}{when}"
        line = _joined(state, self.name, self.code, self.note)
        if width is None or len(line) <= width:
            return line
        if len(state) > width:
            # People look at the countdown, so it is the last thing to be cut.
            return short
        line = _joined(state, self.name, self.code)
        return line if len(line) <= width else _joined(short, self.name, self.code)

    def logged(self, zone: tzinfo | None = None) -> str:
        """Return the line for a pipe: `12:01:07 retry 2/3 in 3.4s claude PROVIDER_OVERLOADED (529)`."""
        change = f"{self.short}{self._when(self.at, zone)}"
        return " ".join(part for part in (_time(self.at, zone), change, self.name, self.code) if part)

    def _when(self, now: float, zone: tzinfo | None) -> str:
        if self.until is None:
            return ""
        if self.state is LiveWord.CIRCUIT_OPEN:
            return f" until {_time(self.until, zone)}"
        if self.until - self.at > LONG_WAIT_S:
            return f" at {_time(self.until, zone)}"
        return f" in {self.until - now:.1f}s" if self.until > now else " now"


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


class LiveState:
    """The lines at present: `state.apply(event)` for every event, in order, then read `state.lines`."""

    def __init__(self) -> None:
        self._lines: Tracker[LiveLine] = Tracker()

    def apply(self, event: Event) -> LiveLine | None:
        """Apply an event; return the line that it changed, if any."""
        # Events of other kinds, such as attempts, change no line.
        writer = _WRITERS.get(type(event))
        if writer is None:
            return None
        line = writer(event)
        if isinstance(event, TaskFinished) and self._lines.get(event.run) is None:
            # The task had no trouble, so it has no line that ends.
            return None
        if isinstance(event, Commanded):
            # A command explains why the next change comes so soon. It is not a state, so it does not replace the line.
            return line
        if line.over:
            self._lines.take(line.key)
        else:
            self._lines.put(line.key, line)
        return line

    @property
    def lines(self) -> tuple[LiveLine, ...]:
        """The lines that are not over, oldest first."""
        return self._lines.all()


def watch_live(show: Callable[[LiveLine], object], runtime: Runtime | None = None) -> Subscription:
    """Call `show` with every line that changes, until the subscription is cancelled. A call without a failure has no line.

        with watch_live(lambda line: print(line.text)):
            ...

    While it lasts, the default runtime's own log is silent. Raises `InvalidError` if `show` is not a function.
    """
    if not callable(show):
        raise InvalidError.at("watch_live", "a function of a LiveLine", show)
    state = LiveState()

    def handle(event: Event) -> None:
        line = state.apply(event)
        if line is not None:
            show(line)

    return watch_events(handle, runtime)


def watch_events(handle: Callable[[Event], object], runtime: Runtime | None = None) -> Subscription:
    """Call `handle` with the events that change a line. It is for callers that keep their own `LiveState`."""
    return subscribe(runtime, dict.fromkeys(_WRITERS, handle), replaces_log=True)


def _retry(event: Retry) -> LiveLine:
    until = event.at + event.delay
    state = LiveWord.RETRYING
    text, note = event.text, ""
    short = f"retry {event.attempt + 1}{'' if event.max_attempts is None else f'/{event.max_attempts}'}"
    awaited = WAITS_FOR.get(event.fault.code)
    if awaited is not None:
        # The wait is reported as a retry, but no attempt was made, and nobody requested the delay.
        text, short = f"Waiting for {awaited}", f"wait for {awaited}"
    elif event.requested:
        note = f"server asked for {round(event.fault.retry_after or event.delay, 1):g}s"
    if event.fault.code == "CIRCUIT_OPEN":
        state, text = LiveWord.CIRCUIT_OPEN, "circuit open"
    elif event.delay > LONG_WAIT_S:
        state = LiveWord.PAUSED
    return _line(event, state, text, short, until=until, code=_code(event.fault), note=note)


def _repaired(event: Repaired) -> LiveLine:
    return _line(
        event,
        LiveWord.RETRYING,
        f"Trying again after {event.action}",
        f"repaired {event.action}",
        code=_code(event.fault),
    )


def _resumed(event: StreamResumed) -> LiveLine:
    how = "continues" if event.how == "continue" else "restarts"
    return _line(event, LiveWord.RETRYING, f"Stream {how} after {event.items} items", f"stream {how}")


def _fallback(event: Fallback | AgentFallback) -> LiveLine:
    # The operation is the role. Which of its agents failed is shown too.
    who = f"{event.failed or event.from_} → {event.to}" if isinstance(event, AgentFallback) else f"→ {event.to}"
    return _line(event, LiveWord.FALLBACK, f"fallback {who}", f"fallback {who}", code=_code(event.fault))


def _degraded(event: Degraded) -> LiveLine:
    text = "degraded" if event.via == "degraded" else f"degraded: {event.via}"
    return _line(event, LiveWord.DEGRADED, text, text, code=_code(event.fault), over=True)


def _recovered(event: Recovered) -> LiveLine:
    via = "" if event.via == "primary" else f" via {event.via}"
    took = event.after if event.took is None else event.took
    text = f"recovered after {_calls(event.attempts)}, {took:.1f}s{via}"
    return _line(event, LiveWord.OK, text, text, over=True)


def _failed(event: Failed) -> LiveLine:
    text = f"failed after {_calls(event.attempts)}"
    note = f"next to act: {event.fault.next_actor}"
    return _line(event, LiveWord.FAILED, text, text, code=_code(event.fault), note=note, over=True)


def _cancelled(event: Cancelled) -> LiveLine:
    text = f"cancelled after {_calls(event.attempts)}"
    return _line(event, LiveWord.CANCELLED, text, text, over=True)


def _commanded(event: Commanded) -> LiveLine:
    text = f"command {event.command}{f' from {event.by}' if event.by else ''}"
    return _line(event, LiveWord.RETRYING, text, text)


def _output_rejected(event: TaskOutputRejected) -> LiveLine:
    text = f"Output rejected ({event.number}/{event.max_reasks + 1})"
    return _line(event, LiveWord.RETRYING, text, text.lower(), code=_code(event.fault))


def _decomposed(event: TaskDecomposed) -> LiveLine:
    text = f"split into {event.parts} parts"
    return _line(event, LiveWord.RETRYING, text, text, code=_code(event.fault))


def _subtask_failed(event: SubtaskFailed) -> LiveLine:
    text = "part failed, trying once more" if event.again else "part failed"
    return _line(event, LiveWord.RETRYING, text, text, code=_code(event.fault), over=True)


def _halted(event: TaskHalted) -> LiveLine:
    text = "no progress, trying another way" if event.again else "no progress"
    return _line(event, LiveWord.RETRYING, text, text, code=_code(event.fault))


def _task_finished(event: TaskFinished) -> LiveLine:
    state, text = (LiveWord.OK, "done") if event.fault is None else (LiveWord.FAILED, "task failed")
    text = f"{text} after {event.took:.1f}s"
    return _line(event, state, text, text, code=_code(event.fault), over=True)


def _circuit(event: CircuitStateChange) -> LiveLine:
    closed = event.to is CircuitState.CLOSED
    text = f"circuit {event.to}"
    return LiveLine(
        key=f"circuit:{event.circuit}",
        # People know the provider by its bare name.
        name=event.circuit.removeprefix("provider:"),
        at=event.at,
        state=LiveWord.OK if closed else LiveWord.CIRCUIT_OPEN,
        text=text,
        short=text,
        until=event.until if event.to is CircuitState.OPEN else None,
        code=str(event.reason or ""),
        over=closed,
    )


_WRITERS: dict[type[Event], Callable[..., LiveLine]] = {
    Retry: _retry,
    Repaired: _repaired,
    StreamResumed: _resumed,
    Fallback: _fallback,
    AgentFallback: _fallback,
    Degraded: _degraded,
    Recovered: _recovered,
    Failed: _failed,
    Cancelled: _cancelled,
    Commanded: _commanded,
    CircuitStateChange: _circuit,
    TaskOutputRejected: _output_rejected,
    TaskDecomposed: _decomposed,
    SubtaskFailed: _subtask_failed,
    TaskHalted: _halted,
    TaskFinished: _task_finished,
}


def _line(
    event: Event,
    state: LiveWord,
    text: str,
    short: str,
    *,
    until: float | None = None,
    code: str = "",
    note: str = "",
    over: bool = False,
) -> LiveLine:
    name = event.operation or "the call"
    return LiveLine(
        key=event.run, name=name, at=event.at, state=state, text=text, short=short, until=until, code=code, note=note, over=over
    )  # fmt: skip


def _code(fault: Fault | None) -> str:
    if fault is None:
        return ""
    status = fault.context.get("status")
    return f"{fault.code} ({status})" if isinstance(status, int) else fault.code


def _calls(attempts: int) -> str:
    return f"{attempts} attempt{'' if attempts == 1 else 's'}"


def _time(wall: float, zone: tzinfo | None) -> str:
    return datetime.fromtimestamp(wall, zone).strftime("%H:%M:%S")
