"""Alerts (S0-33): the log, a function and a webhook are notified when too much goes wrong.

    alerts = raise_alerts(runtime, settings.alerts)     # watches operations from now on
    alerts.count("session_drops")                       # counts a signal that the runtime cannot see

Invariant: no alert delays a call, because a separate thread posts to the webhook. The webhook's address may hold a token, so it
is never shown. It comes from the settings only, and redirects are not followed.
"""

from __future__ import annotations

import logging
import queue
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.config.sources import load
from holdfast.events import AttemptEnded, Degraded, Failed, OperatorAsked, SuppressedError
from holdfast.faults import Fault, InvalidError, Redactor, Severity
from holdfast.policies.alerts import SIGNALS, Alert, AlertMachine, Alerts
from holdfast.runtime.bus import Subscription
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.runtime import default_runtime
from holdfast.sinks.reader import subscribe

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.alerts import Level, Signal
    from holdfast.runtime.runtime import Runtime
    from holdfast.sinks.metric import ErrorMetric

__all__ = ["AlertSink", "raise_alerts"]

_LOG = logging.getLogger("holdfast")
_ALERTING = (Severity.CRITICAL, Severity.FATAL)
_QUIET_S = 60.0
_LEVELS = {"ok": logging.INFO, "warning": logging.WARNING, "critical": logging.CRITICAL}


@options.suggests
def raise_alerts(
    runtime: Runtime | None = None,
    alerts: Alerts | None = None,
    *,
    tell: Callable[[Alert], object] | None = None,
) -> AlertSink:
    """Watch the operations of `runtime`, or of the default one, and raise alerts.

    `alerts` holds the thresholds; the default is in `holdfast.toml`. Alerts go to the log, to the function `tell`,
    and to the webhook in `alerts`.

        with raise_alerts(tell=page_somebody) as alerts:
            alerts.count("session_drops")

    Returns a subscription: `cancel` it, or use it as a context manager. Raises `InvalidError` for an option of the wrong type.
    """
    if alerts is not None and not isinstance(alerts, Alerts):
        raise InvalidError.at("alerts", "an Alerts", alerts)
    if tell is not None and not callable(tell):
        raise InvalidError.at("alerts.tell", "a function or None", tell)
    return AlertSink(
        default_runtime() if runtime is None else runtime, load().alerts if alerts is None else alerts, tell
    )


class AlertSink(Subscription):
    """Counts signals and raises alerts; `raise_alerts` makes one. It may be used from any thread."""

    def __init__(self, runtime: Runtime, alerts: Alerts, tell: Callable[[Alert], object] | None) -> None:
        self._runtime = runtime
        self._tell = tell
        self._machine = AlertMachine(alerts)
        # Calls end in any thread, and the machine itself is not safe to share.
        self._lock = threading.Lock()
        self._alerted: dict[str, float] = {}
        """When the last alert was raised for each code. Codes are a closed set."""
        self._webhook = (
            None if alerts.webhook is None else Webhook(alerts.webhook, alerts.webhook_timeout, self._failed)
        )
        handlers: dict[Any, Any] = {
            # The error rate also needs the calls that work at once. Such a call reports only its attempt.
            AttemptEnded: self._attempt_ended,
            Degraded: lambda _: self.operation(failed=False),
            Failed: self._operation_failed,
            OperatorAsked: self.fault,
        }
        super().__init__(subscribe(runtime, handlers, on_cancel=self._close).cancel)

    def count(self, signal: Signal) -> None:
        """Count a failed reconnection, a dropped session or a failed hook: `alerts.count("hook_failures")`.

        Raises `InvalidError` for an unknown signal.
        """
        if signal not in SIGNALS:
            raise InvalidError.at("signal", f"one of {', '.join(SIGNALS)}", signal)
        with self._lock:
            alerts = self._machine.count(signal, self._now())
        self._raise(alerts)

    def measured(self, metric: ErrorMetric) -> None:
        """Count an error by its metric. Use it for errors of clients and hooks, which the runtime does not report."""
        if metric.category == "HOOK_":
            self.count("hook_failures")
        elif metric.code == "CONN_RECONNECT_EXHAUSTED":
            self.count("reconnection_failures")

    def fault(self, event: Failed | OperatorAsked) -> None:
        """Raise an alert for one failure: `react_to_failures(alert=alerts.fault)`. Critical ones raise theirs without that.

        Failures of one code raise one alert a minute. Each question to an operator raises its own.
        """
        fault = event.fault
        if isinstance(event, Failed) and not self._is_new(fault.code):
            return
        self._raise([Alert(signal=fault.code, level="critical", before="ok", value=1, threshold=0)])

    def look(self) -> None:
        """End alerts whose cause is over. Calls do this too, so you need it only if there may be no calls for a while."""
        with self._lock:
            alerts = self._machine.look(self._now())
        self._raise(alerts)

    def level(self, signal: Signal) -> Level:
        """Return the present level of a signal."""
        return self._machine.level(signal)

    def _attempt_ended(self, event: AttemptEnded) -> None:
        # After a failed attempt the operation may continue. If it fails, `Failed` reports its end.
        if event.fault is None:
            self.operation(failed=False)

    def _operation_failed(self, event: Failed) -> None:
        self.operation(failed=True)
        if event.fault.severity in _ALERTING:
            self.fault(event)
        if event.fault.code == "CONN_RECONNECT_EXHAUSTED":
            # A client of a bridge, in this program, has given up.
            self.count("reconnection_failures")

    def _is_new(self, code: str) -> bool:
        """Whether no alert was raised for this code within a minute: many calls may fail the same way."""
        now = self._now()
        with self._lock:
            is_new = now - self._alerted.get(code, float("-inf")) >= _QUIET_S
            if is_new:
                self._alerted[code] = now
        return is_new

    def operation(self, *, failed: bool) -> None:
        """Count an operation, a message or a request for the error rate: `alerts.operation(failed=True)`."""
        with self._lock:
            alerts = self._machine.operation(self._now(), failed=failed)
        self._raise(alerts)

    def _raise(self, alerts: list[Alert]) -> None:
        """Deliver alerts outside of the lock, because the function that receives an alert may call `count`."""
        for alert in alerts:
            _LOG.log(_LEVELS[alert.level], "alert: %s", alert.text, extra={"holdfast": {"alert": alert}})
            if self._webhook is not None:
                self._webhook.send(alert, self._runtime.clock.wall())
            if self._tell is not None:
                try:
                    self._tell(alert)
                except Exception as error:  # noqa: BLE001 - the function must not break the call (R25)
                    at = self._runtime.clock.wall()
                    self._runtime.bus.hook_raised(self._tell, "the function for alerts", error, at=at)

    def _failed(self, fault: Fault) -> None:
        """Report that an alert could not be posted. Nothing else depends on it."""
        reason = "an alert could not be posted to the webhook"
        self._runtime.bus.emit(SuppressedError.of(fault, reason, at=self._runtime.clock.wall()))

    def _close(self) -> None:
        if self._webhook is not None:
            self._webhook.close()

    def _now(self) -> float:
        return self._runtime.clock.monotonic()


