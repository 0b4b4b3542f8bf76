"""Settings: what a file says, what is wrong with it, and all of it at once."""

from __future__ import annotations

import pickle
import tomllib
from pathlib import Path

import jsonschema
import msgspec
import pytest

from holdfast import (
    BATCH,
    INTERACTIVE,
    PATIENT,
    Backoff,
    Circuit,
    Hedge,
    InvalidError,
    Policy,
    Quota,
    Runtime,
    Tries,
    recover,
)
from holdfast.config import Config, ConfigError, find_file, json_schema, load, read
from holdfast.config.sources import variables
from holdfast.policies.circuit import BRIDGE
from holdfast.policies.target import Target
from holdfast.profiles import phase, policy_of, spec016
from holdfast.runtime.runtime import default_runtime, use_runtime
from holdfast.testing import VirtualClock, script

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs/reference/config.schema.json"

WHOLE = """
enabled = true
base = "patient"

[policy]
attempts = 4
deadline = 600
circuit = "bridge"
counts = "operation"

[policy.backoff]
initial = 2
jitter = "full"

[policy.per_code.PROVIDER_OVERLOADED]
attempts = 6
backoff = { steps = [1, 2, 5] }

[targets.claude]
timeout = "none"
circuit = { failures = 3, rate = "none" }
retry_quota = { share = 0.2 }

[targets."tool:bash"]
circuit = "none"
hedge = { after = 2 }
"""


def of(text: str) -> Config:
    return read(tomllib.loads(text), "holdfast.toml")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        of(text)
    return [str(problem) for problem in caught.value.problems]


# --- what a file says ---


def test_a_whole_file():
    config = of(WHOLE)
    policy = PATIENT.replace(
        attempts=4,
        deadline=600,
        circuit=BRIDGE,
        counts="operation",
        backoff=Backoff(initial=2, jitter="full"),
        per_code={"PROVIDER_OVERLOADED": Tries(attempts=6, backoff=Backoff(steps=(1, 2, 5)))},
    )
    assert config.policy == policy
    assert config.targets == {
        "provider:claude": policy.replace(
            timeout=None, circuit=BRIDGE.replace(failures=3), retry_quota=Quota(share=0.2)
        ),
        "tool:bash": policy.replace(circuit=None, hedge=Hedge(after=2)),
    }


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", INTERACTIVE),
        ("base = 'batch'", BATCH),
        ("profile = 'spec016'", policy_of(spec016)),
        ("phase = 1", phase(1).policy),
        ("phase = 4\n[policy]\nattempts = 2", phase(4).policy.replace(attempts=2)),
    ],
)
def test_S4_16_what_the_policy_starts_from(text, policy):
    assert of(text).policy == policy
    assert of(text).supervision is ("phase = 4" in text)


def test_a_targets_policy_starts_from_the_default_one():
    config = of("[policy]\nattempts = 7\n[targets.claude]\ntimeout = 5")
    assert config.policy_of("claude") == Policy(attempts=7, timeout=5)
    assert config.policy_of("provider:claude") == config.policy_of("claude")
    assert config.policy_of("openai") == config.policy_of(None) == Policy(attempts=7)


def test_zero_means_zero():
    assert of("[policy]\nspread = 0\nmax_retry_after = 0\nconcurrency = 1\nwaiting = 0").policy.waiting == 0


