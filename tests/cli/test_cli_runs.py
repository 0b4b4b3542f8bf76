"""`holdfast runs`: which calls recovered or failed, and what each second of them was spent on."""

from __future__ import annotations

import json

import pytest
from cli_runs import holdfast, holdfast_json

import holdfast as library
from holdfast import Policy, Runtime, recover
from holdfast.journal import journal_to
from holdfast.policies import Backoff
from holdfast.testing import VirtualClock, run, script

STEADY = Policy(attempts=3, backoff=Backoff(initial=1.0, factor=2.0, jitter="none"), circuit=None)


@pytest.fixture
def journal(tmp_path):
    clock = VirtualClock()
    runtime = Runtime(clock=clock)

    async def calls():
        with library.request("req-1"):
            await recover("claude", STEADY, runtime=runtime).call(script("529, 529, ok").acall)
        with pytest.raises(Exception, match="401"):
            await recover("openai", STEADY, runtime=runtime).call(script("401").acall)
        await recover("claude", STEADY, runtime=runtime).call(script("ok").acall)

    path = tmp_path / "j.db"
    with journal_to(path, runtime, process="api-1"):
        run(calls(), clock=clock)
    return str(path)


def listed(journal, *arguments):
    return [each["operation"] for each in holdfast_json("runs", "ls", "--journal", journal, *arguments)["runs"]]


def test_the_latest_run_comes_first_and_good_ones_are_not_listed(journal):
    assert listed(journal) == ["openai", "claude"]
    table = holdfast("runs", "ls", "--journal", journal).stdout
    assert "recovered" in table
    assert "PROVIDER_OVERLOADED" in table


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (("--outcome", "failed"), ["openai"]),
        (("--code", "PROVIDER_OVERLOADED"), ["claude"]),
        (("--request", "req-1"), ["claude"]),
        (("--operation", "claude"), ["claude"]),
        (("--until", "2020-01-01"), []),
        (("--since", "2020-01-01"), ["openai", "claude"]),
        (("--limit", "1"), ["openai"]),
    ],
)
def test_a_run_must_fit_every_filter(journal, flags, found):
    assert listed(journal, *flags) == found


def test_a_run_is_drawn_with_its_attempts_and_waits(journal):
    record = holdfast_json("runs", "ls", "--journal", journal, "--outcome", "recovered")["runs"][0]
    shown = holdfast("runs", "show", record["run"], "--journal", journal).stdout.splitlines()
    assert shown[0] == "claude recovered after 3.0 s"
    facts = dict(line.strip().split("  ", 1) for line in shown[1:] if "│" not in line)
    assert facts["request"].strip() == "req-1"
    assert facts["process"].strip() == "api-1"
    assert sum("backoff" in line for line in shown) == 2
    assert sum("→ attempt" in line for line in shown) == 3


def test_the_json_has_the_same_rows(journal):
    record = holdfast_json("runs", "ls", "--journal", journal, "--outcome", "recovered")["runs"][0]
    shown = json.loads(holdfast("runs", "show", record["run"], "--journal", journal, "--json").stdout)
    assert shown["run"] == record
    assert [(bar["kind"], bar["seconds"]) for bar in shown["bars"]] == [
        ("run", 3.0),
        ("attempt", 0.0),
        ("wait", 1.0),
        ("attempt", 0.0),
        ("wait", 2.0),
        ("attempt", 0.0),
    ]


def test_without_a_journal_nothing_is_made_and_the_way_to_one_is_shown(tmp_path):
    done = holdfast("runs", "ls", "--journal", str(tmp_path / "none.db"))
    assert done.exit_code == 3
    assert "journal_to()" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_there_is_not_found(journal):
    done = holdfast("runs", "show", "nobody", "--journal", journal)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "has no run nobody" in done.stderr
