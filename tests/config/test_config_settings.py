"""Settings as a value: what a file changes, and what is wrong with it, all of it at once."""

from __future__ import annotations

import pickle

import pytest
from config_kit import WHOLE, settings_of

from holdfast import BATCH, INTERACTIVE, PATIENT, Backoff, Circuit, Hedge, InvalidError, Policy, Quota, Runtime, Tries
from holdfast.config import Config, ConfigError, read
from holdfast.policies.circuit import BRIDGE, GRADED
from holdfast.policies.target import Target
from holdfast.profiles import phase, policy_of, spec016
from holdfast.testing import VirtualClock


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        settings_of(text)
    return [str(problem) for problem in caught.value.problems]


# --- what a file changes ---


def test_a_whole_file():
    config = settings_of(WHOLE)
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
    assert settings_of(text).policy == policy
    assert settings_of(text).supervision is ("phase = 1" not in text)


def test_a_targets_policy_starts_from_the_default_one():
    config = settings_of("[policy]\nattempts = 7\n[targets.claude]\ntimeout = 5")
    assert config.policy_of("claude") == Policy(attempts=7, timeout=5)
    assert config.policy_of("provider:claude") == config.policy_of("claude")
    assert config.policy_of("openai") == config.policy_of(None) == Policy(attempts=7)


def test_zero_means_zero():
    assert settings_of("[policy]\nspread = 0\nmax_retry_after = 0\nconcurrency = 1\nwaiting = 0").policy.waiting == 0


def test_an_option_that_was_removed_is_ignored_with_a_warning():
    with pytest.warns(FutureWarning) as caught:
        config = settings_of("[policy.circuit]\npersist = true\nfailures = 7")
    assert [str(each.message) for each in caught] == ["policy.circuit.persist has no effect and is ignored: remove it"]
    assert config == settings_of("[policy.circuit]\nfailures = 7")


def test_only_a_circuit_has_the_removed_option():
    assert problems("[policy]\npersist = true")[0].startswith("policy.persist: unknown option `persist`")


@pytest.mark.parametrize(
    "option", ["insecure = true", "bridge_token = 'x'", "tokens_file = 'x'", "tls_key = 'x'", "project_root = '/'"]
)
def test_a_file_does_not_decide_who_may_come_to_a_bridge(option):
    """A file in a checkout belongs to the user who checked it out, whoever wrote it."""
    assert problems(f"[bridge]\n{option}")[0].startswith(f"bridge.{option.partition(' ')[0]}: unknown option")


