"""The settings of a running program: reloaded by hand or on a signal (R85)."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast import PATIENT, Circuit, Runtime, recover
from holdfast.config import ConfigError, LiveConfig, read
from holdfast.events import SuppressedError
from holdfast.policies.target import Target
from holdfast.testing import Capture, VirtualClock

CLAUDE = Target(provider="claude")


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(clock=VirtualClock())


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "holdfast.toml"
    path.write_text("[policy]\nattempts = 5\n")
    return path


def attempts(runtime: Runtime) -> int | None:
    return runtime.policy_for(CLAUDE).attempts


def test_R85_a_reload_is_live(runtime, file):
    live = LiveConfig(runtime, file, environ={})
    assert attempts(runtime) == 5
    file.write_text("[policy]\nattempts = 6\n")
    assert live.reload().policy.attempts == 6
    assert attempts(runtime) == 6


def test_R85_a_bad_reload_keeps_the_old_one_and_says_why(runtime, file):
    live = LiveConfig(runtime, file, environ={})
    before = live.config
    file.write_text("enabled = false\n[policy]\nattempts = 0\n")
    with pytest.raises(ConfigError, match=r"policy\.attempts"):
        live.reload()
    assert (attempts(runtime), runtime.enabled) == (5, True)
    assert live.config is before
    assert live.problem is not None
    file.write_text("[policy]\nattempts = 7\n")
    live.reload()
    assert (attempts(runtime), live.problem) == (7, None)


def test_wrong_settings_are_rejected_from_the_start(runtime, file):
    file.write_text("x = 1")
    with pytest.raises(ConfigError):
        LiveConfig(runtime, file, environ={})


def test_R85_breakers_keep_their_state_over_a_reload(runtime, file):
    live = LiveConfig(runtime, file, environ={})

    def fail() -> None:
        raise ConnectionResetError

    file.write_text("[policy]\nattempts = 1\ncircuit = { failures = 1 }\n")
    live.reload()
    with pytest.raises(ConnectionResetError):
        recover("claude", runtime=runtime).call(fail)
    file.write_text("[policy]\nattempts = 1\nwait_for_circuit = false\ncircuit = { failures = 50 }\n")
    live.reload()
    with pytest.raises(Exception, match="CIRCUIT_OPEN"):
        recover("claude", runtime=runtime).call(fail)
    assert runtime.registry.get("provider:claude").circuit == Circuit(failures=50)


def test_FR1_a_reload_that_changes_a_circuit_makes_no_call_raise(runtime, file):
    live = LiveConfig(runtime, file, environ={})
    calls = [recover("claude", runtime=runtime), recover("claude", PATIENT, runtime=runtime)]
    for text in ("[targets.claude.circuit]\nfailures = 9\n", "[policy.circuit]\nfailures = 8\n", ""):
        file.write_text(text)
        live.reload()
        # In both orders: the first call after a reload brings the circuit.
        calls.reverse()
        assert [call.call(len, "x") for call in calls] == [1, 1]
        assert runtime.registry.get("provider:claude").circuit == live.config.policy_of("claude").circuit


def test_a_signal_reloads_before_the_next_call(runtime, file):
    before = signal.getsignal(signal.SIGHUP)
    try:
        live = LiveConfig(runtime, file, environ={})
        live.reload_on_signal()
        calling = recover("claude", runtime=runtime)
        file.write_text("[policy]\nattempts = 6\n")
        os.kill(os.getpid(), signal.SIGHUP)
        assert attempts(runtime) == 5
        calling.call(len, "x")
        assert attempts(runtime) == 6
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_bad_reload_on_a_signal_is_reported_and_breaks_no_call(runtime, file):
    heard = Capture()
    runtime.on(heard, SuppressedError)
    live = LiveConfig(runtime, file, environ={})
    calling = recover("claude", runtime=runtime)
    file.write_text("[policy]\nattempts = 0\n")
    live.reload_soon()
    assert calling.call(len, "x") == 1
    (event,) = heard.of(SuppressedError)
    assert "the old settings stay in use" in event.reason
    assert "policy.attempts" in event.cause
    assert attempts(runtime) == 5
    assert calling.call(len, "x") == 1
    assert len(heard) == 1


def test_settings_that_say_nothing_about_the_log_leave_it_as_the_runtime_has_it():
    quiet, loud = Runtime(), Runtime(log=True)
    for runtime in (quiet, loud):
        read({"policy": {"attempts": 2}}).apply(runtime)
    assert (quiet.log, loud.log) == (False, True)
    read({"log": True}).apply(quiet)
    read({"log": False}).apply(loud)
    assert (quiet.log, loud.log) == (True, False)
