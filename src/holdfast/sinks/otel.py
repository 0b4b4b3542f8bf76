"""Sends events to OpenTelemetry: one span per operation, a child span per attempt, waits and fallbacks as span events.

The status is ERROR only if the operation failed. A failed attempt of an operation that recovered only has `error.type`. The
span of a running attempt is the current span, so spans of the call itself become its children.

Invariant: every span that was started is ended once, when the operation ends or is cancelled. If too many spans are open, the
oldest is ended. Spans hold names, codes, counts and times, never the text of a failure, a prompt or an answer.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from holdfast import __version__, options
from holdfast.events import (
    AgentFallback,
    AttemptEnded,
    AttemptStarted,
    BudgetWarning,
    Cancelled,
    CircuitStateChange,
    Commanded,
    Degraded,
    Failed,
    Fallback,
    OperatorAsked,
    Recovered,
    Repaired,
    Retry,
    RetryDenied,
    StreamResumed,
    UserNotified,
)
from holdfast.events.tracker import Tracker, tag_of
from holdfast.extras import needs_extra
from holdfast.faults import Fault
from holdfast.sinks.conventions import (
    ERROR_TYPE,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    RESPONSE_MODEL,
    SCHEMA_URL,
    SESSION_ID,
    Ours,
    attributes_of,
)
from holdfast.sinks.reader import subscribe

with needs_extra("trace_recoveries", "opentelemetry-api", "otel"):
    from opentelemetry import trace as otel
    from opentelemetry.context import attach, get_current

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from holdfast.events import Event
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime

__all__ = ["trace_recoveries"]


@options.suggests
def trace_recoveries(
    tracer_provider: otel.TracerProvider | None = None,
    runtime: Runtime | None = None,
    *,
    first_attempts: bool = True,
) -> Subscription:
    """Trace every operation, with `tracer_provider` or the process's own provider.

    With `first_attempts=False` the first attempt has a span only if it failed. A call that works at once then has one span
    instead of two, and its own spans become children of the operation's span.

        trace_recoveries(first_attempts=False)

    Returns a subscription; cancelling it ends the open spans. Importing it without OpenTelemetry raises `ModuleNotFoundError`.
    """
    tracer = otel.get_tracer("holdfast", __version__, tracer_provider, SCHEMA_URL)
    tracing = _Tracing(tracer, first_attempts=first_attempts)
    handlers: dict[type[Event], Any] = dict.fromkeys(_NOTED, tracing.noted)
    handlers |= {
        AttemptStarted: tracing.attempt_started,
        AttemptEnded: tracing.attempt_ended,
        Retry: tracing.retry,
        Fallback: tracing.failing,
        AgentFallback: tracing.failing,
        Repaired: tracing.failing,
        Recovered: tracing.recovered,
        Failed: tracing.failed,
        Degraded: tracing.degraded,
        Cancelled: tracing.cancelled,
    }
    return subscribe(runtime, handlers, on_cancel=tracing.stop)


_NOTED = (Commanded, RetryDenied, StreamResumed, CircuitStateChange, BudgetWarning, UserNotified, OperatorAsked)
"""Events that only become span events, and only while an operation's span is open."""


class _Trace:
    """The spans of one operation."""

    __slots__ = ("attempt", "began", "has_failed", "inside", "outside", "recording", "span", "waited")

    def __init__(self, span: otel.Span) -> None:
        self.span = span
        self.recording = span.is_recording()
        self.attempt: otel.Span | None = None
        self.inside: Context | None = None
        """The context during the running attempt."""
        self.outside: Context | None = None
        """The context to return to after the attempt."""
        self.began: float | None = None
        """When the running attempt began, if it has no span."""
        self.has_failed = False
        """Whether something failed. Then a separate event reports the operation's end."""
        self.waited = 0.0


