"""Counts events for Prometheus: outcomes of operations, failures of attempts, and the time that recovering took.

Invariant: the number of series is bounded. Labels are targets (the first targets by name, later targets as `other`), codes of
the catalog and our own fixed words. A label is never a run, a session or a text.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.events import (
    AgentFallback,
    AttemptEnded,
    Cancelled,
    CircuitState,
    CircuitStateChange,
    Degraded,
    Failed,
    Fallback,
    Observed,
    Recovered,
    Retry,
    RetryDenied,
    WaitBegan,
)
from holdfast.events.observed import ObservedTotals
from holdfast.events.tracker import Tracker
from holdfast.extras import needs_extra
from holdfast.faults import CATALOG
from holdfast.sinks.reader import subscribe

with needs_extra("count_events", "prometheus-client", "prometheus"):
    import prometheus_client as prometheus

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.events import Event
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime
    from holdfast.sinks.metric import ErrorMetric

__all__ = ["count_errors", "count_events"]

OTHER = "other"
"""The label of every target beyond the limit."""

_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
"""The buckets in seconds. They end at 900 s, the longest server delay that a policy accepts by default."""
_STATES = {CircuitState.CLOSED: 0, CircuitState.HALF_OPEN: 1, CircuitState.OPEN: 2}


@options.suggests
def count_events(
    registry: prometheus.CollectorRegistry | None = None, runtime: Runtime | None = None, *, most_targets: int = 100
) -> Subscription:
    """Count events in `registry`, or in the process's own registry. Targets beyond `most_targets` are counted as `other`.

        count_events(most_targets=50)

    Returns a subscription; cancelling it removes the metrics from the registry. Raises `InvalidError` for a wrong number, and
    `ValueError` if the registry holds metrics of these names already.
    """
    options.count("most_targets", most_targets)
    registry = prometheus.REGISTRY if registry is None else registry
    counts = _Counts(registry, most_targets)
    return subscribe(runtime, counts.handlers(), on_cancel=counts.unregister)


def count_errors(registry: prometheus.CollectorRegistry | None = None) -> Callable[[ErrorMetric], None]:
    """Return a reader for `measure_errors` that counts errors: `measure_errors(count_errors())`.

    Sessions and clients are not labels, because their number is unlimited. Raises `ValueError` if the registry holds the metric
    already.
    """
    errors = prometheus.Counter(
        "holdfast_errors",
        "Errors by what they are and where they happened",
        ("category", "code", "severity", "source"),
        registry=prometheus.REGISTRY if registry is None else registry,
    )

    def count(metric: ErrorMetric) -> None:
        # An unknown code may be any text, and so may its prefix. Both labels become `other`.
        code = _code(metric.code)
        category = OTHER if code == OTHER else metric.category
        errors.labels(category, code, metric.severity.value, metric.source).inc()

    return count


def _code(code: str) -> str:
    """Return the label of a code. A code that is not in our catalog may be any text, so its label is `other`."""
    return code if code in CATALOG else OTHER


class _Names:
    """Keeps the first names it gets; all later names share one label."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def keeps(self, name: str) -> bool:
        # There is no lock: at the limit two threads may both add a name, but one more series does no harm.
        known = self._known
        if name in known:
            return True
        if len(known) >= self._most:
            return False
        known.add(name)
        return True

    def label(self, name: str) -> str:
        return name if self.keeps(name) else OTHER


