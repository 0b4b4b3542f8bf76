"""`react_to_failures`: severity drives behaviour (S0-4)."""

from __future__ import annotations

import logging

import pytest

from holdfast.events import Failed, SuppressedError
from holdfast.faults import Fault, InvalidError
from holdfast.sinks import ErrorMetric, measure_errors, react_to_failures

BY_SEVERITY = {
    "info": "SYS_CANCELLED",
    "warning": "TOOL_INPUT_INVALID",
    "error": "PROVIDER_UNAVAILABLE",
    "critical": "CIRCUIT_OPEN",
    "fatal": "ACTOR_MAX_RESTARTS",
}


def fails(stage, code):
    fault = Fault.of(code)
    stage.runtime.bus.emit(Failed(at=1.0, run="r", operation="claude", fault=fault, exhausted=False))
    return fault


@pytest.mark.parametrize(
    ("severity", "called"),
    [
        ("info", []),
        ("warning", ["metrics"]),
        ("error", ["metrics", "notify"]),
        ("critical", ["metrics", "notify", "alert", "circuit"]),
        ("fatal", ["metrics", "notify", "alert", "circuit", "terminate"]),
    ],
)
def test_S0_4_each_severity_calls_what_it_asks_for_in_order(stage, caplog, severity, called):
    calls = []
    functions = {
        name: (lambda _, name=name: calls.append(name))
        for name in ("metrics", "notify", "alert", "circuit", "terminate")
    }
    with caplog.at_level(logging.INFO, "holdfast"), react_to_failures(stage.runtime, **functions):
        fault = fails(stage, BY_SEVERITY[severity])
    assert fault.severity == severity
    assert calls == called
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{severity}: claude failed ({fault.code}); next to act: ")
    assert record.holdfast["fault"]["code"] == fault.code


@pytest.mark.parametrize(
    ("severity", "level"),
    [("info", "INFO"), ("warning", "WARNING"), ("error", "ERROR"), ("critical", "CRITICAL"), ("fatal", "CRITICAL")],
)
def test_it_is_logged_as_loud_as_it_is_grave(stage, caplog, severity, level):
    with caplog.at_level(logging.INFO, "holdfast"), react_to_failures(stage.runtime):
        fails(stage, BY_SEVERITY[severity])
    assert caplog.records[0].levelname == level


def test_nothing_terminates_by_itself_but_the_log_says_what_nobody_does(stage, caplog):
    with caplog.at_level(logging.WARNING, "holdfast"), react_to_failures(stage.runtime):
        fails(stage, BY_SEVERITY["fatal"])
    assert [record.getMessage() for record in caplog.records[1:]] == [
        f"ACTOR_MAX_RESTARTS requires the reaction '{reaction}', but no function was given for it"
        for reaction in ("alert", "circuit", "terminate")
    ]


def test_a_function_that_raises_is_reported_and_the_others_are_called(stage):
    def broken(_):
        raise ZeroDivisionError("a defect")

    ended, suppressed = [], []
    stage.runtime.on(suppressed.append, SuppressedError)
    with react_to_failures(stage.runtime, notify=broken, terminate=ended.append):
        fails(stage, BY_SEVERITY["fatal"])
        fails(stage, BY_SEVERITY["fatal"])
    assert len(ended) == 2
    assert [event.reason for event in suppressed] == ["the function for 'notify' raised"]


def test_a_recovered_call_sets_nothing_in_motion(stage):
    calls = []
    with react_to_failures(stage.runtime, metrics=calls.append, notify=calls.append):
        stage.play("529, ok")
        assert calls == []
        stage.play("401")
    assert [type(call).__name__ for call in calls] == ["ErrorMetric", "Failed"]


def test_wrong_functions_are_rejected(stage):
    with pytest.raises(InvalidError, match=r"react\.terminate: expected a function or None"):
        react_to_failures(stage.runtime, terminate="os._exit")


# S0-32


def test_S0_32_a_metric_of_each_operation_that_was_given_up(stage):
    metrics = []
    with measure_errors(metrics.append, runtime=stage.runtime):
        stage.play("401")
        stage.play("529, ok")
    assert metrics == [ErrorMetric(category="AUTH_", code="AUTH_FAILED", severity="error", source="server")]


def test_S0_32_a_record_keeps_whose_error_it_was():
    metric = ErrorMetric.of(Fault.of("HOOK_VALIDATION_FAILED"), "hook", session_id="s1", user_agent="cli/1.2")
    assert (metric.category, metric.source, metric.session_id, metric.user_agent) == ("HOOK_", "hook", "s1", "cli/1.2")