class _Tracing:
    def __init__(self, tracer: otel.Tracer, *, first_attempts: bool) -> None:
        self._tracer = tracer
        self._first_attempts = first_attempts
        self._traces: Tracker[_Trace] = Tracker(dropped=_lose)
        self._known: dict[str, tuple[str, dict[str, Any]]] = {}

    def attempt_started(self, event: AttemptStarted) -> None:
        trace = self._traces.get(event.run)
        if trace is None:
            trace = self._begin(event)
        outside = trace.outside = get_current()
        span = trace.span
        # A span that is not sampled needs no children, but must still be current: it carries the trace id.
        if not trace.recording:
            pass
        elif self._first_attempts or event.attempt > 1:
            span = trace.attempt = self._tracer.start_span(
                f"attempt {event.attempt}",
                otel.set_span_in_context(span, outside),
                attributes=_attempt(event),
            )
        else:
            trace.began = event.at
        trace.inside = otel.set_span_in_context(span, outside)
        attach(trace.inside)

    def attempt_ended(self, event: AttemptEnded) -> None:
        trace = self._traces.get(event.run)
        if trace is None:
            return
        fault = event.fault
        if fault is not None:
            trace.has_failed = True
            if trace.began is not None:
                self._add_attempt(trace, event)
        _end_attempt(trace, None if fault is None else fault.code)
        if trace.recording and (used := _used(event)):
            trace.span.set_attributes(used)
        if not trace.has_failed:
            # This is the last event of an operation that works at once, so its span ends here.
            self._traces.take(event.run)
            trace.span.end()

    def retry(self, event: Retry) -> None:
        self.failing(event).waited += event.delay

    def noted(self, event: Event) -> None:
        trace = self._traces.get(event.run)
        if trace is not None and trace.recording:
            trace.span.add_event(tag_of(event), _attributes(event))

    def recovered(self, event: Recovered) -> None:
        attributes: dict[str, Any] = {Ours.ATTEMPTS: event.attempts}
        if event.via != "primary":
            attributes[Ours.VIA] = event.via
        self._end(event, "recovered", attributes)

    def failed(self, event: Failed) -> None:
        self._end(
            event, "failed", {Ours.ATTEMPTS: event.attempts, ERROR_TYPE: event.fault.code}, error=event.fault.code
        )

    def degraded(self, event: Degraded) -> None:
        self._end(event, "degraded", {Ours.DEGRADED: event.via})

    def cancelled(self, event: Cancelled) -> None:
        self._end(event, "cancelled", {Ours.ATTEMPTS: event.attempts})

    def stop(self) -> None:
        """End all open spans, because the ends of their operations are no longer reported."""
        self._traces.drop_all()

    def failing(self, event: Event) -> _Trace:
        """Note a failure. It may be the operation's first event, because an open circuit allows no attempt."""
        trace = self._traces.get(event.run) or self._begin(event)
        trace.has_failed = True
        self.noted(event)
        return trace

    def _begin(self, event: Event) -> _Trace:
        known = self._known.get(event.operation)
        if known is None:
            known = self._learn(event.operation)
        name, attributes = known
        if event.session:
            attributes = attributes | _work(event)
        if event.request:
            attributes = attributes | {Ours.REQUEST: event.request}
        trace = _Trace(self._tracer.start_span(name, attributes=attributes))
        self._traces.put(event.run, trace)
        return trace

    def _learn(self, operation: str) -> tuple[str, dict[str, Any]]:
        """Return the name and attributes that a span of this operation starts with."""
        if len(self._known) >= _MOST_NAMES:
            # Dropping all is cheaper than tracking which was used last. The next calls add the names in use again.
            self._known.clear()
        # Set the attributes of a success from the start: setting them later would cost time in every successful call.
        attributes = {**attributes_of(operation), Ours.OUTCOME: "ok", Ours.ATTEMPTS: 1}
        known = self._known[operation] = (f"recover {operation}".rstrip(), attributes)
        return known

    def _add_attempt(self, trace: _Trace, event: AttemptEnded) -> None:
        """Add the span of an attempt that had no span while it ran."""
        assert trace.began is not None
        trace.attempt = self._tracer.start_span(
            f"attempt {event.attempt}",
            otel.set_span_in_context(trace.span),
            attributes=_attempt(event),
            # OpenTelemetry counts in nanoseconds.
            start_time=int(trace.began * 1e9),
        )

    def _end(self, event: Event, outcome: str, attributes: dict[str, Any], *, error: str | None = None) -> None:
        trace = self._traces.take(event.run)
        if trace is None:
            if outcome == "cancelled":
                return  # The operation never started, or its span has ended.
            # An operation may end at an open circuit, without an attempt. It still gets its span.
            trace = self._begin(event)
            self._traces.take(event.run)
        _end_attempt(trace, None)
        if trace.recording:
            attributes[Ours.OUTCOME] = outcome
            if trace.waited:
                attributes[Ours.WAITED] = trace.waited
            trace.span.set_attributes(attributes)
            if error is not None:
                trace.span.set_status(otel.StatusCode.ERROR, error)
        trace.span.end()