# --- what is wrong ---


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("polic = 1", "polic: expected a known name (policy?), got a name that is not known here"),
        ("x = 1", "x: expected one of alerts, base, enabled, phase, policy, profile, targets, got a name that is not known here"),
        ("enabled = 'yes'", "enabled: expected true or false, got 'yes'"),
        ("base = 'slow'", "base: expected one of batch, interactive, patient, got 'slow'"),
        ("profile = 'spec16'", "profile: expected a known name (spec016?), got 'spec16'"),
        ("phase = 5", "phase: expected a number from 1 to 4, got 5"),
        ("phase = true", "phase: expected a number from 1 to 4, got True"),
        (
            "phase = 1\nprofile = 'stud'",
            "phase: expected nothing beside profile: the policy starts from one of them, got both",
        ),
        ("policy = 3", "policy: expected a table, got 3"),
        ("targets = []", "targets: expected a table of targets, got a list"),
        ("[targets]\n'' = {}", "targets: expected names such as 'claude' or 'tool:bash', got ''"),
        ("[policy]\nattempt = 1", "policy.attempt: expected a known name (attempts?), got a name that is not known here"),
        ("[policy]\nattempts = '3'", 'policy.attempts: expected a whole number or "none", got \'3\''),
        ("[policy]\nattempts = true", 'policy.attempts: expected a whole number or "none", got True'),
        ("[policy]\nattempts = 0", 'policy.attempts: expected a whole number ≥ 1 or "none", got 0'),
        ("[policy]\ntimeout = nan", 'policy.timeout: expected a finite number of seconds > 0 or "none", got nan'),
        ("[policy]\ntimeout = 300", "policy.timeout: expected at most policy.deadline (120 s), got 300.0"),
        ("[policy]\nwaiting = 3", "policy.waiting: expected policy.concurrency beside it, got no concurrency"),
        ("[policy]\nwait_for_circuit = 1", 'policy.wait_for_circuit: expected true or false or "none", got 1'),
        ("[policy]\ncounts = 'all'", "policy.counts: expected one of attempt, operation, got 'all'"),
        ("[policy]\nbackoff = 3", "policy.backoff: expected a table, got 3"),
        ("[policy]\nbackoff = {steps = [1, 'x']}", "policy.backoff.steps[1]: expected a number, got a list"),
        ("[policy]\nbackoff = {cap = 0.5}", "policy.backoff.cap: expected at least backoff.initial (1), got 0.5"),
        ("[policy]\ncircuit = 'brige'", "policy.circuit: expected a table, 'none' or a known name (bridge?), got 'brige'"),
        ("[policy]\ncircuit = {slow = 2}", "policy.circuit.slow_rate: expected the share of slow calls that opens it, since slow is set, got NoneType"),
        ("[policy]\nhedge = {most = 2}", "policy.hedge.after: expected a value, got nothing"),
        ("[policy]\nper_code = 1", "policy.per_code: expected a table of codes, got 1"),
        ("[targets.a]\n[targets.'provider:a']", "targets.provider:a: expected each target once, got another name of provider:a"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place_what_was_expected_and_what_came(text, told):
    assert problems(text) == [told]


def test_all_mistakes_are_told_at_once():
    told = problems(
        """
        profil = "stud"
        [policy]
        attempts = 0
        timeout = -1
        backoff = { initial = "x", factor = 0.5 }
        [policy.per_code.PROVIDER_OVERLOAD]
        [targets.claude]
        timout = 3
        """
    )
    assert [line.partition(":")[0] for line in told] == [
        "profil",
        "policy.backoff.initial",
        "policy.backoff.factor",
        "policy.per_code",
        "policy.attempts",
        "policy.timeout",
        "targets.claude.timout",
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[policy]\nattempts = 0", "CONFIG_INVALID"),
        ("[policy]\ntimeout = 0", "CONFIG_TIMEOUT_INVALID"),
        ("[targets.a]\ndeadline = -1", "CONFIG_TIMEOUT_INVALID"),
        ("[policy.per_code.NO_SUCH]", "CONFIG_CODE_UNKNOWN"),
        ("[policy]\ntimeout = 0\nattempts = 0", "CONFIG_INVALID"),
    ],
)
def test_the_code_says_what_kind_of_mistake(text, code):
    with pytest.raises(ConfigError) as caught:
        of(text)
    assert caught.value.fault.code == code
    assert isinstance(caught.value, InvalidError)
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


def test_no_secret_is_shown():
    key = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv"
    (told,) = problems(f"base = '{key}'")
    assert key not in told


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"policy": 3}, "config.policy: expected a Policy, got 3"),
        ({"targets": {"claude": None}}, "config.targets.claude: expected a Policy, got NoneType"),
        ({"targets": {"": Policy()}}, "config.targets: expected names such as"),
        ({"enabled": "no"}, "config.enabled: expected true or false, got 'no'"),
    ],
)
def test_settings_made_in_code_are_checked(wrong, told):
    with pytest.raises(InvalidError, match=told):
        Config(**wrong)


# --- where settings come from ---


def test_the_nearest_file_here_or_above(tmp_path):
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    (tmp_path / "holdfast.toml").write_text("[policy]\nattempts = 5")
    assert load(environ={}, folder=inner).policy.attempts == 5
    (tmp_path / "a/holdfast.toml").write_text("[policy]\nattempts = 6")
    assert load(environ={}, folder=inner).policy.attempts == 6
    assert find_file(inner) == tmp_path / "a/holdfast.toml"


def test_no_file_is_no_mistake_and_a_named_one_that_is_missing_is(tmp_path):
    assert load(environ={}, folder=tmp_path) == Config(source="defaults")
    with pytest.raises(ConfigError, match="expected a file that can be read, got No such file or directory"):
        load(environ={"HOLDFAST_CONFIG": str(tmp_path / "none.toml")}, folder=tmp_path)
    with pytest.raises(ConfigError, match="expected a file that can be read"):
        load(tmp_path / "none.toml", environ={})