class _Counts:
    def __init__(self, registry: prometheus.CollectorRegistry, most: int) -> None:
        self._registry = registry
        self._targets = _Names(most)
        self._circuits = _Names(most)
        self._failing: Tracker[bool] = Tracker()
        """Operations in which something failed. A separate event reports their end, so a good attempt does not count as the end."""
        self._waiting: Tracker[WaitBegan] = Tracker()
        """The wait that an operation is in."""
        self._collectors: list[Any] = []
        self._operations = self._counter("operations", "Operations by how they ended", "target", "outcome")
        self._attempts = self._counter(
            "attempts", "Attempts that ended, by code of the failure or OK", "target", "code"
        )
        self._failures = self._counter("give_ups", "Operations given up, by code", "target", "code")
        self._denied = self._counter(
            "retries_denied", "Retries that the quota, budget or deadline denied", "target", "because"
        )
        self._fallbacks = self._counter("fallbacks", "Fallback steps tried", "target")
        self._waited = self._counter("retry_wait_seconds", "Seconds of waiting before retries", "target")
        recovery = partial(prometheus.Histogram, buckets=_BUCKETS)
        self._recovery = self._series(
            recovery, "recovery_seconds", "Seconds from the first failure to success", "target"
        )
        self._changes = self._counter("circuit_changes", "Changes of circuits", "circuit", "to")
        states = "State of a circuit: 0 closed, 1 half-open, 2 open"
        self._state = self._series(prometheus.Gauge, "circuit_state", states, "circuit")
        observed = "Plain calls of observe mode, by how they ended and what recovery would have done"
        self._observed = self._counter("observed_calls", observed, "target", "outcome", "would")
        harmed = "Answered plain calls of observe mode that would have been worse off with recovery"
        self._harmed = self._counter("observed_harmed", harmed, "target")

        self._begin_costs()

    def _begin_costs(self) -> None:
        """Register what answers, and waits for them, cost."""
        self._answers = self._series(
            prometheus.Counter,
            "answers",
            "Answers, by who gave them: own (the first attempt), retry, fallback or lesser",
            "target",
            "by",
        )
        self._tokens = self._series(prometheus.Counter, "tokens", "Tokens that answers report", "target", "kind")
        self._cost = self._series(
            prometheus.Counter,
            "cost_usd",
            "Dollars at list prices: of first attempts, retries and fallbacks",
            "target",
            "why",
        )
        self._wait_time = self._series(
            prometheus.Counter,
            "wait_seconds",
            "Seconds of waiting for a circuit, a turn, a place, a start or money",
            "target",
            "reason",
        )

    def handlers(self) -> dict[type[Event], Callable[[Any], object]]:
        return {
            AttemptEnded: self._attempt_ended,
            Retry: self._retry,
            Fallback: self._fallback,
            AgentFallback: self._fallback,
            Recovered: self._recovered,
            Failed: self._failed,
            Degraded: self._degraded,
            Cancelled: self._cancelled,
            RetryDenied: self._retry_denied,
            CircuitStateChange: self._circuit_changed,
            Observed: self._observe,
            WaitBegan: self._waits,
        }

    def unregister(self) -> None:
        # Otherwise counting again in the same process would raise for duplicate names.
        for collector in self._collectors:
            self._registry.unregister(collector)

    def _attempt_ended(self, event: AttemptEnded) -> None:
        target = self._targets.label(event.operation)
        self._end_wait(event.run, event.at - event.took)
        if event.fault is not None:
            self._failing.put(event.run, True)  # noqa: FBT003 - presence is all that matters
            self._attempts(target, _code(event.fault.code)).inc()
            return
        self._attempts(target, "OK").inc()
        self._answered(target, event)
        # Nothing failed before, so no further event reports this operation's end.
        if self._failing.get(event.run) is None:
            self._operations(target, "ok").inc()

    def _answered(self, target: str, event: AttemptEnded) -> None:
        why = "fallback" if event.via != "primary" else "retry" if event.attempt > 1 else "first"
        self._answers(target, "own" if why == "first" else why).inc()
        for kind, tokens in (("in", event.tokens_in), ("out", event.tokens_out), ("cached", event.tokens_cached)):
            if tokens:
                self._tokens(target, kind).inc(tokens)
        if event.usd:
            self._cost(target, why).inc(event.usd)

    def _waits(self, event: WaitBegan) -> None:
        self._end_wait(event.run, event.at)
        self._waiting.put(event.run, event)

    def _end_wait(self, run: str, at: float) -> None:
        if len(self._waiting) and (wait := self._waiting.take(run)) is not None:
            # The wall clock may be set back.
            self._wait_time(self._targets.label(wait.operation), wait.reason).inc(max(0.0, at - wait.at))

    def _retry(self, event: Retry) -> None:
        self._failing.put(event.run, True)  # noqa: FBT003 - presence is all that matters
        self._waited(self._targets.label(event.operation)).inc(event.delay)

    def _fallback(self, event: Fallback | AgentFallback) -> None:
        self._failing.put(event.run, True)  # noqa: FBT003 - presence is all that matters
        self._fallbacks(self._targets.label(event.operation)).inc()

    def _recovered(self, event: Recovered) -> None:
        self._recovery(self._ended(event, "recovered")).observe(event.after)

    def _failed(self, event: Failed) -> None:
        self._failures(self._ended(event, "failed"), _code(event.fault.code)).inc()

    def _degraded(self, event: Degraded) -> None:
        self._answers(self._ended(event, "degraded"), "lesser").inc()

    def _cancelled(self, event: Cancelled) -> None:
        self._ended(event, "cancelled")

    def _retry_denied(self, event: RetryDenied) -> None:
        self._denied(self._targets.label(event.operation), _code(event.because)).inc()

    def _observe(self, event: Observed) -> None:
        target = self._targets.label(event.operation)
        self._observed(target, event.outcome, event.would).inc()
        totals = ObservedTotals()
        totals.add(event)
        if totals.harmed:
            self._harmed(target).inc()

    def _circuit_changed(self, event: CircuitStateChange) -> None:
        self._changes(self._circuits.label(event.circuit), event.to.value).inc()
        # One gauge for many circuits would only show the last change of any of them.
        if self._circuits.keeps(event.circuit):
            self._state(event.circuit).set(_STATES[event.to])

    def _ended(self, event: Event, outcome: str) -> str:
        self._failing.take(event.run)
        self._end_wait(event.run, event.at)
        target = self._targets.label(event.operation)
        self._operations(target, outcome).inc()
        return target

    def _counter(self, name: str, text: str, *labels: str) -> Callable[..., Any]:
        return self._series(prometheus.Counter, name, text, *labels)

    def _series(self, kind: Any, name: str, text: str, *labels: str) -> Callable[..., Any]:
        """Register a metric; return a function that returns the series of given labels and remembers it."""
        metric = kind(f"holdfast_{name}", text, labels, registry=self._registry)
        self._collectors.append(metric)
        # The library's own lookup takes a lock for every call.
        known: dict[tuple[str, ...], Any] = {}

        def series(*values: str) -> Any:
            found = known.get(values)
            if found is None:
                found = known[values] = metric.labels(*values)
            return found

        return series
