"""FU5: a runtime nobody logs speaks by itself: one line per retry, fallback, circuit change and give-up; off by one switch."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap

import pytest
from sinks_scenes import STEADY
from structlog.testing import capture_logs

from holdfast import Circuit, InvalidError, Runtime
from holdfast.config import Config, load
from holdfast.events import AttemptEnded, AttemptStarted, Retry
from holdfast.sinks import log_events, log_to_structlog, react_to_failures, watch_live


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, logger="holdfast")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "holdfast"]


@pytest.fixture
def talking(stage):
    stage.runtime.log = True
    return stage


RETRY = ("WARNING", "claude: attempt 1 of 3 failed (PROVIDER_OVERLOADED, 529); next attempt in 1.0 s")


def test_FU5_a_retry_is_a_warning_and_a_recovery_an_info(talking, logged):
    assert talking.play("529, ok:hello") == "hello"
    assert logged() == [RETRY, ("INFO", "claude recovered after 2 attempts in 1.0 s (PROVIDER_OVERLOADED)")]


def test_FU5_the_servers_own_delay_is_named(talking, logged):
    talking.play("429;retry-after=7, ok")
    assert logged()[0][1].endswith("(PROVIDER_RATE_LIMITED, 429); next attempt in 7.0 s, as the server requested")


def test_FU5_giving_up_is_a_warning_that_names_the_next_actor(talking, logged):
    talking.play("401")
    ((level, line),) = logged()
    assert level == "WARNING"
    assert line.startswith("claude failed after 1 attempt")
    assert line.endswith("next to act: operator; holdfast explain AUTH_FAILED")


def test_FU5_a_fallback_is_a_warning(talking, logged):
    @talking.recovery()
    async def answer():
        raise PermissionError("no")

    @answer.fallback
    async def by_openai():
        return "hello"

    assert talking.run(answer()) == "hello"
    assert [level for level, _ in logged()] == ["WARNING", "INFO"]
    assert "falls back" in logged()[0][1]


def test_FU5_a_circuit_that_opens_is_a_warning(talking, logged):
    policy = STEADY.replace(attempts=1, circuit=Circuit(failures=1, open_for=5))
    talking.play("529", policy=policy)
    assert ("WARNING", "circuit claude closed → open (PROVIDER_OVERLOADED)") in logged()


def test_a_call_that_waits_for_a_circuit_says_so_and_how_it_ended(talking, logged):
    policy = STEADY.replace(attempts=1, circuit=Circuit(failures=1, open_for=5), wait_for_circuit=True)
    talking.play("529", policy=policy)
    before = len(logged())
    assert talking.play("ok:hello", policy=policy) == "hello"
    lines = [each for each in logged()[before:] if not each[1].startswith("circuit ")]
    assert lines == [
        ("WARNING", "claude waits 5.0 s for an open circuit (CIRCUIT_OPEN), 120 s left"),
        ("INFO", "claude recovered after 1 attempt in 5.0 s (CIRCUIT_OPEN)"),
    ]


def test_FU5_a_call_that_works_costs_and_logs_nothing(talking, logged):
    talking.play("ok")
    assert logged() == []
    assert not talking.runtime.bus.wants_attempts
    assert not talking.runtime.bus.wants(AttemptStarted)
    assert not talking.runtime.bus.wants(AttemptEnded)


def test_FU5_a_log_sink_replaces_it_for_as_long_as_it_lasts(talking, logged):
    with log_events(talking.runtime):
        talking.play("529, ok")
    assert logged() == [("INFO", "claude recovered after 2 attempts in 1.0 s (PROVIDER_OVERLOADED)")]
    talking.play("529, ok")
    assert len(logged()) == 3


def test_FU5_structlog_replaces_it(talking, logged):
    with capture_logs() as entries, log_to_structlog(talking.runtime):
        talking.play("529, ok")
    assert entries
    assert logged() == []


def test_FU5_the_live_line_replaces_it(talking, logged):
    lines = []
    with watch_live(lines.append, talking.runtime):
        talking.play("529, ok")
    assert lines
    assert logged() == []


def test_FU5_a_sink_that_logs_failures_replaces_only_those(talking, logged):
    with react_to_failures(talking.runtime):
        talking.play("529, 401")
    assert [line.partition(":")[0] for _, line in logged()] == ["claude", "error"]


def test_FU5_other_readers_do_not_silence_it(talking, logged):
    events = []
    with talking.runtime.on(events.append, Retry):
        talking.play("529, ok")
    assert events
    assert logged()[0] == RETRY


def test_FU5_a_runtime_made_in_code_is_silent_unless_it_is_switched_on(stage, logged):
    assert not Runtime().log
    assert Runtime(log=True).log
    stage.play("529, ok")
    assert logged() == []
    with pytest.raises(InvalidError, match=r"runtime\.log"):
        Runtime(log="loud")


def test_FU5_settings_switch_it_on_and_off(stage):
    Config().apply(stage.runtime)
    assert not stage.runtime.log, "settings that say nothing leave it as it is"
    Config(log=True).apply(stage.runtime)
    assert stage.runtime.log
    Config(log=False).apply(stage.runtime)
    assert not stage.runtime.log
    assert not stage.runtime.bus.wants(Retry)


@pytest.mark.parametrize(
    ("environ", "log"), [({}, None), ({"HOLDFAST_LOG": "off"}, False), ({"HOLDFAST_LOG": "on"}, True)]
)
def test_FU5_the_variable_is_the_switch(tmp_path, environ, log):
    assert load(environ=environ, folder=tmp_path).log is log


PROGRAM = """
    from holdfast import Policy, Backoff, recover
    from holdfast.testing import script

    print(recover("claude", Policy(circuit=None, backoff=Backoff(initial=0.01))).call(script("529, ok:hello")))
