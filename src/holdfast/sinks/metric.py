"""`ErrorMetric` (S0-32): one error, as it is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast.events import Failed
from holdfast.faults import AnyCode, Severity
from holdfast.sinks.reader import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults import Fault
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime

__all__ = ["ErrorMetric", "Source", "measure_errors"]

Source: TypeAlias = Literal["client", "server", "hook"]
"""Where an error happened."""


class ErrorMetric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One error. A record keeps whose it was; a metric with a label per session would have no bound."""

    category: str
    """The prefix of its code: CONN, AUTH, PROVIDER …"""
    code: AnyCode
    severity: Severity
    source: Source
    session_id: str | None = None
    user_agent: str | None = None
    """The client's version."""

    @classmethod
    def of(
        cls, fault: Fault, source: Source = "server", *, session_id: str | None = None, user_agent: str | None = None
    ) -> ErrorMetric:
        """Return the metric of a fault."""
        return cls(
            category=fault.code.partition("_")[0],
            code=fault.code,
            severity=fault.severity,
            source=source,
            session_id=session_id,
            user_agent=user_agent,
        )


def measure_errors(
    *readers: Callable[[ErrorMetric], object], runtime: Runtime | None = None, source: Source = "server"
) -> Subscription:
    """Hand a metric to each reader whenever an operation of `runtime`, or of the default one, is given up."""

    def failed(event: Failed) -> None:
        metric = ErrorMetric.of(event.fault, source)
        for reader in readers:
            reader(metric)

    handlers: dict[Any, Callable[[Any], object]] = {Failed: failed}
    return read(runtime, handlers)