# --- mistakes ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("polic = 1", "polic: unknown option `polic`; did you mean `policy`?"),
        ("x = 1", "x: unknown option `x`; use one of enabled, log, mode, base, profile, phase, policy, targets, roles, alerts, bridge, shared"),
        ("[bridge]\nprot = 1", "bridge.prot: unknown option `prot`; did you mean `port`?"),
        ("[bridge]\nport = 70000", "bridge.port: expected a port from 0 to 65535, got 70000"),
        (
            "[bridge]\nconnection = { max_frame = 0 }",
            "bridge.connection.max_frame: expected a whole number ≥ 1, got 0",
        ),
        ("enabled = 'yes'", "enabled: expected true or false, got 'yes'"),
        ("log = 'loud'", "log: expected true or false, got 'loud'"),
        ("base = 'slow'", "base: unknown base `slow`; use one of interactive, patient, batch"),
        ("profile = 'spec16'", "profile: unknown profile `spec16`; did you mean `spec016`?"),
        ("phase = 5", "phase: expected a number from 1 to 4, got 5"),
        ("phase = true", "phase: expected a number from 1 to 4, got true"),
        (
            "phase = 1\nprofile = 'stud'",
            "phase: expected only one of base, profile, phase, got profile and phase together",
        ),
        ("policy = 3", "policy: expected a table, got 3"),
        ("targets = []", "targets: expected a table of targets, got a list"),
        ("[targets]\n'' = {}", "targets: expected a name such as 'claude' or 'tool:bash', or a Target, got ''"),
        ("[targets.'tol:bash']", "targets: expected a name such as 'tool:bash', or Target(provider=…), got 'tol:bash'"),
        ("[policy]\nattempt = 1", "policy.attempt: unknown option `attempt`; did you mean `attempts`?"),
        ("[policy]\nattempts = '3'", 'policy.attempts: expected a whole number or "none", got \'3\''),
        ("[policy]\nattempts = true", 'policy.attempts: expected a whole number or "none", got true'),
        ("[policy]\nattempts = 0", 'policy.attempts: expected a whole number ≥ 1 or "none", got 0'),
        ("[policy]\ntimeout = nan", 'policy.timeout: expected a finite number of seconds > 0 or "none", got nan'),
        ("[policy]\ntimeout = 300\ndeadline = 120", "policy.timeout: expected at most policy.deadline (120 s), got 300.0"),
        ("[policy]\npatience = 0", 'policy.patience: expected a finite number of seconds > 0 or "none", got 0.0'),
        ("[policy]\npriority = 'first'", "policy.priority: expected one of high, normal, low, got 'first'"),
        ("[policy]\nwaiting = 3", "policy.waiting: expected policy.concurrency beside it, got no concurrency"),
        ("[policy]\nwait_for_circuit = 1", 'policy.wait_for_circuit: expected true, false or "none", got 1'),
        ("[policy]\ncounts = 'all'", "policy.counts: expected one of attempt, operation, got 'all'"),
        ("[policy]\nbackoff = 3", "policy.backoff: expected a table, got 3"),
        ("[policy]\nbackoff = {steps = [1, 'x']}", "policy.backoff.steps[1]: expected a number, got 'x'"),
        ("[policy]\nbackoff = {cap = 0.5}", "policy.backoff.cap: expected at least backoff.initial (1), got 0.5"),
        ("[policy]\ncircuit = 'brige'", "policy.circuit: unknown circuit `brige`; did you mean `bridge`?"),
        ("[policy]\ncircuit = 'x'", "policy.circuit: unknown circuit `x`; use one of graded, provider, bridge, spec016, actor"),
        ("base = 3", "base: expected one of batch, interactive, patient, got 3"),
        ("[policy]\nretries = 2", "policy.retries: unknown option `retries`; did you mean `attempts = 3`? (attempts count calls: 2 retries are 3 attempts)"),
        ("[policy.per_code.PROVIDER_OVERLOAD]", "policy.per_code: unknown code `PROVIDER_OVERLOAD`; did you mean `PROVIDER_OVERLOADED`?"),
        ("[policy]\ncircuit = {slow = 2}", 'policy.circuit.slow_rate: expected the share of slow calls that opens it, since slow is set, got "none"'),
        ("[policy]\nhedge = {most = 2}", "policy.hedge.after: expected a value, got nothing"),
        ("[policy]\nper_code = 1", "policy.per_code: expected a table of codes, got 1"),
        ("[targets.a]\n[targets.'provider:a']", "targets.provider:a: expected each target once, got another name of provider:a"),
    ],
)  # fmt: skip
def test_a_mistake_is_shown_with_its_path_what_was_expected_and_what_is_there(text, shown):
    assert problems(text) == [shown]


def test_all_mistakes_are_shown_at_once():
    shown = problems(
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
    assert [line.partition(":")[0] for line in shown] == [
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
        settings_of(text)
    assert caught.value.fault.code == code
    assert isinstance(caught.value, InvalidError)
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


def test_no_secret_is_shown():
    key = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv"
    (shown,) = problems(f"base = '{key}'")
    assert key not in shown


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policy": 3}, "config.policy: expected a Policy, got 3"),
        ({"targets": {"claude": None}}, "config.targets.claude: expected a Policy, got NoneType"),
        ({"targets": {"": Policy()}}, "config.targets: expected a name such as"),
        ({"enabled": "no"}, "config.enabled: expected true or false, got 'no'"),
        ({"log": "off"}, "config.log: expected true or false, got 'off'"),
    ],
)
def test_settings_made_in_code_are_checked(wrong, message):
    with pytest.raises(InvalidError, match=message):
        Config(**wrong)


def test_settings_made_in_code_are_applied_to_a_runtime():
    runtime = Runtime(clock=VirtualClock())
    Config(enabled=False, targets={"claude": Policy(attempts=9)}).apply(runtime)
    assert runtime.policy_for(Target(provider="claude")).attempts == 9
    assert not runtime.enabled


def test_a_circuit_table_in_place_of_the_default_circuit_starts_from_the_class_as_in_code():
    assert read({"policy": {"circuit": {"failures": 3, "open_for": 60}}}).policy.circuit == Circuit(
        failures=3, open_for=60
    )
    assert read({"policy": {"circuit": "graded"}}).policy.circuit is GRADED
    tables = {"policy": {"circuit": "bridge"}, "targets": {"claude": {"circuit": {"failures": 3}}}}
    assert read(tables).policy_of("claude").circuit == BRIDGE.replace(failures=3)