"""


def test_FU5_a_program_that_sets_nothing_up_sees_why_it_waits(tmp_path):
    def stderr_of(**environ):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PROGRAM)],
            capture_output=True,
            check=True,
            text=True,
            cwd=tmp_path,
            env={"PYTHONPATH": ":".join(sys.path), **environ},
        )
        assert done.stdout == "hello\n"
        return done.stderr

    line = "claude: attempt 1 failed (PROVIDER_OVERLOADED, 529); next attempt in 0.0 s, 120 s left\n"
    assert stderr_of().startswith(line)
    assert stderr_of(HOLDFAST_LOG="off") == ""


CONFIGURED = """
    import logging, sys
    import structlog
    from holdfast import Policy, Backoff, recover
    from holdfast.testing import script

    {setup}
    policy = Policy(circuit=None, backoff=Backoff(initial=0.01))
    recover("claude", policy).call(script("529, ok"))
    try:
        recover("claude", policy).call(script("401;message='bad key sk-ant-api03-{secret}'"))
    except Exception:
        pass
"""
_SECRET = "x" * 40
_TO_STDOUT = "structlog.configure(processors=[structlog.processors.JSONRenderer()])"
_GENERIC = f"{_TO_STDOUT[:-1]}, wrapper_class=structlog.BoundLogger)"


@pytest.mark.parametrize(
    ("setup", "by_structlog", "by_logging"),
    [
        ("", False, True),
        (_TO_STDOUT, True, False),
        (_GENERIC, True, False),
        (f"{_TO_STDOUT}; logging.getLogger('holdfast').setLevel(logging.ERROR)", False, False),
        (
            f"{_TO_STDOUT}; from holdfast.runtime.runtime import default_runtime; default_runtime().log = False",
            False,
            False,
        ),
    ],
    ids=["only imported", "configured", "another kind of logger", "the logger is off", "the log is off"],
)
def test_FU5_structlog_is_used_where_the_program_has_configured_it(tmp_path, setup, by_structlog, by_logging):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CONFIGURED).format(setup=setup, secret=_SECRET)],
        capture_output=True,
        check=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    line = "claude: attempt 1 failed (PROVIDER_OVERLOADED, 529)"
    assert (line in done.stdout, line in done.stderr) == (by_structlog, by_logging)
    assert done.stdout.count(line) + done.stderr.count(line) == by_structlog + by_logging, "nothing is logged twice"
    assert _SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
