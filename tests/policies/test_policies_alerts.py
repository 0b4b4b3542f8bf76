"""S0-33: when an operator is alerted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.faults import InvalidError
from holdfast.policies.alerts import SIGNALS, AlertMachine, Alerts, Threshold

COUNTED = [("reconnection_failures", 10, 50), ("session_drops", 5, 20), ("hook_failures", 20, 100)]


def levels(alerts):
    return [(alert.signal, alert.before, alert.level) for alert in alerts]


@pytest.mark.parametrize(("signal", "warning", "critical"), COUNTED)
def test_S0_33_counts_fire_above_the_threshold_and_not_at_it(signal, warning, critical):
    machine = AlertMachine(Alerts())
    fired = {n: levels(machine.count(signal, 0.0)) for n in range(1, critical + 2)}
    assert {n: alerts for n, alerts in fired.items() if alerts} == {
        warning + 1: [(signal, "ok", "warning")],
        critical + 1: [(signal, "warning", "critical")],
    }


@pytest.mark.parametrize(
    ("failed", "operations", "level"),
    [(1, 20, "ok"), (5, 100, "ok"), (6, 100, "warning"), (15, 100, "warning"), (16, 100, "critical"), (3, 60, "ok")],
)
def test_S0_33_the_error_rate_is_strict(failed, operations, level):
    machine = AlertMachine(Alerts())
    for _ in range(operations - failed):
        machine.operation(0.0, failed=False)
    for _ in range(failed):
        machine.operation(0.0, failed=True)
    assert machine.value("error_rate", 0.0) == failed / operations
    assert machine.level("error_rate") == level


def test_B109_one_error_after_no_traffic_is_no_alarm():
    machine = AlertMachine(Alerts())
    assert machine.level("error_rate") == "ok"
    assert levels(machine.operation(3_600.0, failed=True)) == []
    # The rate is 100 %, but of one operation.
    assert (machine.value("error_rate", 3_600.0), machine.level("error_rate")) == (1.0, "ok")
    for second in range(30):
        assert levels(machine.operation(3_601.0 + second, failed=False)) == []


def test_a_few_operations_are_no_rate():
    machine = AlertMachine(Alerts(min_operations=20))
    assert [levels(machine.operation(0.0, failed=True)) for _ in range(19)] == [[]] * 19
    assert levels(machine.operation(0.0, failed=True)) == [("error_rate", "ok", "critical")]


def test_the_minute_slides():
    machine = AlertMachine(Alerts())
    for second in range(6):
        alerts = machine.count("session_drops", 20.0 * second)
    assert alerts == [], "six in two minutes are not six in one"
    for _ in range(3):
        alerts = machine.count("session_drops", 100.0)
    assert levels(alerts) == [("session_drops", "ok", "warning")]


def test_an_alert_is_raised_once_and_ends_only_below_its_threshold():
    machine = AlertMachine(Alerts(session_drops=Threshold(warning=10, critical=20), clear=0.5))
    for second in range(11):
        machine.count("session_drops", float(second))
    assert machine.level("session_drops") == "warning"
    assert machine.count("session_drops", 11.0) == []
    assert machine.look(64.0) == [], "seven are left: below the threshold, above half of it"
    (over,) = machine.look(66.5)
    assert (over.level, over.before, over.value, over.threshold) == ("ok", "warning", 5.0, 10)
    assert over.text == "session drops is no longer warning: 5"


def test_a_critical_alert_may_become_a_warning():
    machine = AlertMachine(Alerts())
    for _ in range(15):
        machine.count("session_drops", 0.0)
    for _ in range(6):
        machine.count("session_drops", 30.0)
    assert machine.level("session_drops") == "critical"
    assert levels(machine.look(70.0)) == [("session_drops", "critical", "warning")]
    assert levels(machine.look(100.0)) == [("session_drops", "warning", "ok")]


def test_every_alert_ends_when_nothing_happens_any_more():
    machine = AlertMachine(Alerts())
    for _ in range(30):
        machine.operation(0.0, failed=True)
    assert levels(machine.look(61.0)) == [("error_rate", "critical", "ok")]
    assert machine.look(1_000.0) == []


def test_good_operations_end_the_error_rate_s_alert():
    machine = AlertMachine(Alerts())
    for n in range(20):
        machine.operation(0.0, failed=n < 2)
    machine.operation(0.0, failed=True)
    assert machine.level("error_rate") == "warning"
    ended = [n for n in range(100) if machine.operation(0.0, failed=False)]
    assert ended == [53], "3 of 75 are 4 %, four fifths of the threshold"


def test_the_text_of_an_alert():
    machine = AlertMachine(Alerts())
    alerts = [alert for _ in range(30) for alert in machine.operation(0.0, failed=True)]
    assert [alert.text for alert in alerts] == ["error rate is critical: 100.0%, above 15.0%"]
    drops = [alert for _ in range(6) for alert in machine.count("session_drops", 0.0)]
    assert [alert.text for alert in drops] == ["session drops is warning: 6, above 5"]


@given(st.lists(st.tuples(st.sampled_from(SIGNALS[1:]), st.floats(0, 30)), max_size=300))
def test_a_level_never_contradicts_its_count(steps):
    machine, now = AlertMachine(Alerts()), 0.0
    for signal, wait in steps:
        now += wait
        machine.count(signal, now)
        threshold = getattr(machine.alerts, signal)
        value, level = machine.value(signal, now), machine.level(signal)
        assert level != "ok" or value <= threshold.warning
        assert level == "critical" or value <= threshold.critical
        assert level != "critical" or value > threshold.critical * 0.8
        assert level == "ok" or value > threshold.warning * 0.8


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: Alerts(window=0), "alerts.window"),
        (lambda: Alerts(min_operations=0), "alerts.min_operations"),
        (lambda: Alerts(clear=1.5), "alerts.clear"),
        (lambda: Alerts(webhook="ftp://example.org/x"), "alerts.webhook"),
        (lambda: Alerts(webhook="file:///etc/passwd"), "alerts.webhook"),
        (lambda: Alerts(webhook="https:///nobody"), "alerts.webhook"),
        (lambda: Threshold(warning=-1, critical=2), "threshold.warning"),
        (lambda: Threshold(warning=3, critical=2), "threshold.warning"),
        (lambda: Threshold(warning=0, critical=-2), "threshold.critical"),
    ],
)
def test_wrong_options_are_invalid(make, path):
    with pytest.raises(InvalidError) as raised:
        make()
    assert raised.value.fault.context["path"] == path


def test_a_wrong_address_is_not_shown():
    with pytest.raises(InvalidError) as raised:
        Alerts(webhook="htps://hooks.example/T000/secretsecret")
    assert "secretsecret" not in str(raised.value)