MOST_WAITING = 100
"""The most alerts that may wait for the webhook. A dead address must not fill the memory."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    # A redirect could send the alert, and the token in its address, to another host.
    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Posts alerts to a web address, one after the other, from a thread of its own."""

    def __init__(self, address: str, timeout: float, failed: Callable[[Fault], object]) -> None:
        self._address = address
        self._timeout = timeout
        self._failed = failed
        self._opener = urllib.request.build_opener(_NoRedirects)
        # Webhook services put the token into the path, so the path alone is a secret too.
        self._redactor = Redactor.knowing((address, address.partition("://")[2].partition("/")[2]))
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()

    def send(self, alert: Alert, at: float) -> None:
        """Queue an alert for posting."""
        document = {"schema": "holdfast.alert/1", "at": at, "text": alert.text, **msgspec.to_builtins(alert)}
        try:
            self._waiting.put_nowait(msgspec.json.encode(document))
        except queue.Full:
            message = f"{MOST_WAITING} alerts already wait for the webhook"
            self._failed(Fault.of("SYS_RESOURCE_EXHAUSTED", message))
            return
        with self._lock:
            # The first alert starts the thread, because most programs never raise an alert.
            if self._thread is None:
                # Each thread has its own signal: one that was closed must not be revived by a later alert.
                closing = self._closing = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(closing,), name="holdfast-webhook", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Post the queued alerts and stop. Wait at most the time limit of one post, so that the program can end."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._closing.set()
        if thread is None:
            return
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            # The address is dead, and waiting for a hundred posts would hold up the program's end. The thread ends when
            # nothing waits any more.
            return
        thread.join(self._timeout)

    def _run(self, closing: threading.Event) -> None:
        while (body := self._next(closing)) is not None:
            try:
                self._post(body)
            except Exception as error:  # noqa: BLE001 - the thread must live to post the next alert
                self._failed(fault_of(error).masked(self._redactor))

    def _next(self, closing: threading.Event) -> bytes | None:
        try:
            return self._waiting.get(block=not closing.is_set())
        except queue.Empty:
            return None

    def _post(self, body: bytes) -> None:
        headers = {"content-type": "application/json", "user-agent": "holdfast"}
        request = urllib.request.Request(self._address, body, headers, method="POST")  # noqa: S310 - http(s), from the settings
        with self._opener.open(request, timeout=self._timeout) as answer:
            # Read one byte. We only need to know that the server answers.
            answer.read(1)
