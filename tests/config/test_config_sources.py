"""Where settings come from: the file, the environment, and the default runtime that loads them."""

from __future__ import annotations

import os

import msgspec
import pytest

from holdfast import Policy, recover
from holdfast.config import Config, ConfigError, find_file, load
from holdfast.config.lines import line_of
from holdfast.config.sources import variables
from holdfast.policies.target import Target
from holdfast.profiles import phase
from holdfast.runtime.runtime import default_runtime, use_runtime
from holdfast.testing import script

# --- the file and the variables ---


@pytest.mark.parametrize("name", sorted(variables()))
@pytest.mark.parametrize("empty", ["", " "])
def test_a_variable_that_is_empty_counts_as_not_set(tmp_path, name, empty):
    assert load(environ={name: empty, "RESILIENCE_ENABLED": empty}, folder=tmp_path) == Config(source="defaults")


def test_FR20_only_the_file_of_the_current_folder_is_used(tmp_path, caplog):
    inner = tmp_path / "a"
    inner.mkdir()
    (tmp_path / "holdfast.toml").write_text("[policy]\nattempts = 5")
    assert load(environ={}, folder=inner) == Config(source="defaults")
    assert find_file(inner) is None
    assert f"set HOLDFAST_CONFIG={tmp_path}/holdfast.toml" in caplog.text
    caplog.clear()
    (inner / "holdfast.toml").write_text("[policy]\nattempts = 6")
    assert load(environ={}, folder=inner).policy.attempts == 6
    assert find_file(inner) == inner / "holdfast.toml"
    assert load(environ={"HOLDFAST_CONFIG": str(tmp_path / "holdfast.toml")}, folder=inner).policy.attempts == 5
    assert caplog.text == ""


def test_FR20_a_file_that_everybody_may_write_is_ignored_unless_it_is_named(tmp_path, caplog):
    file = tmp_path / "holdfast.toml"
    file.write_text("enabled = false")
    file.chmod(0o666)
    assert load(environ={}, folder=tmp_path).enabled
    assert "everybody may write it" in caplog.text
    assert not load(environ={"HOLDFAST_CONFIG": str(file)}, folder=tmp_path).enabled


def test_FR20_a_file_of_another_user_is_ignored_and_one_of_root_is_not(tmp_path, caplog, monkeypatch):
    file = tmp_path / "holdfast.toml"
    file.write_text("enabled = false")
    monkeypatch.setattr("os.geteuid", lambda: file.stat().st_uid + 1)
    if file.stat().st_uid == 0:
        assert not load(environ={}, folder=tmp_path).enabled
        os.chown(file, 12345, -1)
    assert load(environ={}, folder=tmp_path).enabled
    assert "it belongs to another user" in caplog.text


def test_FR20_no_file_is_looked_for_where_the_variable_says_none(tmp_path, caplog):
    (tmp_path / "holdfast.toml").write_text("enabled = false")
    assert load(environ={"HOLDFAST_CONFIG": "none"}, folder=tmp_path) == Config(source="defaults")
    assert caplog.text == ""


def test_FR20_variables_that_are_not_settings_are_a_warning(tmp_path, caplog):
    environ = {
        "HOLDFAST_PORT_80_TCP": "tcp://10.0.0.1:80",
        "HOLDFAST_SERVICE_HOST": "10.0.0.1",
        "HOLDFAST_ATEMPTS": "3",
    }
    assert load(environ=environ, folder=tmp_path) == Config(source="defaults")
    (record,) = caplog.records
    assert record.getMessage().split("; ") == [
        "HOLDFAST_ATEMPTS is not a setting and is ignored (did you mean `HOLDFAST_ATTEMPTS`?)",
        "HOLDFAST_PORT_80_TCP is not a setting and is ignored",
        "HOLDFAST_SERVICE_HOST is not a setting and is ignored",
    ]


