"""`holdfast policy show|check|simulate` and `holdfast config schema`"""

from __future__ import annotations

import heapq
import json

import pytest
from cli_runs import holdfast

from holdfast import Policy
from holdfast.config import json_schema
from holdfast.testing.clock import seeded
from holdfast.testing.load import TOKENS, Load
from holdfast.testing.provider.limits import Limits

GOOD = "[policy]\nattempts = 2\n[targets.claude]\ntimeout = 5\n"
WRONG = "[policy]\nattempts = 0\ntimeot = 3\n"
SUSPICIOUS = "[policy]\nattempts = 4\ncircuit = { failures = 2 }\n"


@pytest.fixture(autouse=True)
def somewhere_quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def file(tmp_path):
    def written(text: str) -> str:
        path = tmp_path / "settings.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return written


def document(*arguments: str, given: str | None = None, status: int = 0):
    result = holdfast("policy", *arguments, "--json", given=given)
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


# --- show ---


def test_show_has_the_delays_and_the_worst_case(file):
    result = holdfast("policy", "show", file(GOOD))
    assert result.exit_code == 0
    shown = [line.split() for line in result.stdout.splitlines()]
    assert ["transient", "18", "2", "0.56-0.84", "s", "no", "limit"] in shown
    assert ["transient", "18", "2", "0.56-0.84", "s", "11", "s"] in shown
    assert "no limit: only the client's own ends a call that hangs" in result.stdout
    assert ["attempts", "at", "most", "2,", "which", "start", "for", "2", "min"] in shown
    assert ["deadline", "none"] in shown
    assert "default  Policy(attempts=2)" in result.stdout
    assert "provider:claude  Policy(attempts=2, timeout=5.0)" in result.stdout


@pytest.mark.parametrize(
    ("settings", "fact", "text"),
    [
        ("", "attempts", "start for 2 min"),
        ("attempts = 1", "attempts", "1: a failed call is not retried"),
        ("", "circuit", "opens after failures in 12 seconds without a good answer; for 1 s, later up to 5 s"),
        ("circuit = { failures = 2, open_for = 15 }", "circuit",
         "opens after 2 failures in a row, or if 50 % of at least 10 calls in 60 s fail; for 15 s"),
        ("circuit = { failures = 3, counted = 'window', rate = 'none', slow = 5, slow_rate = 0.25 }", "circuit",
         "opens after 3 failures in 60 s, or if 25 % of at least 10 calls in 60 s take 5 s or longer; for 30 s"),
        ("circuit = { mode = 'forced-open' }", "circuit", "forced-open: rejects all calls"),
        ("circuit = 'none'", "circuit", "none"),
    ],
)  # fmt: skip
def test_show_says_in_words_what_a_policy_does(file, settings, fact, text):
    shown = holdfast("policy", "show", file(f"[policy]\n{settings}\n")).stdout
    facts = dict(line.split(maxsplit=1) for line in shown.splitlines() if line.startswith("  "))
    assert facts[fact] == text


def test_show_is_the_same_in_json(file):
    shown = document("show", file(GOOD))
    assert shown["schema"] == "holdfast.policy.show/1"
    assert [policy["name"] for policy in shown["policies"]] == ["default", "provider:claude"]
    (transient,) = (each for each in shown["policies"][1]["outlook"] if each["what"] == "transient")
    assert (transient["calls"], transient["seconds"]) == (2, pytest.approx(10.84))
    assert eval(shown["policies"][1]["policy"]) == Policy(attempts=2, timeout=5)


def test_show_of_one_target_and_of_stdin():
    shown = document("show", "-", "--target", "claude", given=GOOD)
    assert (shown["source"], [policy["timeout_s"] for policy in shown["policies"]]) == ("stdin", [5])


def test_without_a_file_it_is_what_a_program_started_here_would_have(somewhere_quiet, monkeypatch):
    assert document("show")["source"] == "defaults"
    (somewhere_quiet / "holdfast.toml").write_text(GOOD)
    monkeypatch.setenv("HOLDFAST_ATTEMPTS", "7")
    assert "attempts=7" in document("show")["policies"][0]["policy"]


def test_what_never_happens_is_not_shown_as_if_it_did(file):
    result = holdfast("policy", "show", file("[policy]\nattempts = 9\nbackoff = { initial = 60, cap = 60 }\n"))
    assert "48-60 s, 48-60 s, (6 more never fit)" in result.stdout


# --- check ---


