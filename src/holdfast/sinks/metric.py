"""`ErrorMetric` (S0-32): what metrics count of one error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast import options
from holdfast.events import Failed
from holdfast.faults import AnyCode, Severity
from holdfast.sinks.reader import subscribe

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults import Fault
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime

__all__ = ["ErrorMetric", "Source", "measure_errors", "metric_of"]

Source: TypeAlias = Literal["client", "server", "hook"]
"""The side on which an error happened."""


class ErrorMetric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One error, ready to be counted: `ErrorMetric.of(fault)`.

    It names the session, so that a record can keep it. Do not use the session as a label of a metric, because the number of
    sessions is unlimited.
    """

    category: str
    """The prefix of its code: `CONN_`, `AUTH_`, `PROVIDER_` …"""
    code: AnyCode
    severity: Severity
    source: Source
    """The side on which it happened."""
    session_id: str | None = None
    user_agent: str | None = None
    """The client's version."""

    @classmethod
    def of(
        cls, fault: Fault, source: Source = "server", *, session_id: str | None = None, user_agent: str | None = None
    ) -> ErrorMetric:
        """Return the metric of a fault."""
        return cls(
            # Use the prefix of the code, not the fault's category, because document 000 groups errors by the prefix.
            category="".join(fault.code.partition("_")[:2]),
            code=fault.code,
            severity=fault.severity,
            source=source,
            session_id=session_id,
            user_agent=user_agent,
        )


def metric_of(event: Failed, source: Source = "server") -> ErrorMetric:
    """Return the metric of an operation that was given up, with its session."""
    # A client of a bridge, in this program, has given up.
    side: Source = "client" if event.fault.code == "CONN_RECONNECT_EXHAUSTED" else source
    return ErrorMetric.of(event.fault, side, session_id=event.session or None)


@options.suggests
def measure_errors(
    *readers: Callable[[ErrorMetric], object], runtime: Runtime | None = None, source: Source = "server"
) -> Subscription:
    """Pass a metric to each reader whenever an operation of `runtime`, or of the default runtime, is given up.

        measure_errors(count_errors(), store_metric)

    Returns a subscription: `cancel` it, or use it as a context manager.
    """

    def failed(event: Failed) -> None:
        metric = metric_of(event, source)
        for reader in readers:
            reader(metric)

    return subscribe(runtime, {Failed: failed})