def test_FR20_what_is_not_a_setting_is_logged_once_by_a_program_that_loads_its_settings_again(tmp_path, caplog):
    for _ in range(3):
        load(environ={"HOLDFAST_HOME": "/srv"}, folder=tmp_path)
    assert [record.getMessage() for record in caplog.records] == ["HOLDFAST_HOME is not a setting and is ignored"]


def test_every_mistake_has_a_line_of_its_own_and_the_line_of_the_file(tmp_path):
    file = tmp_path / "holdfast.toml"
    file.write_text('# mine\n[policy]\natempts = 3\n\n[targets."tool:bash"]\nper_second = -2\n')
    with pytest.raises(ConfigError) as caught:
        load(environ={"HOLDFAST_TIMEOUT": "soon"}, folder=tmp_path)
    assert caught.value.fault.message.splitlines() == [
        f"{file}: 3 mistakes",
        """  HOLDFAST_TIMEOUT: expected a number or "none", got 'soon'""",
        "  line 3: policy.atempts: unknown option `atempts`; did you mean `attempts`?",
        '  line 6: targets.tool:bash.per_second: expected a finite number > 0 or "none", got -2.0',
    ]
    assert [problem.line for problem in caught.value.problems] == [0, 3, 6]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("base", 1),
        ("policy.attempts", 4),
        ("policy.circuit.failures", 5),
        ("policy.backoff.steps[2]", 8),
        ("policy.backoff.cap", 7),
        ("targets.tool:bash.timeout", 11),
        ("targets.other.timeout", 0),
        ("policies", 0),
    ],
)
def test_the_line_of_an_option_or_of_its_table(path, line):
    text = """base = "patient"
# [policy]
[policy]
attempts = 4
circuit = { failures = 3 }

[policy.backoff]
steps = [1, 2, 0]

[targets."tool:bash"] # a tool
timeout = 5
"""
    assert line_of(text, path) == line


def test_no_file_is_no_mistake_and_a_named_one_that_is_missing_is(tmp_path):
    assert load(environ={}, folder=tmp_path) == Config(source="defaults")
    with pytest.raises(ConfigError, match="expected a file that can be read, got No such file or directory"):
        load(environ={"HOLDFAST_CONFIG": str(tmp_path / "none.toml")}, folder=tmp_path)
    with pytest.raises(ConfigError, match="expected a file that can be read"):
        load(tmp_path / "none.toml", environ={})


@pytest.mark.parametrize(
    ("raw", "message"),
    [(b"[policy\n", r"expected TOML, got a syntax error: .*line 1"), (b"x = '\xff'", "expected text in UTF-8")],
)
def test_a_file_that_is_not_toml(tmp_path, raw, message):
    (tmp_path / "holdfast.toml").write_bytes(raw)
    with pytest.raises(ConfigError, match=message) as raised:
        load(environ={}, folder=tmp_path)
    assert str(raised.value).count("holdfast.toml") == 1


def test_the_environment_wins_over_the_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("profile = 'stud'\n[policy]\nattempts = 5\ndeadline = 90\n[targets.claude]\ntimeout = 9")
    environ = {
        "HOLDFAST_CONFIG": str(file),
        "HOLDFAST_ATTEMPTS": "2",
        "HOLDFAST_DEADLINE": "none",
        "HOLDFAST_PATIENCE": "45",
        "HOLDFAST_PRIORITY": "high",
        "HOLDFAST_PHASE": "4",
        "HOLDFAST_WAIT_FOR_CIRCUIT": "yes",
        "HOLDFAST_SOAK": "1",
        "HOLDFAST_TOKEN": "a secret, and nobody's setting",
    }
    config = load(environ=environ)
    changes = {"attempts": 2, "deadline": None, "patience": 45.0, "priority": "high", "wait_for_circuit": True}
    assert config.policy == phase(4).policy.replace(**changes)
    assert config.policy_of("claude") == config.policy.replace(timeout=9)