def test_check_of_what_is_right(file):
    result = holdfast("policy", "check", file(GOOD))
    assert result.exit_code == 0
    assert result.stdout.endswith("is valid, 0 warnings\n")


def test_check_lists_every_mistake_and_exits_2(file):
    result = holdfast("policy", "check", file(WRONG))
    assert result.exit_code == 2
    assert "policy.attempts" in result.stdout
    assert "policy.timeot" in result.stdout
    assert "2 mistakes. The first recovery of a program raises this until they are corrected." in result.stderr
    found = document("check", file(WRONG), status=2)
    assert (found["schema"], found["valid"]) == ("holdfast.policy.check/1", False)
    assert [problem["path"] for problem in found["problems"]] == ["policy.timeot", "policy.attempts"]


def test_check_says_the_line_and_counts_one_mistake_as_one(file):
    result = holdfast("policy", "check", file("enabled = true\n\n[targets.fares]\nper_second = -2\n"))
    row = next(line for line in result.stdout.splitlines() if "targets.fares.per_second" in line)
    assert row.split()[0] == "4"
    assert "1 mistake. The first recovery of a program raises this until it is corrected." in result.stderr


def test_check_warns_and_only_strict_makes_it_an_exit_code(file):
    assert holdfast("policy", "check", file(SUSPICIOUS)).exit_code == 0
    assert holdfast("policy", "check", file(SUSPICIOUS), "--strict").exit_code == 8
    assert holdfast("policy", "check", file(GOOD), "--strict").exit_code == 0
    found = document("check", file(SUSPICIOUS))
    assert [each["about"] for each in found["advice"] if each["level"] == "warning"] == ["circuit.failures"]


def test_check_warns_that_recovery_is_off(file):
    found = document("check", file("enabled = false"))
    assert found["advice"][0]["about"] == "mode"


def test_advice_that_two_policies_share_is_shown_once(file):
    found = document("check", file(SUSPICIOUS + "[targets.claude]\ntimeout = 9\n"))
    assert [each["policy"] for each in found["advice"] if each["about"] == "circuit.failures"] == ["default"]


@pytest.mark.parametrize("verb", ["show", "check", "simulate"])
def test_a_file_that_is_not_there_exits_3_and_a_wrong_one_2(verb, file):
    missing = holdfast("policy", verb, "nowhere.toml")
    assert (missing.exit_code, missing.stdout) == (3, "")
    assert "cannot read nowhere.toml: No such file" in missing.stderr
    assert "--target" not in missing.stderr
    target = holdfast("policy", verb, "tides")
    assert target.exit_code == 3
    assert "help: for the policy of a target: holdfast policy show --target tides" in target.stderr
    folder = holdfast("policy", verb, ".")
    assert (folder.exit_code, folder.stdout) == (2, "")
    assert "cannot read .: Is a directory" in folder.stderr
    assert holdfast("policy", verb, file(WRONG)).exit_code == 2
    assert holdfast("policy", verb, "-", given="[policy").exit_code == 2


# --- simulate ---


def test_simulate_is_seeded_and_plots(file):
    settings = file("base = 'patient'")
    result = holdfast("policy", "simulate", settings, "--seed", "4")
    assert result.stdout == holdfast("policy", "simulate", settings, "--seed", "4").stdout
    assert result.stdout != holdfast("policy", "simulate", settings, "--seed", "5").stdout
    lanes = {line.split()[0]: line for line in result.stdout.splitlines() if "|" in line}
    assert list(lanes) == ["good", "failed", "blocked", "outage"]
    assert len({lane.count("|") for lane in lanes.values()}) == 1
    assert "█" in lanes["good"]
    assert "x" in lanes["outage"]


def test_simulate_in_json_holds_what_is_shown(file):
    found = document("simulate", file(""), "--outage", "5:30", "--rate", "60/m", "--duration", "60", "--seed", "2")
    assert found["schema"] == "holdfast.policy.simulate/1"
    assert (found["outage"]["begins"], found["outage"]["ends"], found["outage"]["rate"]) == (5, 30, 1)
    assert found["succeeded"] + found["failed"] == found["operations"]
    assert sum(second["good"] for second in found["seconds"]) == found["succeeded"]
    shown = holdfast(
        "policy", "simulate", file(""), "--outage", "5:30", "--rate", "60/m", "--duration", "60", "--seed", "2"
    )
    assert ["wasted", "calls", str(found["wasted_calls"])] in [line.split() for line in shown.stdout.splitlines()]