@pytest.mark.parametrize(
    ("raw", "told"), [(b"[policy\n", r"expected TOML, got .*line 1"), (b"x = '\xff'", "expected text in UTF-8")]
)
def test_a_file_that_is_no_toml(tmp_path, raw, told):
    (tmp_path / "holdfast.toml").write_bytes(raw)
    with pytest.raises(ConfigError, match=told):
        load(environ={}, folder=tmp_path)


def test_the_environment_wins_over_the_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("profile = 'stud'\n[policy]\nattempts = 5\ndeadline = 90\n[targets.claude]\ntimeout = 9")
    environ = {
        "HOLDFAST_CONFIG": str(file),
        "HOLDFAST_ATTEMPTS": "2",
        "HOLDFAST_DEADLINE": "none",
        "HOLDFAST_PHASE": "4",
        "HOLDFAST_WAIT_FOR_CIRCUIT": "yes",
        "HOLDFAST_SOAK": "1",
        "HOLDFAST_TOKEN": "a secret, and nobody's setting",
    }
    config = load(environ=environ)
    assert config.policy == phase(4).policy.replace(attempts=2, deadline=None, wait_for_circuit=True)
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
    ("name", "value", "told"),
    [
        ("HOLDFAST_ATEMPTS", "3", r"HOLDFAST_ATEMPTS: expected a known name \(HOLDFAST_ATTEMPTS"),
        ("HOLDFAST_ATTEMPTS", "three", "HOLDFAST_ATTEMPTS: expected a whole number or \"none\", got 'three'"),
        ("HOLDFAST_ATTEMPTS", "", "HOLDFAST_ATTEMPTS: expected a whole number or \"none\", got ''"),
        ("HOLDFAST_TIMEOUT", "0", "HOLDFAST_TIMEOUT: expected a finite number of seconds > 0"),
        ("HOLDFAST_COUNTS", "all", "HOLDFAST_COUNTS: expected a word, got 'all'"),
        ("HOLDFAST_PROFILE", "spec", "HOLDFAST_PROFILE: expected "),
        ("HOLDFAST_ENABLED", "maybe", "HOLDFAST_ENABLED: expected true or false, got 'maybe'"),
        ("RESILIENCE_ENABLED", "maybe", "RESILIENCE_ENABLED: expected true or false, got 'maybe'"),
    ],
)
def test_a_variable_that_is_wrong_is_told_by_its_name(tmp_path, name, value, told):
    with pytest.raises(ConfigError, match=told):
        load(environ={name: value}, folder=tmp_path)


def test_every_plain_option_has_its_variable():
    plain = {field.name for field in msgspec.structs.fields(Policy)} - {
        "backoff",
        "circuit",
        "retry_quota",
        "hedge",
        "per_code",
    }
    assert {name.removeprefix("HOLDFAST_").lower() for name in variables()} == plain | {"enabled", "base", "phase"}


# --- in force ---


def test_the_default_runtime_has_them_without_a_word(tmp_path, monkeypatch):
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
            with pytest.raises(ConfigError, match=r"holdfast\.toml: policy\.attempts"):
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


def test_settings_made_in_code_are_put_in_force():
    runtime = Runtime(clock=VirtualClock())
    Config(enabled=False, targets={"claude": Policy(attempts=9)}).apply(runtime)
    assert runtime.policy_for(Target(provider="claude")).attempts == 9
    assert not runtime.enabled


# --- the schema ---


def test_the_schema_in_the_documents_is_the_one_that_is_generated():
    assert msgspec.json.decode(SCHEMA.read_bytes()) == json_schema(), (
        "run: holdfast config schema > docs/reference/config.schema.json"
    )


def test_the_schema_takes_what_is_right_and_refuses_what_is_wrong():
    check = jsonschema.Draft202012Validator(json_schema())
    jsonschema.Draft202012Validator.check_schema(json_schema())
    check.validate(tomllib.loads(WHOLE))
    wrong = (
        "polic = 1",
        "phase = 5",
        "phase = 1\nbase = 'batch'",
        "[policy]\nattempts = '3'",
        "[policy]\ncircuit = 'brige'",
        "[policy.per_code.NO_SUCH]",
        "[targets.claude]\nx = 1",
    )
    assert [text for text in wrong if check.is_valid(tomllib.loads(text))] == []


def test_the_schema_explains_every_option():
    tables = json_schema()["$defs"]
    silent = [
        f"{table}.{name}"
        for table, described in tables.items()
        for name, option in described["properties"].items()
        if "description" not in option
    ]
    assert not silent
    assert tables["Policy"]["properties"]["max_retry_after"]["default"] == 900
    assert Circuit.__name__ in tables