@pytest.mark.parametrize(
    ("environ", "enabled"),
    [
        ({"HOLDFAST_ENABLED": "false"}, False),
        ({"RESILIENCE_ENABLED": " Off "}, False),
        ({"HOLDFAST_ENABLED": "1", "RESILIENCE_ENABLED": "0"}, True),
    ],
)
def test_S1_25_the_switch(tmp_path, environ, enabled):
    assert load(environ=environ, folder=tmp_path).enabled is enabled


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HOLDFAST_ATTEMPTS", "three", "HOLDFAST_ATTEMPTS: expected a whole number or \"none\", got 'three'"),
        ("HOLDFAST_TIMEOUT", "0", "HOLDFAST_TIMEOUT: expected a finite number of seconds > 0"),
        ("HOLDFAST_COUNTS", "all", "HOLDFAST_COUNTS: expected one of attempt, operation, got 'all'"),
        ("HOLDFAST_PROFILE", "spec", "HOLDFAST_PROFILE: unknown profile `spec`; did you mean `spec016`"),
        ("HOLDFAST_ENABLED", "maybe", "HOLDFAST_ENABLED: expected true or false, got 'maybe'"),
        ("RESILIENCE_ENABLED", "maybe", "RESILIENCE_ENABLED: expected true or false, got 'maybe'"),
    ],
)
def test_a_wrong_variable_is_shown_by_its_name(tmp_path, name, value, message):
    with pytest.raises(ConfigError, match=message):
        load(environ={name: value}, folder=tmp_path)


def test_every_plain_option_has_its_variable():
    plain = {field.name for field in msgspec.structs.fields(Policy)} - {
        "backoff",
        "circuit",
        "retry_quota",
        "hedge",
        "per_code",
    }
    assert {name.removeprefix("HOLDFAST_").lower() for name in variables()} == plain | {
        "enabled",
        "mode",
        "log",
        "base",
        "phase",
        "shared_url",
    }


def test_a_variable_names_the_engine_and_the_file_its_namespace(tmp_path):
    (tmp_path / "holdfast.toml").write_text('[shared]\nurl = "redis://file"\nnamespace = "shop"')
    environ = {"HOLDFAST_SHARED_URL": "redis://cache:6379/0"}
    shared = load(environ=environ, folder=tmp_path).shared
    assert (shared.url, shared.namespace) == ("redis://cache:6379/0", "shop")


# --- the default runtime ---


def test_the_default_runtime_loads_them(tmp_path, monkeypatch):
    (tmp_path / "holdfast.toml").write_text("[policy]\nattempts = 1\n[targets.claude]\nattempts = 2")
    monkeypatch.chdir(tmp_path)
    with use_runtime(None):
        assert default_runtime().policy_for(Target()).attempts == 1
        assert default_runtime().policy_for(Target(provider="claude")).attempts == 2
        failing = script("503, 503")
        with pytest.raises(Exception, match="503"):
            recover("openai").call(failing)
        assert failing.calls == 1


def test_a_bad_configuration_refuses_to_start(tmp_path, monkeypatch):
    (tmp_path / "holdfast.toml").write_text("[policy]\nattempts = 0")
    monkeypatch.chdir(tmp_path)
    with use_runtime(None):
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"holdfast\.toml: line 2: policy\.attempts"):
                recover("claude")


def test_S1_25_off_is_a_plain_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_ENABLED", "false")
    with use_runtime(None):
        failing = script("503, ok")
        with pytest.raises(Exception, match="503") as caught:
            recover("claude").call(failing)
    assert failing.calls == 1
    assert not getattr(caught.value, "__notes__", [])


def test_settings_of_a_file_that_a_variable_overrides_name_both(tmp_path):
    (tmp_path / "holdfast.toml").write_text("[policy]\nattempts = 5\n")
    both = load(environ={"HOLDFAST_ATTEMPTS": "1"}, folder=tmp_path)
    assert (both.policy.attempts, both.source) == (1, f"{tmp_path / 'holdfast.toml'} and the environment")
    assert load(environ={}, folder=tmp_path).source == str(tmp_path / "holdfast.toml")