def plain_client(load: Load, seed: int) -> tuple[int, int]:
    """Play a load with a client that retries twice, as the SDKs do; return its answers and rejected calls."""
    limits, rng = Limits([load.enforced]), seeded(seed)
    moments = [(due, number, 0, None) for number, due in enumerate(load.due(rng))]
    heapq.heapify(moments)
    answered = rejected = 0
    while moments:
        at, number, attempt, running = heapq.heappop(moments)
        if running is not None:
            limits.release(running)
            continue
        admission = limits.admit("key", "model", tokens=TOKENS, at=at)
        if admission.rejection is None:
            answered += 1
            heapq.heappush(moments, (at + load.answers_in, number, attempt, admission))
            continue
        rejected += 1
        if attempt < 2:
            delay = admission.rejection.seconds or 0.5 * 2**attempt * (1 - 0.25 * rng.random())
            heapq.heappush(moments, (at + delay, number, attempt + 1, None))
    return answered, rejected


@pytest.mark.parametrize("kind", ["bucket", "silent-bucket", "tokens", "burst", "concurrency"])
def test_simulate_of_a_limit_on_the_load(kind, file):
    settings = ["simulate", file(""), "--kind", kind, "--rate", "2/s", "--seed", "3"]
    found = document(*settings)
    assert found["load"]["kind"] == kind
    assert found["succeeded"] + found["failed"] == found["operations"] > 0
    assert sum(second["good"] for second in found["seconds"]) == found["succeeded"]
    assert found["calls"] - found["wasted_calls"] == found["succeeded"]
    assert found["succeeded"] >= 0.9 * found["operations"]
    answered, rejected = plain_client(Load(kind=kind, rate=2), seed=3)
    assert found["succeeded"] >= answered
    assert found["wasted_calls"] * answered <= rejected * found["succeeded"], "no more for each answer"
    if kind == "bucket":
        assert found["wasted_calls"] == 0, "it is announced"
    assert "time_to_recovery_s" not in found
    shown = holdfast("policy", *settings).stdout
    assert shown.startswith(f"default: {kind} of ")
    assert "outage" not in shown
    assert holdfast("policy", *settings).stdout == shown


def test_simulate_of_a_limit_that_the_user_gives(file):
    found = document("simulate", file(""), "--kind", "bucket", "--limit", "requests=30;headers=no", "--rate", "1/s")
    assert found["load"]["limit"]["requests"] == 30
    assert found["wasted_calls"] > 0


def test_simulate_of_an_outage_without_end(file):
    result = holdfast("policy", "simulate", file(""), "--outage", "0:9999", "--duration", "10")
    assert ["time", "to", "recovery", "never"] in [line.split() for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--outage", "60", "--outage: expected FROM:TO in seconds"),
        ("--outage", "1.2.3:5", "--outage: expected FROM:TO in seconds"),
        ("--outage", "60:5", "outage.ends: expected after it begins"),
        ("--rate", "fast", "--rate: expected a number per s, m or h"),
        ("--rate", "1000000/s", "outage.rate: expected at most 1,000,000 operations"),
        ("--duration", "0", "outage.duration"),
        ("--code", "NO_SUCH", "--code: expected a code of the catalog"),
        ("--kind", "storm", "--kind: expected one of blips, brownout, bucket"),
        ("--limit", "requests=60", "--limit: expected a --kind beside it"),
    ],
)
def test_simulate_with_wrong_flags_exits_2(flag, value, message):
    result = holdfast("policy", "simulate", flag, value)
    assert result.exit_code == 2
    assert message in result.stderr


# --- schema ---


def test_the_schema_is_printed():
    result = holdfast("config", "schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json_schema()


def test_a_mistyped_target_is_not_shown_as_if_it_were_configured():
    wrong = holdfast("policy", "show", "-", "--target", "cluade", given="[targets.claude]\nattempts = 1\n")
    assert "has no policy for cluade; did you mean `claude`? This is the default policy." in wrong.stderr
    right = holdfast("policy", "show", "-", "--target", "claude", given="[targets.claude]\nattempts = 1\n")
    assert "has no policy" not in right.stderr
    assert "not used: a failed call is not retried" in right.stdout


def test_how_many_good_probes_close_a_circuit_is_shown():
    given = "[policy.circuit]\nfailures = 3\nopen_for = 10\nsuccesses = 2\n"
    assert "closes after 2 good probes" in holdfast("policy", "show", "-", given=given).stdout
