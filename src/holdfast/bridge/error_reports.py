"""`ErrorReports`: what goes wrong at a bridge becomes error metrics and alerts, with the side on which it happened.

    reports = ErrorReports(count_errors(registry), alerts=raise_alerts())
    reports.hook(fault, user_agent="curl/8")
    reports.session_dropped("s-1")

Invariant: a reader that raises does not disturb the bridge. What a client says of itself is cut and has no control characters.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from holdfast import options
from holdfast.faults import Fault
from holdfast.sinks.metric import ErrorMetric
from holdfast.stores.redaction import WITHOUT_SECRET

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.sinks.alerts import AlertSink
    from holdfast.sinks.metric import Source

__all__ = ["ErrorReports", "of_client"]

_LOG = logging.getLogger("holdfast.bridge")
_LONGEST_AGENT = 120
_QUIET_S = 60.0
_OURS = 500
"""The first HTTP status of errors that are the server's."""


class ErrorReports:
    """Passes each error of a bridge to readers of metrics, and to alerts.

    readers: functions of an `ErrorMetric`, such as `count_errors()`. alerts: what `raise_alerts` returns.
    """

    @options.suggests
    def __init__(self, *readers: Callable[[ErrorMetric], object], alerts: AlertSink | None = None) -> None:
        self._readers = (*readers, *(() if alerts is None else (alerts.measured,)))
        self._alerts = alerts
        self._warned_at = float("-inf")

    def server(self, fault: Fault, *, session_id: str | None = None, user_agent: str | None = None) -> None:
        """Report an error of the bridge itself, or of its store."""
        self._report(fault, "server", session_id, user_agent)

    def client(self, fault: Fault, *, session_id: str | None = None, user_agent: str | None = None) -> None:
        """Report an error that a client caused: a wrong token, a message that cannot be read, a connection that went silent."""
        self._report(fault, "client", session_id, user_agent)

    def answered(self, count: int = 1) -> None:
        """Count messages and requests that were answered as they should be. The error rate needs them."""
        if self._alerts is not None:
            for _ in range(count):
                self._alerts.operation(failed=False)

    def request(self, fault: Fault, *, session_id: str | None = None, user_agent: str | None = None) -> None:
        """Report a message or a request that failed: errors of ours are the server's, and the others the client's."""
        source: Source = "server" if fault.entry.http_status >= _OURS else "client"
        self._report(fault, source, session_id, user_agent, of_request=True)

    def hook(self, fault: Fault, *, session_id: str | None = None, user_agent: str | None = None) -> None:
        """Report a hook event that was not accepted. It has a signal of its own, and is no part of the error rate."""
        self._report(fault, "hook", session_id, user_agent)

    def reconnection_failed(self, session_id: str | None = None, *, user_agent: str | None = None) -> None:
        """Report a client that came back and could not go on: its token, its place in the log or its session was gone."""
        self._report(Fault.of("CONN_RECONNECT_EXHAUSTED"), "client", session_id, user_agent)

    def session_dropped(self, session_id: str, *, user_agent: str | None = None) -> None:
        """Report a session whose last client was lost and did not come back within the grace."""
        self._report(Fault.of("CONN_WEBSOCKET_CLOSED"), "client", session_id, user_agent)
        if self._alerts is not None:
            self._alerts.count("session_drops")

    def _report(
        self,
        fault: Fault,
        source: Source,
        session_id: str | None,
        user_agent: str | None,
        *,
        of_request: bool = False,
    ) -> None:
        if of_request and self._alerts is not None:
            self._alerts.operation(failed=True)
        metric = ErrorMetric.of(fault, source, session_id=session_id, user_agent=_cleaned(user_agent))
        for reader in self._readers:
            try:
                reader(metric)
            except Exception:  # noqa: BLE001 - the bridge must go on whatever a reader does
                now = time.monotonic()
                if now - self._warned_at > _QUIET_S:
                    self._warned_at = now
                    _LOG.warning("a reader of error metrics raised", exc_info=True)


def _cleaned(user_agent: str | None) -> str | None:
    if not user_agent:
        return None
    return "".join(each for each in user_agent[:_LONGEST_AGENT] if each.isprintable())


def of_client(fault: Fault) -> Fault:
    """Return what a client learns of a failure. A text that holds a secret of this server is the client's to change, not the server's."""
    if fault.context.get("expected") != WITHOUT_SECRET:
        return fault
    violations = [{"field": "payload", "constraint": "no secret that this server is configured with: leave it out"}]
    return Fault.of("PROTO_INVALID_MESSAGE", context={"violations": violations})
