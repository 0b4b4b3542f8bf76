"""structlog: the same facts as logging, as an event dict."""

from __future__ import annotations

import logging
import subprocess
import sys

import msgspec
import structlog
from sinks_scenes import CANARY
from structlog.testing import capture_logs

from holdfast.events import Recovered
from holdfast.sinks import Levels, log_to_structlog
from holdfast.testing import Capture, script


def test_an_operation_that_recovered_is_one_entry_with_the_events_json(stage):
    heard = Capture()
    stage.runtime.on(heard, Recovered)
    with capture_logs() as logs, log_to_structlog(stage.runtime, levels=Levels(step=None)):
        assert stage.play("529, 529, ok:hello") == "hello"
    assert logs == [
        {
            "event": "claude recovered after 3 attempts in 3.0 s (PROVIDER_OVERLOADED ×2)",
            "log_level": "info",
            "holdfast": msgspec.to_builtins(heard.events[0]),
        }
    ]


def test_an_operation_that_was_given_up_is_one_warning(stage):
    with capture_logs() as logs, log_to_structlog(stage.runtime):
        stage.play("401")
    assert [(entry["log_level"], entry["holdfast"]["fault"]["code"]) for entry in logs] == [("warning", "AUTH_FAILED")]


def test_attempts_come_on_request(stage):
    with capture_logs() as logs, log_to_structlog(stage.runtime, attempts=True):
        stage.play("ok")
    assert [entry["holdfast"]["type"] for entry in logs] == ["attempt-started", "attempt-ended"]


def test_the_logger_is_the_users_and_filters(stage):
    kept = structlog.testing.LogCapture()
    wrapper = structlog.make_filtering_bound_logger(logging.WARNING)
    logger = structlog.wrap_logger(None, processors=[kept], wrapper_class=wrapper)
    with log_to_structlog(stage.runtime, logger):
        stage.play("529, ok")
        stage.play("401")
    assert [entry["log_level"] for entry in kept.entries] == ["warning"]


def test_B105_no_key_is_in_an_entry(stage):
    with capture_logs() as logs, log_to_structlog(stage.runtime, attempts=True):
        stage.play(script([ConnectionResetError(f"key {CANARY}"), PermissionError(f"key {CANARY}")]).acall)
    assert len(logs) > 4
    assert CANARY not in str(logs)


def test_R25_a_processor_that_raises_changes_nothing(stage, caplog):
    def broken(*_):
        raise RuntimeError("no disk")

    logger = structlog.wrap_logger(None, processors=[broken], wrapper_class=structlog.make_filtering_bound_logger(0))
    with log_to_structlog(stage.runtime, logger):
        assert stage.play("529, ok:hello") == "hello"
    assert [record.name for record in caplog.records] == ["holdfast"]
    assert "no disk" in caplog.text


def test_no_sink_loads_the_library_of_another():
    program = (
        "import sys\n"
        "from holdfast.sinks import log_events\n"
        "print([name for name in ('structlog', 'opentelemetry', 'prometheus_client') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_library_is_reported_with_the_command_that_installs_it():
    program = (
        "import sys\n"
        "for name in ('structlog', 'opentelemetry', 'prometheus_client'): sys.modules[name] = None\n"
        "import holdfast.sinks as sinks\n"
        "for name in ('log_to_structlog', 'trace_recoveries', 'count_events'):\n"
        "    try: getattr(sinks, name)\n"
        "    except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "SYS_DEPENDENCY_MISSING  log_to_structlog needs the structlog package: pip install '.[structlog]' in a clone",
        "SYS_DEPENDENCY_MISSING  trace_recoveries needs the opentelemetry-api package: pip install '.[otel]' in a clone",
        "SYS_DEPENDENCY_MISSING  count_events needs the prometheus-client package: pip install '.[prometheus]' in a clone",
    ]
