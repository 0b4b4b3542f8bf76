"""`BridgeMetrics`: what Prometheus reads of a bridge, and the alerts that it raises.

Invariant: a bridge counts without prometheus-client, too: only `/metrics` needs it. No label is a session, a client or an address.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.bridge.error_reports import ErrorReports
from holdfast.extras import missing_extra
from holdfast.sinks.alerts import raise_alerts
from holdfast.sinks.metric import measure_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.bridge.hub import Hub
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime

__all__ = ["BridgeMetrics"]

_prometheus: Any = None
_counts: Any = None
with suppress(ModuleNotFoundError):  # an extra that may be missing
    _prometheus = import_module("prometheus_client")
    _counts = import_module("holdfast.sinks.prometheus")


class BridgeMetrics:
    """The metrics of one bridge, in a registry of their own: errors by source, operations of the agent, connections and sessions.

    runtime: the runtime of the bridge. Its alerts are those of `holdfast.toml`.

        metrics = BridgeMetrics(runtime)
        metrics.reports.hook(fault)
        print(metrics.text().decode())
    """

    def __init__(self, runtime: Runtime | None = None) -> None:
        self._alerts = raise_alerts(runtime)
        self._registry: Any = None
        self._events: tuple[Subscription, ...] = ()
        readers: list[Callable[..., object]] = []
        if _counts is not None:
            self._registry = _prometheus.CollectorRegistry()
            count_errors = _counts.count_errors(self._registry)
            # What agents raise and recoveries give up, besides what the bridge reports itself.
            self._events = (
                _counts.count_events(self._registry, runtime),
                measure_errors(count_errors, runtime=runtime),
            )
            readers.append(count_errors)
        self.reports = ErrorReports(*readers, alerts=self._alerts)
        """Where the errors of the bridge go."""

    def watch(self, hub: Hub) -> None:
        """Show how many connections and sessions a hub has."""
        if self._registry is not None:
            self._registry.register(_Gauges(hub))

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them. Raises SYS_DEPENDENCY_MISSING without prometheus-client."""
        if self._registry is None:
            raise missing_extra("/metrics", "prometheus-client", "prometheus")
        text: bytes = _prometheus.generate_latest(self._registry)
        return text

    def close(self) -> None:
        """Stop counting."""
        self._alerts.cancel()
        for subscription in self._events:
            subscription.cancel()


class _Gauges:
    """Reads the hub when Prometheus asks, so that nothing has to be counted twice."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def collect(self) -> Iterator[Any]:
        hub = self._hub
        joined = sum(len(live.clients) for live in tuple(hub.sessions.values()))
        for name, text, value in (
            ("connections", "WebSocket connections that have authenticated", len(hub.connections)),
            ("sessions", "Sessions in use", len(hub.sessions)),
            ("joined", "Places that connections have in sessions", joined),
        ):
            yield _prometheus.metrics_core.GaugeMetricFamily(f"holdfast_bridge_{name}", text, value=value)