_MOST_NAMES = 1_000
"""The most operations whose attributes are kept. A program that uses a new name per call must not fill the memory."""

_NAMES = frozenset({"action", "because", "circuit", "from_", "how", "reason", "rule", "to", "unit"})
"""Text fields that hold names. Other texts may be content and are left out."""


_ON_THE_SPAN = frozenset(
    {"at", "run", "operation", "v", "session", "turn", "step", "within", "root", "request", "began"}
)
"""Fields that the operation's span holds already."""


def _work(event: Event) -> dict[str, Any]:
    """Return the attributes of an operation inside a session."""
    work: dict[str, Any] = {SESSION_ID: event.session}
    if event.turn:
        work[Ours.TURN] = event.turn
    if event.step:
        work[Ours.STEP] = event.step
    return work


def _attempt(event: AttemptStarted | AttemptEnded) -> dict[str, Any]:
    # Leave out the usual value, because each attribute costs time in every call.
    if event.via == "primary":
        return {Ours.ATTEMPT: event.attempt}
    return {Ours.ATTEMPT: event.attempt, Ours.VIA: event.via}


def _used(event: AttemptEnded) -> dict[str, Any]:
    """Return what an answer used, as attributes of the operation's span. Our tokens in leave out what came from a cache; theirs do not."""
    used: dict[str, Any] = {RESPONSE_MODEL: event.model} if event.model else {}
    if event.tokens_in is not None:
        used[INPUT_TOKENS] = event.tokens_in + (event.tokens_cached or 0)
        used[OUTPUT_TOKENS] = event.tokens_out
    if event.usd is not None:
        used[Ours.COST] = event.usd
    return used


def _attributes(event: Event) -> dict[str, Any]:
    """Return the event's numbers and names."""
    attributes: dict[str, Any] = {}
    # Attributes have the names of the JSON, which dashboards know: they stay when a field is renamed in Python.
    for field, name in zip(event.__struct_fields__, event.__struct_encode_fields__, strict=True):
        value = getattr(event, field)
        if field in _ON_THE_SPAN or value is None:
            continue
        if isinstance(value, Fault):
            attributes[ERROR_TYPE] = value.code
        elif isinstance(value, (int, float)) or field in _NAMES:
            attributes[f"holdfast.{name}"] = value.value if isinstance(value, Enum) else value
    return attributes


def _end_attempt(trace: _Trace, code: str | None) -> None:
    """End the running attempt, if there is one, and restore the context from before it."""
    inside, trace.inside = trace.inside, None
    # Use `attach`, not `detach`: a token is valid only in the context that made it. If the garbage collector closes a call,
    # it ends in another context. That context is not ours, so it stays as it is.
    if inside is not None and trace.outside is not None and get_current() is inside:
        attach(trace.outside)
    trace.began = None
    attempt, trace.attempt = trace.attempt, None
    if attempt is not None:
        if code is not None:
            attempt.set_attribute(ERROR_TYPE, code)
        attempt.end()


def _lose(trace: _Trace) -> None:
    _end_attempt(trace, None)
    trace.span.set_attribute(Ours.OUTCOME, "unknown")
    trace.span.end()
