"""`raise_alerts`: the log, a function and a webhook hear when too much goes wrong (S0-33)."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client import CollectorRegistry

from holdfast.config import ConfigError, load, read
from holdfast.events import AttemptEnded, Failed, SuppressedError
from holdfast.faults import Fault, InvalidError
from holdfast.policies.alerts import AlertMachine, Alerts, Threshold
from holdfast.sinks import ErrorMetric, count_errors, raise_alerts
from holdfast.sinks.alerts import MOST_WAITING, Webhook

FEW = Alerts(min_operations=4, session_drops=Threshold(warning=1, critical=2))
TOKEN = "T0001234567/B0001234567/hushhushhushhush"


def texts(alerts):
    return [alert.text for alert in alerts]


def test_operations_of_the_runtime_are_watched(stage, caplog):
    alerts = []
    with caplog.at_level(logging.INFO, "holdfast"), raise_alerts(stage.runtime, FEW, tell=alerts.append) as sink:
        for _ in range(3):
            stage.play("ok")
        stage.play("401")
        assert texts(alerts) == ["error rate is critical: 25.0%, above 15.0%"]
        assert sink.level("error_rate") == "critical"
        stage.clock.advance(61)
        sink.look()
    assert texts(alerts)[1:] == ["error rate is no longer critical: 0.0%"]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("CRITICAL", "alert: error rate is critical: 25.0%, above 15.0%"),
        ("INFO", "alert: error rate is no longer critical: 0.0%"),
    ]


def test_an_operation_counts_once_however_many_attempts_it_took(stage):
    with raise_alerts(stage.runtime, FEW) as sink:
        for _ in range(4):
            stage.play("529, 503, ok")
        assert sink.level("error_rate") == "ok"
        assert sink._machine._operations.total(stage.clock.monotonic()) == 4


def test_what_the_runtime_does_not_see_is_counted_by_hand(stage):
    alerts = []
    with raise_alerts(stage.runtime, FEW, tell=alerts.append) as sink:
        for _ in range(3):
            sink.count("session_drops")
        for _ in range(21):
            sink.measured(ErrorMetric.of(Fault.of("HOOK_VALIDATION_FAILED"), "hook"))
        for _ in range(11):
            sink.measured(ErrorMetric.of(Fault.of("CONN_RECONNECT_EXHAUSTED"), "client"))
        sink.measured(ErrorMetric.of(Fault.of("AUTH_FAILED")))
        with pytest.raises(InvalidError, match="session_drops"):
            sink.count("session_drop")
    assert [(alert.signal, alert.level) for alert in alerts] == [
        ("session_drops", "warning"),
        ("session_drops", "critical"),
        ("hook_failures", "warning"),
        ("reconnection_failures", "warning"),
    ]


def test_a_failure_can_be_an_alert_by_itself(stage):
    alerts = []
    with raise_alerts(stage.runtime, FEW, tell=alerts.append) as sink:
        fault = Fault.of("SYS_AUDIT_TAMPERED")
        sink.fault(Failed(at=1.0, fault=fault, exhausted=False))
    assert [(alert.signal, alert.level) for alert in alerts] == [("SYS_AUDIT_TAMPERED", "critical")]


def test_after_it_is_cancelled_nothing_is_watched(stage):
    raise_alerts(stage.runtime, FEW).cancel()
    assert not stage.runtime.bus.wants(AttemptEnded)


def test_a_function_that_raises_breaks_nothing(stage):
    suppressed = []
    stage.runtime.on(suppressed.append, SuppressedError)

    def broken(_):
        raise ZeroDivisionError

    with raise_alerts(stage.runtime, FEW, tell=broken) as sink:
        for _ in range(3):
            sink.count("session_drops")
    assert [event.reason for event in suppressed] == ["the function for alerts raised"]


@pytest.mark.parametrize(
    ("options", "says"), [({"alerts": {"window": 3}}, "an Alerts"), ({"tell": 3}, "a function or None")]
)
def test_wrong_options_are_rejected(stage, options, says):
    with pytest.raises(InvalidError, match=says):
        raise_alerts(stage.runtime, **{"alerts": FEW, **options})


# Prometheus


def test_S0_32_prometheus_counts_without_session_and_client():
    registry = CollectorRegistry()
    count = count_errors(registry)
    for session in ("s1", "s2"):
        count(ErrorMetric.of(Fault.of("HOOK_VALIDATION_FAILED"), "hook", session_id=session, user_agent="cli/1"))
    count(
        ErrorMetric(category="FUTURE", code="FUTURE_CODE", severity=Fault.of("AUTH_FAILED").severity, source="client")
    )
    labels = {"category": "HOOK_", "code": "HOOK_VALIDATION_FAILED", "severity": "warning", "source": "hook"}
    assert registry.get_sample_value("holdfast_errors_total", labels) == 2
    other = {"category": "other", "code": "other", "severity": "error", "source": "client"}
    assert registry.get_sample_value("holdfast_errors_total", other) == 1


# The settings


def test_the_settings_hold_thresholds_and_the_webhook(tmp_path, monkeypatch, stage):
    text = '[alerts]\nwebhook = "http://127.0.0.1:9/x"\nsession_drops = { warning = 1 }\n'
    (tmp_path / "holdfast.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    alerts = load().alerts
    assert alerts.session_drops == Threshold(warning=1, critical=20)
    assert (alerts.webhook, alerts.error_rate) == ("http://127.0.0.1:9/x", Alerts().error_rate)
    raised = []
    (tmp_path / "holdfast.toml").write_text("[alerts.session_drops]\nwarning = 1\n")
    with raise_alerts(stage.runtime, tell=raised.append) as sink:
        sink.count("session_drops")
        sink.count("session_drops")
    assert len(raised) == 1


def test_wrong_settings_are_all_reported():
    with pytest.raises(ConfigError) as raised:
        read({"alerts": {"windw": 3, "webhook": f"htps://{TOKEN}", "error_rate": {"warning": 2, "critical": 1}}})
    assert [problem.path for problem in raised.value.problems] == [
        "alerts.windw",
        "alerts.error_rate.warning",
        "alerts.webhook",
    ]
    assert TOKEN not in str(raised.value)


# The webhook


@contextmanager
def hook(status=204, location=None):
    """A server that takes what is posted; yields its address and what came."""
    came = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            came.append((self.path, self.headers["content-type"], self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(status)
            if location:
                self.send_header("location", location)
            self.end_headers()

        def do_GET(self):
            came.append(("GET", self.path, b""))

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{TOKEN}", came
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def drop_sessions(stage, webhook, **options):
    suppressed = []
    stage.runtime.on(suppressed.append, SuppressedError)
    settings = Alerts(session_drops=Threshold(warning=1, critical=2), webhook=webhook, **options)
    with raise_alerts(stage.runtime, settings) as sink:
        for _ in range(3):
            sink.count("session_drops")
    return suppressed


def test_alerts_are_posted_in_order(stage):
    with hook() as (address, came):
        assert drop_sessions(stage, address) == []
    assert [(path, kind) for path, kind, _ in came] == [(f"/{TOKEN}", "application/json")] * 2
    first, second = (json.loads(body) for _, _, body in came)
    assert (first["schema"], first["level"], first["signal"]) == ("holdfast.alert/1", "warning", "session_drops")
    assert second["text"] == "session drops is critical: 3, above 2"
    assert first["at"] == stage.clock.wall()


@pytest.mark.parametrize("status", [401, 500])
def test_a_webhook_that_fails_breaks_nothing_and_is_reported_without_its_address(stage, status, caplog):
    with hook(status) as (address, came):
        suppressed = drop_sessions(stage, address)
    assert len(came) == 2
    assert [event.reason for event in suppressed] == ["an alert could not be posted to the webhook"] * 2
    assert TOKEN not in repr(suppressed) + caplog.text


def test_a_webhook_that_is_not_there_breaks_nothing(stage):
    with hook() as (address, _):
        pass
    assert [event.code for event in drop_sessions(stage, address)] == ["CONN_REFUSED"] * 2


def test_an_answer_cannot_send_us_elsewhere(stage):
    with hook() as (other, other_came), hook(302, location=other) as (address, came):
        suppressed = drop_sessions(stage, address)
    assert (len(came), other_came, len(suppressed)) == (2, [], 2)


def test_raising_an_alert_never_waits(stage):
    """A server that takes connections and says nothing: alerts pile up to a bound, and closing waits no longer than a post."""
    released = threading.Event()
    failed = []
    webhook = Webhook("http://127.0.0.1:9/x", 0.05, failed.append)
    webhook._post = lambda _: released.wait(5)
    alert = next(iter(_alerts()))
    for _ in range(MOST_WAITING + 3):
        webhook.send(alert, 1.0)
    assert [fault.code for fault in failed][:1] == ["SYS_RESOURCE_EXHAUSTED"]
    assert 2 <= len(failed) <= 3
    thread = webhook._thread
    webhook.close()
    assert thread.is_alive(), "closing did not wait for all posts"
    released.set()
    thread.join(5)
    assert not thread.is_alive(), "the thread ends after the last alert"


def _alerts():
    machine = AlertMachine(FEW)
    return [alert for _ in range(3) for alert in machine.count("session_drops", 0.0)]
