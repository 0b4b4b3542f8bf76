"""What a manager counts. An operation is counted once, when it ends (S1-23).

Invariant: a count means what its name says (N1-9), and is exact however many threads execute at once. Counting a call that
succeeds at once costs one lock and one addition.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.faults import CATALOG, AbortedError, Category

if TYPE_CHECKING:
    from holdfast.runtime.operation.operation import Operation

__all__ = ["ResilienceMetrics", "Tallies"]

RECOVERIES_KEPT = 100
"""The average recovery time is taken over so many recoveries (N1-8)."""


class ResilienceMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How a manager's operations went since it was made.

    `ResilienceManager.get_metrics` returns one:

        from holdfast.manager import ResilienceManager

        metrics = ResilienceManager().get_metrics()
        print(metrics.total_attempts, metrics.successful_retries, metrics.errors_by_category)
    """

    total_attempts: int
    """All calls: first attempts, retries and fallbacks."""
    successful_retries: int
    """Operations that failed, were retried, and then succeeded."""
    failed_retries: int
    """Operations whose retries did not succeed, whether or not a fallback answered in the end."""
    circuit_opens: int
    """How often circuits of the runtime opened."""
    fallbacks_used: int
    """Operations answered by a fallback, the cache or a degraded answer."""
    avg_recovery_time: float
    """Seconds from the first failure to success, on average over the last 100 operations that recovered; 0 if none did."""
    errors_by_category: Mapping[Category, int]
    """Failed attempts by category. A call that an open circuit rejected was not made and is not counted."""


class Tallies:
    """The counts behind the metrics. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts = self._good_retries = self._bad_retries = self._fallbacks = 0
        self._recoveries: deque[float] = deque(maxlen=RECOVERIES_KEPT)
        self._errors: Counter[Category] = Counter()

    def succeeded(self, op: Operation) -> None:
        """Count an operation that succeeded, by itself or through a fallback."""
        if op.first_failure is None and op.via == "primary":
            # Nearly every call ends here, so the rest is skipped.
            with self._lock:
                self._attempts += op.attempts
            return
        took = op.plan.monotonic() - (op.started if op.first_failure is None else op.first_failure)
        failures = _failures_of_primary(op)
        with self._lock:
            self._count_attempts(op)
            if op.via != "primary":
                self._fallbacks += 1
                self._bad_retries += failures > 1
            else:
                self._good_retries += failures > 0
            # A degraded answer is not a recovery: the call itself never succeeded.
            if not op.degraded:
                self._recoveries.append(took)

    def failed(self, op: Operation, error: BaseException) -> None:
        """Count an operation that ended with an error. A cancelled one has not failed."""
        cancelled = isinstance(error, AbortedError) or not isinstance(error, Exception)
        with self._lock:
            self._count_attempts(op)
            self._bad_retries += not cancelled and _failures_of_primary(op) > 1

    def metrics(self, circuit_opens: int) -> ResilienceMetrics:
        """Return the counts, all of the same moment."""
        with self._lock:
            recoveries = self._recoveries
            return ResilienceMetrics(
                total_attempts=self._attempts,
                successful_retries=self._good_retries,
                failed_retries=self._bad_retries,
                circuit_opens=circuit_opens,
                fallbacks_used=self._fallbacks,
                avg_recovery_time=sum(recoveries) / len(recoveries) if recoveries else 0.0,
                errors_by_category=dict(self._errors),
            )

    def _count_attempts(self, op: Operation) -> None:
        self._attempts += op.attempts
        self._errors.update(CATALOG[attempt.code].category for attempt in op.history if attempt.code is not None)


def _failures_of_primary(op: Operation) -> int:
    return sum(attempt.via == "primary" for attempt in op.history)
